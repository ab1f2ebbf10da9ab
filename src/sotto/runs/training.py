"""Trains a run, or several seeds side by side, and leaves everything in the run directory.

After each chunk, in this order: the door has charged the ledger and made the releases; then the
checkpoint, the certificate and the metrics are written. A training killed at any moment is resumed
from the last checkpoint; updates lost after it stay charged, and are made again with new people
and fresh noise.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from sotto.privacy import certificate
from sotto.privacy.ledger import Ledger
from sotto.runs import checkpoints
from sotto.runs.algorithms import ALGORITHMS, Algorithm, Chunk, config_from_json
from sotto.runs.directory import Experiment, Run, RunError
from sotto.runs.metrics import Line, Log


@dataclass(frozen=True)
class Update:
    """What a training reports after each chunk.

    Attributes:
        updates, total_updates: made so far, and of the whole training.
        lines: what was logged, one for each run.
    """

    updates: int
    total_updates: int
    lines: tuple[Line, ...]


def train(experiment: Experiment, report: Callable[[Update], None]) -> bool:
    """Trains from the last checkpoint (or the beginning) to the end, or to the first Ctrl-C.

    Args:
        experiment: a new or an interrupted one.
        report: called after every chunk.

    Returns:
        True at the end; False if Ctrl-C stopped it after a chunk that was finished and saved.

    Raises:
        RunError: the run is finished, or a checkpoint is damaged.
        PrivacyError: the budget does not cover it, or the ledger is another run's or full.
    """
    with _interruptible() as stopped:
        return _train(experiment, report, stopped)


def _train(
    experiment: Experiment, report: Callable[[Update], None], stopped: Callable[[], bool]
) -> bool:
    settings = experiment.settings
    algorithm = ALGORITHMS[settings.algorithm]
    config = config_from_json(settings.algorithm, settings.config)
    total = algorithm.updates(config)
    done = _last_common_checkpoint(experiment.runs)
    ledgers = _ledgers(experiment)
    # A training killed between a charge and the certificate left an old certificate behind.
    for run, ledger in zip(experiment.runs, ledgers, strict=False):
        certificate.derive(ledger).write(run.certificate)
    if done == total:
        raise RunError(
            f"{experiment.path} is finished: all {total} updates are made; "
            f"see it with: sotto report {experiment.path}"
        )
    states = algorithm.initial_states(config, settings.seeds)
    if done:
        states = load_states(experiment, done)
    logs = [Log(run.path, algorithm.steps_per_update(config)) for run in experiment.runs]
    started = time.monotonic()
    previous = done
    try:
        for chunk in algorithm.chunks(config, settings.seeds, ledgers, states, done):
            lines = _lines(algorithm, config, chunk, previous, started, ledgers)
            _save(experiment, chunk, lines, ledgers, logs)
            previous = chunk.updates
            report(Update(chunk.updates, total, lines))
            if stopped() and chunk.updates < total:
                return False
    finally:
        for log in logs:
            log.close()
    return True


def load_states(experiment: Experiment, updates: int) -> PyTree:
    """The states of all runs after `updates` updates, leaves of shape [runs, ...].

    Raises:
        RunError: a checkpoint is damaged or missing.
    """
    settings = experiment.settings
    algorithm = ALGORITHMS[settings.algorithm]
    config = config_from_json(settings.algorithm, settings.config)
    like = jax.tree.map(lambda x: x[0], algorithm.initial_states(config, settings.seeds[:1]))
    states = [checkpoints.load(run.checkpoints, updates, like) for run in experiment.runs]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def last_checkpoint(experiment: Experiment) -> int:
    """Updates behind the newest checkpoint that all runs have.

    Raises:
        RunError: there is none.
    """
    done = _last_common_checkpoint(experiment.runs)
    if done == 0:
        raise RunError(
            f"{experiment.path} has no checkpoint yet; go on with: "
            f"sotto train {experiment.settings.algorithm} --out {experiment.path} --resume"
        )
    return done


def _last_common_checkpoint(runs: Sequence[Run]) -> int:
    """Runs trained side by side go on together, so killed between two saves they go back to one.

    Two checkpoints are kept: there is always a common one, except before the first.
    """
    common = set.intersection(*(set(checkpoints.steps(run.checkpoints)) for run in runs))
    if not common and all(checkpoints.steps(run.checkpoints) for run in runs):
        raise RunError(
            "the seeds of this experiment have no checkpoint in common; resume each by its own "
            "directory (--out .../seed-K --resume)"
        )
    return max(common, default=0)


def _ledgers(experiment: Experiment) -> list[Ledger]:
    if experiment.settings.ledger is None:
        return []
    return [run.open_ledger() for run in experiment.runs]


def _lines(
    algorithm: Algorithm,
    config: object,
    chunk: Chunk,
    previous: int,
    started: float,
    ledgers: Sequence[Ledger],
) -> tuple[Line, ...]:
    """One line for each run."""
    seconds = time.monotonic() - started
    found = []
    for index in range(jax.tree.leaves(chunk.states)[0].shape[0]):
        epsilon = ledgers[index].spent().epsilon if ledgers else math.inf
        found.append(
            Line(
                updates=chunk.updates,
                first_update=previous,
                env_steps=chunk.updates * algorithm.steps_per_update(config),
                seconds=round(seconds, 3),
                epsilon=epsilon if math.isfinite(epsilon) else None,
                released={n: x[index].astype(float).tolist() for n, x in chunk.released.items()},
                evaluation={n: float(x[index]) for n, x in chunk.evaluation.items()},
                simulated={n: x[index].astype(float).tolist() for n, x in chunk.simulated.items()},
            )
        )
    return tuple(found)


def _save(
    experiment: Experiment,
    chunk: Chunk,
    lines: Sequence[Line],
    ledgers: Sequence[Ledger],
    logs: Sequence[Log],
) -> None:
    for index, run in enumerate(experiment.runs):
        state = jax.tree.map(lambda x, i=index: x[i], chunk.states)
        checkpoints.save(run.checkpoints, chunk.updates, state)
        if ledgers:
            certificate.derive(ledgers[index]).write(run.certificate)
        logs[index].append(lines[index])


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Lets the first Ctrl-C wait for the end of a chunk; a second one interrupts at once."""
    pressed = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
