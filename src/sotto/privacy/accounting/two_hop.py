"""Arithmetic of stable prefixes: pure composition, the pair of the drawn expert, two hops.

All functions take public numbers. Sums are exact up to float64 and rounded up.
`accounting.composition` combines the results with other releases. The proofs are in
docs/privacy.md, section 14.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy import optimize, special

_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Shares of delta that the drawn expert may take; calibration takes 1/2."""


def pure_delta(epsilon: float, count: int, target: float) -> float:
    """Returns delta at `target` of `count` adaptive epsilon-DP releases, exact for the worst ones.

    It is the hockey-stick divergence of two binomial laws (Kairouz, Oh and Viswanath 2015,
    Theorem 3.3).
    """
    k = np.arange(count + 1)
    loss = (2 * k - count) * epsilon
    log_p = -special.log1p(np.exp(-epsilon))
    log_mass = _log_choose(count) + k * log_p + (count - k) * (log_p - epsilon)
    above = loss > target
    delta = np.sum(np.exp(log_mass[above]) * -np.expm1(target - loss[above]))
    return float(min(1.0, _surplus(count) * delta))


def pure_epsilon(epsilon: float, count: int, delta: float) -> float:
    """Returns the least epsilon at delta of `count` epsilon-DP releases, rounded up by 1e-9."""
    if pure_delta(epsilon, count, 0.0) <= delta:
        return 0.0
    low, high = 0.0, count * epsilon
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if pure_delta(epsilon, count, middle) <= delta else (middle, high)
    return high


def pure_epsilon_of_each(count: int, target: float, delta: float) -> float:
    """Returns the largest epsilon with which `count` pure releases are (target, delta)-DP."""
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
    """Returns delta at each target for `count` draws of one of the experts.

    The neighbour draws from the other experts. The likelihood ratio of one draw has mean 1 and
    lies in [1 - 1/experts, 1 + ratio], for more experts too. By convexity it is worst on the two
    ends. With w = 1 / (1 + experts ratio) that is the pair ((1 + ratio) w, rest) against (w, rest),
    and delta is an exact binomial sum (docs/privacy.md, section 14, Theorem 8).
    """
    hit = 1 / (1 + experts * ratio)
    k = np.arange(count + 1)
    choose = _log_choose(count)
    low = math.log1p(-1 / experts)
    log_q = choose + special.xlogy(k, hit) + special.xlog1py(count - k, -hit)
    ratios = k * math.log1p(ratio) + (count - k) * low
    gaps = np.minimum(0.0, np.asarray(targets)[:, None] - ratios)
    return np.asarray(_surplus(count) * np.sum(np.exp(log_q + ratios) * -np.expm1(gaps), axis=1))


def drawn_epsilon(experts: int, ratio: float, count: int, delta: float) -> float:
    """Returns the least target at which `drawn_delta` is at most delta, rounded up."""
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
    """Returns the largest ratio whose `count` draws are (target, delta)-DP.

    It is 0 if there is none above 1e-4, and never above 10^4, where thresholds stop gaining.
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
    """Returns epsilon at delta of everything together, in the worse of the two directions.

    Removing an expert costs a + b with failure + drawn(a) + e^a rest(b) <= delta, the least over a
    grid of the drawn expert's share of delta. Adding one costs count ln(m / (m - 1)) + b with
    failure + rest(b) <= delta.

    Args:
        delta: of everything together.
        failure: probability that any release fails.
        draws: experts, ratio and count of `drawn_delta`; a ratio of 0 means that nobody is drawn.
        rest_epsilon: epsilon at a delta of the queries and all other releases.

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
        except ValueError as error:  # a finer delta than the accountant of the rest resolves
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
    """Returns delta at epsilon of everything together; see `two_hop_epsilon`."""

    def removing(target: float) -> float:
        part = float(drawn_delta(*draws, np.array([target]))[0])
        return part + math.exp(target) * rest_delta(epsilon - target)

    # Any target is a bound. This searches a grid, and then finer grids around the best point.
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


def _surplus(count: int) -> float:
    """Returns a factor above the relative rounding of a sum of `count` + 1 terms.

    The largest error is that of logarithms of factorials, a few times their last digit.
    """
    return 1 + 1e-9 + 4e-15 * math.lgamma(count + 1)


@functools.lru_cache(maxsize=64)
def _log_choose(count: int) -> Float[np.ndarray, " k"]:
    k = np.arange(count + 1)
    return np.asarray(
        special.gammaln(count + 1) - special.gammaln(k + 1) - special.gammaln(count - k + 1)
    )
