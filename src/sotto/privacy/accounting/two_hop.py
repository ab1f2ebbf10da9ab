"""The arithmetic of stable prefixes: pure composition, the pair of the drawn expert, two hops.

Functions of public numbers, exact sums in float64, rounded up. `accounting.compose` puts them
together with whatever else was released.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy import optimize, special

_UP = 1 + 1e-9
"""Relative surplus for the rounding of sums of a few thousand terms."""

_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""What part of delta the drawn expert may take; 1/2 is among them, which calibration takes."""


def pure_delta(epsilon: float, count: int, target: float) -> float:
    """delta at `target` of `count` adaptive epsilon-DP releases: exact for the worst of them.

    Kairouz, Oh and Viswanath 2015, Theorem 3.3: the hockey-stick divergence of two binomial laws.
    """
    k = np.arange(count + 1)
    loss = (2 * k - count) * epsilon
    log_p = -special.log1p(np.exp(-epsilon))
    log_mass = _log_choose(count) + k * log_p + (count - k) * (log_p - epsilon)
    above = loss > target
    return float(min(1.0, _UP * np.sum(np.exp(log_mass[above]) * -np.expm1(target - loss[above]))))


def pure_epsilon(epsilon: float, count: int, delta: float) -> float:
    """The least epsilon of `count` epsilon-DP releases together at delta, rounded up by 1e-9."""
    if pure_delta(epsilon, count, 0.0) <= delta:
        return 0.0
    low, high = 0.0, count * epsilon
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if pure_delta(epsilon, count, middle) <= delta else (middle, high)
    return high


def pure_epsilon_of_each(count: int, target: float, delta: float) -> float:
    """The largest epsilon of each of `count` pure releases that together are (target, delta)-DP."""
    low, high = target / count, 4 * target + 40
    if pure_delta(high, count, target) <= delta:
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if pure_delta(middle, count, target) <= delta else (low, middle)
    return low


def drawn_delta(
    experts: int, ratio: float, count: int, targets: Float[np.ndarray, " a"]
) -> Float[np.ndarray, " a"]:
    """delta at each target of drawing one of the experts, `count` times, in place of the others.

    The likelihood ratio of one draw has mean 1 and lies in [1 - 1/experts, 1 + ratio], also for
    more experts. By convexity the worst is on the two ends: with w = 1 / (1 + experts ratio), the
    pair ((1 + ratio) w, rest) against (w, rest); delta is an exact binomial sum.
    """
    hit = 1 / (1 + experts * ratio)
    k = np.arange(count + 1)
    choose = _log_choose(count)
    low = math.log1p(-1 / experts)
    log_q = choose + special.xlogy(k, hit) + special.xlog1py(count - k, -hit)
    ratios = k * math.log1p(ratio) + (count - k) * low
    gaps = np.minimum(0.0, np.asarray(targets)[:, None] - ratios)
    return np.asarray(_UP * np.sum(np.exp(log_q + ratios) * -np.expm1(gaps), axis=1))


def drawn_epsilon(experts: int, ratio: float, count: int, delta: float) -> float:
    """The least target at which `drawn_delta` is at most delta, rounded up."""
    most = count * math.log1p(ratio)

    def excess(target: float) -> float:
        return float(drawn_delta(experts, ratio, count, np.array([target]))[0]) - delta

    if most == 0 or excess(0.0) <= 0:
        return 0.0
    if delta <= 0 or excess(most * (1 - 1e-9)) >= 0:
        return most
    found = float(optimize.brentq(excess, 0.0, most, xtol=1e-12, rtol=1e-12))
    return found if excess(found) <= 0 else min(most, found * (1 + 1e-9) + 1e-11)


def largest_ratio(experts: int, count: int, target: float, delta: float) -> float:
    """The largest ratio whose `count` draws are (target, delta)-DP; 0 if there is none above 1e-4.

    Not above 10^4, where thresholds no longer gain from it.
    """

    def enough(ratio: float) -> bool:
        return float(drawn_delta(experts, ratio, count, np.array([target]))[0]) <= delta

    low, high = 1e-4, 1e4
    if enough(high):
        return high
    if not enough(low):
        return 0.0
    while high / low > 1 + 1e-7:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


# --- two hops ------------------------------------------------------------------------------------


def two_hop_epsilon(
    delta: float,
    failure: float,
    draws: tuple[int, float, int],
    rest_epsilon: Callable[[float], float],
) -> float:
    """epsilon at delta of everything together, in the worse of the two directions.

    Removing an expert: epsilon = a + b with failure + drawn(a) + e^a rest(b) <= delta, least over a
    grid of the drawn expert's share of delta. Adding one: count ln(m / (m - 1)) + b with
    failure + rest(b) <= delta.

    Args:
        delta: of everything together.
        failure: probability that any release goes wrong.
        draws: experts, ratio and count of `drawn_delta`; no draws if the ratio is 0.
        rest_epsilon: of the queries and whatever else was released.

    Raises:
        ValueError: if `rest_epsilon` resolves none of the deltas that are left for it.
    """
    left = delta - failure
    if left <= 0:
        return math.inf
    removing, unresolved = math.inf, None
    for share in _SHARES if draws[1] > 0 else (0.0,):
        a = drawn_epsilon(*draws, share * left)
        try:
            removing = min(removing, a + rest_epsilon((1 - share) * left * math.exp(-a)))
        except ValueError as error:  # finer than the accountant of the rest resolves
            unresolved = error
    if unresolved is not None and math.isinf(removing):
        raise unresolved
    return max(removing, _adding(draws) + rest_epsilon(left))


def two_hop_delta(
    epsilon: float,
    failure: float,
    draws: tuple[int, float, int],
    rest_delta: Callable[[float], float],
) -> float:
    """delta at epsilon; see `two_hop_epsilon`."""

    def removing(target: float) -> float:
        part = float(drawn_delta(*draws, np.array([target]))[0])
        return part + math.exp(target) * rest_delta(epsilon - target)

    # Any target is a bound. The best of a grid, then of a finer one around it, and once more.
    low, high = 0.0, min(epsilon, draws[2] * math.log1p(draws[1]))
    best = removing(low)
    while high - low > 1e-4 * epsilon:
        grid = np.linspace(low, high, 17)
        values = [removing(target) for target in grid]
        least = int(np.argmin(values))
        best = min(best, values[least])
        low, high = grid[max(0, least - 1)], grid[min(16, least + 1)]
    more = _adding(draws)
    adding = rest_delta(epsilon - more) if epsilon >= more else 1.0
    return min(1.0, failure + max(best, adding))


def _adding(draws: tuple[int, float, int]) -> float:
    experts, ratio, count = draws
    return -count * math.log1p(-1 / experts) if ratio > 0 else 0.0


@functools.lru_cache(maxsize=64)
def _log_choose(count: int) -> Float[np.ndarray, " k"]:
    k = np.arange(count + 1)
    return np.asarray(
        special.gammaln(count + 1) - special.gammaln(k + 1) - special.gammaln(count - k + 1)
    )
