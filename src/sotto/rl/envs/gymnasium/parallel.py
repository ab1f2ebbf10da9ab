"""Parallel copies of a Gymnasium environment, stepped by this process or by several workers.

All communication goes through arrays that are allocated once (`Buffers`): actions go in, and
observations, rewards and ends of episodes come out. Each worker process steps a block of the
environments. The buffers lie in shared memory, so that a step costs one byte to each worker and
one byte back.

A worker is a fresh interpreter that loads neither JAX nor the main module of this program. It ends
when its socket is closed, so no worker outlives the process that started it.
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

from sotto.errors import failures_of
from sotto.rl.envs.gymnasium import specs
from sotto.rl.envs.gymnasium.at_once import AtOnce
from sotto.rl.envs.gymnasium.landers import landers_of
from sotto.rl.envs.gymnasium.mujoco_bodies import bodies_of
from sotto.rl.envs.gymnasium.shapes import flattened

_RESET, _STEP, _STEP_AND_RESET = b"r", b"s", b"a"
_READY, _FAILED = b"+", b"-"


class Shapes(NamedTuple):
    """Number of environments, and sizes of one observation and one action."""

    environments: int
    observation_size: int
    action_shape: tuple[int, ...]
    action_type: str


class Buffers(NamedTuple):
    """Inputs and outputs of all environments; the first axis is the environment."""

    actions: np.ndarray
    """Actions to execute, [envs, ...] in the action space's own shape and type."""
    playing: Bool[np.ndarray, " envs"]
    """Environments to step or reset; the others are left alone."""
    seeds: np.ndarray
    """Seeds of the next reset, [envs] integers. A negative seed continues the random stream."""
    persons: np.ndarray
    """Enrolment number of the person whom each reset meets, [envs] integers; negative for none."""
    observations: Float[np.ndarray, "envs obs"]
    """Current observations, after any reset."""
    following: Float[np.ndarray, "envs obs"]
    """Observations that the last step led to, before any reset."""
    rewards: Float[np.ndarray, " envs"]
    terminated: Bool[np.ndarray, " envs"]
    truncated: Bool[np.ndarray, " envs"]
    """Whether the time limit was reached without termination."""

    def block(self, start: int, stop: int) -> "Buffers":
        """Returns the rows of some environments, in the same memory."""
        return Buffers(*(array[start:stop] for array in self))


