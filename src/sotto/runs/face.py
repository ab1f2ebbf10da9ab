"""Training, checking and accounting from Python: the same as the command line does."""

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sotto.privacy.accounting.composition import (
    Event,
    Gaussian,
    SampledGaussian,
    calibrate_noise_multiplier,
    compose,
)
from sotto.privacy.certificates.derive import Verification, derive
from sotto.privacy.certificates.derive import verify as derive_again
from sotto.privacy.certificates.model import Certificate
from sotto.privacy.mechanisms.noise import calibrate_with_sampler, sampler_delta
from sotto.runs import start, training
from sotto.runs.agent import Agent, load
from sotto.runs.directory import NOTHING_NAMED, Experiment, Named, open_experiment
from sotto.runs.metrics import read
from sotto.runs.registry import algorithm_of

_DRAWS = 2**40
"""Numbers that are drawn at most, for the sampler's own delta."""


@dataclass(frozen=True)
class TrainedRun:
    """A run directory, read.

    Attributes:
        path: of the run, or of several seeds.
        finished: whether all of its updates have been made.
        named: what the user named outside of the directory: the ledger, an environment's module.
    """

    path: Path
    finished: bool
    named: Named = NOTHING_NAMED

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """One for each seed, derived from its ledger now; none without privacy."""
        experiment = self._experiment
        if experiment.settings.ledger is None:
            return ()
        return tuple(derive(run.open_ledger()) for run in experiment.runs)

    @property
    def certificate(self) -> Certificate:
        """What is proved about the run; of several seeds, about the one that promises least.

        Raises:
            ValueError: the algorithm protects nobody.
        """
        found = self.certificates
        if not found:
            raise ValueError(f"{self.path} protects nobody; it has no certificate")
        return max(found, key=lambda one: (one.status != "proved", one.epsilon))

    @property
    def returns(self) -> dict[str, np.ndarray]:
        """Mean return of each policy after the last chunk, [seeds] each."""
        last = [read(run.metrics)[-1].evaluation for run in self._experiment.runs]
        return {name: np.array([one[name] for one in last]) for name in last[0]}

    def load(self, policy: str | None = None) -> Agent:
        """The agent of the first seed; `sotto.load` has the others."""
        return load(self._experiment.runs[0].path, policy=policy, env_id=self.named.env_id)

    @property
    def _experiment(self) -> Experiment:
        return open_experiment(self.path, self.named)


def train(
    settings: Any,
    out: Path | str,
    *,
    seeds: int = 1,
    ledger: str | None = None,
    resume: bool = False,
    callbacks: Sequence[Callable[[training.Update], None]] = (),
) -> TrainedRun:
    """Trains as `sotto train` does, into a run directory.

    Example:
        run = sotto.train(sotto.DPPG(env_id="CartPole-v1", target_epsilon=1.0), out="runs/x")

    Args:
        settings: of an algorithm, such as `sotto.DPPG(...)` or `sotto.PPO(...)`.
        out: run directory; it must not exist, except to resume.
        seeds: so many side by side, from `settings.seed` on.
        ledger: SQLAlchemy URL or file of the ledger, instead of one in the run directory.
        resume: go on with the interrupted training in `out`, started with the same settings; or
            with a finished one, if `total_steps` has grown and the budget has room.
        callbacks: each is called after every chunk with what the command line shows.

    Raises:
        ValueError: settings that cannot be run. Nothing has been made.
        PrivacyError: the budget does not cover the training.
    """
    algorithm, where = algorithm_of(settings), Path(out)
    named = {name: str(value) for name, value in vars(settings).items()}
    algorithm.use(algorithm.options_type(), settings, named)
    if resume:
        env_id = getattr(settings, "env_id", None)
        experiment = start.go_on(
            algorithm, settings, where, seeds=seeds, ledger=ledger, env_id=env_id
        )
    else:
        command = f"sotto.train({settings!r}, out={shlex.quote(str(out))}, seeds={seeds})"
        experiment = start.begin(
            algorithm, settings, where, seeds=seeds, ledger=ledger, command=command
        )

    def report(update: training.Update) -> None:
        for callback in callbacks:
            callback(update)

    try:
        finished = training.train(experiment, report, algorithm)
    except BaseException:
        if not resume:
            start.discard_if_unused(experiment)
        raise
    return TrainedRun(where, finished, experiment.named)


def verify(path: Path | str) -> dict[str, Verification]:
    """Derives a run's certificate again and compares it with the stored one.

    Returns:
        For each seed's run directory: `status` is "verified", "stale" (it is what the ledger gave
        earlier) or "false", with the `mismatches` in sentences.

    Raises:
        RunError: there is no run, or it has no ledger.
    """
    runs = open_experiment(Path(path)).runs
    return {str(run.path): derive_again(run.certificate, run.open_ledger()) for run in runs}


def calibrate(
    *, target_epsilon: float, delta: float, releases: int = 1, sampling_rate: float | None = None
) -> float:
    """The least noise multiplier that meets a target, for whoever takes part in every release.

    Example:
        sotto.calibrate(target_epsilon=1.0, delta=1e-5)                        # 3.73

    Args:
        target_epsilon: epsilon that must not be exceeded.
        delta: of the guarantee; below one over the number of people.
        releases: in which one person takes part.
        sampling_rate: each person is drawn for each release with this probability, in secret
            (Poisson sampling); None: everybody takes part.

    Raises:
        ValueError: the target is out of reach.
    """

    def least(at: float) -> float:
        return calibrate_noise_multiplier(
            lambda z: [_event(z, releases, sampling_rate)], target_epsilon, at
        )

    return calibrate_with_sampler(least, lambda z: sampler_delta(z, _DRAWS), delta)


def account(
    *, noise_multiplier: float, delta: float, releases: int = 1, sampling_rate: float | None = None
) -> float:
    """Epsilon at delta for whoever takes part in every release; arguments as for `calibrate`.

    Example:
        sotto.account(noise_multiplier=1.0, delta=1e-5)                        # 4.38

    The analytic Gaussian mechanism (Balle and Wang 2018, Theorem 8), or privacy loss distributions
    under sampling. Both are tight.
    """
    return compose([_event(noise_multiplier, releases, sampling_rate)]).epsilon(delta)


def _event(noise_multiplier: float, releases: int, sampling_rate: float | None) -> Event:
    if releases < 1:
        raise ValueError(f"releases must be at least 1, got {releases}")
    if sampling_rate is not None:
        return SampledGaussian(
            noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, count=releases
        )
    return Gaussian(noise_multiplier=noise_multiplier / math.sqrt(releases))
