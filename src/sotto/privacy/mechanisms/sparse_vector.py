"""Sparse vector (AboveThreshold): tells which queries are large, up to the first that is not.

Each query is answered "pass" or "fail", and the first "fail" ends the sequence. The threshold has
noise that is drawn once, and each query has fresh noise. There are three noise laws (`NoiseName`):

* exponential: one-sided, -Exp(threshold_rate) on the threshold and -Exp(query_rate) on queries.
* monotone-laplace: Laplace noise of scale 2/e' on both (Lyu, Su and Li 2017: monotone queries).
* paper-laplace: Lap(2/e') on the threshold, Lap(4/e') on queries (Sharma et al. 2024, Algorithm 1).

Everything is an integer on the public grid `GRID`. Queries are rounded to it. Noise is geometric,
or the difference of two geometric variates, and is sampled exactly from random integers.
Comparisons use no floating-point number, and the sampler costs nothing.

Guarantee:
    The unit is whatever moves every query by at most 1: here one expert, present or absent. If
    queries are monotone (all fall, or stay, when a unit is removed), then P(transcript | with) <=
    e^remove_cost P(transcript | without), and P(transcript | without) <=
    e^query_rate P(transcript | with). Otherwise both hold with general_cost. There is no delta. A
    query at least `margin(d)` below the threshold passes with probability at most d. The proof is
    Lemma 1 of docs/privacy.md, section 14.
"""

import math
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int64
from pydantic import Field, field_validator
from scipy import optimize

from sotto.frozen import FrozenModel

GRID = 2.0**-20
"""Spacing of the public grid, in units of the queries' sensitivity."""

UNIT = 2**20
"""One unit of sensitivity, in grid steps."""

RATE_GRID = 2.0**-30
"""Spacing of rates. Noise is sampled exactly for its multiples."""

_SCALE = 2**50  # rate * GRID = (rate * 2^30) / 2^50 is a fraction of integers

Law = Literal["exponential", "laplace"]
NoiseName = Literal["exponential", "monotone-laplace", "paper-laplace"]


class SparseVector(FrozenModel):
    """The noise of one run of sparse vector, and what it costs.

    Attributes:
        law: one-sided exponential, or two-sided Laplace.
        threshold_rate: inverse scale of the threshold's noise, per unit of sensitivity.
        query_rate: inverse scale of each query's noise. Both are multiples of 2^-30; `rounded`
            makes them so.
    """

    law: Law
    threshold_rate: float = Field(gt=0, le=64)
    query_rate: float = Field(gt=0, le=64)

    @field_validator("threshold_rate", "query_rate")
    @classmethod
    def _on_the_grid(cls, value: float) -> float:
        if value != rounded_rate(value):
            raise ValueError(f"noise rates are multiples of 2^-30, got {value}; use rounded()")
        return value

    @classmethod
    def rounded(cls, law: Law, threshold_rate: float, query_rate: float) -> "SparseVector":
        """Returns the noise with these rates rounded down, which never means less noise.

        Raises:
            ValueError: if a rate is not positive after rounding, or above 64.
        """
        threshold, query = rounded_rate(threshold_rate), rounded_rate(query_rate)
        return cls(law=law, threshold_rate=threshold, query_rate=query)

    @property
    def remove_cost(self) -> float:
        """Epsilon of monotone queries, from the larger input to the smaller one."""
        return self.threshold_rate + self.query_rate

    @property
    def general_cost(self) -> float:
        """Epsilon of queries that may rise and fall, in both directions."""
        return self.threshold_rate + 2 * self.query_rate

    def margin(self, failure: float) -> float:
        """Returns a distance below the threshold at which queries pass with probability <= failure.

        For the exponential law it is ln(e2 / ((e1 + e2) failure)) / e1. For the Laplace laws it is
        the root of the tail of the sum of two Laplace variates. Two grid steps on top pay for
        rounding the noise to the grid.

        Raises:
            ValueError: if failure is not in (0, 1/2).
        """
        if not 0 < failure < 0.5:
            raise ValueError(f"the probability of failure must be in (0, 1/2), got {failure}")
        e1, e2 = self.threshold_rate, self.query_rate
        if self.law == "exponential":
            margin = math.log(e2 / ((e1 + e2) * failure)) / e1
        else:
            reach = (math.log(1 / failure) + 10) * 2 / min(e1, e2)
            margin = optimize.brentq(
                lambda t: math.log(_laplace_tail(t, e1, e2) / failure), 0.0, reach, xtol=1e-9
            )
        return max(0.0, float(margin)) + 2 * GRID + 1e-8

    def query_quantile(self, failure: float) -> float:
        """Returns how far above the threshold a query must be to pass its noise.

        It tells how useful a threshold is and has no part in the guarantee. The threshold's noise
        is left out.
        """
        halves = 1.0 if self.law == "exponential" else 0.5
        return max(0.0, math.log(halves / failure)) / self.query_rate

    def threshold_noise(
        self, generator: np.random.Generator, shape: tuple[int, ...]
    ) -> Int64[np.ndarray, "..."]:
        """Draws noise to add to thresholds, in grid steps."""
        return self._draw(generator, self.threshold_rate, shape)

    def query_noise(
        self, generator: np.random.Generator, shape: tuple[int, ...]
    ) -> Int64[np.ndarray, "..."]:
        """Draws noise to add to queries, in grid steps."""
        return self._draw(generator, self.query_rate, shape)

    def _draw(
        self, generator: np.random.Generator, rate: float, shape: tuple[int, ...]
    ) -> Int64[np.ndarray, "..."]:
        down = geometric(generator, rate, shape)
        return -down if self.law == "exponential" else geometric(generator, rate, shape) - down


