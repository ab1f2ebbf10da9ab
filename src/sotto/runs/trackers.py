"""Experiment trackers, Weights & Biases and MLflow, as callbacks of a training.

sotto gives a tracker the contents of metrics.jsonl and nothing else: no settings, no states and no
printed lines. For real people, these are functions of releases, and returns in a public simulator.
A tracker may itself record the machine and the command line, and it notes when it is told. How long
real people take would show there, so it is opened, and told everything, after the training.
"""

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

from sotto.runs.metrics import Line
from sotto.runs.training import Update

TrackerName = Literal["wandb", "mlflow"]


_FAILURES = {"wandb": "Error", "mlflow": "MlflowException"}
"""Base class of the exceptions of each package."""

_Log = Callable[[dict[str, float], int], None]


@contextmanager
def tracker(
    name: TrackerName, run: str, *, maybe_real: bool = False
) -> Iterator[Callable[[Update], None]]:
    """Opens a tracker and yields a callback for `sotto.train`.

    Example:
        with tracker("wandb", "x") as tell:
            sotto.train(settings, out="runs/x", callbacks=[tell])

    Args:
        name: name of the tracker. Its package must be installed; its environment variables
            configure it.
        run: name of the run in the tracker's project or experiment `sotto`.
        maybe_real: whether people may be real. The tracker is then opened when it is first told.
            Updates without a time are about real people, and wait for the end of the context.

    Raises:
        ValueError: the package is not installed, or the tracker fails. A run that has begun can be
            resumed without it.
    """
    try:
        package: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--tracker {name} needs the package {name}: pip install {name}"
        ) from error
    waiting: list[Update] = []
    failure = getattr(package, _FAILURES[name])
    with _one_sentence(failure, name), ExitStack() as stack:
        log = None if maybe_real else stack.enter_context(_opened(package, name, run))

        def tell(update: Update) -> None:
            nonlocal log
            log = log or stack.enter_context(_opened(package, name, run))
            _tell(update, log)

        try:
            yield lambda update: tell(update) if update.lines[0].seconds else waiting.append(update)
        finally:
            for update in waiting:
                tell(update)


@contextmanager
def _one_sentence(failure: type[Exception], name: str) -> Iterator[None]:
    """Raises an exception of the tracker as a ValueError of one sentence."""
    try:
        yield
    except failure as error:
        said = str(error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(f"{name} failed: {said}; set it up, or leave out --tracker") from error


@contextmanager
def _opened(package: Any, name: TrackerName, run: str) -> Iterator[_Log]:
    """Opens a run of a tracker and yields the function that logs values of an update there."""
    if name == "wandb":
        silent = {"console": "off"}  # or it would send every printed line, refusals among them
        with package.init(project="sotto", name=run, settings=silent) as opened:
            yield lambda values, at: opened.log(values, step=at)
    else:
        package.set_experiment("sotto")
        with package.start_run(run_name=run):
            yield lambda values, at: package.log_metrics(values, at)


def _tell(update: Update, log: _Log) -> None:
    """Logs every update of the chunk in turn, with the values of all seeds."""
    several = len(update.lines) > 1
    for number in range(update.lines[0].first_update + 1, update.updates + 1):
        values: dict[str, float] = {}
        for index, line in enumerate(update.lines):
            under = f"seed-{index}/" if several else ""
            values |= {f"{under}{name}": x for name, x in _values(line, number).items()}
        log({name: x for name, x in values.items() if math.isfinite(x)}, number)


def _values(line: Line, number: int) -> dict[str, float]:
    """Returns a line's values of one update; evaluation and epsilon belong to the last one."""
    series = {"released": line.released, "simulated": line.simulated}
    found = {
        f"{heading}/{name}": values[number - line.first_update - 1]
        for heading, one in series.items()
        for name, values in one.items()
    }
    if number == line.updates:
        found |= {f"evaluation/{name}": value for name, value in line.evaluation.items()}
        found |= {} if line.epsilon is None else {"epsilon": line.epsilon}
        found["env_steps"] = float(line.env_steps)
    return found
