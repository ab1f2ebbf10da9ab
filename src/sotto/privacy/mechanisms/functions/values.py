"""Values of a Gaussian process as integers on a public grid.

A value is its conditional mean, computed in float64 and rounded to the grid, plus an integer of
`noise.rounded_normal` with the conditional standard deviation. So all that rounding does is to
shift a mean, whatever float64 computes it to; and the shift is bounded by public numbers.

Guarantee:
    Let s_i be the conditional standard deviation of value i, and w_i the sum of the absolute
    weights of earlier values in its conditional mean. For two neighbours' values released with the
    same numbers, rounding adds at most `MOVED` (1 + w_i) grid steps to the distance of the means
    of value i. `Sample.rounding` is the sum of the squares of that over s_i (docs/privacy.md,
    section 13).
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy.linalg.lapack import dtbtrs

MOVED = 2.5
"""Of either neighbour the secret value and the mean are rounded to the grid (1/2 each), and so are
the values that the mean is made of; float64 adds 1/8 each, for sigma up to 2^42 steps."""

FINEST = 2.0**-40
"""Spacing of the grid of values in units of sigma, unless it is given."""

LARGEST = 2.0**61
"""Of a value in units of the grid: sums stay below 2^63."""


class Sample(NamedTuple):
    """Values at new points: their conditional means, and draws that are added to them.

    Attributes:
        means: given values drawn before, those of this sample included.
        fresh: in units of the grid; no mean is made of its own one.
        grid: spacing of the grid, a power of two.
        rounding: square of how far rounding to the grid moves neighbours apart in these values, in
            units of the noise, all paths together.
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
        """The values."""
        return np.asarray(self.whole * self.grid)


def to_grid(values: Float64[np.ndarray, "..."], grid: float) -> Int64[np.ndarray, "..."]:
    """Rounded to integers in units of the grid; what is further than `LARGEST` from 0 is `LARGEST`.

    The grid is a power of two, so only the rounding rounds.
    """
    inside = np.clip(values, -LARGEST * grid, LARGEST * grid)
    return np.asarray(np.rint(inside / grid), dtype=np.int64)


def power_below(scale: float) -> float:
    """The largest power of two that is at most `scale`."""
    return 2.0 ** (math.frexp(scale)[1] - 1)


def line(points: Any) -> Float64[np.ndarray, " q"]:
    """A list of finite numbers as an array."""
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 1 or not np.isfinite(points).all():
        raise ValueError("points must be a list of finite numbers")
    return np.asarray(points)


def recursion(
    weights: Float64[np.ndarray, " n"], constants: Float64[np.ndarray, "n k"]
) -> Float64[np.ndarray, "n k"]:
    """x_i = weights_i x_(i-1) + constants_i, by forward substitution (LAPACK)."""
    band = np.ones((2, len(weights)), order="F")
    band[1, :-1] = -weights[1:]
    solution, info = dtbtrs(band, constants, uplo="L", diag="U")
    assert info == 0
    return np.asarray(solution)
