"""The public functions for training and verification, as on the command line."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sotto.algorithms.settings import Count
from sotto.algorithms.values import checks_arguments
from sotto.privacy.certificates.derive import Verification, derive
from sotto.privacy.certificates.derive import verify as derive_again
from sotto.privacy.certificates.model import Certificate
from sotto.runs import start, training
from sotto.runs.agents.agent import Agent, load
from sotto.runs.directory import NOTHING_NAMED, Experiment, Named, open_experiment
from sotto.runs.metrics import read
from sotto.runs.registry import algorithm_of
from sotto.runs.seeds import weakest


@dataclass(frozen=True)
class TrainedRun:
    """A trained run, or several seeds, in a run directory.

    Attributes:
        path: the directory.
        finished: whether all updates have been made.
        named: locations outside the directory that the user has given.
    """

    path: Path
    finished: bool
    named: Named = NOTHING_NAMED

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """Certificates of all seeds, derived from their ledgers now; empty without privacy."""
        experiment = self._experiment
        if experiment.settings.ledger is None:
            return ()
        return tuple(derive(run.open_ledger()) for run in experiment.runs)

    @property
    def certificate(self) -> Certificate:
        """Certificate of the run; of several seeds, the weakest one.

        Raises:
            ValueError: the run has no ledger, so it protects nobody.
        """
        found = self.certificates
        if not found:
            raise ValueError(f"{self.path} protects nobody; it has no certificate")
        return weakest(found)

    @property
    def returns(self) -> dict[str, np.ndarray]:
        """Mean returns after the last chunk by policy, [seeds] each."""
        last = [read(run.metrics)[-1].evaluation for run in self._experiment.runs]
        return {name: np.array([one[name] for one in last]) for name in last[0]}

    def load(self, policy: str | None = None) -> Agent:
        """Loads the agent of the first seed; use `sotto.load` for the others."""
        return load(self._experiment.runs[0].path, policy=policy, env_id=self.named.env_id)

    @property
    def _experiment(self) -> Experiment:
        return open_experiment(self.path, self.named)


@checks_arguments
def train(
    settings: Any,
    out: Path | str,
    *,
    seeds: Count = 1,
    ledger: str | None = None,
    budget: str | None = None,
    numbers: Path | str | None = None,
    resume: bool = False,
    devices: Count = 1,
    ray: str | None = None,
    callbacks: Sequence[Callable[[training.Update], None]] = (),
) -> TrainedRun:
    """Trains as `sotto train` does, into a run directory.

    Example:
        run = sotto.train(sotto.DPPG(env_id="CartPole-v1", target_epsilon=1.0), out="runs/x")

    Args:
        settings: settings of an algorithm, such as `sotto.DPPG(...)` or `sotto.PPO(...)`.
        out: run directory, which must not exist unless `resume` is set.
        seeds: number of seeds to train together, from `settings.seed` on.
        ledger: SQLAlchemy URL or file of the ledger, instead of a file in the run directory.
        budget: file or SQLAlchemy URL of a budget that the run shares with other products. Give it
            again to resume.
        numbers: file with the operator's number of each person, in the order of enrolment.
        resume: whether to continue the training in `out`, which must have the same settings. A
            finished training continues if `total_steps` is larger and the budget has room.
        devices: number of devices that share the people of a private training. Without an
            accelerator, each processor core can be one, if nothing has used JAX before.
        ray: Ray cluster that collects users of a Gymnasium environment (`sotto.cluster`).
        callbacks: functions that are called with an `Update` after every chunk.

    Raises:
        ValueError: the settings cannot be run, or an argument has another type. No files are left.
        PrivacyError: the budget does not cover the training.
    """
    algorithm, where = algorithm_of(settings), Path(out)

    def report(update: training.Update) -> None:
        for callback in callbacks:
            callback(update)

    with start.on_machines(algorithm, settings, devices, ray):
        named = {name: str(value) for name, value in vars(settings).items()}
        algorithm.use(algorithm.options_type(), settings, named)
        with start.opened(
            algorithm,
            settings,
            where,
            resume=resume,
            command=f"sotto.train({settings!r}, out={shlex.quote(str(out))}, seeds={seeds})",
            env_id=getattr(settings, "env_id", None),
            seeds=seeds,
            ledger=ledger,
            budget=budget,
            numbers=None if numbers is None else Path(numbers),
        ) as experiment:
            finished = training.train(experiment, report, algorithm)
        return TrainedRun(where, finished, experiment.named)


@checks_arguments
def verify(path: Path | str) -> dict[str, Verification]:
    """Derives a run's certificate again and compares it with the stored one.

    Returns:
        The result for each seed's run directory. Its `status` is "verified", "stale" (the ledger
        has later charges) or "false", and `mismatches` explains the differences.

    Raises:
        RunError: there is no run, or it has no ledger.
    """
    runs = open_experiment(Path(path)).runs
    return {str(run.path): derive_again(run.certificate, run.open_ledger()) for run in runs}
