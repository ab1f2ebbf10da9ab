"""Constants and arithmetic that keep the noise of sample paths above the errors of float64.

Noise that is conditioned on earlier answers is only as private as its *least* standard deviation is
large against the error of its mean. Between close points the process has almost no noise, so its
variance is kept away from zero. More noise is never less private.

Guarantee:
    The error that float64 adds to a mean is less than `values.MOVED` counts for it. No standard
    deviation is below that of the process by more than `released.SURPLUS` pays for. The proof is
    Theorem 6a of docs/privacy.md, section 13.
"""

import math

import numpy as np
from jaxtyping import Float64

LEAST_SPREAD = 2.0**-12
"""Least standard deviation between points on a line, in sigmas."""

NUGGET = 2.0**-20
"""Variance of the additional noise of every scattered point, in sigma^2."""

SMALLEST_BETA, LARGEST_BETA = 2.0**-64, 2.0**64
"""Inverse correlation lengths between which no variance underflows."""


def dot(
    rows: Float64[np.ndarray, "q k"], columns: Float64[np.ndarray, "k p"]
) -> Float64[np.ndarray, "q p"]:
    """Returns rows @ columns, with every entry the exact sum rounded once.

    A product of two numbers is a sum of two numbers (Dekker 1971), and `math.fsum` adds exactly.
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
    """Returns two numbers of 26 bits that add up to each number (Veltkamp)."""
    scaled = numbers * (2.0**27 + 1)
    high = scaled - (scaled - numbers)
    return high, numbers - high
