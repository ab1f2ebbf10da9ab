"""Lanes of a Gymnasium environment, stepped in loops: in this process, or in several.

A lane is one copy of the environment. Everything that is said about lanes stands in arrays that
are made once (`Board`): actions in, observations, rewards and ends out. Where several processes
step them, each loops over a block of lanes, the board lies in memory that all of them share, and a
step costs one byte to each process and one back.

A process is a fresh interpreter that loads neither JAX nor this program's main module. It ends
when its end of the socket is closed, so that none outlives the one that started it, however that
dies.
"""

import base64
import contextlib
import itertools
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float

from sotto.rl.envs.gymnasium import specs

_RESET, _STEP, _STEP_AND_RESET = b"r", b"s", b"a"
_READY, _FAILED = b"+", b"-"


class Shapes(NamedTuple):
    """What a board is made for."""

    lanes: int
    observation_size: int
    action_shape: tuple[int, ...]
    action_type: str


class Board(NamedTuple):
    """Arrays through which lanes are told what to do and tell what happened."""

    actions: np.ndarray
    """What each lane is to execute, [lanes, ...] in the action space's own shape and type."""
    playing: Bool[np.ndarray, " lanes"]
    """Lanes that are stepped or reset; the others are left alone."""
    seeds: np.ndarray
    """Seed of the next reset, [lanes] integers; negative goes on with the lane's own stream."""
    observations: Float[np.ndarray, "lanes obs"]
    """Where each lane is, after any reset."""
    following: Float[np.ndarray, "lanes obs"]
    """What the last step led to, before any reset."""
    rewards: Float[np.ndarray, " lanes"]
    terminated: Bool[np.ndarray, " lanes"]
    truncated: Bool[np.ndarray, " lanes"]
    """The time limit was reached, without termination."""

    def block(self, start: int, stop: int) -> "Board":
        """The rows of some lanes, in the same memory."""
        return Board(*(array[start:stop] for array in self))


