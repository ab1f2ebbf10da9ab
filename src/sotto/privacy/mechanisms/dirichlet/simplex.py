"""Policies as points of the simplex: made valid, kept away from the edge, rounded, projected.

All of these work on rows in float64 and are defined for every input: what a teacher computed must
not decide whether an error is raised.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float, Float64

GRID = 2**32
"""Answers are multiples of 1 / GRID and sum to 1 exactly."""

_BLOCK = 8192


def as_policies(rows: Float[np.ndarray, "rows actions"]) -> Float64[np.ndarray, "rows actions"]:
    """The rows as probability vectors in float64; a row that is none becomes the uniform one.

    Nothing is raised for bad numbers: an error would tell what the teacher computed. The mean over
    several teachers has to be taken *after* this, or one bad teacher moves it by more than 1/n.
    """
    # One column per action, each contiguous: sums over few actions are slow along short rows.
    columns = np.ascontiguousarray(np.asarray(rows, dtype=np.float64).T)
    with np.errstate(all="ignore"):  # nor may a warning
        total = np.where(columns.min(axis=0) >= 0, columns.sum(axis=0), np.nan)
        possible = (total > 1e-300) & (total < np.inf)
        scale = np.where(possible, total, len(columns))
        return np.asarray((np.where(possible, columns, 1.0) / scale).T)


def restrict(
    policies: Float64[np.ndarray, "rows actions"], floor: float
) -> Float64[np.ndarray, "rows actions"]:
    """Mixes with the uniform policy: (1 - m floor) pi + floor, so no probability is below it."""
    return np.asarray((1.0 - policies.shape[1] * floor) * policies + floor)


def to_grid(policies: Float64[np.ndarray, "rows actions"]) -> Float64[np.ndarray, "rows actions"]:
    """Rounds down to multiples of 1 / GRID; the first entry takes what is missing to 1.

    A function of the released row alone (post-processing). From here on the row is a row of
    integers: the low-order bits of the floating-point row are gone, and it sums to 1 exactly.
    What is missing is never negative: the sum of a row is below 1 + 1 / GRID.
    """
    counts = np.floor(policies * GRID)
    counts[:, 0] += GRID - counts.sum(axis=1)
    return np.asarray(counts / GRID)


def project(points: Float64[np.ndarray, "rows actions"]) -> Float64[np.ndarray, "rows actions"]:
    """The nearest point of the simplex to each row (sort and threshold; Duchi et al. 2008)."""
    descending = -np.sort(-points, axis=1)
    excess = np.cumsum(descending, axis=1) - 1.0
    ranks = np.arange(1, points.shape[1] + 1)
    support = np.count_nonzero(descending * ranks > excess, axis=1)[:, None]
    threshold = np.take_along_axis(excess, support - 1, axis=1) / support
    return np.asarray(np.maximum(points - threshold, 0.0))


def checked(policies: Float[np.ndarray, "rows actions"], actions: int) -> np.ndarray:
    """The array, if it has the public shape [rows, actions]; what is in it is not looked at.

    Raises:
        ValueError: another shape.
    """
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


def by_blocks(
    function: Callable[[np.ndarray, np.random.Generator], np.ndarray],
    rows: np.ndarray,
    generator: np.random.Generator,
    block: int = _BLOCK,
) -> np.ndarray:
    """`function(rows, generator)` on blocks of rows, two at a time, each with a generator spawned.

    What a block needs stays in the cache, and numpy lets go of Python's lock while it draws, so
    two threads draw at once. What is drawn does not depend on which thread draws it.
    """
    if len(rows) <= block:
        return function(rows, generator)
    blocks = [rows[start : start + block] for start in range(0, len(rows), block)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        drawn = list(pool.map(function, blocks, generator.spawn(len(blocks))))
    return np.concatenate(drawn)
