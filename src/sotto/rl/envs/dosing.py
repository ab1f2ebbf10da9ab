"""Dosing-0 and Dosing-1: insulin for a person with type 1 diabetes, every ten minutes of a day.

Bergman's minimal model, extended by the absorption of insulin and of meals, as in the simulator of
Salas, Ferguson and Zweig (2019) that Rio et al. (2025) train on. An action is a rate of insulin,
0 to 10 mU/min; the reward is largest, 1, where it leads to a blood glucose of 80 mg/dL, and -1
below 65 and above 105. In Dosing-0 everybody eats the same at the same times; in Dosing-1 every
person has meals of their own. A day has 145 points and the first dose is not the agent's, which
leaves it 143 decisions.

Doses and meals are held constant for ten minutes of 20 Runge-Kutta steps: within two millionths of
the exact solution, also where there is most insulin and 10 steps diverge.

`sotto.rl.envs.gymnasium_dosing` is the same for Gymnasium.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sotto.rl.distributions import DiagonalGaussian
from sotto.rl.envs.base import ActionSpace, Box, Environment

Scalar = float | Float[Array, "*variants"]

POINTS = 145  # of a day: every ten minutes from 0 to 24 h
TARGET, LOWEST, HIGHEST = 80.0, 65.0, 105.0  # mg/dL
MOST_INSULIN = 10.0  # mU/min
FIRST_DOSE = 3.0  # mU/min, in Dosing-0; in Dosing-1 one of 0, 1, ..., 6

# fmt: off
_FIXED_MEALS = (1000.0,) * 43 + (
    1259., 1451., 1632., 1632., 1468., 1314., 1240., 1187., 1139., 1116., 1099., 1085., 1077.,
    1071., 1066., 1061., 1057., 1053., 1046., 1040., 1034., 1025., 1018., 1010., 1000., 993., 985.,
    976., 970., 964., 958., 954., 952., 950., 950., 951., 1214., 1410., 1556., 1603., 1445., 1331.,
    1226., 1173., 1136., 1104., 1088., 1078., 1070., 1066., 1063., 1061., 1059., 1056., 1052.,
    1048., 1044., 1037., 1030., 1024., 1014., 1007., 999., 989., 982., 975., 967., 962., 957., 953.,
    951., 950., 1210., 1403., 1588., 1593., 1434., 1287., 1212., 1159., 1112., 1090., 1075., 1064.,
    1059., 1057., 1056., 1056., 1056., 1055., 1054., 1052., 1049., 1045., 1041., 1033., 1027.,
    1020., 1011., 1003., 996., 986.,
)
# fmt: on


class _Meal(NamedTuple):
    """Whether, when (hours) and how much somebody eats in Dosing-1."""

    probability: float
    earliest: float
    latest: float
    usual: float
    amount: float
    spread: float


_RANDOM_MEALS = (
    _Meal(0.95, 5.0, 9.0, 7.0, 2500.0, 100.0),
    _Meal(0.2, 9.0, 10.0, 9.5, 1250.0, 50.0),
    _Meal(0.95, 11.0, 13.0, 12.0, 2800.0, 100.0),
    _Meal(0.2, 14.0, 16.0, 15.0, 1250.0, 50.0),
    _Meal(0.95, 16.5, 29.5, 18.0, 2800.0, 100.0),  # 29.5 is the simulator's own (19.5 was meant?)
    _Meal(0.2, 20.0, 22.0, 21.0, 1250.0, 50.0),
)
_HOUR, _TIME_SPREAD = 6.0, 10.0  # points


class DosingParams(eqx.Module):
    """The body; every field may be traced."""

    basal_glucose: Scalar = 291.0
    """mg/dL, where glucose tends without insulin (G_b)."""
    glucose_return: Scalar = 0.0317
    """Per minute, how fast it tends there (p_1)."""
    remote_delay: Scalar = 0.0123
    """Per minute, from plasma insulin to where it works (p_2)."""
    sensitivity: Scalar = 0.029
    """mL/uU/min, what insulin does to glucose (s_i)."""
    elimination: Scalar = 0.09
    """Per minute, of plasma insulin (k_e)."""
    gut_absorption: Scalar = 0.012
    """Per minute (k_abs)."""
    stomach_emptying: Scalar = 0.18
    """Per minute (k_emp)."""
    bioavailability: Scalar = 0.8
    """Of what is eaten (f)."""
    glucose_volume: Scalar = 12.0
    """L (V_g)."""


class DosingState(NamedTuple):
    """The body at one point of the day, and the whole day's meals."""

    body: Float[Array, "6"]
    """Blood glucose G (mg/dL), remote insulin X and plasma insulin I (uU/mL), the two stages of
    absorption S1 and S2, gut glucose (mg/dL)."""
    glucose_before: Float[Array, ""]
    """G ten minutes ago."""
    meal: Float[Array, ""]
    """The disturbance of the last ten minutes."""
    meal_before: Float[Array, ""]
    """Of the ten before them."""
    meals: Float[Array, "145"]
    """The disturbance at each point of the day."""
    point: Int[Array, ""]
    """Where the day is: 1 after the first dose, 144 at its end."""


