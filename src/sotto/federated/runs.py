"""Runs on devices: run directories like those of `sotto train`, with one more file.

`devices.json` has the promise under which devices add noise. `sotto certificate`, `eval` and
`report` read the directory as any other.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field
from scipy.stats import binom

from sotto.algorithms.base import Algorithm
from sotto.errors import RunError
from sotto.federated.device import ROUND_BYTES
from sotto.federated.network import Network
from sotto.federated.plan import Plan
from sotto.federated.training import on_devices
from sotto.files import read_model
from sotto.frozen import FrozenModel
from sotto.privacy.release.noise_shares import Promise
from sotto.runs import start, training
from sotto.runs.directory import DEVICES, Experiment, Named, open_experiment
from sotto.runs.registry import algorithm_named


class _Stored(FrozenModel):
    """Contents of devices.json."""

    promised: int = Field(ge=1)
    colluding: int = Field(ge=0)
    bits: int = Field(ge=8, le=32)


def least_present(people: int, drop_out: float, failure: float) -> int:
    """Returns how many of some people are present, except with a small probability.

    Args:
        people: number of people who are asked.
        drop_out: probability that a person drops out, independent of the others.
        failure: largest probability that fewer are present.
    """
    likely = int(binom.ppf(failure, people, 1 - drop_out))
    return likely if binom.cdf(likely - 1, people, 1 - drop_out) <= failure else likely - 1


def begin(
    algorithm: Algorithm[Any],
    config: Any,
    promise: Promise,
    out: Path,
    command: str,
    budget: str | None = None,
) -> Experiment:
    """Makes the directory of a new run.

    Args:
        algorithm, config: the algorithm and its settings.
        promise: how many devices are in every sum.
        out: the directory, which must not exist.
        command: command that started the run, for the report.
        budget: file or SQLAlchemy URL of a budget that the run shares with other products, in which
            people have the numbers of their devices.

    Raises:
        ValueError: devices cannot make these releases. No files are left.
    """
    config = algorithm.resolved(config)
    plan = Plan(algorithm, config, promise, algorithm.num_updates(config))
    plan.require_people()
    for people in (plan.shared.release.slots, promise.promised):  # most and fewest who answer
        plan.terms(bytes(ROUND_BYTES)).circle(people)
    stored = _Stored(**asdict(promise))
    return start.begin(
        algorithm,
        config,
        out,
        budget=budget,
        numbered=True,
        promise=stored,
        population=plan.shared.release.population,
        command=command,
    )


def go_on(
    out: Path, env_id: str | None = None, budget: str | None = None
) -> tuple[Experiment, Promise]:
    """Opens the run in a directory, and its promise.

    Args:
        out: the directory.
        env_id: environment that the user named; the module of another one is not imported.
        budget: the shared budget of `begin`, which must be given again.

    Raises:
        RunError: there is no run, or it is not one of devices.
    """
    experiment = open_experiment(out, Named(env_id=env_id, budget=budget))
    file = out / DEVICES
    if not file.is_file():
        raise RunError(f"{out} is not a run on devices: it has no {DEVICES}; use sotto train")
    return experiment, Promise(**dict(read_model(file, _Stored)))


def train(
    experiment: Experiment,
    promise: Promise,
    network: Network,
    report: Callable[[training.Update], None],
) -> bool:
    """Trains from the last checkpoint to the end, or to the first Ctrl-C; returns whether it ended.

    Args:
        experiment, promise: the run.
        network: the way to the devices.
        report: function that is called after every release.

    Raises:
        RunError: too few devices, or the run is finished or damaged.
        PrivacyError: the budget does not cover the releases, or the ledger cannot be used.
    """
    algorithm = algorithm_named(experiment.settings.algorithm)
    try:
        return training.train(experiment, report, on_devices(algorithm, network, promise))
    except BaseException:  # an unused directory would block the next try
        start.discard_if_unused(experiment)
        raise
