"""The engine of all experiments. It trains arms, keeps their results and resumes what was stopped.

A figure is a list of arms. `run` trains the arms that the store does not hold, and returns the
results of all arms.
"""

import hashlib
import io
import json
import math
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from sotto import cluster
from sotto.errors import RunError
from sotto.files import write_whole
from sotto.privacy.bounds import at_most
from sotto.processes import at_once, finished

_SECONDS_BETWEEN_REPORTS = 15

Say = Callable[[str], None]
"""Function that shows a sentence about the progress to the user."""

Report = Callable[[float], None]
"""Function that takes the completed share of an arm's training, from 0 to 1."""


@dataclass(frozen=True)
class Arm:
    """One method with its settings, trained with some seeds.

    Attributes:
        name: name in data files.
        label: name in figures.
        settings: settings that `train` reads.
        seeds: seeds of the runs.
        file: name under which the result is kept. It depends on everything that the result depends
            on, except for the seeds if `by_seed` is set.
        train: called with the arm, the missing seeds, the arm's folder and a `Report`. The folder
            contains an empty folder seed-K for each of these seeds. The function must be picklable.
            It returns one result, or one for each seed if `by_seed` is set.
        seconds: approximate duration of all seeds.
        needs: arms that must be trained first, because `train` reads their files.
        by_seed: whether each seed is kept separately. More seeds then train only the missing ones.
        x: position on the x axis, such as an epsilon, if the arm is a point of a line.
        panel: panel of the figure in which it is drawn.
        note: remark for the user.
    """

    name: str
    label: str
    settings: Any
    seeds: tuple[int, ...]
    file: str
    train: Callable[["Arm", Sequence[int], Path, Report], Sequence["Result"]]
    seconds: float
    needs: tuple["Arm", ...] = ()
    by_seed: bool = False
    x: float | None = None
    panel: str = ""
    note: str = ""

    def __str__(self) -> str:
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return f"{self.name}, {seeds}"


@dataclass(frozen=True, eq=False)
class Result:
    """Measurements and certificates of an arm.

    Attributes:
        arm: the arm.
        seeds: seeds of the rows of the arrays.
        steps: number of environment steps, or episodes, at each point of the curves.
        curves: measurements during training, by kind.
        returns: return of each seed after training, by kind.
        status: status of the certificates; that of the first one that is not proved, if any.
        epsilon: largest certified epsilon of the seeds at `delta`; None unless all are proved.
        delta: delta of `epsilon`.
        seconds: duration of the training; the engine measures it.
        more: other data that the figures of a paper need, as JSON values.
    """

    arm: Arm
    seeds: tuple[int, ...]
    steps: Float[np.ndarray, "seeds points"]
    curves: dict[str, Float[np.ndarray, "seeds points"]]
    returns: dict[str, Float[np.ndarray, " seeds"]] = field(default_factory=dict)
    status: str = "not private"
    epsilon: float | None = None
    delta: float | None = None
    seconds: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        curves = {kind: np.asarray(one, float) for kind, one in self.curves.items()}
        returns = {kind: np.asarray(one, float) for kind, one in self.returns.items()}
        found = [*curves.values(), *(one[:, None] for one in returns.values())]
        if any(len(one) != len(self.seeds) for one in found):
            raise ValueError(f"every curve and return needs {len(self.seeds)} rows, one per seed")
        points = next(iter(curves.values())).shape[1] if curves else 0
        steps = np.broadcast_to(np.asarray(self.steps, float), (len(self.seeds), points))
        object.__setattr__(self, "seeds", tuple(self.seeds))
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "curves", curves)
        object.__setattr__(self, "returns", returns)

    @property
    def points(self) -> Float[np.ndarray, " points"]:
        """Mean over seeds of the steps at each point of the curves."""
        return np.asarray(self.steps.mean(axis=0))

    @property
    def last(self) -> tuple[str, Float[np.ndarray, " seeds"]]:
        """Kind and last values of the first curve, or of the first return if there is no curve."""
        for kind, curve in self.curves.items():
            return kind, curve[:, -1]
        return next(iter(self.returns.items()))

    def data(self) -> dict[str, Any]:
        """Returns the result as JSON values, without its arm."""
        return {
            "seeds": list(self.seeds),
            "steps": self.steps.tolist(),
            "curves": {kind: one.tolist() for kind, one in self.curves.items()},
            "returns": {kind: one.tolist() for kind, one in self.returns.items()},
            **{name: getattr(self, name) for name in ("status", "epsilon", "delta", "seconds")},
            "more": self.more,
        }


