"""The engine of all experiments: trains arms, keeps their results, and goes on where it stopped.

A figure is a list of arms. `run` trains the arms that the store does not hold, and returns the
results of all of them.
"""

import hashlib
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from sotto.algorithms.base import AnyLedger
from sotto.errors import RunError
from sotto.files import write_whole
from sotto.privacy.certificates import derive
from sotto.privacy.certificates.joint import Cost
from sotto.privacy.certificates.model import Certificate
from sotto.processes import finished

_SECONDS_BETWEEN_REPORTS = 15

Say = Callable[[str], None]
"""Is told in a sentence what happens."""

Report = Callable[[float], None]
"""Is told which share of an arm's training is done, from 0 to 1."""


@dataclass(frozen=True)
class Arm:
    """One method with its settings, trained with some seeds.

    Attributes:
        name: in data.
        label: in figures.
        settings: what is trained, for `train`.
        seeds: of the runs.
        file: name under which the result is kept. It depends on everything that the result depends
            on, except the seeds where `by_seed` is set.
        train: called with the arm, the seeds that are missing, the arm's folder and a `Report`.
            The folder has an empty folder seed-K for each of these seeds. It can be sent to another
            process. It returns one result, or one for each seed where `by_seed` is set.
        seconds: about how long all seeds take.
        needs: arms that are trained before, because `train` reads what they kept.
        by_seed: each seed is kept alone, so that more seeds train only those that are missing.
        x: where it is drawn, if it is a point of a line: an epsilon, for example.
        panel: of the figure, where it is drawn.
        note: what has to be said about it.
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
    """What an arm gave.

    Attributes:
        arm: the arm.
        seeds: one for each row of the arrays.
        steps: environment steps, or episodes, behind each point of the curves.
        curves: what was measured while the arm learned, by kind.
        returns: what each seed returned in the end, by kind.
        status: of the certificates; where one is not proved, its status.
        epsilon: certified at `delta`, of the worst seed; None where nothing is certified.
        delta: of `epsilon`.
        seconds: how long the training took.
        more: other data that the figures of a paper need, as JSON can hold them.
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
        """Steps behind each point of the curves, on average over seeds."""
        return np.asarray(self.steps.mean(axis=0))

    @property
    def last(self) -> tuple[str, Float[np.ndarray, " seeds"]]:
        """The end of the first curve, or else the first return; and its kind."""
        for kind, curve in self.curves.items():
            return kind, curve[:, -1]
        return next(iter(self.returns.items()))

    def data(self) -> dict[str, Any]:
        """The result as JSON can hold it, without its arm."""
        return {
            "seeds": list(self.seeds),
            "steps": self.steps.tolist(),
            "curves": {kind: one.tolist() for kind, one in self.curves.items()},
            "returns": {kind: one.tolist() for kind, one in self.returns.items()},
            **{name: getattr(self, name) for name in ("status", "epsilon", "delta", "seconds")},
            "more": self.more,
        }


def joined(parts: Sequence[Result]) -> Result:
    """Results of one method with different seeds, as one."""
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
        epsilon=max(certified) if len(certified) == len(parts) else None,
        seconds=sum({part.seconds for part in parts}),  # seeds that ran together have the same
    )


def digest(what: str) -> str:
    """Twelve digits for a file's name."""
    return hashlib.sha256(what.encode()).hexdigest()[:12]


def stated(certificate: Certificate) -> Cost:
    """What a certificate itself states, about neighbours of its own unit."""
    return Cost(certificate.epsilon, certificate.delta)


def certificates(
    ledgers: Sequence[AnyLedger],
    folders: Sequence[Path],
    cost: Callable[[Certificate], Cost] = stated,
) -> dict[str, Any]:
    """Writes the certificate of each ledger, and says what holds for all of them.

    Args:
        ledgers: one for each seed; none where nobody is protected.
        folders: a folder for each ledger's certificate.json.
        cost: what a figure says that follows from a certificate.

    Returns:
        `status` and `epsilon` of a `Result`, of the worst seed; and `delta` where there is an
        epsilon.
    """
    if not ledgers:
        return {"status": "not private", "epsilon": None}
    found = [derive.derive(ledger) for ledger in ledgers]
    for one, folder in zip(found, folders, strict=True):
        one.write(folder / "certificate.json")
    status = next((one.status for one in found if one.status != "proved"), "proved")
    worst = cost(max(found, key=lambda one: one.epsilon))
    if not math.isfinite(worst.epsilon):
        return {"status": status, "epsilon": None}
    return {"status": status, "epsilon": worst.epsilon, "delta": worst.delta}


