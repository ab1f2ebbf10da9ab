"""Policies as points of the simplex: made valid, kept away from the edge, rounded, projected.

All of these work on rows in float64 and are defined for every input: what a teacher computed must
not decide whether an error is raised.
"""

import math

import numpy as np
from jaxtyping import Float, Float64

GRID = 2**32
"""Answers are multiples of 1 / GRID and sum to 1 exactly."""


def as_policies(rows: Float[np.ndarray, "rows actions"]) -> Float64[np.ndarray, "rows actions"]:
    """The rows as probability vectors in float64; a row that is none becomes the uniform one.

    Nothing is raised for bad numbers: an error would tell what the teacher computed. The mean over
    several teachers has to be taken *after* this, or one bad teacher moves it by more than 1/n.
    """
    rows = np.asarray(rows, dtype=np.float64)
    if rows.ndim != 2:
        raise ValueError(f"policies must be an array [rows, actions], got shape {rows.shape}")
    valid = np.isfinite(rows).all(axis=1, keepdims=True) & (rows >= 0).all(axis=1, keepdims=True)
    clean = np.where(valid, rows, 1.0)
    total = clean.sum(axis=1, keepdims=True)
    possible = np.isfinite(total) & (total > 1e-300)
    return np.asarray(np.where(possible, clean, 1.0) / np.where(possible, total, rows.shape[1]))


def restrict(
    policies: Float64[np.ndarray, "rows actions"], floor: float
) -> Float64[np.ndarray, "rows actions"]:
    """Mixes with the uniform policy: (1 - m floor) pi + floor, so no probability is below it."""
    return np.asarray((1.0 - policies.shape[1] * floor) * policies + floor)


def to_grid(policies: Float64[np.ndarray, "rows actions"]) -> Float64[np.ndarray, "rows actions"]:
    """Rounds down to multiples of 1 / GRID; the largest entry takes what is missing to 1.

    A function of the released row alone (post-processing); every operation on integers, so the
    low-order bits of the floating-point row are gone and each row sums to 1 exactly.
    """
    counts = np.floor(policies * GRID).astype(np.int64)
    largest = counts.argmax(axis=1)
    counts[np.arange(len(counts)), largest] += GRID - counts.sum(axis=1)
    return np.asarray(counts / GRID)


def project(points: Float64[np.ndarray, "rows actions"]) -> Float64[np.ndarray, "rows actions"]:
    """The nearest point of the simplex to each row (sort and threshold; Duchi et al. 2008)."""
    descending = -np.sort(-points, axis=1)
    excess = np.cumsum(descending, axis=1) - 1.0
    ranks = np.arange(1, points.shape[1] + 1)
    support = np.count_nonzero(descending * ranks > excess, axis=1)
    threshold = np.take_along_axis(excess, support[:, None] - 1, axis=1) / support[:, None]
    return np.asarray(np.maximum(points - threshold, 0.0))


def checked(policies: Float[np.ndarray, "rows actions"], actions: int) -> np.ndarray:
    """The array, if it has the public shape [rows, actions]; what is in it is not looked at."""
    policies = np.asarray(policies)
    if policies.ndim != 2 or policies.shape[1] != actions:
        raise ValueError(f"policies must be an array [rows, {actions}], got shape {policies.shape}")
    return policies


def capped_distance(distance: float, actions: int, floor: float) -> float:
    """The L2 distance, at most the diameter sqrt(2) (1 - m floor) of the restricted simplex.

    Raises:
        ValueError: if the distance is negative or not a number.
    """
    if not distance >= 0:
        raise ValueError(f"distance must be a number that is not negative, got {distance}")
    return min(distance, math.sqrt(2.0) * max(0.0, 1.0 - actions * floor))