def _board(shapes: Shapes, memory: Any = None) -> Board:
    """A board in `memory`, or in memory of its own."""
    seen = ((shapes.observation_size,), np.float32)
    flag: tuple[tuple[int, ...], Any] = ((), np.bool_)
    fields: tuple[tuple[tuple[int, ...], Any], ...] = (
        (shapes.action_shape, np.dtype(shapes.action_type)),
        flag,
        ((), np.int64),
        seen,
        seen,
        ((), np.float32),
        flag,
        flag,
    )
    arrays, offset = [], 0
    for shape, kind in fields:
        full = (shapes.lanes, *shape)
        if memory is None:
            arrays.append(np.zeros(full, kind))
        else:
            arrays.append(np.ndarray(full, kind, memory, offset))
        offset += -(-arrays[-1].nbytes // 64) * 64  # rows of different fields share no cache line
    return Board(*arrays)


def _bytes(shapes: Shapes) -> int:
    return sum(-(-array.nbytes // 64) * 64 for array in _board(shapes))


class Lanes(Protocol):
    """A board, and what can be done to its lanes."""

    board: Board

    def reset(self) -> None:
        """Resets the lanes that are playing, with their seeds."""

    def step(self, reset: bool) -> None:
        """One step of the lanes that are playing; `reset` those whose episode ends there."""

    def close(self) -> None:
        """Releases the environments."""


class LocalLanes:
    """Lanes in this process."""

    def __init__(
        self, environment: Any, options: dict[str, Any], action_repeat: int, board: Board
    ) -> None:
        """Makes one environment for each row of the board.

        Args:
            environment: what `specs.make` takes.
            options: of `gymnasium.make`.
            action_repeat: environment steps of one step, whose rewards are added.
            board: where they write.
        """
        self.board = board
        self._repeat = action_repeat
        self._envs = [specs.make(environment, options) for _ in board.playing]

    def reset(self) -> None:
        """As `Lanes.reset`."""
        board = self.board
        for lane in np.flatnonzero(board.playing):
            seed = int(board.seeds[lane])
            seen, _ = self._envs[lane].reset(seed=seed if seed >= 0 else None)
            board.observations[lane] = np.ravel(seen)

    def step(self, reset: bool) -> None:
        """As `Lanes.step`."""
        board = self.board
        for lane in np.flatnonzero(board.playing):
            env, action, total = self._envs[lane], board.actions[lane], 0.0
            for _ in range(self._repeat):
                seen, reward, terminated, truncated, _ = env.step(action)
                total += float(reward)
                if terminated or truncated:
                    break
            # What float32 has not is infinite, which whoever learns from it has to expect anyway.
            with np.errstate(over="ignore"):
                board.rewards[lane] = total
                board.following[lane] = seen = np.ravel(seen)
            board.terminated[lane] = terminated
            board.truncated[lane] = truncated and not terminated
            if reset and (terminated or truncated):
                seen = np.ravel(env.reset()[0])
            board.observations[lane] = seen

    def picture(self, lane: int) -> np.ndarray:
        """What a lane looks like, [height, width, 3]; made with render_mode="rgb_array"."""
        return np.asarray(self._envs[lane].render(), np.uint8)

    def close(self) -> None:
        """As `Lanes.close`."""
        for env in self._envs:
            env.close()


def local_lanes(
    environment: Any, options: dict[str, Any], action_repeat: int, shapes: Shapes
) -> LocalLanes:
    """Lanes in this process, with a board of their own."""
    return LocalLanes(environment, options, action_repeat, _board(shapes))


class LaneError(RuntimeError):
    """An environment raised, in another process."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(kind, said)  # so that it can be pickled
        self.kind, self.said = kind, said

    def __str__(self) -> str:
        return f"{self.kind} in a lane: {self.said}"


class ProcessLanes:
    """Lanes in several processes, each with a block of neighbouring ones.

    With `failed` nothing of the environment is seen here: the processes' output goes nowhere, and
    whatever happens in them, however they end, is that one error.

    Raises:
        ChildProcessError: a process was killed; the lanes are closed.
        LaneError: an environment raised there; the lanes are closed.
    """

    def __init__(
        self,
        environment: Any,
        options: dict[str, Any],
        action_repeat: int,
        shapes: Shapes,
        processes: int,
        failed: Exception | None = None,
    ) -> None:
        self._failed = failed
        folder = Path("/dev/shm")
        file = tempfile.TemporaryFile(dir=folder if folder.is_dir() else None)  # noqa: SIM115
        file.truncate(_bytes(shapes))
        self.board = _board(shapes, mmap.mmap(file.fileno(), _bytes(shapes)))
        self._what = str(getattr(environment, "id", environment))
        self._workers: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
        self._finalizer = weakref.finalize(self, _stop, self._workers)
        edges = np.linspace(0, shapes.lanes, processes + 1).astype(int).tolist()
        with file:
            for start, stop in itertools.pairwise(edges):
                rows = (start, stop)
                plan = (environment, options, action_repeat, shapes, rows, failed is not None)
                self._workers.append(_start(file.fileno(), plan))
        self._wait()

    def reset(self) -> None:
        """As `Lanes.reset`."""
        self._all(_RESET)

    def step(self, reset: bool) -> None:
        """As `Lanes.step`."""
        self._all(_STEP_AND_RESET if reset else _STEP)

    def close(self) -> None:
        """As `Lanes.close`; twice is fine."""
        self._finalizer()

    @property
    def process_ids(self) -> list[int]:
        """Of the processes that step the lanes."""
        return [process.pid for process, _ in self._workers]

    def _all(self, command: bytes) -> None:
        if not self._finalizer.alive:
            raise RuntimeError(f"the lanes of {self._what} are closed; make new ones")
        for _, connection in self._workers:
            # One that has died is found by `_wait`.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(command)
        self._wait()

    def _wait(self) -> None:
        """Until every process has answered."""
        for process, connection in self._workers:
            try:
                answer = connection.recv(1)
            except ConnectionResetError:
                answer = b""
            if answer == _READY:
                continue
            if self._failed is not None:
                self.close()
                break
            if answer == _FAILED:
                with connection.makefile("rb") as stream:
                    error: Exception = pickle.load(stream)
                self.close()
                raise error
            code = process.wait()
            self.close()
            raise ChildProcessError(
                f"process {process.pid}, which steps {self._what}, ended "
                + (f"by signal {-code}" if code < 0 else f"with exit code {code}")
                + "; start the training again, or resume it"
            )
        else:
            return
        raise self._failed  # outside of every other error, of which nothing is said


def _start(memory: int, plan: Any) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        words = (str(memory), str(theirs.fileno()), base64.b64encode(pickle.dumps(plan)).decode())
        output = subprocess.DEVNULL if plan[-1] else None
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN.format(path=sys.path, name=__name__), *words],
            pass_fds=(memory, theirs.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    return process, ours


MAIN = "import sys; sys.path[:] = {path!r}; from {name} import serve; serve(sys.argv)"
"""What another process runs: the import path of this one, before anything of ours is imported."""


def serve(words: Sequence[str]) -> None:
    """What a process does: steps its block of lanes whenever it is told to, until it is alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started it
    environment, options, action_repeat, shapes, (start, stop), unseen = pickle.loads(
        base64.b64decode(words[3])
    )
    with (
        socket.socket(fileno=int(words[2])) as connection,
        mmap.mmap(int(words[1]), _bytes(shapes)) as memory,
    ):
        try:
            lanes = LocalLanes(
                environment, options, action_repeat, _board(shapes, memory).block(start, stop)
            )
            connection.sendall(_READY)
            while command := connection.recv(1):
                if command == _RESET:
                    lanes.reset()
                else:
                    lanes.step(reset=command == _STEP_AND_RESET)
                connection.sendall(_READY)
        except ConnectionError:  # the one that started it has gone
            os._exit(0)
        except BaseException as error:
            if unseen:
                os._exit(0)
            if not isinstance(error, Exception):
                raise
            said = LaneError(type(error).__name__, str(error))
            connection.sendall(_FAILED + pickle.dumps(said))
        os._exit(0)  # the board's memory is still in use, which a tidy exit would complain about


def _stop(workers: list[tuple[subprocess.Popen[bytes], socket.socket]]) -> None:
    """Ends the processes and waits for them, so that none is left as a zombie."""
    for _, connection in workers:
        connection.close()
    for process, _ in workers:
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # in a step that takes for ever
            process.kill()
            process.wait()