def rounded_rate(rate: float) -> float:
    """Returns the rate rounded down to a multiple of `RATE_GRID`, which never means less noise."""
    return math.floor(rate / RATE_GRID) * RATE_GRID


def named(name: NoiseName, epsilon: float, threshold_share: float = 0.5) -> SparseVector:
    """Returns the noise of this name whose monotone queries cost `epsilon` (rounded down).

    Args:
        name: of the law.
        epsilon: remove_cost.
        threshold_share: threshold_rate / epsilon of the exponential law. The Laplace laws have
            1/2 (monotone) and 2/3 (the paper's).
    """
    law: Law = "exponential" if name == "exponential" else "laplace"
    share = {"exponential": threshold_share, "monotone-laplace": 1 / 2, "paper-laplace": 2 / 3}
    return SparseVector.rounded(law, share[name] * epsilon, (1 - share[name]) * epsilon)


def geometric(
    generator: np.random.Generator, rate: float, shape: tuple[int, ...]
) -> Int64[np.ndarray, "..."]:
    """Draws exact geometric variates: Pr[X >= k] = exp(-rate k GRID) for k = 0, 1, 2, ...

    It runs Algorithms 1 and 2 of Canonne, Kamath and Steinke 2020 for many variates at once. Let
    t = 2^50, U uniform below t and accepted with probability exp(-U / t), and V geometric with
    ratio 1/e. Then U + t V is geometric with ratio exp(-1/t), and a division by rate 2^30 brings it
    to the rate. It uses integers only, so the law is exact if the generator's integers are uniform.
    """
    size = math.prod(shape)
    low = np.zeros(size, np.int64)
    open_ = np.arange(size)
    while open_.size:
        candidates = generator.integers(_SCALE, size=open_.size)
        accepted = _bernoulli_exp(generator, candidates, _SCALE)
        low[open_[accepted]] = candidates[accepted]
        open_ = open_[~accepted]
    high = np.zeros(size, np.int64)
    open_ = np.arange(size)
    while open_.size:
        open_ = open_[_bernoulli_exp(generator, np.ones(open_.size, np.int64), 1)]
        high[open_] += 1
    steps = round(rate / RATE_GRID)
    # (low + t high) // steps, in two parts that stay below 2^63.
    whole, rest = divmod(_SCALE, steps)
    drawn: Int64[np.ndarray, " n"] = whole * high + (rest * high + low) // steps
    return drawn.reshape(shape)


def _bernoulli_exp(
    generator: np.random.Generator, numerators: Int64[np.ndarray, " n"], denominator: int
) -> Bool[np.ndarray, " n"]:
    """Draws exact coins that are true with probability exp(-numerator / denominator), at most 1.

    With x the fraction, it tosses coins of probability x/1, x/2, x/3, ... until one fails. The
    number of that coin is odd with probability 1 - x + x^2/2 - ... = exp(-x).
    """
    number = np.ones(numerators.size, np.int64)
    going = np.arange(numerators.size)
    while going.size:
        drawn = generator.integers(denominator * number[going])
        going = going[drawn < numerators[going]]
        number[going] += 1
    odd: Bool[np.ndarray, " n"] = number % 2 == 1
    return odd


def _laplace_tail(t: float, e1: float, e2: float) -> float:
    """Returns Pr[X + Y >= t], t >= 0, of Laplace variates; it increases as the rates fall."""
    if abs(e1 - e2) < 1e-6 * e1:  # the formula below cancels here: take the smaller rate for both
        rate = min(e1, e2)
        return math.exp(-rate * t) * (2 + rate * t) / 4
    a, b = 1 / e1**2, 1 / e2**2
    return (a * math.exp(-e1 * t) - b * math.exp(-e2 * t)) / (2 * (a - b))
