"""Training of a run, or of several seeds together, with all results in the run directory.

In each chunk, the ledger is charged first, and then the releases are made. After the chunk, the
certificate, the checkpoint and the metrics are written, in this order. A training that is killed at
any moment resumes from the last checkpoint. Updates after that checkpoint are lost but stay
charged; they are repeated with new people and fresh noise.
"""

import math
import shlex
import signal
import threading
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
from sotto.privacy.ledger.ledger import Ledger
from sotto.runs import checkpoints
from sotto.runs.budgets import give_budget
from sotto.runs.directory import Experiment, store
from sotto.runs.marks import mark
from sotto.runs.metrics import Line, MetricsWriter
from sotto.runs.registry import algorithm_named
from sotto.runs.start import config_of
from sotto.trees import at

_RELEASED = "released"  # folder of a run for released data that a resumed training needs


@dataclass(frozen=True)
class Update:
    """Report of a training after each chunk.

    Attributes:
        updates, total_updates: number of updates so far, and of the whole training.
        lines: metrics of the chunk, one line for each run.
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
        experiment: a new or an interrupted experiment.
        report: function that is called after every chunk.
        algorithm: the experiment's algorithm, if an object has already read its files.

    Returns:
        True at the end; False if Ctrl-C stopped the training after a completed and saved chunk.

    Raises:
        RunError: the run is finished, or a checkpoint or certificate is damaged.
        PrivacyError: the budget does not cover the training, or the ledger is full, belongs to
            another run or is an old copy.
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
    done, ledgers = begun(experiment, total)
    if done:
        begin = checkpoints.load_all(algorithm, config, experiment, done)
    else:
        begin = algorithm.initial_states(config, settings.seeds)
    logs = [MetricsWriter(run.path, algorithm.steps_per_update(config)) for run in experiment.runs]
    started = time.monotonic()
    previous = done
    try:
        folders = [run.path / _RELEASED for run in experiment.runs]
        for progress in algorithm.train(config, settings.seeds, ledgers, begin, done, folders):
            _check_people(experiment, ledgers)
            if previous == done:  # the first chunk is charged, so a larger total_steps is stored
                store(experiment)
            seconds = round(time.monotonic() - started, 3)
            if is_real := settings.population == "real":
                seconds = 0.0  # how long they take is theirs to know
            lines = _lines(algorithm, config, progress, previous, seconds, ledgers, is_real)
            try:
                _save(experiment, progress, lines, ledgers, logs)
            except OSError as error:
                raise RunError(
                    f"{experiment.path} cannot be written ({error.strerror}); make room, and "
                    "continue with --resume"
                ) from error
            previous = progress.updates
            report(Update(progress.updates, total, lines))
            if stopped() and progress.updates < total:
                return False
    finally:
        for log in logs:
            with suppress(OSError):  # a full disk, about which an error was raised before
                log.close()
    return True


def begun(experiment: Experiment, total: int) -> tuple[int, list[AnyLedger]]:
    """Returns after how many updates a training goes on, 0 at its beginning, and its ledgers.

    Args:
        experiment: a new or an interrupted experiment.
        total: number of updates of the whole training.

    Raises:
        RunError, PrivacyError: the run is finished, or its files or its ledger cannot go on.
    """
    done = checkpoints.last_common_checkpoint(experiment.runs)
    ledgers = _ledgers(experiment)  # refuses ledgers that are older than files of their run
    _check_people(experiment, ledgers)
    for ledger in ledgers:
        give_budget(ledger, experiment.named.budget, experiment.named.numbers)
    if done == total:
        raise RunError(
            f"{experiment.path} has made all of its {total} updates; "
            f"see the results with: sotto report {shlex.quote(str(experiment.path))}"
        )
    return done, ledgers


def load_states(
    experiment: Experiment,
    updates: int,
    algorithm: Algorithm[Any] | None = None,
    config: Any | None = None,
) -> PyTree:
    """Reads the states of all runs after `updates` updates, leaves of shape [runs, ...].

    Args:
        experiment: the runs.
        updates: number of updates.
        algorithm: the experiment's algorithm, if an object has already read its files.
        config: settings that name other files than the stored ones.

    Raises:
        RunError: a checkpoint is damaged or missing.
        PrivacyError: a ledger is damaged, belongs to another run or is older than the checkpoints.
    """
    _ledgers(experiment)
    algorithm = algorithm or algorithm_named(experiment.settings.algorithm)
    config = config or config_of(experiment)
    return checkpoints.load_all(algorithm, config, experiment, updates)


def _ledgers(experiment: Experiment) -> list[AnyLedger]:
    if experiment.settings.ledger is None:
        return []
    return [run.open_ledger() for run in experiment.runs]


def _check_people(experiment: Experiment, ledgers: Sequence[AnyLedger]) -> None:
    """Refuses to write about people whom the settings call simulated and a ledger calls real.

    Only then could files that hold exact numbers of simulated people hold those of real ones.
    """
    if experiment.settings.population == "real":
        return
    streams = (one for ledger in ledgers if isinstance(ledger, Ledger) for one in ledger.streams)
    if any(one.statement.population == "real" for one in streams):
        raise RunError(
            f"{experiment.path} says that its people are simulated, and its ledger that they are "
            "real, so nothing about these releases was written; make the algorithm's `population` "
            "say real, and train into a new folder"
        )


def _lines(
    algorithm: Algorithm[Any],
    config: Any,
    progress: Progress,
    previous: int,
    seconds: float,
    ledgers: Sequence[AnyLedger],
    is_real: bool,
) -> tuple[Line, ...]:
    """Returns one line of metrics for each run, without exact numbers of people who are real."""
    found, shown = [], not is_real
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
                seconds=seconds,
                epsilon=epsilon if math.isfinite(epsilon) else None,
                charges=None if made is None else made.charges,
                head_hash=None if made is None else made.head_hash,
                released=_series(progress.released, index),
                evaluation={n: float(x[index]) for n, x in progress.evaluation.items()},
                simulated=_series(progress.simulated, index) if shown else {},
                samples=progress.samples if shown else (),
                before={n: float(x[index]) for n, x in progress.before.items()},
                samples_before=progress.samples_before if shown else (),
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
    logs: Sequence[MetricsWriter],
) -> None:
    # Certificates come first, since their ledgers were charged before the releases.
    for run, ledger in zip(experiment.runs, ledgers, strict=False):
        derive.derive(ledger).write(run.certificate)
    for index, run in enumerate(experiment.runs):
        state = at(progress.states, index)
        made = mark(ledgers[index]) if ledgers else None
        checkpoints.save(run.checkpoints, progress.updates, state, made)
        logs[index].append(lines[index])


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Makes the first Ctrl-C wait for the end of a chunk; a second one interrupts at once.

    Flower may run a training in another thread than the main one, which gets no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals are for the main thread, and this one is not asked to stop
        return
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
