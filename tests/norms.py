"""Norms of functions on a line, and of their values at points, in the space of the kernel."""

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


def norm_1d(nodes: np.ndarray, values: np.ndarray, beta: float) -> float:
    """Returns the exact norm of a function on [0, 1] that is linear between nodes from 0 to 1."""
    steps, left, right = np.diff(nodes), values[:-1], values[1:]
    slopes = np.sum((right - left) ** 2 / steps)
    squares = np.sum(steps * (left**2 + left * right + right**2)) / 3
    ends = (values[0] ** 2 + values[-1] ** 2) / 2
    return math.sqrt(ends + slopes / (2 * beta) + beta / 2 * squares)
