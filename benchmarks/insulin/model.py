"""Ten minutes of the simulator of Dosing in closed form, up to one integral.

The dose is constant for ten minutes. Remote insulin X, plasma insulin I and the three stages of
absorption then follow a linear system, which a matrix exponential solves. Glucose G follows

    G' = b - a G,    a = p_1 + s_i X > 0,    b = p_1 G_b + (f / V_g) (k_abs gut + meal) > 0,

so that G(10) = G(0) e^-A(0) + integral of b(t) e^-A(t) from 0 to 10, where A(t) is the integral of
a from t to 10. The integral is taken by Gauss-Legendre quadrature with positive weights.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.linalg import expm

from sotto.rl.envs.dosing import HIGHEST, LOWEST, MOST_INSULIN, TARGET, DosingParams

Array = np.ndarray

MINUTES = 10.0
NODES = 12

_BODY = DosingParams()
P1, GB, P2 = (float(x) for x in (_BODY.glucose_return, _BODY.basal_glucose, _BODY.remote_delay))
SI, KE = float(_BODY.sensitivity), float(_BODY.elimination)
KABS, KEMP = float(_BODY.gut_absorption), float(_BODY.stomach_emptying)
EATEN = float(_BODY.bioavailability) / float(_BODY.glucose_volume)

# X, I, S1, S2, gut and the dose.
_LINEAR = np.zeros((6, 6))
_LINEAR[0, :2] = -P2, P2
_LINEAR[1, [1, 5]] = -KE, 1.0
_LINEAR[2, [2, 5]] = -KEMP, 1.0
_LINEAR[3, 2:4] = KEMP, -KEMP
_LINEAR[4, 3:5] = KEMP, -KABS


def _flow(minutes: float) -> Float[Array, "7 7"]:
    """The linear system over some minutes, and the integral of X in the last row."""
    system = np.zeros((7, 7))
    system[:6, :6] = _LINEAR
    system[6, 0] = 1.0
    flow: Float[Array, "7 7"] = expm(system * minutes)
    return flow


def _quadrature(count: int) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) * MINUTES / 2, weights * MINUTES / 2


@dataclass(frozen=True)
class Step:
    """Coefficients of ten minutes, for the vector (X, I, S1, S2, gut, dose) at their beginning."""

    times: Float[Array, " nodes"]
    weights: Float[Array, " nodes"]
    after: Float[Array, "5 6"]
    """The linear states after ten minutes."""
    remote: Float[Array, "nodes 6"]
    """The integral of X from each node to the end."""
    remote_all: Float[Array, " 6"]
    """The integral of X over the ten minutes."""
    gut: Float[Array, "nodes 6"]
    """The gut's glucose at each node."""

    @classmethod
    def with_nodes(cls, count: int = NODES) -> "Step":
        """The coefficients for a number of nodes."""
        times, weights = _quadrature(count)
        whole = _flow(MINUTES)
        flows = [_flow(time) for time in times]
        return cls(
            times,
            weights,
            whole[:5, :6],
            np.stack([whole[6, :6] - flow[6, :6] for flow in flows]),
            whole[6, :6],
            np.stack([flow[4, :6] for flow in flows]),
        )


STEP = Step.with_nodes()


def emission_after(minutes: float) -> Float[Array, " 6"]:
    """What the gut emits after some minutes, k_abs gut, as a linear function."""
    emission: Float[Array, " 6"] = KABS * _flow(minutes)[4, :6]
    return emission


def advance(
    body: Float[Any, "*n 6"],
    dose: Float[Any, "*n"],
    meal: Float[Any, "*n"],
    by: Step = STEP,
    xp: Any = np,
) -> Any:
    """The body, in the simulator's order, after ten minutes, [*n, 6].

    Args:
        body, dose, meal: the body before, the dose and the meal.
        by: coefficients, whose precision is that of the result.
        xp: numpy, or jax.numpy for arrays of JAX.
    """
    linear = xp.concatenate([body[..., 1:], xp.asarray(dose)[..., None]], axis=-1)
    past = P1 * (MINUTES - by.times) + SI * (linear @ by.remote.T)
    source = P1 * GB + EATEN * (KABS * (linear @ by.gut.T) + xp.asarray(meal)[..., None])
    glucose = body[..., 0] * xp.exp(-P1 * MINUTES - SI * (linear @ by.remote_all))
    glucose = glucose + (by.weights * source * xp.exp(-past)).sum(-1)
    return xp.concatenate([glucose[..., None], linear @ by.after.T], axis=-1)


def simulate(
    body: Float[Array, "*n 6"], doses: Float[Array, "*n T"], meals: Float[Array, "*n T"]
) -> Float[Array, "*n T 6"]:
    """The bodies after each of T doses; `meals` has the meal of each step."""
    after = []
    for k in range(doses.shape[-1]):
        body = advance(body, doses[..., k], meals[..., k])
        after.append(body)
    return np.stack(after, axis=-2)


def reward(glucose: Float[Array, "*n"], margin: float = 0.0) -> Float[Array, "*n"]:
    """The reward; its limits may be wider by a margin."""
    outside = (glucose < LOWEST - margin) | (glucose > HIGHEST + margin)
    return np.where(outside, -1.0, 1.0 - np.square(np.tanh((glucose - TARGET) / 7.0)))


def tube(
    body: Float[Array, "6"], meals: Float[Array, " T"], most: float = MOST_INSULIN
) -> tuple[Float[Array, "T 6"], Float[Array, "T 6"]]:
    """The smallest and the largest value of each state after each step, over all doses.

    Every state but glucose is larger at larger doses. Glucose is smaller (`bound` says why), so its
    smallest value is that of the largest doses.
    """
    doses = np.zeros((2, meals.size))
    doses[1] = most
    none, all_of_it = simulate(np.stack([body, body]), doses, np.stack([meals, meals]))
    low, high = none.copy(), all_of_it.copy()
    low[:, 0], high[:, 0] = all_of_it[:, 0], none[:, 0]
    return low, high


def least_glucose(minutes: float = 1440.0) -> float:
    """Glucose above which it falls when a dose rises, at any time up to `minutes` after the dose.

    It is the largest ratio of the responses of glucose's rate to a dose: through the gut, and
    through X for each mg/dL of glucose. The smallest glucose itself is p_1 G_b / (p_1 + s_i X).
    """
    flows = [_flow(float(time)) for time in np.linspace(1.0, minutes, 1440)]
    ratios = [EATEN * KABS * flow[4, 5] / (SI * flow[0, 5]) for flow in flows]
    impulses = [flow @ np.array([0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]) for flow in flows]
    ratios += [EATEN * KABS * one[4] / (SI * one[0]) for one in impulses]
    return float(max(ratios))


def require_enclosed(
    low: Float[Array, "T 6"], high: Float[Array, "T 6"], bodies: Float[Array, "*n T 6"]
) -> None:
    """Raises a ValueError if a body is outside of a tube."""
    slack = 1e-6 * np.maximum(1.0, np.abs(high))
    outside = (bodies < low - slack) | (bodies > high + slack)
    if outside.any():
        raise ValueError(f"{outside.sum()} of {outside.size} values are outside of the tube")
