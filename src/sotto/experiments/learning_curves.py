"""Learning curves of several seeds: when a return is reached, and whether it is kept."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

BAND = (15.0, 85.0)
"""Percentiles over seeds that bound a band. Gohari et al. say "85th percentile" and no more."""

REACHED = 0.95
"""A return is reached at this share of the way from the untrained teacher's return to it."""

_WINDOW = 5  # points whose mean says that a return is kept; the last of them are the final return


@dataclass(frozen=True)
class Cost:
    """What the answers of one run cost.

    Attributes:
        answered: rows that the teacher answered.
        epsilon: certified for them, any two teachers, at `delta`.
        epsilon_nearby: the same for two teachers, or two observations, whose rows are `distance`
            apart in L2 norm at every query.
        delta: of both.
        distance: of nearby rows.
        paper_epsilon: the paper's claim for one answer, times the answers (its own remark on
            composition, section 4); not certified.
        paper_delta: the same, at most 1; at 1 nothing is claimed.
    """

    answered: int
    epsilon: float
    epsilon_nearby: float
    delta: float
    distance: float
    paper_epsilon: float
    paper_delta: float


@dataclass(frozen=True)
class Curve:
    """One arm's learning curves, a row for each seed.

    Attributes:
        arm: name of the arm.
        label: in figures.
        seeds: one for each row.
        steps: environment steps of each point, from 0.
        returns: mean return of an episode by kind; the first kind is the one that is drawn. NaN
            where no episode ended.
        answered: rows answered so far.
        cost: of one run's answers; None where the teacher was not asked or answered exactly.
    """

    arm: str
    label: str
    seeds: tuple[int, ...]
    steps: Int[np.ndarray, " points"]
    returns: dict[str, Float[np.ndarray, "seeds points"]]
    answered: Int[np.ndarray, "seeds points"]
    cost: Cost | None = None

    @property
    def kind(self) -> str:
        """The kind of return that is drawn."""
        return next(iter(self.returns))

    def values(self, kind: str | None = None) -> Float[np.ndarray, "seeds points"]:
        """Returns without gaps: the last one before where no episode ended, else the first."""
        return _filled(self.returns[kind or self.kind])

    def band(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lower edge, point-wise median and upper edge over seeds."""
        low, median, high = np.percentile(self.values(), (BAND[0], 50.0, BAND[1]), axis=0)
        return low, median, high

    def final(self, kind: str | None = None) -> Float[np.ndarray, " seeds"]:
        """Each seed's return in the end, the mean of the last few points."""
        final: Float[np.ndarray, " seeds"] = self.values(kind)[:, -_WINDOW:].mean(axis=1)
        return final

    @property
    def silent_after(self) -> int | None:
        """Environment steps after which the median run got no more answers; None if it always did.

        Nobody is silent who was never asked.
        """
        answered = np.median(self.answered, axis=0)
        if answered[-1] == 0:
            return None
        last = int(np.flatnonzero(np.diff(answered))[-1]) + 1
        return None if last == len(self.steps) - 1 else int(self.steps[last])


def joined(parts: list[Curve]) -> Curve:
    """Curves of one arm with different seeds, as one."""
    first = parts[0]
    return Curve(
        first.arm,
        first.label,
        tuple(seed for part in parts for seed in part.seeds),
        first.steps,
        {kind: np.concatenate([part.returns[kind] for part in parts]) for kind in first.returns},
        np.concatenate([part.answered for part in parts]),
        first.cost,
    )


def threshold(teacher: Curve, kind: str | None = None) -> float:
    """The return that counts as the teacher's."""
    start = float(np.median(teacher.values(kind)[:, 0]))
    return start + REACHED * (float(np.median(teacher.final(kind))) - start)


def steps_to_reach(curve: Curve, level: float, kind: str | None = None) -> Float[np.ndarray, " n"]:
    """For each seed, the steps of the first point at the level, also on average with the next four.

    Infinity where there is none.
    """
    return np.array([_first(row, level, curve.steps) for row in curve.values(kind)])


def summary(curve: Curve, teacher: Curve, student: Curve | None) -> dict[str, Any]:
    """What is said of a curve, as plain data.

    Args:
        curve: any arm's.
        teacher: whose final return is to be reached.
        student: the student alone, to compare with.
    """
    cost = None if curve.cost is None else asdict(curve.cost)
    measured = {kind: _measured(curve, teacher, student, kind) for kind in curve.returns}
    return {
        "arm": curve.arm,
        "label": curve.label,
        "seeds": len(curve.seeds),
        "answered": float(np.median(curve.answered[:, -1])),
        "silent_after_steps": curve.silent_after,
        "cost": cost,
        "returns": measured,
    }


def _measured(curve: Curve, teacher: Curve, student: Curve | None, kind: str) -> dict[str, Any]:
    level = threshold(teacher, kind)
    steps = steps_to_reach(curve, level, kind)
    median = np.median(curve.values(kind), axis=0)
    below = np.flatnonzero(median < level)
    kept = 0 if not len(below) else below[-1] + 1
    low, middle, high = np.percentile(curve.final(kind), (BAND[0], 50.0, BAND[1]))
    needed = _median(steps)
    return {
        "final_median": float(middle),
        "final_band": [float(low), float(high)],
        "reached_at_return": level,
        "steps_to_reach": needed,
        "seeds_that_reach": int(np.isfinite(steps).sum()),
        "median_stays_from": int(curve.steps[kept]) if kept < len(median) else math.inf,
        "faster_than_teacher": _ratio(median_steps(teacher, level, kind), needed),
        "faster_than_student": None
        if student is None
        else _ratio(median_steps(student, level, kind), needed),
    }


def speed_up(slow: Curve, fast: Curve, level: float, kind: str | None = None) -> float:
    """Median steps to the level of one arm over those of another; NaN if neither reaches it."""
    return _ratio(median_steps(slow, level, kind), median_steps(fast, level, kind))


def median_steps(curve: Curve, level: float, kind: str | None = None) -> float:
    """Median over seeds of `steps_to_reach`."""
    return _median(steps_to_reach(curve, level, kind))


def _ratio(slow: float, fast: float) -> float:
    if math.isinf(fast):
        return math.nan if math.isinf(slow) else 0.0
    return slow / max(fast, 1.0)


def _median(steps: Float[np.ndarray, " n"]) -> float:
    """The median, where infinity is larger than everything (numpy would make NaN of two)."""
    ordered = sorted(steps.tolist())
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[middle])
    low, high = ordered[middle - 1 : middle + 1]
    return math.inf if math.isinf(high) else (low + high) / 2


def _first(values: Float[np.ndarray, " points"], level: float, steps: np.ndarray) -> float:
    window = min(_WINDOW, len(values))
    means = np.lib.stride_tricks.sliding_window_view(values, window).mean(axis=1)
    there = (values[: len(means)] >= level) & (means >= level)
    return float(steps[np.argmax(there)]) if there.any() else math.inf


def _filled(values: Float[np.ndarray, "seeds points"]) -> Float[np.ndarray, "seeds points"]:
    """Gaps take the value before them; a gap in the beginning takes the first value."""
    known = np.isfinite(values)
    if not known.any(axis=1).all():
        raise ValueError("no episode ended in the whole training; make it longer with --scale")
    first = np.argmax(known, axis=1)
    points = np.arange(values.shape[1])
    before = np.maximum.accumulate(np.where(known, points, 0), axis=1)
    index = np.maximum(before, first[:, None])
    return np.take_along_axis(values, index, axis=1)