# Public: the policy's outputs are around half of the largest dose, in units of 2 mU/min.
_ACTIONS = Box((0.0,), (MOST_INSULIN,), centre=(5.0,), scale=(2.0,))
_PARAMS = DosingParams()


@dataclass(frozen=True, kw_only=True)
class Dosing(Environment[DosingState, DosingParams]):
    """Keep the blood glucose of one person near 80 mg/dL for a day.

    What is observed: the six states of the body, the meal that went in on the way there, the
    glucose and the meal ten minutes before. (The meal to come is not.)
    """

    id: str = "Dosing-0"
    observation_size: int = 9
    action: ActionSpace = _ACTIONS
    default_params: DosingParams = _PARAMS
    reset_size: int = 6
    max_episode_steps: int = POINTS - 2
    observation_centre: tuple[float, ...] = (80.0, 33.0, 33.0, 20.0, 20.0, 250.0, 1000.0, 80.0, 1e3)
    observation_scale: tuple[float, ...] = (
        *(1 / 20, 1 / 10, 1 / 10, 1 / 10, 1 / 10, 1 / 50, 1 / 500),
        *(1 / 20, 1 / 500),
    )
    reward_per_step: float = 0.9
    random_meals: bool = False
    minutes: float = 10.0
    substeps: int = 20
    """Runge-Kutta steps between two points."""

    @classmethod
    def with_random_meals(cls) -> "Dosing":
        """Dosing-1."""
        return cls(id="Dosing-1", random_meals=True, reset_size=8 + 3 * len(_RANDOM_MEALS))

    def reset(self, uniforms: Float[Array, " reset_size"], params: DosingParams) -> DosingState:
        """A body somewhere near its equilibrium, ten minutes after the first dose."""
        body = jnp.stack(
            [
                LOWEST + (HIGHEST - LOWEST) * uniforms[0],
                33.33 + 5.0 * _normal(uniforms[1]),
                33.33 + 5.0 * _normal(uniforms[2]),
                25.0 + 5.0 * _normal(uniforms[3]),
                25.0 + 5.0 * _normal(uniforms[4]),
                250.0 + 5.0 * _normal(uniforms[5]),
            ]
        )
        if self.random_meals:
            dose, meals = jnp.floor(7.0 * uniforms[6]), _day_of_meals(uniforms[7:])
        else:
            dose, meals = jnp.float32(FIRST_DOSE), _array(_FIXED_MEALS)
        before = DosingState(body, body[0], meals[0], meals[0], meals, jnp.int32(0))
        return self.step(before, dose[None], params)[0]

    def step(
        self, state: DosingState, action: Float[Array, "1"], params: DosingParams
    ) -> tuple[DosingState, Float[Array, ""], Bool[Array, ""]]:
        """Ten minutes at one rate of insulin; no state ends a day."""
        point = state.point + 1
        meal = _at(state.meals, point)
        body = self._integrate(state.body, action[0], meal, params)
        glucose = body[0]
        near = 1.0 - jnp.square(jnp.tanh(0.1 * jnp.abs(glucose - TARGET) / 0.7))
        reward = jnp.where((glucose < LOWEST) | (glucose > HIGHEST), -1.0, near)
        after = DosingState(body, state.body[0], meal, state.meal, state.meals, point)
        return after, reward, jnp.zeros((), bool)

    def observe(self, state: DosingState, params: DosingParams) -> Float[Array, "9"]:
        """The nine numbers of the simulator, in its order."""
        del params
        return jnp.stack([*state.body, state.meal, state.glucose_before, state.meal_before])

    def _integrate(
        self,
        body: Float[Array, "6"],
        insulin: Float[Array, ""],
        meal: Float[Array, ""],
        params: DosingParams,
    ) -> Float[Array, "6"]:
        """Classical fourth-order Runge-Kutta, insulin and meal held constant."""
        time = self.minutes / self.substeps

        def substep(_: Int[Array, ""], body: Float[Array, "6"]) -> Float[Array, "6"]:
            k1 = _derivative(body, insulin, meal, params)
            k2 = _derivative(body + time / 2 * k1, insulin, meal, params)
            k3 = _derivative(body + time / 2 * k2, insulin, meal, params)
            k4 = _derivative(body + time * k3, insulin, meal, params)
            return body + time / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

        integrated: Array = jax.lax.fori_loop(0, self.substeps, substep, body)
        return integrated


