"""Trains a run, or several seeds side by side, and leaves everything in the run directory.

After each chunk, in this order: the door has charged the ledger and made the releases; then the
certificate, the checkpoint and the metrics are written. A training killed at any moment is resumed
from the last checkpoint; updates lost after it stay charged, and are made again with new people
and fresh noise.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from sotto.algorithms.base import Algorithm, AnyLedger, Progress
from sotto.errors import RunError
from sotto.privacy.certificates import derive
from sotto.runs import checkpoints, states
from sotto.runs.directory import Experiment, store
from sotto.runs.marks import mark
from sotto.runs.metrics import Line, Log
from sotto.runs.registry import algorithm_named
from sotto.runs.start import config_of

_RELEASED = "released"  # folder of a run, for what is released and has to outlive the process


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


def train(
    experiment: Experiment,
    report: Callable[[Update], None],
    algorithm: Algorithm[Any] | None = None,
) -> bool:
    """Trains from the last checkpoint (or the beginning) to the end, or to the first Ctrl-C.

    Args:
        experiment: a new or an interrupted one.
        report: called after every chunk.
        algorithm: the experiment's, if there is an object that has read its files already.

    Returns:
        True at the end; False if Ctrl-C stopped it after a chunk that was finished and saved.

    Raises:
        RunError: the run is finished, or a checkpoint or certificate is damaged.
        PrivacyError: the budget does not cover it, or the ledger is another run's, full, or an old
            copy.
    """
    with _interruptible() as stopped:
        algorithm = algorithm or algorithm_named(experiment.settings.algorithm)
        return _train(experiment, report, algorithm, stopped)


def _train(
    experiment: Experiment,
    report: Callable[[Update], None],
    algorithm: Algorithm[Any],
    stopped: Callable[[], bool],
) -> bool:
    settings = experiment.settings
    config = config_of(experiment)
    total = algorithm.num_updates(config)
    done = states.last_common_checkpoint(experiment.runs)
    ledgers = _ledgers(experiment)  # refuses those that are older than what was made from them
    if done == total:
        raise RunError(
            f"{experiment.path} is finished: all {total} updates are made; "
            f"see it with: sotto report {experiment.path}"
        )
    if done:
        begin = states.load(algorithm, config, experiment, done)
    else:
        begin = algorithm.initial_states(config, settings.seeds)
    logs = [Log(run.path, algorithm.steps_per_update(config)) for run in experiment.runs]
    started = time.monotonic()
    previous = done
    try:
        folders = [run.path / _RELEASED for run in experiment.runs]
        for progress in algorithm.train(config, settings.seeds, ledgers, begin, done, folders):
            if previous == done:  # it was charged: a training that goes on past its end may
                store(experiment)
            lines = _lines(algorithm, config, progress, previous, started, ledgers)
            try:
                _save(experiment, progress, lines, ledgers, logs)
            except OSError as error:
                raise RunError(
                    f"{experiment.path} cannot be written ({error.strerror}); make room, and go on "
                    "with --resume"
                ) from error
            previous = progress.updates
            report(Update(progress.updates, total, lines))
            if stopped() and progress.updates < total:
                return False
    finally:
        for log in logs:
            with suppress(OSError):  # a full disk, which was said where it was met
                log.close()
    return True


def load_states(experiment: Experiment, updates: int) -> PyTree:
    """The states of all runs after `updates` updates, leaves of shape [runs, ...].

    Raises:
        RunError: a checkpoint is damaged or missing.
        PrivacyError: the ledger is damaged, another run's, or older than the checkpoints.
    """
    _ledgers(experiment)
    settings = experiment.settings
    config = config_of(experiment)
    return states.load(algorithm_named(settings.algorithm), config, experiment, updates)


def _ledgers(experiment: Experiment) -> list[AnyLedger]:
    if experiment.settings.ledger is None:
        return []
    return [run.open_ledger() for run in experiment.runs]


def _lines(
    algorithm: Algorithm[Any],
    config: Any,
    progress: Progress,
    previous: int,
    started: float,
    ledgers: Sequence[AnyLedger],
) -> tuple[Line, ...]:
    """One line for each run."""
    seconds = time.monotonic() - started
    found = []
    for index in range(jax.tree.leaves(progress.states)[0].shape[0]):
        epsilon = ledgers[index].spent().epsilon if ledgers else math.inf
        made = mark(ledgers[index]) if ledgers else None
        found.append(
            Line(
                updates=progress.updates,
                first_update=previous,
                env_steps=(
                    progress.updates * algorithm.steps_per_update(config)
                    if progress.env_steps is None
                    else progress.env_steps
                ),
                seconds=round(seconds, 3),
                epsilon=epsilon if math.isfinite(epsilon) else None,
                charges=None if made is None else made.charges,
                head_hash=None if made is None else made.head_hash,
                released=_series(progress.released, index),
                evaluation={n: float(x[index]) for n, x in progress.evaluation.items()},
                simulated=_series(progress.simulated, index),
            )
        )
    return tuple(found)


def _series(arrays: dict[str, np.ndarray], run: int) -> dict[str, list[float]]:
    return {name: array[run].astype(float).tolist() for name, array in arrays.items()}


def _save(
    experiment: Experiment,
    progress: Progress,
    lines: Sequence[Line],
    ledgers: Sequence[AnyLedger],
    logs: Sequence[Log],
) -> None:
    # First all certificates: what they are derived from was charged before anything was released.
    for run, ledger in zip(experiment.runs, ledgers, strict=False):
        derive.derive(ledger).write(run.certificate)
    for index, run in enumerate(experiment.runs):
        state = jax.tree.map(lambda x, i=index: x[i], progress.states)
        made = mark(ledgers[index]) if ledgers else None
        checkpoints.save(run.checkpoints, progress.updates, state, made)
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
