"""Audits: lower bounds on the true epsilon of a mechanism, from running it many times.

A certificate bounds epsilon from above by proof. An audit bounds epsilon from below by experiment,
and refutes the certificate if its bound is larger. An audit that refutes nothing proves nothing.

Guarantee:
    If a mechanism is (epsilon, delta)-differentially private for the two inputs, the bound exceeds
    epsilon with probability at most 1 - confidence. For every set E of outputs and both orders of
    the inputs, P(E) <= e^epsilon Q(E) + delta. The first half of the samples chooses the set: a
    direction in the space of outputs, its sign and a threshold. The second half had no part in the
    choice, and bounds P(E) and Q(E) by two one-sided Clopper-Pearson intervals.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy.auditing import CanaryScoreAuditor, Explicit
from jaxtyping import Float, PyTree
from scipy import stats

from sotto.keys import new_key
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.ledger.streams import LedgerStream
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.privacy.statements import StreamStatement
from sotto.privacy.units import Unit
from sotto.trees import repeated

_BUDGET = Budget(epsilon=math.inf, delta=1e-9)  # refuses no audit
_TAIL_POINTS = 150
_RIDGE = 1e-9  # a direction without variance tells most: this keeps its score finite


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit.

    Attributes:
        epsilon_lower: lower bound on epsilon at `delta`; 0 if nothing was found.
        certified_epsilon: epsilon under test; infinity if there is none.
        delta: delta of both epsilons.
        confidence: least probability with which the bound holds.
        threshold: threshold of the score times `orientation` that tells the inputs apart.
        orientation: sign of the score, 1 or -1.
        samples: number of held-out samples of each input.
    """

    epsilon_lower: float
    certified_epsilon: float
    delta: float
    confidence: float
    threshold: float
    orientation: int
    samples: int

    @property
    def refuted(self) -> bool:
        """Whether the epsilon under test is too small, with the stated confidence."""
        return self.epsilon_lower > self.certified_epsilon


def audit(
    scores_present: Float[np.ndarray, " n"],
    scores_absent: Float[np.ndarray, " m"],
    delta: float,
    *,
    confidence: float = 0.999,
    certified_epsilon: float = math.inf,
) -> AuditResult:
    """Returns a lower bound on epsilon from independent scores of the two neighbouring inputs.

    Any real-valued score of a mechanism's output gives a valid bound, if the second half of the
    samples had no influence on the score. A good score gives a large bound.

    Args:
        scores_present: one score for each run with the unit present, in order of the runs.
        scores_absent: the same with the unit absent.
        delta: point on the privacy curve, 0 <= delta < 1.
        confidence: confidence of the bound, in (0.5, 1).
        certified_epsilon: epsilon under test, at `delta`.

    Raises:
        ValueError: a score is not finite, or there are fewer than four.

    Source: Jagielski et al. 2020, "Auditing Differentially Private Machine Learning", with the
    intervals of `jax_privacy.auditing.CanaryScoreAuditor`. The auditor's threshold selection is
    not used, because it returns neither the threshold nor the sign, and its first half could not
    be the half from which `linear_score` learnt a direction.
    """
    present, absent = (_checked(scores) for scores in (scores_present, scores_absent))
    half_present, half_absent = present.size // 2, absent.size // 2
    _, orientation, threshold = choose_event(
        present[:half_present], absent[:half_absent], delta, 1 - confidence
    )
    held_out = CanaryScoreAuditor(
        orientation * present[half_present:], orientation * absent[half_absent:]
    )
    epsilon = held_out.epsilon_clopper_pearson(
        1 - confidence, delta, one_sided=False, threshold_strategy=Explicit(threshold)
    )
    return AuditResult(
        epsilon_lower=float(epsilon),
        certified_epsilon=certified_epsilon,
        delta=delta,
        confidence=confidence,
        threshold=threshold,
        orientation=orientation,
        samples=min(present.size - half_present, absent.size - half_absent),
    )


def linear_score(
    train_present: Float[np.ndarray, "n d"], train_absent: Float[np.ndarray, "m d"]
) -> Callable[[Float[np.ndarray, "k d"]], Float[np.ndarray, " k"]]:
    """Returns the linear score that best separates two samples of vectors.

    This is Fisher's discriminant. For Gaussian outputs that differ in their mean it is the
    likelihood ratio. A variance or a norm that may differ has to be added as a feature.
    """
    covariance = np.atleast_2d(np.cov(train_present.T) + np.cov(train_absent.T)) / 2
    ridge = _RIDGE * np.trace(covariance) / len(covariance) + np.finfo(np.float64).tiny
    direction = np.linalg.solve(
        covariance + ridge * np.eye(len(covariance)), train_present.mean(0) - train_absent.mean(0)
    )
    return lambda vectors: np.asarray(vectors @ direction)


Mechanism = Callable[[bool, int, int], Float[np.ndarray, "samples d"]]
"""Function `run(present, seed, samples)`: outputs of independent runs on one of two inputs."""


def audit_mechanism(
    run: Mechanism,
    samples: int,
    seed: int,
    delta: float,
    *,
    certified_epsilon: float,
    confidence: float = 0.999,
) -> AuditResult:
    """Runs a mechanism, or a whole training, on two neighbouring inputs and tests its certificate.

    Args:
        run: mechanism whose runs are independent, and so are its calls with different seeds.
        samples: number of runs on each input; the bound is at most about log(samples / 16).
        seed: seed of the audit.
        delta: point on the privacy curve. Small epsilons are found best at a large delta.
        certified_epsilon: epsilon under test, at `delta`.
        confidence: confidence of the bound.
    """
    seeds = [int(one) for one in np.random.SeedSequence(seed).generate_state(2, np.uint64)]
    present, absent = (
        np.asarray(run(here, one, samples), dtype=np.float64)
        for here, one in zip((True, False), seeds, strict=True)
    )
    half = samples // 2
    score = linear_score(present[:half], absent[:half])
    return audit(
        score(present),
        score(absent),
        delta,
        confidence=confidence,
        certified_epsilon=certified_epsilon,
    )