def _derivative(
    body: Float[Array, "6"],
    insulin: Float[Array, ""],
    meal: Float[Array, ""],
    params: DosingParams,
) -> Float[Array, "6"]:
    """Per minute."""
    glucose, remote, plasma, first, second, gut = (body[i] for i in range(6))
    eaten = params.bioavailability / params.glucose_volume
    slopes = [
        params.glucose_return * (params.basal_glucose - glucose)
        - params.sensitivity * remote * glucose
        + eaten * (params.gut_absorption * gut + meal),
        params.remote_delay * (plasma - remote),
        insulin - params.elimination * plasma,
        insulin - params.stomach_emptying * first,
        params.stomach_emptying * (first - second),
        params.stomach_emptying * second - params.gut_absorption * gut,
    ]
    return jnp.stack(slopes)


def _day_of_meals(uniforms: Float[Array, "19"]) -> Float[Array, "145"]:
    """One person's meals in Dosing-1: single points above a base, smoothed."""
    base = 800.0 + 400.0 * uniforms[0]
    at_all, when, how_much = uniforms[1:].reshape(len(_RANDOM_MEALS), 3).T
    # A normal time, truncated to the hours of its meal: the inverse of its distribution.
    cdf = NormalDist(sigma=_TIME_SPREAD).cdf
    lowest = _array([cdf(_HOUR * (meal.earliest - meal.usual)) for meal in _RANDOM_MEALS])
    highest = _array([cdf(_HOUR * (meal.latest - meal.usual)) for meal in _RANDOM_MEALS])
    usual = _array([_HOUR * meal.usual + 1 for meal in _RANDOM_MEALS])
    deviation = _TIME_SPREAD * _normal(lowest + (highest - lowest) * when)
    points = jnp.minimum(jnp.round(usual + deviation), POINTS - 2).astype(jnp.int32)
    spread = _array([meal.spread for meal in _RANDOM_MEALS])
    amounts = _array([meal.amount for meal in _RANDOM_MEALS]) + spread * _normal(how_much)
    eaten = at_all < _array([meal.probability for meal in _RANDOM_MEALS])

    # A loop: otherwise XLA computes the times and amounts anew for each point of the day, and the
    # day anew for each of the eleven points that one is smoothed from.
    def eat(i: Int[Array, ""], day: Float[Array, "145"]) -> Float[Array, "145"]:
        here = eaten[i] & (jax.lax.iota(jnp.int32, POINTS) == points[i])
        return jnp.where(here, jnp.maximum(jnp.round(amounts[i]), 0.0), day)

    day = jnp.broadcast_to(jnp.floor(base), (POINTS,))
    return jnp.maximum(_smoothed(jax.lax.fori_loop(0, len(_RANDOM_MEALS), eat, day)), base)


