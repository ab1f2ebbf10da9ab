"""Operations on policies as points of the simplex: repair, restrict, round and project rows.

All of them work on rows in float64 and are defined for every input, because the values that a
teacher computed must not decide whether an error is raised.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jaxtyping import Float, Float64

GRID = 2**32
"""Number of grid steps in 1: answers are multiples of 1 / GRID and sum to 1 exactly."""

_BLOCK = 8192


def as_policies(rows: Float[np.ndarray, "rows actions"]) -> Float64[np.ndarray, "rows actions"]:
    """Returns the probability vector nearest to each row, in float64; the uniform one for NaN.

    Entries below -1 count as -1 first, and those above 2 as 2. Both steps are projections on convex
    sets, so that two policies are at most as far apart as the rows were. A second projection
    removes the rounding of the first one's sums, which are of larger numbers. Any rows are taken,
    because an error or a warning would tell what the teacher computed. The mean over several
    teachers must be taken *after* this, or one bad teacher moves it by more than 1/n.
    """
    found = np.asarray(rows, dtype=np.float64)
    known = ~np.isnan(found).any(axis=1, keepdims=True)
    return project(project(np.clip(np.where(known, found, 1 / found.shape[1]), -1.0, 2.0)))


def restrict(
    policies: Float64[np.ndarray, "rows actions"], floor: float
) -> Float64[np.ndarray, "rows actions"]:
    """Returns (1 - m floor) pi + floor, so that no probability is below the floor."""
    return np.asarray((1.0 - policies.shape[1] * floor) * policies + floor)


def to_grid(policies: Float64[np.ndarray, "rows actions"]) -> Float64[np.ndarray, "rows actions"]:
    """Rounds down to multiples of 1 / GRID; the first entry takes the rest, so that the sum is 1.

    This is a function of the released row alone (post-processing). It removes the low-order bits of
    the floating-point row: the result is a row of integers. The rest is never negative, because the
    sum of a row is below 1 + 1 / GRID.
    """
    counts = np.floor(policies * GRID)
    counts[:, 0] += GRID - counts.sum(axis=1)
    return np.asarray(counts / GRID)


def project(
    points: Float64[np.ndarray, "*rows actions"], total: float | np.ndarray = 1.0
) -> Float64[np.ndarray, "*rows actions"]:
    """Returns the nearest row without negative numbers and with this sum to each row.

    Source: Duchi et al. 2008, "Efficient Projections onto the l1-Ball", figure 1.

    Args:
        points: the rows.
        total: sum of every row, or [..., 1] of each; not negative. With 1, rows are of the simplex.
    """
    descending = -np.sort(-points, axis=-1)
    excess = np.cumsum(descending, axis=-1) - total
    ranks = np.arange(1, points.shape[-1] + 1)
    positive = np.count_nonzero(descending * ranks > excess, axis=-1, keepdims=True)
    support = np.maximum(positive, 1)  # none is positive where the total is 0
    threshold = np.take_along_axis(excess, support - 1, axis=-1) / support
    return np.asarray(np.maximum(points - threshold, 0.0))


def checked(policies: Float[np.ndarray, "rows actions"], actions: int) -> np.ndarray:
    """Returns the array if it has the public shape [rows, actions]; it does not check values.

    Raises:
        ValueError: it has another shape.
    """
    policies = np.asarray(policies)
    if policies.ndim != 2 or policies.shape[1] != actions:
        raise ValueError(f"policies must be an array [rows, {actions}], got shape {policies.shape}")
    return policies


def capped_distance(distance: float, actions: int, floor: float) -> float:
    """Returns the L2 distance, at most the restricted simplex's diameter sqrt(2) (1 - m floor).

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
    """Returns `function(rows, generator)` on blocks of rows, each with a spawned generator.

    A block fits in the cache. Numpy releases Python's lock while it draws, so two threads work at
    once. The draws do not depend on which thread makes them.
    """
    if len(rows) <= block:
        return function(rows, generator)
    blocks = [rows[start : start + block] for start in range(0, len(rows), block)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        drawn = list(pool.map(function, blocks, generator.spawn(len(blocks))))
    return np.concatenate(drawn)
