"""How the noise of sample paths is kept apart from what float64 makes of it.

Noise that is conditioned on earlier answers is as private as the *least* standard deviation in it
is large against the error of its mean. Between points that are close the process has next to no
noise, so its variance is kept away from zero, which costs nothing: more noise hides more.

Guarantee:
    What float64 adds to a mean is less than `values.MOVED` counts for it, and no standard
    deviation is below the process's by more than `released.SURPLUS` pays for (docs/privacy.md,
    section 13, Theorem 6a).
"""

import math

import numpy as np
from jaxtyping import Float64

LEAST_SPREAD = 2.0**-12
"""Least standard deviation between points on a line, in sigmas."""

NUGGET = 2.0**-20
"""Variance that every scattered point has of its own, in sigma^2."""

SMALLEST_BETA, LARGEST_BETA = 2.0**-64, 2.0**64
"""Inverse correlation lengths for which no variance here is lost to underflow."""


def dot(
    rows: Float64[np.ndarray, "q k"], columns: Float64[np.ndarray, "k p"]
) -> Float64[np.ndarray, "q p"]:
    """rows @ columns, every entry the exact sum rounded once.

    A product of two numbers is the sum of two (Dekker 1971), and `math.fsum` adds exactly.
    """
    high, low = _halves(columns)
    result = np.empty((len(rows), columns.shape[1]))
    for i, row in enumerate(rows[:, :, None]):
        row_high, row_low = _halves(row)
        products = row * columns
        errors = ((row_high * high - products) + row_high * low + row_low * high) + row_low * low
        result[i] = [math.fsum(one) for one in np.concatenate([products, errors]).T.tolist()]
    return result


def _halves(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two numbers of 26 bits that add up to each (Veltkamp)."""
    scaled = numbers * (2.0**27 + 1)
    high = scaled - (scaled - numbers)
    return high, numbers - high