def _buffers(shapes: Shapes, memory: Any = None) -> Buffers:
    """Returns buffers in `memory`, or in newly allocated memory."""
    seen = ((shapes.observation_size,), np.float32)
    flag: tuple[tuple[int, ...], Any] = ((), np.bool_)
    fields: tuple[tuple[tuple[int, ...], Any], ...] = (
        (shapes.action_shape, np.dtype(shapes.action_type)),
        flag,
        ((), np.int64),
        ((), np.int64),
        seen,
        seen,
        ((), np.float32),
        flag,
        flag,
    )
    arrays, offset = [], 0
    for shape, kind in fields:
        full = (shapes.environments, *shape)
        if memory is None:
            arrays.append(np.zeros(full, kind))
        else:
            arrays.append(np.ndarray(full, kind, memory, offset))
        offset += -(-arrays[-1].nbytes // 64) * 64  # rows of different fields share no cache line
    return Buffers(*arrays)


def _bytes(shapes: Shapes) -> int:
    return sum(-(-array.nbytes // 64) * 64 for array in _buffers(shapes))


class ParallelEnvs(Protocol):
    """Environments that read from and write to common buffers."""

    buffers: Buffers

    def reset(self) -> None:
        """Resets the environments that are playing, with their seeds."""

    def step(self, reset: bool) -> None:
        """Steps the environments that are playing.

        Args:
            reset: whether an environment whose episode ends is reset at once.
        """

    def close(self) -> None:
        """Releases the environments; a second call does nothing."""


class LocalEnvs:
    """Environments that this process steps."""

    def __init__(
        self, environment: Any, options: dict[str, Any], action_repeat: int, buffers: Buffers
    ) -> None:
        """Makes one environment for each row of the buffers.

        Args:
            environment: the first argument of `specs.make`.
            options: keyword arguments of `gymnasium.make`.
            action_repeat: environment steps per step; their rewards are added.
            buffers: inputs and outputs.
        """
        self.buffers = buffers
        self._what = _named(environment)
        self._repeat = action_repeat
        self._envs = [specs.make(environment, options) for _ in buffers.playing]
        self._shape = self._envs[0].observation_space.shape or ()
        self._together = bodies_of(self._envs) or landers_of(self._envs)

    def reset(self) -> None:
        """Resets as `ParallelEnvs.reset` says."""
        buffers = self.buffers
        with failures_of(self._what):
            for i in np.flatnonzero(buffers.playing).tolist():
                seed = int(buffers.seeds[i])
                buffers.observations[i] = self._met(i, seed if seed >= 0 else None)

    def step(self, reset: bool) -> None:
        """Steps as `ParallelEnvs.step` says."""
        rows = np.flatnonzero(self.buffers.playing)
        with failures_of(self._what):
            if self._together is None:
                self._one_by_one(rows, reset)
            elif len(rows):
                self._at_once(self._together, rows, reset)

    def _one_by_one(self, rows: np.ndarray, reset: bool) -> None:
        buffers = self.buffers
        for i in rows.tolist():
            env, action, total = self._envs[i], buffers.actions[i], 0.0
            for _ in range(self._repeat):
                seen, reward, terminated, truncated, _ = env.step(action)
                total += float(reward)
                if terminated or truncated:
                    break
            # A value too large for float32 becomes infinite; learners must handle that anyway.
            with np.errstate(over="ignore"):
                buffers.rewards[i] = total
                buffers.following[i] = seen = flattened(self._what, self._shape, seen)
            buffers.terminated[i] = terminated
            buffers.truncated[i] = truncated and not terminated
            if reset and (terminated or truncated):
                seen = self._met(i, None)
            buffers.observations[i] = seen

    def _at_once(self, together: AtOnce, rows: np.ndarray, reset: bool) -> None:
        buffers, going = self.buffers, rows
        totals = np.zeros(len(buffers.playing))
        with np.errstate(over="ignore"):
            for _ in range(self._repeat):
                taken = together.step(going, buffers.actions[going])
                totals[going] += taken.rewards
                buffers.following[going] = taken.observations
                buffers.terminated[going] = taken.terminated
                buffers.truncated[going] = taken.truncated & ~taken.terminated
                going = going[~(taken.terminated | taken.truncated)]
                if not len(going):
                    break
            buffers.rewards[rows] = totals[rows]
        buffers.observations[rows] = buffers.following[rows]
        if reset:
            for row in rows[(buffers.terminated | buffers.truncated)[rows]].tolist():
                buffers.observations[row] = self._met(row, None)

    def _met(self, row: int, seed: int | None) -> np.ndarray:
        """Resets one environment, for its person if it has one; returns the first observation."""
        person = int(self.buffers.persons[row])
        options = {"person": person} if person >= 0 else None
        seen, _ = self._envs[row].reset(seed=seed, options=options)
        return flattened(self._what, self._shape, seen)

    def picture(self, index: int) -> np.ndarray:
        """Renders one environment, [height, width, 3]; it needs render_mode="rgb_array"."""
        return np.asarray(self._envs[index].render(), np.uint8)

    def close(self) -> None:
        """Releases the environments."""
        for env in self._envs:
            env.close()


def local_envs(
    environment: Any, options: dict[str, Any], action_repeat: int, shapes: Shapes
) -> LocalEnvs:
    """Returns environments that this process steps, with new buffers."""
    return LocalEnvs(environment, options, action_repeat, _buffers(shapes))


class ProcessEnvs:
    """Environments in several worker processes, each with a block of neighbouring ones.

    With `failed`, this process sees nothing of the environment except the buffers. The output of
    the workers is discarded, and every failure of a worker raises `failed`.

    Raises:
        ChildProcessError: a worker was killed; the environments are closed.
        EnvironmentFailed: an environment raised; the environments are closed.
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
        self.buffers = _buffers(shapes, mmap.mmap(file.fileno(), _bytes(shapes)))
        self._what = _named(environment)
        self._workers: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
        self._finalizer = weakref.finalize(self, _stop, self._workers)
        edges = np.linspace(0, shapes.environments, processes + 1).astype(int).tolist()
        with file:
            for start, stop in itertools.pairwise(edges):
                rows = (start, stop)
                plan = (environment, options, action_repeat, shapes, rows, failed is not None)
                self._workers.append(_start(file.fileno(), plan))
        self._wait()

    def reset(self) -> None:
        """Resets as `ParallelEnvs.reset` says."""
        self._all(_RESET)

    def step(self, reset: bool) -> None:
        """Steps as `ParallelEnvs.step` says."""
        self._all(_STEP_AND_RESET if reset else _STEP)

    def close(self) -> None:
        """Ends the workers; a second call does nothing."""
        self._finalizer()

    def _all(self, command: bytes) -> None:
        if not self._finalizer.alive:
            raise RuntimeError(f"the environments {self._what} are closed; make new ones")
        for _, connection in self._workers:
            # `_wait` finds a worker that has died.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(command)
        self._wait()

    def _wait(self) -> None:
        """Waits until every worker has answered."""
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
        raise self._failed  # outside the handlers above, so that no other error is chained to it


def _named(environment: Any) -> str:
    return str(getattr(environment, "id", environment))


def _start(memory: int, plan: Any) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        words = (str(memory), str(theirs.fileno()), base64.b64encode(pickle.dumps(plan)).decode())
        output = subprocess.DEVNULL if plan[-1] else None
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER_PROGRAM.format(path=sys.path, name=__name__), *words],
            pass_fds=(memory, theirs.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    return process, ours


WORKER_PROGRAM = "import sys; sys.path[:] = {path!r}; from {name} import serve; serve(sys.argv)"
"""Program of a child process. It sets the import path before it imports anything of sotto."""


def serve(words: Sequence[str]) -> None:
    """Runs a worker: steps its block of environments on command, until its socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    environment, options, action_repeat, shapes, (start, stop), unseen = pickle.loads(
        base64.b64decode(words[3])
    )
    with (
        socket.socket(fileno=int(words[2])) as connection,
        mmap.mmap(int(words[1]), _bytes(shapes)) as memory,
    ):
        try:
            with failures_of(_named(environment)):
                envs = LocalEnvs(
                    environment, options, action_repeat, _buffers(shapes, memory).block(start, stop)
                )
            connection.sendall(_READY)
            while command := connection.recv(1):
                if command == _RESET:
                    envs.reset()
                else:
                    envs.step(reset=command == _STEP_AND_RESET)
                connection.sendall(_READY)
        except ConnectionError:  # the parent process has ended
            os._exit(0)
        except BaseException as error:
            if unseen:
                os._exit(0)
            if not isinstance(error, Exception):
                raise
            with contextlib.suppress(ConnectionError):  # another worker failed before
                connection.sendall(_FAILED + pickle.dumps(error))
        os._exit(0)  # a regular exit would complain that the shared memory is still in use


def _stop(workers: list[tuple[subprocess.Popen[bytes], socket.socket]]) -> None:
    """Ends the workers and waits for them, so that none is left as a zombie."""
    for _, connection in workers:
        connection.close()
    for process, _ in workers:
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # its environment does not return from a step
            process.kill()
            process.wait()