def _normal(uniform: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """The standard normal quantile; the ends of the interval count as the nearest inner point."""
    inside = jnp.clip(uniform, 2.0**-25, 1.0 - 2.0**-24)
    return math.sqrt(2.0) * jax.lax.erf_inv(2.0 * inside - 1.0)


def _smoothed(values: Float[Array, " n"]) -> Float[Array, " n"]:
    """Savitzky and Golay's filter: in each window of 11 the middle of the best cubic.

    The first and the last five values are read off the first and the last window's cubic.
    """
    half, inner = 5, values.shape[0] - 10
    # The middle of the fit needs the even Gram polynomials only: 1 and x^2 - 10 on -5, ..., 5.
    weights = [1 / 11 - 10 * (x * x - 10) / 858 for x in range(-half, half + 1)]
    middle = weights[0] * values[:inner]
    for j, weight in enumerate(weights[1:], start=1):
        middle = middle + weight * values[j : j + inner]
    return jnp.concatenate([_cubic(values[:11])[:half], middle, _cubic(values[-11:])[-half:]])


def _cubic(window: Float[Array, "11"]) -> Float[Array, "11"]:
    """The cubic of least squares through 11 values, at each of them."""
    x = jax.lax.iota(jnp.float32, 11) - 5.0
    # Gram polynomials: orthogonal on the eleven points.
    basis = (jnp.ones_like(x), x, x * x - 10.0, x * (x * x - 17.8))
    fit = jnp.zeros_like(window)
    for polynomial in basis:
        fit = fit + polynomial * jnp.sum(polynomial * window) / jnp.sum(jnp.square(polynomial))
    return fit


def _at(values: Float[Array, " n"], index: Int[Array, ""]) -> Float[Array, ""]:
    """One of them; over a batch of people a masked sum is several times as fast as a gather."""
    here = jax.lax.iota(jnp.int32, values.shape[0]) == index
    return jnp.sum(jnp.where(here, values, 0.0))


def _array(values: Sequence[float]) -> Float[Array, " n"]:
    """An array of Python numbers, written without an array constant."""
    return jnp.stack([jnp.float32(value) for value in values])


class GlucoseController(eqx.Module):
    """The textbook baseline: clip(dose + gain * (G - 80)), without learning and without data.

    A gain of zero is a constant dose. Mean returns on Dosing-0 and Dosing-1: 84 and 49 at gain 0,
    105 and 105 at 0.1, 111 and 120 at 0.3, 143 being the most. Use it with `rl.rollout.evaluate`.
    """

    dose: Scalar = 3.0
    """mU/min at the target."""
    gain: Scalar = 0.0
    """mU/min for each mg/dL above it."""

    def __call__(self, observation: Float[Array, "*batch 9"], /) -> DiagonalGaussian:
        """The dose, as a distribution without spread."""
        dose = self.dose + self.gain * (observation[..., :1] - TARGET)
        dose = jnp.clip(dose, 0.0, MOST_INSULIN)
        return DiagonalGaussian(dose, jnp.full_like(dose, -jnp.inf))

    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape 1"]:
        """Nothing is random about it."""
        del key
        return jnp.zeros((*shape, 1), jnp.float32)
