"""One step of the day: bounds of glucose after it, as functions of one linear function of doses.

`insulin.bound` has the argument.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from insulin.model import (
    EATEN,
    GB,
    KABS,
    KEMP,
    MINUTES,
    P1,
    P2,
    SI,
    STEP,
    Array,
    emission_after,
    reward,
)
from sotto.rl.envs.dosing import HIGHEST, LOWEST, TARGET

MARGIN = 1e-3
"""In mg/dL, for rounding."""

_EMISSION_TIME = MINUTES - 1.0
_CORNERS = np.array(list(itertools.product((0, 1), repeat=4)))
_EDGES = np.array([(i, i | 1 << j) for i in range(16) for j in range(4) if not i >> j & 1])
_LEFT = MINUTES - STEP.times
_OFF = np.abs(STEP.times - _EMISSION_TIME)
_USED = [0, 1, 5]  # X, I and the dose
_REMOTE, _REMOTE_ALL = STEP.remote[:, _USED], STEP.remote_all[_USED]

_FINE, _MEDIUM, _COARSE = np.arange(0.02, 3, 0.02), np.arange(3, 9, 0.1), np.arange(9, 26, 0.5)
_ABOVE = np.concatenate([_FINE, _MEDIUM, _COARSE])
CUTS = np.log(TARGET + np.concatenate([-_ABOVE[::-1], [0.0], _ABOVE]))
"""Values of w between slabs, logarithms of glucose."""


@dataclass(frozen=True)
class Box:
    """All that is known of one step before its dose: the range of v, and glucose before."""

    low: Float[Array, " 4"]
    high: Float[Array, " 4"]
    nominal: Float[Array, " 4"]
    meal: float
    drift: float
    """The largest rate at which the emission of the gut changes, per minute."""
    before_low: float
    before_high: float
    """Glucose before the step, if the step before was not penalised."""

    def source(self, emission: Float[Array, "*n 1"], sign: int) -> Float[Array, "*n nodes"]:
        """A bound of b(t): above for sign 1, below for sign -1."""
        return P1 * GB + EATEN * (self.meal + emission + sign * self.drift * _OFF)

    def upper(self, v: Float[Array, "*n 4"]) -> Float[Array, "*n"]:
        """A convex function of v, above glucose after the step, without glucose before it."""
        middle = (self.low[3:] + self.high[3:]) / 2
        top = self.source(middle, 1)
        logarithm = np.log(top) + EATEN / top * (v[..., 3:] - middle)
        values: Float[Array, "*n"] = np.exp(logarithm - _past(v)) @ STEP.weights
        return values

    def lower(self, v: Float[Array, "*n 4"]) -> tuple[Float[Array, "*n"], Float[Array, "*n 4"]]:
        """The logarithm of a function below glucose after the step, and its gradient: convex."""
        first, last = self.source(self.low[3:], -1), self.source(self.high[3:], -1)
        slope = np.log(last / first) / max(self.high[3] - self.low[3], 1e-12)
        logarithm = np.log(first) + slope * (v[..., 3:] - self.low[3])
        terms = np.exp(logarithm - _past(v)) * STEP.weights
        rest = self.before_low * kept(v)
        value = terms.sum(-1) + rest
        remote = -SI * (terms @ _REMOTE + rest[..., None] * _REMOTE_ALL)
        gradient = np.concatenate([remote, (terms @ slope)[..., None]], axis=-1)
        return np.log(value), gradient / value[..., None]


def _past(v: Float[Array, "*n 4"]) -> Float[Array, "*n nodes"]:
    """A(t) at the nodes."""
    past: Float[Array, "*n nodes"] = P1 * _LEFT + SI * (v[..., :3] @ _REMOTE.T)
    return past


def kept(v: Float[Array, "*n 4"]) -> Float[Array, "*n"]:
    """The part of glucose before a step that remains after it, e^-A(0): convex in v."""
    part: Float[Array, "*n"] = np.exp(-P1 * MINUTES - SI * (v[..., :3] @ _REMOTE_ALL))
    return part


@dataclass(frozen=True)
class Slabs:
    """Ranges of w of one step, and bounds of glucose after it in each."""

    low: Float[Array, " n"]
    high: Float[Array, " n"]
    least: Float[Array, " n"]
    most: Float[Array, " n"]
    most_after_penalty: Float[Array, " n"]
    """The same for any glucose before the step."""
    slope: Float[Array, " 4"]
    """The gradient of w."""
    base: float
    """The value of w at the nominal v."""

    @property
    def increase(self) -> float:
        """The most by which a penalised step before can increase the reward of this one."""
        wide, usual = (_largest(self.least, x) for x in (self.most_after_penalty, self.most))
        return float(np.max(wide - usual))

    def rewards(self, next_increase: float) -> Float[Array, " n"]:
        """The largest reward in each slab, with what a penalty makes possible in the next step."""
        penalised = (self.least - MARGIN < LOWEST) | (self.most_after_penalty + MARGIN > HIGHEST)
        found: Float[Array, " n"] = np.maximum(
            _largest(self.least, self.most), np.where(penalised, next_increase - 1.0, -1.0)
        )
        return found


def _largest(least: Float[Array, " n"], most: Float[Array, " n"]) -> Float[Array, " n"]:
    """The largest reward between two values of glucose, which is nearest to the target."""
    return reward(np.clip(TARGET, least - MARGIN, most + MARGIN), MARGIN)


def slabs_of(box: Box, before: Callable[[Float[Array, " n"]], Float[Array, " n"]]) -> Slabs:
    """Cuts the box of a step into slabs of w and bounds glucose in each.

    Args:
        box: the step.
        before: the largest glucose before the step, as a function of the least X before it.
    """
    base, slope = box.lower(box.nominal)
    corners = box.low + _CORNERS * (box.high - box.low)
    at_corners = base + (corners - box.nominal) @ slope
    first, last = at_corners.min() - 1e-9, at_corners.max() + 1e-9
    inner = CUTS[np.searchsorted(CUTS, first, "right") : np.searchsorted(CUTS, last)]
    cuts = np.concatenate([[first], inner, [last]])
    low, high = cuts[:-1], cuts[1:]
    points, inside = _corners_of_slabs(corners, at_corners, low, high)

    def largest(values: Float[Array, "n points"]) -> Float[Array, " n"]:
        found: Float[Array, " n"] = np.where(inside, values, -np.inf).max(axis=1)
        return found

    upper, part = box.upper(points), kept(points)
    anything = before(-largest(-points[..., 0]))
    # Another tangent in each slab, at a point that differs from the nominal one in X only.
    touched = np.repeat(box.nominal[None], low.size, axis=0)
    touched[:, 0] += ((low + high) / 2 - base) / slope[0]
    value, gradient = box.lower(touched)
    tangent = value[:, None] + np.einsum("spi,si->sp", points - touched[:, None], gradient)
    some = inside.any(axis=1)
    return Slabs(
        low[some],
        high[some],
        np.exp(np.maximum(low, -largest(-tangent)))[some],
        largest(upper + box.before_high * part)[some],
        largest(upper + np.maximum(anything, box.before_high)[:, None] * part)[some],
        slope,
        float(base),
    )


def _corners_of_slabs(
    corners: Float[Array, "16 4"],
    at_corners: Float[Array, " 16"],
    low: Float[Array, " n"],
    high: Float[Array, " n"],
) -> tuple[Float[Array, "n points 4"], Bool[Array, "n points"]]:
    """The corners of the box between two planes, and where its edges cross the planes.

    The second array says which of the points belong to a slab.
    """
    points = [np.broadcast_to(corners, (low.size, 16, 4))]
    inside = [(at_corners >= low[:, None]) & (at_corners <= high[:, None])]
    begin, end = _EDGES.T
    for plane in (low, high):
        with np.errstate(divide="ignore", invalid="ignore"):
            along = plane[:, None] - at_corners[begin]
            along = along / (at_corners[end] - at_corners[begin])
        crosses = (along >= 0) & (along <= 1)
        along = np.where(crosses, along, 0.0)[..., None]
        points.append(corners[begin] + along * (corners[end] - corners[begin]))
        inside.append(crosses)
    return np.concatenate(points, axis=1), np.concatenate(inside, axis=1)


def boxes_of(
    body: Float[Array, "6"], meals: Float[Array, " T"], doses: Float[Array, " T"], most: float
) -> tuple[Float[Array, "T 4 T"], list[Box]]:
    """The response of v in each step to each dose, and the boxes."""
    steps = meals.size
    emission = emission_after(_EMISSION_TIME)
    constant, linear = body[1:].copy(), np.zeros((5, steps))
    drift = KABS * max(KEMP * body[3], KEMP * body[4], KABS * body[5], most)
    response, boxes = np.zeros((steps, 4, steps)), []
    for k in range(steps):
        now = np.zeros((6, steps))
        now[:5], now[5, k] = linear, 1.0
        response[k] = np.stack([now[0], now[1], now[5], emission @ now])
        rest = np.concatenate([constant, [0.0]])
        none = np.array([rest[0], rest[1], 0.0, emission @ rest])
        first = k == 0
        boxes.append(
            Box(
                low=none,
                high=none + most * response[k].sum(axis=1),
                nominal=none + response[k] @ doses,
                meal=float(meals[k]),
                drift=float(drift),
                before_low=float(body[0]) if first else 0.0,
                before_high=float(body[0]) if first else HIGHEST,
            )
        )
        linear, constant = STEP.after @ now, STEP.after @ rest
    return response, boxes


def largest_before(
    remote: float,
    source: Float[Array, " nodes"],
    earlier: float,
    limit: float,
    least: Float[Array, " n"],
) -> Float[Array, " n"]:
    """The largest glucose before a step at the beginning of which X is at least `least`.

    X rises at most as fast as with plasma insulin `remote` throughout, so that it was, s minutes
    before, at least remote - (remote - least) e^(p_2 s).
    """
    minutes = np.append(_LEFT, MINUTES)
    past = remote * minutes - (remote - least)[:, None] * np.expm1(P2 * minutes) / P2
    past = np.exp(-P1 * minutes - SI * np.maximum(past, 0.0))
    glucose: Float[Array, " n"] = past[:, :-1] @ (STEP.weights * source) + earlier * past[:, -1]
    found: Float[Array, " n"] = np.minimum(glucose, limit)
    return found