# --- the store -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Store:
    """Keeps the results of arms, with ledgers and certificates beside them.

    Each arm has a folder. It holds result.json, and seed-K with what belongs to a seed; where each
    seed is kept alone, result.json is in seed-K.

    Attributes:
        folder: of all arms.
    """

    folder: Path

    def place(self, file: str, seed: int | None = None) -> Path:
        """The folder of what is kept under a name, or of one seed of it."""
        whole = self.folder / file
        return whole if seed is None else whole / f"seed-{seed}"

    def missing(self, arm: Arm) -> tuple[int, ...]:
        """The seeds of an arm that are not kept."""
        if arm.by_seed:
            return tuple(seed for seed in arm.seeds if not self._path(arm, seed).exists())
        return () if self._path(arm).exists() else arm.seeds

    def read(self, arm: Arm) -> Result:
        """The result of an arm that is kept.

        Raises:
            RunError: what is kept is not a result.
        """
        if arm.by_seed:
            return joined([self._read(arm, self._path(arm, seed)) for seed in arm.seeds])
        return self._read(arm, self._path(arm))

    def keep(self, result: Result) -> None:
        """Keeps a result, of one seed where each is kept alone."""
        seed = result.seeds[0] if result.arm.by_seed else None
        write_result(self._path(result.arm, seed), result.data())

    def _path(self, arm: Arm, seed: int | None = None) -> Path:
        return self.place(arm.file, seed) / "result.json"

    def _read(self, arm: Arm, path: Path) -> Result:
        try:
            return Result(arm, **json.loads(path.read_text()))
        except (TypeError, ValueError, OSError) as error:
            raise RunError(f"{path} is not a result; delete it, and it is made again") from error


def write_result(path: Path, data: Mapping[str, Any]) -> None:
    """Writes a result's data; numbers are kept exactly, infinity and NaN too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(data) + "\n")


# --- running -------------------------------------------------------------------------------------


def run(arms: Sequence[Arm], store: Store, workers: int, say: Say) -> list[Result]:
    """Trains what is not kept, and returns one result for each method.

    An attempt that was stopped is not gone on with: every attempt has noise of its own, and a
    certificate is about the attempt that finished. The people are simulated.

    Args:
        arms: in the order of the results. Arms of one name at one `x` are one method: they have
            different seeds, and their results are joined. What several arms share is made once.
        store: keeps results.
        workers: processes; 1 trains in this one.
        say: told beforehand how long it takes, and after each arm how much is left.

    Raises:
        RunError: what is kept is damaged, or a process was killed.
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
        for arm, sentence in finished(partial(_train, store), phase, workers):
            done += seconds.pop((arm.file, arm.seeds))
            taken = time.monotonic() - started
            rest = _duration(taken / done * sum(seconds.values()))
            end = f", about {rest} left" if seconds else ""
            say(f"{total - len(seconds)}/{total} done: {sentence}; {taken:.0f} s so far{end}")
    methods: dict[tuple[str, float | None], list[Result]] = {}
    for arm in arms:
        methods.setdefault((arm.name, arm.x), []).append(store.read(arm))
    return [joined(parts) for parts in methods.values()]


def _train(store: Store, arm: Arm) -> str:
    """Trains and keeps the missing seeds; returns a sentence about them."""
    seeds, place = store.missing(arm), store.place(arm.file)
    if not arm.by_seed:
        shutil.rmtree(place, ignore_errors=True)
    for seed in seeds:
        shutil.rmtree(store.place(arm.file, seed), ignore_errors=True)
        store.place(arm.file, seed).mkdir(parents=True)
    results = arm.train(arm, seeds, place, _reporting(str(arm)))
    for one in results:
        store.keep(one)
    result = joined(results)
    kind, values = result.last
    private = result.status if result.epsilon is None else f"epsilon {result.epsilon:.4g}"
    spread = f" ± {values.std():.3g}" if len(values) > 1 else ""
    note = f" ({arm.note})" if arm.note else ""
    return f"{arm}: {kind} {values.mean():.4g}{spread}, {private}{note}"


def _announcement(kept: int, seconds: Sequence[float], workers: int) -> str:
    had = f" ({kept} kept from before)" if kept else ""
    if not seconds:
        return f"nothing to train{had}"
    at_once = min(workers, len(seconds))
    trainings = "1 training" if len(seconds) == 1 else f"{len(seconds)} trainings"
    processes = f"{at_once} process{'' if at_once == 1 else 'es'}"
    return (
        f"{trainings}{had}, about {math.ceil(sum(seconds) / at_once / 60)} min with {processes}; "
        "stop any time, the same command goes on"
    )


def _duration(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 100 else f"{math.ceil(seconds / 60)} min"


def _reporting(name: str) -> Report:
    """Tells progress on stderr, now and then."""
    last = time.monotonic()

    def report(share: float) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_REPORTS:
            last = time.monotonic()
            print(f"    {name}: {share:.0%}", file=sys.stderr, flush=True)

    return report


# --- files of figures ----------------------------------------------------------------------------


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as Parquet; NaN becomes null. A stopped command leaves a whole file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    cleaned = [{name: _no_nan(value) for name, value in row.items()} for row in rows]
    unfinished = path.with_suffix(".partial")
    pq.write_table(pa.Table.from_pylist(cleaned), unfinished)
    unfinished.replace(path)


def write_json(path: Path, values: Any) -> None:
    """Writes JSON; infinity becomes the string "inf" and NaN null, as JSON has neither."""
    write_whole(path, json.dumps(plain(values), indent=1, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Plain data with numbers that JSON has: infinity becomes "inf", and NaN null."""
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _no_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
