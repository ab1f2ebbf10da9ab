"""The norm of values at points on a line, which noise at these points alone must hide."""

import math

import numpy as np


def norm_at_points(points: np.ndarray, values: np.ndarray, beta: float) -> float:
    """Returns sqrt(v' K^-1 v) of values v at sorted points; K has the entries exp(-beta |x - y|).

    It is never larger than the norm of a function with these values, and tends to it as points are
    added.
    """
    steps = np.diff(points)
    innovations = np.diff(values) - np.expm1(-beta * steps) * values[:-1]
    total = values[0] ** 2 + np.sum(innovations**2 / -np.expm1(-2 * beta * steps))
    return math.sqrt(total)
