"""Composes events to a privacy curve epsilon(delta), and calibrates noise to a target epsilon.

Each collection of events gets the tightest accountant that is proved for it:

* Gaussian releases alone: the analytic Gaussian mechanism, exact for every epsilon.
* Poisson-subsampled or (epsilon, delta) releases: privacy loss distributions (PLD), rounded
  pessimistically (dp_accounting, "Connect the Dots").
* Pure releases alone, all of one epsilon: their exact composition.
* A Renyi curve among them: Renyi composition on its orders. (epsilon, delta) releases are added.
* One selection alone: its privacy profile (`selection`). A selection that is composed with others,
  or was stated by an earlier version, counts as its Renyi curve.
* Stable prefixes among them: two hops (`two_hop`). The second hop is composed with the rest.

All of them cover adaptive composition: a release may depend on earlier releases. Gaussian curves,
PLDs and two hops are rounded towards safety, and so are the Renyi curves of the mechanisms. The
float64 rounding of sums and of the Renyi conversion, about one part in 10^15, is left.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from scipy import optimize

from sotto.privacy.accounting import two_hop
from sotto.privacy.accounting.curves import PrivacyCurve
from sotto.privacy.accounting.events import (
    ApproximateDP,
    Event,
    Gaussian,
    NoGuarantee,
    PrefixReleases,
    Renyi,
    RepeatAndSelect,
    SampledGaussian,
)
from sotto.privacy.accounting.gaussian import (
    checked_delta,
    delta_of_shift,
    epsilon_of_shift,
    gaussian_epsilon,
)
from sotto.privacy.accounting.sampled_gaussian import sampled_gaussian_divergences
from sotto.privacy.accounting.selection import as_renyi, selection_curve

__all__ = [
    "ApproximateDP",
    "Event",
    "Gaussian",
    "NoGuarantee",
    "PrefixReleases",
    "PrivacyCurve",
    "Renyi",
    "RepeatAndSelect",
    "SampledGaussian",
    "calibrate_noise_multiplier",
    "compose",
    "gaussian_epsilon",
]

_LEAST_NOISE = 0.02  # `compose` explains this limit and the next one
_LARGEST_EPSILON = 100.0
_MOST_PURE = 10**6  # pure releases whose exact composition takes less than a minute


def compose(events: Sequence[Event]) -> PrivacyCurve:
    """Returns the joint cost of all `events` for one unit, under adaptive composition.

    Events may come in any order, and later mechanisms may depend on earlier releases. Noise
    multipliers, rates and counts are fixed in advance.

    * A `NoGuarantee` makes epsilon infinite.
    * Gaussian events become one, 1/z^2 = sum 1/z_i^2 (exact).
    * With `ApproximateDP` events alone, all of one epsilon and delta 0: exact.
    * Otherwise, with `SampledGaussian` or `ApproximateDP` events: PLD. Its epsilon is normally
      within 0.1% of the truth where sampling rates are moderate. It resolves delta down to about
      1e-11.
    * A PLD has no grid for a noise multiplier below 0.02 or an epsilon above 100. Sampling is
      ignored there, and `ApproximateDP` events are added by basic composition. That is sound and
      coarse: the returned epsilon is usually in the hundreds.
    * With `Renyi` events: divergences add at the orders that all curves share. `ApproximateDP`
      events are then added by basic composition.
    * One `RepeatAndSelect` event alone, with `accounting=2`: its privacy profile. Others count as
      `Renyi`.
    * With `PrefixReleases` events: two hops. The second hop is composed with the rest.

    Raises:
        ValueError: if the Renyi curves share no order.
    """
    for event in events:
        if isinstance(event, NoGuarantee):
            return PrivacyCurve(
                f"no guarantee: {event.reason}", lambda _delta: math.inf, lambda _epsilon: 1.0
            )
    match events:
        case [RepeatAndSelect(accounting=2, count=1) as one]:
            return selection_curve(one, compose([one.run]), compose([as_renyi(one)]))
    events = [as_renyi(one) if isinstance(one, RepeatAndSelect) else one for one in events]
    if prefixes := _of_type(events, PrefixReleases):
        return _prefix_curve(
            prefixes, [event for event in events if not isinstance(event, PrefixReleases)]
        )
    gaussian = _of_type(events, Gaussian)
    sampled = _of_type(events, SampledGaussian)
    approximate = _of_type(events, ApproximateDP)
    renyi = _of_type(events, Renyi)
    # The inverse of the joint multiplier: the neighbours' distance in standard deviations.
    mu = math.hypot(*(1 / event.noise_multiplier for event in gaussian))
    count, pure = sum(event.count for event in approximate), {e.epsilon for e in approximate}
    exact = len(approximate) == len(events) and not any(e.delta for e in approximate)
    if exact and len(pure) == 1 and count <= _MOST_PURE:
        return _pure_curve(pure.pop(), count)
    if renyi:
        return _renyi_curve(mu, sampled, approximate, renyi)
    if (
        mu > 1 / _LEAST_NOISE
        or any(event.noise_multiplier < _LEAST_NOISE for event in sampled)
        or any(event.epsilon > _LARGEST_EPSILON for event in approximate)
        or not (sampled or approximate)
    ):
        return _gaussian_curve(mu, sampled, approximate)
    # Here, because SciPy's statistics take a second to import, and most commands need none.
    from sotto.privacy.accounting.loss_distributions import loss_distribution_curve

    return loss_distribution_curve(mu, sampled, approximate)


def calibrate_noise_multiplier(
    event_at: Callable[[float], Sequence[Event]], target_epsilon: float, delta: float
) -> float:
    """Returns the least noise multiplier z that meets a target epsilon at delta.

    It solves `compose(event_at(z)).epsilon(delta) = target_epsilon` in log z and rounds up, by 1e-8
    relative for Gaussian events and by 1e-4 for others, whose accounting is slower. It then
    accounts the result again: the returned value meets the target.

    Args:
        event_at: returns the events of the whole run at a noise multiplier. Their joint epsilon
            must decrease as the multiplier grows.
        target_epsilon: positive and finite.
        delta: strictly between 0 and 1.

    Raises:
        ValueError: if the target or delta is out of range, or if no noise multiplier reaches it.
    """
    if not 0 < target_epsilon < math.inf:
        raise ValueError(f"target_epsilon must be a positive finite number, got {target_epsilon}")
    checked_delta(delta)

    @functools.cache
    def excess(log_z: float) -> float:
        """Returns log(epsilon / target), bounded so that 0 and infinity can be compared."""
        epsilon = compose(event_at(math.exp(log_z))).epsilon(delta)
        if epsilon == 0:
            return -50.0
        return max(-50.0, min(50.0, math.log(epsilon) - math.log(target_epsilon)))

    # Brackets widen as z = 1, 2, 4, 16, 256, ... (or the inverses), to reach far in few steps.
    direction = 1.0 if excess(0.0) > 0 else -1.0
    inner, outer = 0.0, direction * math.log(2)
    while (excess(outer) > 0) == (direction > 0):
        inner, outer = outer, 2 * outer
        if abs(outer) > 60:
            raise ValueError(
                f"no noise multiplier between e^-60 and e^60 brings epsilon to {target_epsilon} "
                f"at delta {delta}; the target must be above what the other releases cost"
                if direction > 0
                else "epsilon does not depend on the noise multiplier: there is none to calibrate"
            )
    analytic = all(isinstance(event, Gaussian) for event in event_at(1.0))
    tolerance = 1e-8 if analytic else 1e-4
    root = optimize.brentq(excess, inner, outer, xtol=tolerance / 4)
    # The root may lie on either side of the target, and a PLD is monotone only up to its grid.
    # Step up until the accounted value meets the target.
    for step in range(1, 100):
        noise_multiplier = math.exp(root + step * tolerance / 2)
        if compose(event_at(noise_multiplier)).epsilon(delta) <= target_epsilon:
            return noise_multiplier
    raise ValueError("epsilon does not decrease with the noise multiplier: cannot calibrate it")


# --- Gaussian releases ----------------------------------------------------------------------------


def _gaussian_curve(
    mu: float, sampled: Sequence[SampledGaussian], approximate: Sequence[ApproximateDP]
) -> PrivacyCurve:
    """Returns the exact curve of Gaussian releases, which also bounds sampled ones.

    Given who was drawn, a sampled release is a Gaussian one, and the bound is convex in that draw.
    """
    everything = math.hypot(
        mu, *(math.sqrt(event.count) / event.noise_multiplier for event in sampled)
    )
    method = "analytic Gaussian mechanism (Balle and Wang 2018)"
    if sampled:
        method += ", with sampling ignored"
    if not (mu or sampled or approximate):
        method = "nothing was released"
    return _plus(
        PrivacyCurve(
            method,
            lambda delta: epsilon_of_shift(everything, delta),
            lambda epsilon: delta_of_shift(everything, epsilon),
        ),
        approximate,
    )


# --- Renyi composition ---------------------------------------------------------------------------


def _renyi_curve(
    mu: float,
    sampled: Sequence[SampledGaussian],
    approximate: Sequence[ApproximateDP],
    renyi: Sequence[Renyi],
) -> PrivacyCurve:
    shared = sorted(set.intersection(*(set(event.orders) for event in renyi)))
    if not shared:
        raise ValueError(
            "the Renyi curves share no order; certify all of them at the same list of orders"
        )
    orders = np.array(shared)
    divergences = mu**2 / 2 * orders
    for event in renyi:
        at = dict(zip(event.orders, event.divergences, strict=True))
        divergences = divergences + event.count * np.array([at[order] for order in shared])
    for one in sampled:
        divergences = divergences + one.count * sampled_gaussian_divergences(one, orders)

    # Canonne, Kamath and Steinke 2020, Proposition 12, at every order.
    def epsilon_at(delta: float) -> float:
        slack = (math.log(delta) + np.log(orders)) / (orders - 1)
        return max(0.0, float((divergences + np.log1p(-1 / orders) - slack).min()))

    def delta_at(epsilon: float) -> float:
        exponents = (orders - 1) * (divergences - epsilon + np.log1p(-1 / orders))
        return math.exp(min(0.0, float((exponents - np.log(orders)).min())))

    method = "Renyi composition (Mironov 2017; Canonne, Kamath and Steinke 2020)"
    return _plus(PrivacyCurve(method, epsilon_at, delta_at), approximate)


# --- pure releases -------------------------------------------------------------------------------


def _pure_curve(each: float, count: int) -> PrivacyCurve:
    return PrivacyCurve(
        "exact composition (Kairouz, Oh and Viswanath 2015)",
        lambda delta: two_hop.pure_epsilon(each, count, delta),
        lambda epsilon: two_hop.pure_delta(each, count, epsilon),
    )


# --- stable prefixes -----------------------------------------------------------------------------


def _prefix_curve(prefixes: Sequence[PrefixReleases], others: Sequence[Event]) -> PrivacyCurve:
    """Returns the curve of two hops: the drawn experts, then all else (privacy.md, section 14)."""
    failure = math.fsum(event.count * event.failure for event in prefixes)
    # A pair with a wider range of ratios dominates, so the widest one stands for all.
    experts = min(event.experts for event in prefixes)
    ratio = max(event.ratio for event in prefixes)
    drawn = sum(event.count for event in prefixes if event.ratio > 0)
    draws = (experts, ratio, drawn)
    queries = [ApproximateDP(epsilon=e.epsilon, delta=0, count=e.count) for e in prefixes]
    rest = compose([*others, *queries])
    return PrivacyCurve(
        f"stable prefixes{' in two hops' if drawn else ''}; {rest.method}",
        lambda delta: two_hop.two_hop_epsilon(delta, failure, draws, rest.epsilon),
        lambda epsilon: two_hop.two_hop_delta(epsilon, failure, draws, rest.delta),
    )


# --- shared --------------------------------------------------------------------------------------

_E = TypeVar("_E")


def _of_type(events: Sequence[Event], kind: type[_E]) -> list[_E]:
    return [event for event in events if isinstance(event, kind)]


def _plus(curve: PrivacyCurve, events: Sequence[ApproximateDP]) -> PrivacyCurve:
    """Returns the curve with events added by basic composition: epsilons add, and deltas add."""
    if not events:
        return curve
    epsilon_sum = sum(event.count * event.epsilon for event in events)
    delta_sum = sum(event.count * event.delta for event in events)

    def epsilon_at(delta: float) -> float:
        return epsilon_sum + curve.epsilon(delta - delta_sum) if delta > delta_sum else math.inf

    def delta_at(epsilon: float) -> float:
        return delta_sum + curve.delta(epsilon - epsilon_sum) if epsilon >= epsilon_sum else 1.0

    return PrivacyCurve(
        f"{curve.method}, with (epsilon, delta) releases added by basic composition",
        epsilon_at,
        delta_at,
    )
