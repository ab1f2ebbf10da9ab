"""The discrete Gaussian: noise that many devices make together, each an integer share.

Write N_Z(v) for the law on the integers with probabilities proportional to exp(-k^2 / 2v). Shares
of it add up: the sum of n independent shares of variance v has the law N_Z(n v), up to a factor
that is next to 1. And N_Z(v), added to an integer, is the Gaussian mechanism followed by public
randomness, up to such a factor. So the accountant of the Gaussian mechanism covers it.

`draw` is exact inversion. A table holds the probabilities as integers out of 2^640. The first 64
random bits of a draw nearly always decide; the others are drawn where they do not.

Guarantee:
    Let x be integers that one person moves by at most D in L2 norm, and let n shares of variance v,
    v >= `LEAST_VARIANCE`, be added to each. The result is Gaussian differentially private with
    noise multiplier sqrt(n v - `SMOOTHING`) / D, up to `shares_delta` (docs/privacy.md,
    section 20). This holds for any epsilon up to `LARGEST_EPSILON`. Reducing the result
    modulo a number is post-processing.

Source: Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential privacy";
Kairouz, Liu and Steinke 2021, "The distributed discrete Gaussian mechanism for federated learning
with secure aggregation". Their analysis is by concentrated privacy. Ours is by Peikert's
convolution (2010, "An efficient and parallel Gaussian sampler for lattices"), which loses nothing
that an accountant can see.
"""

import math
from decimal import Context, Decimal, localcontext
from functools import lru_cache

import numpy as np
from jaxtyping import Int64, UInt64

SMOOTHING = 8.0
"""Part of the variance that the proof gives up for the integers."""

LEAST_VARIANCE = 2 * SMOOTHING
"""Least variance of a share, so that sums of shares have the law of one draw."""

LARGEST_DEVIATION = 2.0**14
"""Largest standard deviation of a share; its table then takes seconds to make."""

LARGEST_EPSILON = 100.0
"""Largest epsilon at which the tails beyond the table are accounted."""

ERROR = 2.0**-128
"""Bound on the relative error of each integer's probability inside the table."""

_RADIUS = 24.0  # of the table, in standard deviations
_BITS = 640
_TOP = 64
_PRECISION = Context(prec=240)
_CLOSENESS = 2.0**-220  # 2 log((1 + theta) / (1 - theta)) for theta of `SMOOTHING`, generously


class DiscreteGaussian:
    """Draws from N_Z(v) by inversion.

    Args:
        variance: v, from `LEAST_VARIANCE` to the square of `LARGEST_DEVIATION`.

    Raises:
        ValueError: the variance is not in this range.
    """

    def __init__(self, variance: float) -> None:
        if not LEAST_VARIANCE <= variance <= LARGEST_DEVIATION**2:
            raise ValueError(
                f"a share of noise has a variance from {LEAST_VARIANCE:g} to "
                f"{LARGEST_DEVIATION**2:g} steps of the grid, not {variance:.3g}; choose a finer "
                "or a coarser grid"
            )
        self.variance = variance
        self._reach, self._ends, self._tops = _table(variance)

    def draw(self, generator: np.random.Generator, size: int) -> Int64[np.ndarray, " size"]:
        """Draws independent integers.

        Args:
            generator: an unused generator from a `noise.GeneratorSource`.
            size: how many.
        """
        words = generator.bit_generator.random_raw(size)
        places = np.searchsorted(self._tops, words, side="right")
        # A word that equals the top of an end does not say on which side of the end the draw is.
        unsure = self._tops[np.maximum(places, 1) - 1] == words
        for i in np.flatnonzero(unsure & (places > 0)).tolist():
            places[i] = self._settled(generator, int(words[i]))
        return places.astype(np.int64) - self._reach

    def _settled(self, generator: np.random.Generator, word: int) -> int:
        """Returns the place of a draw whose first 64 bits do not decide."""
        more = generator.bit_generator.random_raw((_BITS - _TOP) // 64).tolist()
        for each in more:
            word = (word << 64) | each
        low, high = 0, len(self._ends)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if word < self._ends[middle] else (middle + 1, high)
        return low


@lru_cache(maxsize=8)
def _table(variance: float) -> tuple[int, tuple[int, ...], UInt64[np.ndarray, " ends"]]:
    """Returns the largest integer, the ends of the integers' intervals, and their top bits.

    The intervals of -reach to reach divide [0, 2^640). The last end, 2^640, is left out.
    """
    reach = math.ceil(_RADIUS * math.sqrt(variance))
    with localcontext(_PRECISION):
        # exp(-k^2 / 2v) by a recurrence: each step multiplies by exp(-(2k + 1) / 2v).
        step = (Decimal(-1) / (2 * Decimal(variance))).exp()
        square, weight, factor = step * step, Decimal(1), step
        weights = [weight]
        for _ in range(reach):
            weight *= factor
            factor *= square
            weights.append(weight)
        whole = Decimal(2) ** _BITS
        unit = whole / (weights[0] + 2 * sum(weights[1:]))
        half = [int((weight * unit).to_integral_value()) for weight in weights]
    parts = [*half[:0:-1], half[0], *half[1:]]
    parts[reach] += (1 << _BITS) - sum(parts)  # what rounding left
    ends, total = [], 0
    for part in parts[:-1]:
        total += part
        ends.append(total)
    tops = np.array([end >> (_BITS - _TOP) for end in ends], np.uint64)
    return reach, tuple(ends), tops


def noise_multiplier(variance: float, shares: int, sensitivity: float) -> float:
    """Returns the noise multiplier of a sum with this many shares of noise.

    Args:
        variance: of one share.
        shares: how many shares are certain to be in the sum, unknown to whoever sees it.
        sensitivity: L2 norm by which one person moves the sum of integers.
    """
    return math.sqrt(variance * shares - SMOOTHING) / sensitivity


def least_variance(multiplier: float, shares: int, sensitivity: float) -> float:
    """Returns the least variance of one share for a noise multiplier; see `noise_multiplier`."""
    root = multiplier * sensitivity
    needed = (root * root + SMOOTHING) / shares  # not `root**2`, whose bits depend on the machine
    return max(LEAST_VARIANCE, needed * (1 + 2.0**-40))


def shares_delta(shares: int, numbers: int) -> float:
    """Returns the delta that the noise in shares costs beyond the Gaussian mechanism.

    Sums of shares and Peikert's convolution are off by factors that `_CLOSENESS` bounds. Each draw
    is off by `ERROR`. A draw beyond the table has probability below 2 exp(-`_RADIUS`^2 / 2), which
    counts with e^epsilon for the neighbour (docs/privacy.md, section 20).

    Args:
        shares: most shares in one sum.
        numbers: how many numbers are released, over the whole stream.
    """
    draws = shares * numbers
    beyond = 2 * math.exp(-(_RADIUS**2) / 2) * (1 + math.exp(LARGEST_EPSILON))
    return draws * (beyond + 4 * ERROR + 4 * _CLOSENESS)
