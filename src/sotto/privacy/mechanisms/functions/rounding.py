"""What float64 does to the noise of sample paths, and the noise that pays for it.

Noise that is conditioned on earlier answers is as private as the *least* standard deviation in it
is large against the error of its mean. Between points that are close the process has next to no
noise, so its variance is kept away from zero, which costs nothing: more noise hides more.

Guarantee:
    Sigma larger by the factor 1 + `surplus(ratio)` pays for all rounding in `MOST_NUMBERS` answers
    on a line or at scattered points, and in a grid that `check_grid` accepts (docs/privacy.md,
    section 13, Theorem 6a).
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64

LEAST_SPREAD = 2.0**-12
"""Least standard deviation between points on a line, in sigmas."""

NUGGET = 2.0**-20
"""Variance that every scattered point has of its own, in sigma^2."""

MOST_NUMBERS = 2**20
"""Answers, those of all actions counted, of one released function."""

SMALLEST_BETA, LARGEST_BETA = 2.0**-64, 2.0**64
"""Inverse correlation lengths for which no variance here is lost to underflow."""

_SURPLUS = 2.0**-25
_LARGEST_VALUE = 32  # in sigmas: no noise is ever larger, but with probability below e^-400
_STEP = 2.0**-48  # what a conditional mean is off by at most, in the largest value: 32 roundings


def surplus(ratio: float) -> float:
    """Relative surplus of noise under a kernel.

    Args:
        ratio: noise of one release in sensitivities.
    """
    return _SURPLUS * (_LARGEST_VALUE * ratio + 1)


def check_grid(axes: Sequence[Float[np.ndarray, " n"]], beta: float, paths: int) -> None:
    """Refuses nodes that are so close together that the surplus does not pay for rounding.

    Args:
        axes: strictly increasing positions along each dimension.
        beta: of the kernel.
        paths: how many.

    Raises:
        ValueError: they are.
    """
    total = paths * float(len(axes)) ** 2
    for axis in axes:
        steps = np.diff(np.asarray(axis, dtype=np.float64))
        with np.errstate(divide="ignore"):
            total *= 4 * (1 + float(np.sum(1 / -np.expm1(-2 * beta * steps))))
    if not 2 * _STEP * math.sqrt(total) <= _SURPLUS:
        raise ValueError(
            "the nodes are so close together that float64 cannot tell the noise of neighbours "
            "apart; take fewer of them or further apart, or a larger beta"
        )


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
