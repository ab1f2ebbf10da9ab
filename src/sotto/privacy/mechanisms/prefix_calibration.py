"""Calibrates the threshold of stable prefixes to a target epsilon, also as the paper does it.

The `calibrate_*` functions find the mechanism whose threshold, together with the noise of its
queries, needs the least mass. `theorem1` is the theorem of Sharma et al. 2024: Laplace noise, and n
releases of (2e', d') composed by one of three rules. The claims of both are proved in
docs/privacy.md, section 14.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import optimize

from sotto.privacy.accounting import two_hop
from sotto.privacy.accounting.composition import compose
from sotto.privacy.accounting.gaussian import checked_delta
from sotto.privacy.mechanisms.sparse_vector import NoiseName, SparseVector, named
from sotto.privacy.mechanisms.stable_prefixes import (
    Consensus,
    Floor,
    RandomStop,
    Rule,
    StablePrefixMechanism,
)

Composition = Literal["basic", "advanced", "exact"]
COMPOSITIONS: tuple[Composition, ...] = ("basic", "advanced", "exact")

_SHARES = (0.5, 0.6, 0.7, 0.8)  # shares of the exponential noise's cost that the threshold takes
_BACK_OFF = 1 - 1e-9  # meets targets in spite of rounding


@dataclass(frozen=True)
class Target:
    """A target cost of all releases together, and their number.

    Attributes:
        experts: public lower bound on the number of experts.
        releases: number of prefixes.
        epsilon: of all of them.
        delta: of all of them; below 1 / experts.
        horizon: longest prefix. It chooses between mechanisms of equal cost, and costs nothing.
    """

    experts: int
    releases: int
    epsilon: float
    delta: float
    horizon: int = 200

    def __post_init__(self) -> None:
        if self.experts < 2 or self.releases < 1 or self.horizon < 1:
            raise ValueError("there must be at least 2 experts, 1 release and a horizon of 1")
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be a positive finite number, got {self.epsilon}")
        if checked_delta(self.delta) * self.experts >= 1:
            raise ValueError(
                f"delta {self.delta:.4g} is vacuous for {self.experts} experts, since publishing "
                "one of them at random would meet it; take a delta below 1/experts"
            )


# --- two hops and consensus ----------------------------------------------------------------------


def calibrate_floor(
    target: Target, floor: float, noise: NoiseName = "exponential"
) -> StablePrefixMechanism:
    """Returns the mechanism for experts whose actions all have at least probability `floor`.

    Raises:
        ValueError: if no mechanism meets the target with so few experts.
    """
    return _two_hop(target, noise, lambda ratio: Floor(floor=floor, ratio=ratio))


def calibrate_random_stop(
    target: Target, hazard: float, noise: NoiseName = "exponential"
) -> StablePrefixMechanism:
    """Returns the mechanism for any experts, whose prefixes end by themselves at rate `hazard`.

    Raises:
        ValueError: if no mechanism meets the target with so few experts.
    """
    return _two_hop(target, noise, lambda ratio: RandomStop(hazard=hazard, ratio=ratio))


def calibrate_consensus(target: Target, noise: NoiseName = "exponential") -> StablePrefixMechanism:
    """Returns the mechanism that follows the experts' votes; failures take half of delta."""
    half = target.delta / 2
    epsilon = two_hop.pure_epsilon_of_each(target.releases, _BACK_OFF * target.epsilon, half)
    failure = half / target.releases
    # A query that may rise and fall costs its rate twice. The Laplace laws keep their proportions.
    shares = _SHARES if noise == "exponential" else (0.5,)
    rules = (
        _mechanism(target, Consensus(), _rescaled(named(noise, epsilon, share), epsilon), failure)
        for share in shares
    )
    return _checked(target, _best(target, rules))


def _two_hop(
    target: Target, noise: NoiseName, rule: Callable[[float], Rule]
) -> StablePrefixMechanism:
    """Returns the best mechanism of a grid; draws, queries and failures share delta equally."""
    third = target.delta / 3
    shares = _SHARES if noise == "exponential" else (0.5,)

    def candidates() -> Iterator[StablePrefixMechanism | None]:
        for drawn in np.linspace(0.02, 0.7, 60) * target.epsilon:
            ratio = two_hop.largest_ratio(target.experts, target.releases, drawn, third)
            left = _BACK_OFF * (target.epsilon - drawn)
            each = two_hop.pure_epsilon_of_each(target.releases, left, math.exp(-drawn) * third)
            if ratio == 0:
                continue
            for share in shares:
                yield _mechanism(
                    target, rule(ratio), named(noise, each, share), third / target.releases
                )

    return _checked(target, _best(target, candidates()))