def joined(parts: Sequence[Result]) -> Result:
    """Joins results of one method with different seeds into one result."""
    first = parts[0]
    certified = [part.epsilon for part in parts if part.epsilon is not None]
    status = next((part.status for part in parts if part.status != "proved"), "proved")
    return replace(
        first,
        seeds=tuple(seed for part in parts for seed in part.seeds),
        steps=np.concatenate([part.steps for part in parts]),
        curves={k: np.concatenate([part.curves[k] for part in parts]) for k in first.curves},
        returns={k: np.concatenate([part.returns[k] for part in parts]) for k in first.returns},
        status=status,
        epsilon=max(certified) if status == "proved" and len(certified) == len(parts) else None,
        seconds=sum({part.seconds for part in parts}),  # seeds of one call have the same number
    )


def digest(what: str) -> str:
    """Returns a digest of twelve hexadecimal digits for a file name."""
    return hashlib.sha256(what.encode()).hexdigest()[:12]


def row_file(arm: str, settings: str, seeds: Sequence[int]) -> str:
    """Returns the file name of an arm whose seeds are kept together."""
    return f"{arm}-{digest(repr((settings, tuple(seeds))))}"


# --- the store -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResultFolder:
    """Folder of the results of arms, with their ledgers and certificates.

    Each arm has a folder with result.json, and a folder seed-K with the files of each seed. If
    seeds are kept separately, result.json is in seed-K.

    Attributes:
        folder: folder of all arms.
    """

    folder: Path

    def place(self, file: str, seed: int | None = None) -> Path:
        """Returns the folder of an arm's file name, or of one of its seeds."""
        whole = self.folder / file
        return whole if seed is None else whole / f"seed-{seed}"

    def missing(self, arm: Arm) -> tuple[int, ...]:
        """Returns the seeds of an arm that the store does not hold."""
        if arm.by_seed:
            return tuple(seed for seed in arm.seeds if not self._path(arm, seed).exists())
        return () if self._path(arm).exists() else arm.seeds

    def read(self, arm: Arm) -> Result:
        """Reads the result of an arm.

        Raises:
            RunError: the file is not a result.
        """
        if arm.by_seed:
            return joined([self._read(arm, self._path(arm, seed)) for seed in arm.seeds])
        return self._read(arm, self._path(arm))

    def keep(self, result: Result) -> None:
        """Writes a result with exact numbers; it has one seed if seeds are kept separately."""
        seed = result.seeds[0] if result.arm.by_seed else None
        path = self._path(result.arm, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(result.data()) + "\n")

    def packed(self, arm: Arm) -> bytes:
        """Returns all files of an arm as an archive."""
        memory = io.BytesIO()
        with tarfile.open(fileobj=memory, mode="w") as archive:
            archive.add(self.place(arm.file), arcname=arm.file)
        return memory.getvalue()

    def unpack(self, arm: Arm, files: bytes) -> None:
        """Writes the files of an archive from `packed`; those of separate other seeds stay.

        Whatever has a result appears with all its other files.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder) as apart:
            with tarfile.open(fileobj=io.BytesIO(files)) as archive:
                archive.extractall(apart, filter="data")
            new = Path(apart) / arm.file
            whole = [child.name for child in new.iterdir()] if arm.by_seed else [""]
            for name in whole:
                place = self.place(arm.file) / name
                shutil.rmtree(place, ignore_errors=True)
                place.parent.mkdir(parents=True, exist_ok=True)
                (new / name).rename(place)

    def _path(self, arm: Arm, seed: int | None = None) -> Path:
        return self.place(arm.file, seed) / "result.json"

    def _read(self, arm: Arm, path: Path) -> Result:
        try:
            return Result(arm, **json.loads(path.read_text()))
        except (TypeError, ValueError, OSError) as error:
            raise RunError(f"{path} is not a result; delete it to train it again") from error


# --- running -------------------------------------------------------------------------------------


def run(arms: Sequence[Arm], store: ResultFolder, workers: int, say: Say) -> list[Result]:
    """Trains the arms that the store does not hold, and returns one result for each method.

    A training that was stopped is started again from its beginning, with fresh noise. A certificate
    is only about the attempt that finished, which is sound because the people are simulated.

    Args:
        arms: arms in the order of the results. Arms with the same name and the same `x` are one
            method with different seeds, and their results are joined. Arms with the same file and
            seeds are trained once.
        store: folder of the results.
        workers: number of processes; 1 trains in this process.
        say: shows the expected duration first, and the remaining time after each arm.

    Raises:
        RunError: a file in the store is damaged, or a process was killed.
    """
    every = {(arm.file, arm.seeds): arm for one in arms for arm in (*one.needs, one)}
    seconds = {
        place: arm.seconds * len(missing) / len(arm.seeds)
        for place, arm in every.items()
        if (missing := store.missing(arm))
    }
    left = [every[place] for place in seconds]
    say(_announcement(len(every) - len(left), list(seconds.values()), workers))
    started, done, total = time.monotonic(), 0.0, len(left)
    for asks in (False, True):
        phase = [arm for arm in left if bool(arm.needs) == asks]
        for arm, sentence in _finished(store, phase, workers):
            done += seconds.pop((arm.file, arm.seeds))
            taken = time.monotonic() - started
            rest = _duration(taken / done * sum(seconds.values()))
            end = f", about {rest} left" if seconds else ""
            say(f"{total - len(seconds)}/{total} done: {sentence}; {taken:.0f} s so far{end}")
    methods: dict[tuple[str, float | None], list[Result]] = {}
    for arm in arms:
        methods.setdefault((arm.name, arm.x), []).append(store.read(arm))
    return [joined(parts) for parts in methods.values()]


def _finished(store: ResultFolder, arms: Sequence[Arm], workers: int) -> Iterator[tuple[Arm, str]]:
    """Trains arms, and yields each with a sentence about it. Its files are in the store then."""
    if not cluster.connected():
        yield from finished(partial(_train, store), arms, workers)
        return
    tasks = [
        _Sent(arm, store.missing(arm), [store.packed(need) for need in arm.needs]) for arm in arms
    ]
    for sent, (sentence, files) in cluster.finished(_train_apart, tasks):
        store.unpack(sent.arm, files)
        yield sent.arm, sentence


class _Sent(NamedTuple):
    """An arm, its missing seeds, and the files of the arms that it needs."""

    arm: Arm
    seeds: tuple[int, ...]
    needed: list[bytes]


def _train_apart(sent: _Sent) -> tuple[str, bytes]:
    """Trains an arm on a node that has no other files; returns the sentence and its files."""
    with tempfile.TemporaryDirectory() as folder:
        store = ResultFolder(Path(folder))
        for need, files in zip(sent.arm.needs, sent.needed, strict=True):
            store.unpack(need, files)
        return _train(store, replace(sent.arm, seeds=sent.seeds)), store.packed(sent.arm)


def _train(store: ResultFolder, arm: Arm) -> str:
    """Trains the missing seeds, writes their results and returns a sentence about them."""
    seeds, place = store.missing(arm), store.place(arm.file)
    if not arm.by_seed:
        shutil.rmtree(place, ignore_errors=True)
    for seed in seeds:
        shutil.rmtree(store.place(arm.file, seed), ignore_errors=True)
        store.place(arm.file, seed).mkdir(parents=True)
    started = time.monotonic()
    results = arm.train(arm, seeds, place, _reporting(str(arm)))
    seconds = time.monotonic() - started
    results = [replace(one, seconds=seconds) for one in results]
    for one in results:
        store.keep(one)
    result = joined(results)
    kind, values = result.last
    private = result.status if result.epsilon is None else f"epsilon {at_most(result.epsilon)}"
    spread = f" ± {values.std():.3g}" if len(values) > 1 else ""
    note = f" ({arm.note})" if arm.note else ""
    return f"{arm}: {kind} {values.mean():.4g}{spread}, {private}{note}"


def _announcement(kept: int, seconds: Sequence[float], workers: int) -> str:
    had = f" ({kept} kept from before)" if kept else ""
    if not seconds:
        return f"nothing to train{had}"
    many = at_once(workers, len(seconds))
    trainings = "1 training" if len(seconds) == 1 else f"{len(seconds)} trainings"
    done_by = f"{many} process{'' if many == 1 else 'es'}"
    return (
        f"{trainings}{had}, about {_minutes(sum(seconds) / many)} with {done_by}; "
        "stop at any time, and the same command continues"
    )


def _duration(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 100 else _minutes(seconds)


def _minutes(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{math.ceil(minutes / 60)} hours"


def _reporting(name: str) -> Report:
    """Returns a `Report` that prints to stderr at most every 15 seconds."""
    last = time.monotonic()

    def report(share: float) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_REPORTS:
            last = time.monotonic()
            print(f"    {name}: {share:.0%}", file=sys.stderr, flush=True)

    return report