@dataclass(frozen=True)
class ReleaseTrials:
    """A `Release` as a mechanism to audit: many runs of the real door, side by side.

    The real sampler draws the noise from a fixed seed, so that an audit can be repeated. No trial
    leaves the audit. One real ledger enforces the rules of participation for all runs, which make
    the same releases with the same enrolment numbers.

    Attributes:
        release: release under audit.
        state: first public state of one run.
        inputs: function of `present` that gives the enrolment numbers [releases, slots] (None
            with Poisson sampling) and the unit data [releases, slots, ...] (or [population, ...])
            of one of the two neighbouring inputs.
        observe: function that turns the server's log, with leaves [samples, releases, ...], into
            the adversary's features [samples, d].
    """

    release: Release
    state: PyTree[Any]
    inputs: Callable[[bool], tuple[np.ndarray | None, PyTree[Any]]]
    observe: Callable[[Any], Float[np.ndarray, "samples d"]]

    def __call__(self, present: bool, seed: int, samples: int) -> Float[np.ndarray, "samples d"]:
        """Returns the outputs of independent runs on one of the two inputs; see `Mechanism`."""
        with temporary_ledger(self.release.unit) as ledger:
            repetitions = [Repetition(ledger)] * (samples - 1)
            stream, states = self._open([ledger, *repetitions], noise_seed=seed)
            persons, units = self.inputs(present)
            _, log, _ = stream.run(
                states,
                jax.random.split(new_key(seed % 2**31), samples),
                None if persons is None else np.broadcast_to(persons, (samples, *persons.shape)),
                repeated(units, samples),
            )
            return self.observe(jax.tree.map(np.asarray, log))

    def certified_epsilon(self, delta: float) -> float:
        """Returns the ledger's epsilon for one run with noise from the operating system."""
        with temporary_ledger(self.release.unit) as ledger:
            persons, _ = self.inputs(True)
            self._open([ledger], noise_seed=None)
            releases = self.release.horizon if persons is None else len(persons)
            charged = None if persons is None else [row[row >= 0] for row in persons]
            LedgerStream(ledger, 0).charge(0, releases, charged)
            return ledger.spent().epsilon_at(delta)

    def _open(self, ledgers: Sequence[Ledger], noise_seed: int | None) -> tuple[Stream, Any]:
        persons, units = self.inputs(True)
        one_release = jax.tree.map(lambda x: jnp.asarray(x if persons is None else x[0]), units)
        states = repeated(self.state, len(ledgers))
        return self.release.open(ledgers, states, one_release, noise_seed=noise_seed), states


class Repetition(Ledger):
    """A ledger that reads as that of the repeated run, and writes nothing."""

    def __init__(self, repeated: Ledger) -> None:
        self.__dict__ = repeated.__dict__

    def open_stream(self, statement: StreamStatement) -> LedgerStream:
        """Returns a stream that charges nothing."""
        del statement  # the repeated run has written it
        return _RepeatedStream(self, 0)


class _RepeatedStream(LedgerStream):
    def charge(self, *_charged: Any, **_named: Any) -> None:
        pass


@contextmanager
def temporary_ledger(unit: Unit) -> Iterator[Ledger]:
    """Yields a ledger that is deleted afterwards, with a budget that refuses no audit."""
    with tempfile.TemporaryDirectory() as folder:
        yield Ledger.create(Path(folder) / "ledger.sqlite", unit=unit, budget=_BUDGET)


def _checked(scores: np.ndarray) -> Float[np.ndarray, " n"]:
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 1 or scores.size < 4 or not np.isfinite(scores).all():
        raise ValueError("scores must be a list of at least four finite numbers for each input")
    return scores


def choose_event(
    present: np.ndarray, absent: np.ndarray, delta: float, significance: float
) -> tuple[float, int, float]:
    """Returns the largest bound on these samples, with its sign and its threshold.

    The bound is not valid on the samples that chose the event.
    """
    best = (-math.inf, 1, 0.0)
    for sign in (1, -1):
        in_sorted, out_sorted = np.sort(sign * present), np.sort(sign * absent)
        thresholds = np.unique(np.concatenate([_candidates(in_sorted), _candidates(out_sorted)]))
        missed = _upper(np.searchsorted(in_sorted, thresholds), present.size, significance)
        false_alarm = _upper(
            absent.size - np.searchsorted(out_sorted, thresholds), absent.size, significance
        )
        for other, own in ((missed, false_alarm), (false_alarm, missed)):
            epsilon = np.log(np.maximum(1 - other - delta, 1e-300)) - np.log(own)
            index = int(np.argmax(epsilon))
            best = max(best, (float(epsilon[index]), sign, float(thresholds[index])))
    return best


def _candidates(ordered: np.ndarray) -> np.ndarray:
    """Returns order statistics of one sample, denser towards both ends."""
    ranks = np.unique(np.geomspace(1, ordered.size, _TAIL_POINTS).astype(int)) - 1
    return np.concatenate([ordered[ranks], ordered[ordered.size - 1 - ranks]])


def _upper(successes: np.ndarray, trials: int, significance: float) -> Float[np.ndarray, " k"]:
    """Returns Clopper-Pearson upper bounds at half the significance: a bound uses two."""
    bound = stats.beta.ppf(1 - significance / 2, successes + 1, np.maximum(trials - successes, 1))
    return np.where(successes < trials, bound, 1.0)
