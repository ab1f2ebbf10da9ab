"""An upper bound of the return of every control of one day, by Lagrangian duality.

The bound holds for controls that know the whole day. The argument, a step at a time:

1. X, I and the gut are linear in the doses. Let v = (X, I, dose, e) hold X and I at the beginning
   of a step, its dose, and e, the gut's emission k_abs gut a minute before the end of the step.
   Without doses and with the largest doses, v has its smallest and its largest value: a box.
2. With A(t) the integral of p_1 + s_i X from t to the end, glucose after the step is

       G = G_before e^-A(0) + sum of weights b(t) e^-A(t).

   A is linear in v. The gut changes slowly, so that b(t) is within (f / V_g) D |t - t_e| of a
   linear function of e, where D bounds the rate at which emission changes. log b is concave: above
   its chord and below its tangent in e. So G lies between two sums of exponentials of linear
   functions of v. Both sums are convex, and the logarithm of the lower one is convex, too.
3. Let w(v) be the tangent of that logarithm at a nominal v. Then log G >= w for every v. The box
   is cut into slabs of w. In a slab, the upper sum is largest at a corner of the slab; a second
   tangent bounds G from below. The slab's reward is the largest one between the two bounds.
4. G_before is at most 105, or the step before had the reward -1. In the second case the corners
   take the largest G_before that any control allows. The increase of the slabs' rewards that this
   makes possible is added to the reward -1 of the step before.
5. So the return is at most the sum over steps of R_k(w_k), where each w_k is linear in the doses.
   Any multipliers m_k give the bound sum of max (R_k(w) - m_k w), plus the largest value that
   the sum of m_k w_k takes for doses from 0 to 10. A linear program chooses the multipliers.
6. A slab that makes the bound smaller than the return of known doses holds no better control. It is
   left out, and the multipliers are chosen again. The first time, some multipliers are zero, so
   that slabs far from the target go. The larger of the known return and the last bound is a bound.

The arithmetic is that of float64 without directed rounding, for the closed form of
`insulin.model`. A margin of .001 mg/dL on glucose and on the limits of the reward stands for
rounding and quadrature. The simulator, in single precision, differs by less than .0002 mg/dL in
measurements.

Glucose falls when a dose rises. The effect of insulin on G' is -s_i G X, and that of the gut is
(f / V_g) k_abs gut. For a day after a dose, the second response is less than the first wherever G
is above 1 mg/dL (`insulin.model.least_glucose`), and G is always above 2. Only the
largest G_before of item 4 and `insulin.model.tube` need this.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from scipy.optimize import linprog

from insulin.model import KE, Array, reward, simulate, tube
from insulin.slabs import boxes_of, largest_before, slabs_of
from sotto.rl.envs.dosing import MOST_INSULIN

WINDOW, ROUNDS = 15, 3
ROUNDING = 1e-3
"""Of a return."""


class Relaxation(NamedTuple):
    """The sum of R_k(w_k), in which every w_k is linear in the doses."""

    points: list[Float[Array, "_ 2"]]
    """Values of w_k, less its constant, and of R_k: at the low ends of slabs, then at high ends."""
    effects: Float[Array, "T T"]
    """The change of w_k with each dose."""
    most: float
    """The largest dose."""

    def bound(self, multipliers: Float[Array, " T"]) -> tuple[float, list[Float[Array, " _"]]]:
        """The bound of some multipliers, and how much less each point makes it."""
        left = [p[:, 1] - m * p[:, 0] for p, m in zip(self.points, multipliers, strict=True)]
        most = self.most * np.maximum(multipliers @ self.effects, 0.0).sum()
        best = [one.max() for one in left]
        return float(sum(best) + most), [b - one for b, one in zip(best, left, strict=True)]

    def without(self, worse: list[Float[Array, " _"]], gap: float) -> "Relaxation":
        """Leaves out slabs, with both ends, that make the bound less by more than a gap."""
        kept = [np.tile(cost.reshape(2, -1).min(axis=0) <= gap, 2) for cost in worse]
        points = [p[here] for p, here in zip(self.points, kept, strict=True)]
        return self._replace(points=points)


def upper_bound(
    body: Float[Array, "6"],
    meals: Float[Array, " T"],
    doses: Float[Array, " T"],
    most: float = MOST_INSULIN,
) -> float:
    """A bound of the return of all doses from 0 to `most` on one day.

    Args:
        body: the body before the first of the steps.
        meals: the meal of each step.
        doses: the best known doses. The bound holds for any, and is tighter for better ones.
        most: the largest dose.
    """
    known = float(reward(simulate(body, doses, meals)[:, 0]).sum()) - ROUNDING
    relaxation = relaxation_of(body, meals, doses, most)
    windows = [np.arange(i, min(i + WINDOW, meals.size)) for i in range(0, meals.size, WINDOW)]
    for free in windows:
        found, worse = relaxation.bound(_multipliers(relaxation, free))
        relaxation = relaxation.without(worse, found - known)
    for _ in range(ROUNDS):
        found, worse = relaxation.bound(_multipliers(relaxation))
        relaxation = relaxation.without(worse, found - known)
    return min(max(known, found) + ROUNDING, float(meals.size))


def relaxation_of(
    body: Float[Array, "6"], meals: Float[Array, " T"], doses: Float[Array, " T"], most: float
) -> Relaxation:
    """The relaxation of one day, linearised at some doses."""
    response, boxes = boxes_of(body, meals, doses, most)
    glucose = tube(body, meals, most)[1][:, 0]
    remote = max(body[1], body[2], most / KE)

    def before(k: int) -> Callable[[Float[Array, " n"]], Float[Array, " n"]]:
        if k == 0:
            return lambda least: np.full(least.shape, body[0])
        earlier = body[0] if k == 1 else glucose[k - 2]
        source = boxes[k - 1].source(boxes[k - 1].high[3:], 1)
        return partial(largest_before, remote, source, earlier, glucose[k - 1])

    slabs = [slabs_of(box, before(k)) for k, box in enumerate(boxes)]
    increases = [*(one.increase for one in slabs[1:]), 0.0]
    effects = np.stack([one.slope @ response[k] for k, one in enumerate(slabs)])
    constants = np.array([one.base for one in slabs]) - effects @ doses
    points = []
    for one, increase, constant in zip(slabs, increases, constants, strict=True):
        ends = np.concatenate([one.low, one.high]) - constant
        points.append(np.stack([ends, np.tile(one.rewards(increase), 2)], axis=1))
    return Relaxation(points, effects, most)


def _multipliers(
    relaxation: Relaxation, free: Int[Array, " n"] | None = None
) -> Float[Array, " T"]:
    """The multipliers of the smallest bound, by a linear program; those of `free` steps are 0."""
    hulls = [_hull(*one.T) for one in relaxation.points]
    steps, most = len(hulls), relaxation.most
    step = np.repeat(np.arange(steps), [len(hull) for hull in hulls])
    w, rewards = np.concatenate(hulls).T
    row = np.arange(step.size)
    entries = np.concatenate([-w, -np.ones_like(w)])
    places = (np.tile(row, 2), np.concatenate([step, steps + step]))
    best = sparse.csr_matrix((entries, places), shape=(row.size, 3 * steps))
    none = sparse.csr_matrix((steps, steps))
    used = sparse.hstack([sparse.csr_matrix(relaxation.effects.T), none, -sparse.identity(steps)])
    limits = np.full((3 * steps, 2), [-np.inf, np.inf])
    limits[2 * steps :, 0] = 0.0
    if free is not None:
        limits[free] = 0.0
    constraints: Any = sparse.vstack([best, used], format="csr")
    found = linprog(
        np.repeat([0.0, 1.0, most], steps),
        A_ub=constraints,
        b_ub=np.concatenate([-rewards, np.zeros(steps)]),
        bounds=[(low, high) for low, high in limits],
        method="highs",
    )
    if found.x is None:
        return np.zeros(steps)
    multipliers: Float[Array, " T"] = found.x[:steps]
    return multipliers


def _hull(x: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, "m 2"]:
    """The upper concave hull of points."""
    kept_points: list[tuple[float, float]] = []
    for i in np.lexsort((y, x)):
        while len(kept_points) > 1:
            (x1, y1), (x2, y2) = kept_points[-2:]
            if (x2 - x1) * (y[i] - y1) < (y2 - y1) * (x[i] - x1):
                break
            kept_points.pop()
        if len(kept_points) == 1 and kept_points[0][0] == x[i]:
            kept_points.pop()
        kept_points.append((float(x[i]), float(y[i])))
    return np.array(kept_points)