def _mechanism(
    target: Target, rule: Rule, noise: SparseVector, failure: float
) -> StablePrefixMechanism | None:
    """Returns the mechanism, or None where the experts are too few for the rule."""
    if rule.least_mass > target.experts:
        return None
    return StablePrefixMechanism(experts=target.experts, rule=rule, noise=noise, failure=failure)


def _best(
    target: Target, candidates: Iterator[StablePrefixMechanism | None]
) -> StablePrefixMechanism:
    found = [one for one in candidates if one is not None]
    if not found:
        raise ValueError(
            f"{target.experts} experts are too few for {target.releases} releases at epsilon "
            f"{target.epsilon:g}: the empty prefix lacks the least mass; take more experts, more "
            "epsilon or fewer releases, or a larger floor or hazard"
        )
    return min(found, key=lambda one: one.needed(target.horizon))


def _checked(target: Target, found: StablePrefixMechanism) -> StablePrefixMechanism:
    """Returns the mechanism after accounting it again as a ledger would."""
    epsilon = compose([found.event(target.releases)]).epsilon(target.delta)
    assert epsilon <= target.epsilon, (epsilon, target)
    return found


def _rescaled(noise: SparseVector, epsilon: float) -> SparseVector:
    """Returns noise with the same proportions and a general cost of epsilon."""
    factor = epsilon / noise.general_cost
    return SparseVector.rounded(noise.law, factor * noise.threshold_rate, factor * noise.query_rate)


# --- the paper -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Theorem1:
    """The theorem of Sharma et al. 2024 as far as it can be proved: one release is (2 e', d')-DP.

    Attributes:
        composition: rule by which the releases are composed.
        epsilon_each: e'.
        failure: d'.
        threshold: theta = 1 / (floor (1 - exp(-e'))) + (4 / e') ln(2 / (3 d')).
        noise: Lap(2/e') and Lap(4/e').
    """

    composition: Composition
    epsilon_each: float
    failure: float
    threshold: float
    noise: SparseVector


def theorem1(target: Target, floor: float, composition: Composition) -> Theorem1:
    """Returns the threshold of the paper's theorem, without a union over steps.

    "basic" takes 2e' = epsilon / n and d' = delta / n. "advanced" is Dwork and Roth 2014, Theorem
    3.20, and "exact" is Kairouz, Oh and Viswanath 2015; both leave half of delta to failures. See
    docs/privacy.md, section 14.

    Raises:
        ValueError: if there are fewer experts than the theorem needs.
    """
    n, delta = target.releases, target.delta
    if not 0 < floor <= 0.5:
        raise ValueError(f"the floor must be in (0, 1/2], got {floor}")
    if composition == "basic":
        each, failure = target.epsilon / (2 * n), delta / n
    elif composition == "advanced":
        each = _advanced(n, target.epsilon, delta / 2) / 2
        failure = delta / (2 * n)
    else:
        each = two_hop.pure_epsilon_of_each(n, target.epsilon, delta / 2) / 2
        failure = delta / (2 * n)
    low = 1 / (floor * -math.expm1(-each))
    if target.experts < low or target.experts - 1 < 1 / math.expm1(each):
        raise ValueError(
            f"{target.experts} experts are fewer than the {low:.4g} that Theorem 1 needs; take "
            "more experts, more epsilon, fewer releases or a larger floor"
        )
    threshold = low + 4 / each * math.log(2 / (3 * failure))
    noise = named("paper-laplace", 0.75 * each)
    return Theorem1(composition, each, failure, threshold, noise)


def consensus_with_union(target: Target) -> float:
    """Returns the threshold of consensus with the paper's noise and failures summed over steps."""
    half = target.delta / 2
    each = two_hop.pure_epsilon_of_each(target.releases, target.epsilon, half)
    return 1 + 4 / each * math.log(2 * target.horizon * target.releases / (3 * half))


def _advanced(releases: int, epsilon: float, slack: float) -> float:
    """Returns e of each release, from e sqrt(2 n ln(1/slack)) + n e (exp(e) - 1) = epsilon."""
    spread = math.sqrt(2 * releases * math.log(1 / slack))

    def excess(each: float) -> float:
        return each * spread + releases * each * math.expm1(each) - epsilon

    return float(optimize.brentq(excess, 0.0, epsilon / spread))


def fixed_log_delta(releases: int, experts: int) -> float:
    """Returns the probability that one expert's log is drawn at all: 1 - (1 - 1/experts)^releases.

    Times the probability of passing, it is a lower bound on the delta of releasing prefixes of
    fixed logs, at any epsilon: such a prefix is released unchanged and is its owner's alone.
    """
    return -math.expm1(releases * math.log1p(-1 / experts))
