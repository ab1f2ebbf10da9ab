"""Trainings of Rio et al. 2025, each seed of each cell kept as it finishes.

Table and figures read what is kept, so that a cell is trained once for all of them. Seeds of an
environment in JAX are trained side by side in one program; one outside JAX takes a process for each
seed. Beside each outcome are the ledger and the certificate it is about.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from sotto.algorithms.base import Algorithm, AnyLedger, Progress
from sotto.errors import RunError
from sotto.experiments.kept_jobs import reporting, write_json
from sotto.experiments.rio2025.cells import Cell, Mode
from sotto.experiments.statistics import half_width
from sotto.keys import new_key
from sotto.privacy.certificates import derive
from sotto.rl.envs.registry import is_native
from sotto.runs.registry import algorithm_named, config_to_json, under_first_names

_FORMAT = 1  # of what is kept: raise it when training or evaluation changes
_POINTS = 20  # of a learning curve
_EPISODES, _HOSTED_EPISODES = 20, 10  # of each point of a curve
_ROUNDS, _HOSTED_ROUNDS = 5, 2  # of as many episodes, for each policy in the end
_MODES: tuple[Mode, ...] = ("greedy", "sampled")
_KEY = 2025  # of evaluations, the same people for every policy

# For what is said beforehand: seconds to import and compile, and environment steps a second on one
# core, of all seeds together.
_STARTING = 20.0
_RATES = {"paper": 50_000.0, "sotto": 1_000_000.0, "without privacy": 100_000.0}
_HOSTED_RATE = 5_000.0


@dataclass(frozen=True)
class Outcome:
    """What one seed of a cell gave.

    Attributes:
        seed: of networks, people and actions.
        steps: environment steps behind each point of the curve; the people's own, where an episode
            may end early.
        curve: mean return at each point, of the policy and in the mode that count.
        returns: mean return in the end, by policy and mode: "ema greedy", "last sampled", ...
        status: of the certificate; "not private" for a method without one.
        epsilon: certified; None where nothing is.
        noise_multiplier: of the stream of releases, for one person; None without noise.
        seconds: that all seeds of its training took together.
    """

    seed: int
    steps: list[float]
    curve: list[float]
    returns: dict[str, float]
    status: str
    epsilon: float | None
    noise_multiplier: float | None
    seconds: float


@dataclass(frozen=True)
class Job:
    """Some seeds of one cell.

    Attributes:
        folder: where all cells are kept.
        cell: what is trained.
        seeds: of the runs; those that are kept are not trained again.
    """

    folder: Path
    cell: Cell
    seeds: tuple[int, ...]

    @cached_property
    def path(self) -> Path:
        """Of the cell; the name holds everything it depends on but the seed and the noise."""
        algorithm = algorithm_named(self.cell.method)
        config = under_first_names(algorithm, config_to_json(algorithm, self.cell.config()))
        del config["seed"]
        what = json.dumps([_FORMAT, self.cell.method, self.cell.released, config], sort_keys=True)
        digest = hashlib.sha256(what.encode()).hexdigest()[:12]
        kind = self.cell.preset or self.cell.method
        return self.folder / f"{self.cell.env_id}-{kind}-{digest}"

    @property
    def missing(self) -> tuple[int, ...]:
        """Seeds that are not kept."""
        return tuple(seed for seed in self.seeds if not self._file(seed).exists())

    @property
    def done(self) -> bool:
        """Whether all seeds are kept."""
        return not self.missing

    @property
    def seconds(self) -> float:
        """About how long the missing seeds take on one core."""
        rate = _RATES[self.cell.preset or "without privacy"]
        if not is_native(self.cell.env_id):
            rate = _HOSTED_RATE
        return _STARTING + len(self.missing) * self.cell.config().total_steps / rate

    def outcomes(self) -> list[Outcome]:
        """What was kept, in the order of the seeds."""
        return [_read(self._file(seed)) for seed in self.seeds]

    def train(self) -> None:
        """Trains the missing seeds, and keeps each."""
        missing = self.missing
        for seed in missing:
            # What a stopped attempt left is not gone on with: every attempt has noise of its own,
            # and what is said is about the one that finished. The people are simulated.
            shutil.rmtree(self._place(seed), ignore_errors=True)
            self._place(seed).mkdir(parents=True)
        for outcome in train(self.cell, missing, [self._place(seed) for seed in missing]):
            write_json(self._file(outcome.seed), asdict(outcome))

    def _place(self, seed: int) -> Path:
        return self.path / f"seed-{seed}"

    def _file(self, seed: int) -> Path:
        return self._place(seed) / "outcome.json"

    def __str__(self) -> str:
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return f"{self.cell}, {seeds}"


@dataclass(frozen=True)
class Result:
    """A cell with what all its seeds gave.

    Attributes:
        cell: what was trained.
        outcomes: one for each seed.
    """

    cell: Cell
    outcomes: tuple[Outcome, ...]

    @property
    def judged(self) -> str:
        """Which return counts: the policy and how it acts."""
        return f"{self.cell.released} {self.cell.mode}"

    def returns(self, kind: str | None = None) -> Float[np.ndarray, " seeds"]:
        """In the end, of a policy and mode; those that count unless named."""
        return np.array([outcome.returns[kind or self.judged] for outcome in self.outcomes])

    @property
    def mean(self) -> float:
        """Of the returns that count."""
        return float(self.returns().mean())

    @property
    def half_width(self) -> float:
        """Of its 95 per cent confidence interval over seeds; NaN for one seed."""
        return float(half_width(self.returns()))

    @property
    def status(self) -> str:
        """Of the certificates, which have the same settings."""
        return self.outcomes[0].status

    @property
    def epsilon(self) -> float | None:
        """Certified, of the worst seed; None where nothing is."""
        certified = [one.epsilon for one in self.outcomes if one.epsilon is not None]
        return max(certified, default=None)

    @property
    def steps(self) -> Float[np.ndarray, " points"]:
        """Environment steps behind each point of the curve, in the mean over seeds."""
        return np.asarray(np.mean([outcome.steps for outcome in self.outcomes], axis=0))

    @property
    def curve(self) -> Float[np.ndarray, "seeds points"]:
        """Returns while learning, those that count."""
        return np.array([outcome.curve for outcome in self.outcomes])


def jobs(cells: Iterable[Cell], seeds: Sequence[int], folder: Path) -> dict[Cell, list[Job]]:
    """What is to be trained of each cell.

    Args:
        cells: of any table or figure.
        seeds: of each.
        folder: where everything is kept.

    Raises:
        ValueError: settings or an environment that cannot be run; nothing has been trained.
    """
    found = {}
    for cell in cells:
        algorithm_named(cell.method).resolved(cell.config())
        blocks = [tuple(seeds)] if is_native(cell.env_id) else [(seed,) for seed in seeds]
        found[cell] = [Job(folder, cell, block) for block in blocks]
    return found


# --- one training --------------------------------------------------------------------------------


def train(cell: Cell, seeds: Sequence[int], places: Sequence[Path]) -> list[Outcome]:
    """Trains seeds of a cell and evaluates the policies as they are released.

    Args:
        cell: what to train.
        seeds: side by side.
        places: a folder for each seed's ledger and certificate.
    """
    started = time.monotonic()
    algorithm, config = algorithm_named(cell.method), cell.config()
    ledgers: list[AnyLedger] = []
    if algorithm.has_ledger(config):
        ledgers = [
            algorithm.create_ledger(config, place / "ledger.sqlite", f"{cell.env_id}-{seed}")
            for seed, place in zip(seeds, places, strict=True)
        ]
    native = is_native(cell.env_id)
    returned = partial(_returns, algorithm, config, _EPISODES if native else _HOSTED_EPISODES)
    taken: list[np.ndarray] = []
    curve: list[np.ndarray] = []
    for chunk, steps in _points(cell, algorithm, seeds, ledgers):
        policy = algorithm.policies(chunk.states)[cell.released]
        taken.append(steps)
        curve.append(returned(policy, cell.mode, chunk.updates))
    returns = {
        f"{name} {mode}": returned(policy, mode, 0, _ROUNDS if native else _HOSTED_ROUNDS)
        for name, policy in algorithm.policies(chunk.states).items()
        for mode in _MODES
    }
    seconds = time.monotonic() - started
    certified = [_certified(ledger, place) for ledger, place in zip(ledgers, places, strict=False)]
    return [
        Outcome(
            seed=seed,
            steps=[float(steps[run]) for steps in taken],
            curve=[float(values[run]) for values in curve],
            returns={name: float(values[run]) for name, values in returns.items()},
            **(certified[run] if certified else _NOT_PRIVATE),
            seconds=seconds,
        )
        for run, seed in enumerate(seeds)
    ]


_NOT_PRIVATE: dict[str, Any] = {
    "status": "not private",
    "epsilon": None,
    "noise_multiplier": None,
}


def _points(
    cell: Cell, algorithm: Algorithm[Any], seeds: Sequence[int], ledgers: Sequence[AnyLedger]
) -> Iterator[tuple[Progress, np.ndarray]]:
    """The beginning, and the chunks after which policies are evaluated; each with the steps that
    every seed has taken by then."""
    config = cell.config()
    total = algorithm.num_updates(config)
    apart = math.ceil(total / _POINTS)
    report = reporting(str(cell))
    taken, done, due = np.zeros(len(seeds)), 0, apart
    states = algorithm.initial_states(config, seeds)
    yield Progress(0, states, {}, {}, {}), taken
    for chunk in algorithm.train(config, seeds, ledgers, states, 0, []):
        taken = taken + _steps(algorithm, config, chunk, chunk.updates - done)
        done = chunk.updates
        report(done / total)
        if done >= due or done == total:
            due = done + apart
            yield chunk, taken


def _returns(
    algorithm: Algorithm[Any],
    config: Any,
    episodes: int,
    policy: Any,
    mode: Mode,
    people: int,
    rounds: int = 1,
) -> Float[np.ndarray, " seeds"]:
    """Mean return of each seed's policy, on fresh simulated people of this number."""
    keys = jax.random.split(jax.random.fold_in(new_key(_KEY), people), rounds)
    found = [algorithm.evaluate(config, policy, key, episodes, mode == "greedy") for key in keys]
    return np.asarray(np.mean(found, axis=(0, 2)))


def _steps(
    algorithm: Algorithm[Any], config: Any, chunk: Progress, updates: int
) -> np.ndarray | float:
    """Environment steps of a chunk, those of each seed where its people say how many they took."""
    if "steps_per_user" not in chunk.simulated:
        return float(updates * algorithm.steps_per_update(config))
    per_decision = config.users_per_update * config.action_repeat
    steps: np.ndarray = per_decision * chunk.simulated["steps_per_user"].sum(axis=1)
    return steps


def _certified(ledger: AnyLedger, place: Path) -> dict[str, Any]:
    derived = derive.derive(ledger)
    derived.write(place / "certificate.json")
    (stream,) = derived.streams
    return {
        "status": derived.status,
        "epsilon": derived.epsilon if math.isfinite(derived.epsilon) else None,
        "noise_multiplier": stream.statement.noise_multiplier,
    }


def _read(path: Path) -> Outcome:
    try:
        return Outcome(**json.loads(path.read_text()))
    except (TypeError, json.JSONDecodeError) as error:
        raise RunError(f"{path} is no outcome; delete it, and it is made again") from error
