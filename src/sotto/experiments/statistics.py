"""Statistics over seeds: confidence intervals, and the steps to reach a return."""

import math

import numpy as np
from jaxtyping import Float
from scipy import stats

from sotto.experiments.engine import Result

BAND = (15.0, 85.0)
"""Percentiles over seeds that bound a band. Gohari et al. only say "85th percentile"."""

REACHED = 0.95
"""Share of the way from the untrained return to a return at which that counts as reached."""

_WINDOW = 5  # points that are averaged to decide whether a return was reached, and at the end


def half_width(values: Float[np.ndarray, "seeds ..."]) -> Float[np.ndarray, "..."]:
    """Returns half the width of Student's 95 per cent interval of the mean; NaN for one seed."""
    count = len(values)
    if count < 2:
        return np.full(np.shape(values)[1:], math.nan)
    spread = np.std(values, axis=0, ddof=1)
    return np.asarray(stats.t.ppf(0.975, count - 1) * spread / math.sqrt(count))


def over_seeds(values: Float[np.ndarray, " seeds"]) -> dict[str, float | None]:
    """Returns mean, half-width of its interval (None for one seed) and standard deviation."""
    return {
        "mean": float(values.mean()),
        "half_width": float(half_width(values)) if len(values) > 1 else None,
        "std": float(values.std()),
    }


# --- learning curves -----------------------------------------------------------------------------


def without_gaps(result: Result, kind: str) -> Float[np.ndarray, "seeds points"]:
    """Fills NaN with the value before it, and NaN at the beginning with the first value.

    Raises:
        ValueError: a seed has no value.
    """
    values = result.curves[kind]
    known = np.isfinite(values)
    if not known.any(axis=1).all():
        raise ValueError("no episode ended in the whole training; make it longer with --scale")
    first = np.argmax(known, axis=1)
    before = np.maximum.accumulate(np.where(known, np.arange(values.shape[1]), 0), axis=1)
    index = np.maximum(before, first[:, None])
    return np.take_along_axis(values, index, axis=1)


def band(result: Result, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns lower edge, median and upper edge over seeds, for each point."""
    low, median, high = np.percentile(without_gaps(result, kind), (BAND[0], 50.0, BAND[1]), axis=0)
    return low, median, high


def final(result: Result, kind: str) -> Float[np.ndarray, " seeds"]:
    """Returns the final return of each seed: the mean of the last five points."""
    return np.asarray(without_gaps(result, kind)[:, -_WINDOW:].mean(axis=1))


def threshold(teacher: Result, kind: str) -> float:
    """Returns the return at which a student has reached the teacher."""
    start = float(np.median(without_gaps(teacher, kind)[:, 0]))
    return start + REACHED * (float(np.median(final(teacher, kind))) - start)


def steps_to_reach(result: Result, level: float, kind: str) -> Float[np.ndarray, " seeds"]:
    """Returns the steps at which each seed first reaches the level; infinity if it never does.

    The level is reached at a point if the point, and the mean of it and the next four, are there.
    """
    points = result.points
    return np.array([_first(row, level, points) for row in without_gaps(result, kind)])


def median_steps(result: Result, level: float, kind: str) -> float:
    """Returns the median over seeds of `steps_to_reach`; infinity counts as the largest value."""
    ordered = sorted(steps_to_reach(result, level, kind).tolist())
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[middle])
    low, high = ordered[middle - 1 : middle + 1]  # numpy would make NaN of two infinities
    return math.inf if math.isinf(high) else (low + high) / 2


def stays_from(result: Result, level: float, kind: str) -> float:
    """Returns the steps from which the median over seeds stays at the level, or infinity."""
    median = np.median(without_gaps(result, kind), axis=0)
    below = np.flatnonzero(median < level)
    kept = 0 if not len(below) else below[-1] + 1
    return float(result.points[kept]) if kept < len(median) else math.inf


def speed_up(slow: Result, fast: Result, level: float, kind: str) -> float:
    """Returns the ratio of two arms' median steps to the level; NaN if neither reaches it."""
    needed = median_steps(fast, level, kind)
    if math.isinf(needed):
        return math.nan if math.isinf(median_steps(slow, level, kind)) else 0.0
    return median_steps(slow, level, kind) / max(needed, 1.0)


def _first(values: Float[np.ndarray, " points"], level: float, steps: np.ndarray) -> float:
    window = min(_WINDOW, len(values))
    means = np.lib.stride_tricks.sliding_window_view(values, window).mean(axis=1)
    there = (values[: len(means)] >= level) & (means >= level)
    return float(steps[np.argmax(there)]) if there.any() else math.inf
