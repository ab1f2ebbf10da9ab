"""Trainings of Rio et al. 2025. The table and the figures share them; each seed is kept separately.

In JAX, one program trains all seeds of an environment at once. In Gymnasium, each seed is a
separate training. The folder of each result holds its ledger and its certificate.
"""

import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from sotto.algorithms.base import Algorithm, AnyLedger, Progress
from sotto.algorithms.settings import as_first_named
from sotto.experiments.certified import certificates
from sotto.experiments.engine import Arm, Report, Result, digest
from sotto.experiments.rio2025.cells import Cell, Mode
from sotto.keys import new_key
from sotto.privacy.ledger.ledger import Ledger
from sotto.rl.envs.registry import is_native
from sotto.runs.registry import algorithm_named, config_to_json

_FORMAT = 1  # version of kept results: raise it when training or evaluation changes
_POINTS = 20  # points of a learning curve
_EPISODES, _GYMNASIUM_EPISODES = 20, 10  # episodes of each point of a curve
_EVALUATIONS, _GYMNASIUM_EVALUATIONS = 5, 2  # of as many episodes each, for each final policy
_MODES: tuple[Mode, ...] = ("greedy", "sampled")
_KEY = 2025  # of evaluations, so that every policy meets the same people

# For the expected duration: seconds to import and compile, and environment steps per second on one
# core, of all seeds together.
_STARTING = 20.0
_RATES = {"paper": 50_000.0, "sotto": 1_000_000.0, "without privacy": 100_000.0}
_GYMNASIUM_RATE = 5_000.0


def arms(cell: Cell, seeds: Sequence[int]) -> list[Arm]:
    """Returns the arms of a cell: one for all seeds in JAX, or one for each seed in Gymnasium.

    The file name depends on everything that a result depends on, except for the seed and the noise.

    Raises:
        ValueError: the settings or the environment cannot be run.
    """
    config = cell.config()
    algorithm = algorithm_named(cell.method)
    config = algorithm.resolved(config)
    native = is_native(cell.env_id)
    said = as_first_named(algorithm.config_type, config_to_json(algorithm, config))
    del said["seed"]
    what = json.dumps([_FORMAT, cell.method, cell.released, said], sort_keys=True)
    kind = cell.preset or cell.method
    rate = _RATES[cell.preset or "without privacy"] if native else _GYMNASIUM_RATE

    def arm(block: tuple[int, ...]) -> Arm:
        return Arm(
            str(cell),
            cell.label,
            cell,
            block,
            f"{cell.env_id}-{kind}-{digest(what)}",
            train,
            _STARTING + len(block) * config.total_steps / rate,
            by_seed=True,
        )

    return [arm(tuple(seeds))] if native else [arm((seed,)) for seed in seeds]


def judged(cell: Cell) -> str:
    """Returns the kind of return that figures show: the policy and how it acts."""
    return f"{cell.released} {cell.mode}"


# --- one training --------------------------------------------------------------------------------


def train(arm: Arm, seeds: Sequence[int], folder: Path, report: Report) -> list[Result]:
    """Trains seeds of a cell and evaluates the policies during training.

    Args:
        arm: arm of the cell.
        seeds: seeds of the runs.
        folder: folder whose folders seed-K hold ledgers and certificates.
        report: takes the completed share.

    Returns:
        A result for each seed. Its curve shows the policy and the mode of the cell. Its returns are
        by policy and mode: "ema greedy", "last sampled", ...
    """
    cell: Cell = arm.settings
    algorithm, config = algorithm_named(cell.method), cell.config()
    places = [folder / f"seed-{seed}" for seed in seeds]
    ledgers: list[AnyLedger] = []
    if algorithm.has_ledger(config):
        ledgers = [
            algorithm.create_ledger(config, place / "ledger.sqlite", f"{cell.env_id}-{seed}")
            for seed, place in zip(seeds, places, strict=True)
        ]
    native = is_native(cell.env_id)
    returned = partial(_returns, algorithm, config, _EPISODES if native else _GYMNASIUM_EPISODES)
    taken: list[np.ndarray] = []
    curve: list[np.ndarray] = []
    for chunk, steps in _points(cell, algorithm, seeds, ledgers, report):
        policy = algorithm.policies(chunk.states)[cell.released]
        taken.append(steps)
        curve.append(returned(policy, cell.mode, chunk.updates))
    returns = {
        f"{name} {mode}": returned(
            policy, mode, 0, _EVALUATIONS if native else _GYMNASIUM_EVALUATIONS
        )
        for name, policy in algorithm.policies(chunk.states).items()
        for mode in _MODES
    }
    return [
        Result(
            arm,
            (seed,),
            np.array([[float(steps[run]) for steps in taken]]),
            {"return": np.array([[values[run] for values in curve]])},
            {name: values[run : run + 1] for name, values in returns.items()},
            **{"delta": cell.delta}
            | certificates(ledgers[run : run + 1], places[run : run + 1] if ledgers else []),
            more={"noise_multiplier": _noise_multiplier(ledgers[run]) if ledgers else None},
        )
        for run, seed in enumerate(seeds)
    ]


def _noise_multiplier(ledger: AnyLedger) -> float | None:
    """Returns the noise multiplier of the ledger's only stream."""
    assert isinstance(ledger, Ledger)
    (stream,) = ledger.streams
    return stream.statement.noise_multiplier


def _points(
    cell: Cell,
    algorithm: Algorithm[Any],
    seeds: Sequence[int],
    ledgers: Sequence[AnyLedger],
    report: Report,
) -> Iterator[tuple[Progress, np.ndarray]]:
    """Yields the beginning, and each chunk after which policies are evaluated.

    Each comes with the number of steps that every seed has taken so far.
    """
    config = cell.config()
    total = algorithm.num_updates(config)
    apart = math.ceil(total / _POINTS)
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
    evaluations: int = 1,
) -> Float[np.ndarray, " seeds"]:
    """Returns the mean return of each seed's policy.

    The number `people` determines the simulated people, who are the same for every policy.
    """
    keys = jax.random.split(jax.random.fold_in(new_key(_KEY), people), evaluations)
    found = [algorithm.evaluate(config, policy, key, episodes, mode == "greedy") for key in keys]
    return np.asarray(np.mean(found, axis=(0, 2)))


def _steps(
    algorithm: Algorithm[Any], config: Any, chunk: Progress, updates: int
) -> np.ndarray | float:
    """Returns the environment steps of a chunk, for each seed if they differ."""
    if "steps_per_user" not in chunk.simulated:
        return float(updates * algorithm.steps_per_update(config))
    steps: np.ndarray = config.users_per_update * chunk.simulated["steps_per_user"].sum(axis=1)
    return steps
