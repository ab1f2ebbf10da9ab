"""The leak catalogue: mistakes that lose a guarantee, each with an experiment that shows the loss.

The audited lower bound of the leaky variant exceeds the epsilon that it would have claimed. The
sound variant goes through the real door and stays below its certificate.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sotto.privacy.audits.leaks.adaptive_clip import UNCENTRED_BIT
from sotto.privacy.audits.leaks.best_of_n import BEST_OF_N
from sotto.privacy.audits.leaks.close_points import CLOSE_POINTS
from sotto.privacy.audits.leaks.counters import COUNTERS
from sotto.privacy.audits.leaks.counting import DIVISOR, RETURNS, SEGMENTS, SEGMENTS_AT_ONCE
from sotto.privacy.audits.leaks.critic import CRITIC
from sotto.privacy.audits.leaks.experts import (
    FIXED_BATCHES,
    FIXED_LOG,
    REUSED_POOL,
    VISIBLE_COIN,
    VOTES,
)
from sotto.privacy.audits.leaks.functional import FUNCTIONAL_NOISE
from sotto.privacy.audits.leaks.leak import DELTA, Leak
from sotto.privacy.audits.leaks.noise import FINE_GRID, FLOAT32_TAILS, REUSED_NOISE
from sotto.privacy.audits.leaks.normalisation import ADVANTAGE_NORMALISATION, OBSERVATION_NORMALISER
from sotto.privacy.audits.leaks.randomness import BATCH_RANDOMNESS
from sotto.privacy.audits.leaks.rlhf import (
    EARLY_STOPPING,
    KL_COEFFICIENT,
    REWARD_NORMALISER,
    VALUE_HEAD,
)

__all__ = ["CATALOGUE", "DELTA", "Leak", "LeakReport", "check_samples", "named", "run_catalogue"]

CATALOGUE: tuple[Leak, ...] = (
    CRITIC,
    OBSERVATION_NORMALISER,
    ADVANTAGE_NORMALISATION,
    REUSED_NOISE,
    SEGMENTS,
    SEGMENTS_AT_ONCE,
    RETURNS,
    UNCENTRED_BIT,
    FLOAT32_TAILS,
    FINE_GRID,
    DIVISOR,
    FUNCTIONAL_NOISE,
    CLOSE_POINTS,
    VOTES,
    FIXED_BATCHES,
    VISIBLE_COIN,
    FIXED_LOG,
    REUSED_POOL,
    COUNTERS,
    BATCH_RANDOMNESS,
    VALUE_HEAD,
    KL_COEFFICIENT,
    REWARD_NORMALISER,
    BEST_OF_N,
    EARLY_STOPPING,
)

CONFIDENCE = 0.999
"""Confidence with which all lower bounds of one run of the catalogue hold together."""


@dataclass(frozen=True)
class LeakReport:
    """The result of one entry of the catalogue. Epsilons are at delta `DELTA`, perhaps infinite.

    Attributes:
        name: name of the leak.
        claimed_epsilon: epsilon that the leaky variant would claim.
        leaky_lower_bound: audited lower bound of the leaky variant.
        sound_lower_bound: audited lower bound of the sound variant.
        sound_certified_epsilon: epsilon of the sound variant's certificate.
        confidence: confidence of each of its two lower bounds alone.
        seconds: wall-clock time.
        verdict: "leak shown": the claim is refuted and the sound variant's certificate is not;
            "not shown": too few samples; "certificate refuted": the sound variant leaks too.
    """

    name: str
    claimed_epsilon: float
    leaky_lower_bound: float
    sound_lower_bound: float
    sound_certified_epsilon: float
    confidence: float
    seconds: float
    verdict: Literal["leak shown", "not shown", "certificate refuted"]


def named(names: Sequence[str] | None = None) -> tuple[Leak, ...]:
    """Returns the entries with these names; None returns all of them.

    Raises:
        ValueError: a name is not in the catalogue.
    """
    known = {leak.name: leak for leak in CATALOGUE}
    if unknown := sorted(set(names or ()) - set(known)):
        raise ValueError(f"no leak is called {', '.join(unknown)}; choose from {', '.join(known)}")
    return CATALOGUE if names is None else tuple(known[name] for name in names)


def run_catalogue(
    names: Sequence[str] | None = None, samples: int = 50_000, seed: int = 0
) -> list[LeakReport]:
    """Runs entries of the catalogue. All their lower bounds hold together with `CONFIDENCE`.

    Each of the two bounds of every leak gets an equal share of the doubt (Bonferroni).

    Args:
        names: names of leaks; None runs all of them.
        samples: runs of each variant on each of two neighbouring inputs. The first half trains
            the adversary, and the bounds come from the second half.
        seed: seed of the experiments; the same seed gives the same figures.

    Raises:
        ValueError: a name is not in the catalogue, or there are too few samples.
    """
    chosen = named(names)
    check_samples(names, samples)
    each = _confidence_of_each(chosen)
    return [_report(leak, samples, seed, each) for leak in chosen]


def check_samples(names: Sequence[str] | None, samples: int) -> None:
    """Refuses a number of samples with which a leak could not show itself, even without noise.

    Raises:
        ValueError: there are too few samples, or a name is not in the catalogue.
    """
    chosen = named(names)
    least = {leak: leak.least_samples(_confidence_of_each(chosen)) for leak in chosen}
    hardest = max(chosen, key=lambda leak: least[leak])
    if samples < least[hardest]:
        raise ValueError(
            f"--samples must be at least {least[hardest]} to show {hardest.name}, got {samples}: "
            f"fewer cannot refute an epsilon of {hardest.claimed_epsilon:.3g}, even without noise"
        )


def _confidence_of_each(chosen: Sequence[Leak]) -> float:
    """Returns the confidence of each of the two bounds of these leaks."""
    return 1 - (1 - CONFIDENCE) / (2 * len(chosen))


def _report(leak: Leak, samples: int, seed: int, confidence: float) -> LeakReport:
    start = time.perf_counter()
    leaky, sound = (run(samples, seed, confidence) for run in (leak.leaky, leak.sound))
    verdict: Literal["leak shown", "not shown", "certificate refuted"]
    if sound.refuted:
        verdict = "certificate refuted"
    else:
        verdict = "leak shown" if leaky.refuted else "not shown"
    return LeakReport(
        name=leak.name,
        claimed_epsilon=leak.claimed_epsilon,
        leaky_lower_bound=leaky.epsilon_lower,
        sound_lower_bound=sound.epsilon_lower,
        sound_certified_epsilon=sound.certified_epsilon,
        confidence=min(leaky.confidence, sound.confidence),
        seconds=time.perf_counter() - start,
        verdict=verdict,
    )
