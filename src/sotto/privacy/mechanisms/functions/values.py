"""Values of a Gaussian process as integers on a public grid.

A value is its conditional mean, computed in float64 and rounded to the grid, plus an integer of
`noise.rounded_normal` with the conditional standard deviation. So rounding only shifts a mean,
whatever float64 computes, and public numbers bound that shift.

Guarantee:
    Let s_i be the conditional standard deviation of value i, and w_i the sum of the absolute
    weights of earlier values in its conditional mean. For two neighbours' values released with the
    same numbers, rounding adds at most `MOVED` (1 + w_i) grid steps to the distance of the means
    of value i. `Sample.rounding` is the sum of the squares of that over s_i (docs/privacy.md,
    section 13, Theorem 6a).
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy.linalg.lapack import dtbtrs

MOVED = 2.5
"""Grid steps by which rounding moves two neighbours' means apart, per unit of 1 + w_i. For each
neighbour the secret value, the mean and the values in the mean are rounded to the grid (1/2 each).
Float64 adds 1/8 each, for sigma up to 2^42 steps."""

FINEST = 2.0**-40
"""Spacing of the grid of values in units of sigma, unless it is given."""

LARGEST = 2.0**61
"""Bound on a value in units of the grid, so that sums stay below 2^63."""


class Sample(NamedTuple):
    """Values at new points: their conditional means, and draws that are added to them.

    Attributes:
        means: conditional means, given values drawn before, those of this sample included.
        fresh: draws in units of the grid; a mean never depends on its own draw.
        grid: spacing of the grid, a power of two.
        rounding: square of the distance that rounding to the grid adds between neighbours in
            these values, in units of the noise, all paths together.
    """

    means: Float64[np.ndarray, "..."]
    fresh: Int64[np.ndarray, "..."]
    grid: float
    rounding: float

    @property
    def whole(self) -> Int64[np.ndarray, "..."]:
        """The values in units of the grid."""
        return np.asarray(to_grid(self.means, self.grid) + self.fresh)

    @property
    def values(self) -> Float64[np.ndarray, "..."]:
        """The values in units of the function."""
        return np.asarray(self.whole * self.grid)


def to_grid(values: Float64[np.ndarray, "..."], grid: float) -> Int64[np.ndarray, "..."]:
    """Rounds to integers in units of the grid, after clipping to `LARGEST` units.

    The grid is a power of two, so that dividing by it is exact.
    """
    inside = np.clip(values, -LARGEST * grid, LARGEST * grid)
    return np.asarray(np.rint(inside / grid), dtype=np.int64)


def power_below(scale: float) -> float:
    """Returns the largest power of two that is at most `scale`."""
    return 2.0 ** (math.frexp(scale)[1] - 1)


def line(points: Any) -> Float64[np.ndarray, " q"]:
    """Returns a list of finite numbers as an array."""
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 1 or not np.isfinite(points).all():
        raise ValueError("points must be a list of finite numbers")
    return np.asarray(points)


def recursion(
    weights: Float64[np.ndarray, " n"], constants: Float64[np.ndarray, "n k"]
) -> Float64[np.ndarray, "n k"]:
    """Solves x_i = weights_i x_(i-1) + constants_i by forward substitution (LAPACK)."""
    band = np.ones((2, len(weights)), order="F")
    band[1, :-1] = -weights[1:]
    solution, info = dtbtrs(band, constants, uplo="L", diag="U")
    assert info == 0
    return np.asarray(solution)
