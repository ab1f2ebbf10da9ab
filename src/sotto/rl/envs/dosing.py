"""Dosing-0 and Dosing-1: insulin for a person with type 1 diabetes, every ten minutes of a day.

The model is Bergman's minimal model, extended by the absorption of insulin and of meals, as in the
simulator of Salas, Ferguson and Zweig (2019) that Rio et al. (2025) train on. An action is a rate
of insulin, 0 to 10 mU/min. The reward depends on the next blood glucose: it is largest, 1, at 80
mg/dL, and -1 below 65 and above 105. In Dosing-0 everybody eats the same at the same times; in
Dosing-1 every person eats differently. A day has 145 points. The agent does not choose the first
dose, so it makes 143 decisions.

Doses and meals are constant for ten minutes, which take 20 Runge-Kutta steps. The result is within
two millionths of the exact solution, also at the largest dose, where 10 steps diverge.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sotto.rl.envs.base import ActionSpace, Box, Environment, Scalar
from sotto.rl.envs.runge_kutta import integrated

POINTS = 145  # of a day: every ten minutes from 0 to 24 h
TARGET, LOWEST, HIGHEST = 80.0, 65.0, 105.0  # mg/dL
MOST_INSULIN = 10.0  # mU/min
FIRST_DOSE = 3.0  # mU/min, in Dosing-0; Dosing-1 draws one of 0, 1, ..., 6

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
    """Distribution of one meal in Dosing-1: its probability, its time in hours and its amount."""

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
    _Meal(0.95, 16.5, 29.5, 18.0, 2800.0, 100.0),  # 29.5 as in the simulator (19.5 was meant?)
    _Meal(0.2, 20.0, 22.0, 21.0, 1250.0, 50.0),
)
_HOUR, _TIME_SPREAD = 6.0, 10.0  # points


class DosingParams(eqx.Module):
    """Constants of the body; rates are per minute, and every field may be traced."""

    basal_glucose: Scalar = 291.0
    """Glucose without insulin in the long run, mg/dL (G_b)."""
    glucose_return: Scalar = 0.0317
    """Rate at which glucose tends to the basal value (p_1)."""
    remote_delay: Scalar = 0.0123
    """Rate from plasma insulin to remote insulin (p_2)."""
    sensitivity: Scalar = 0.029
    """Effect of remote insulin on glucose, mL/uU/min (s_i)."""
    elimination: Scalar = 0.09
    """Rate at which plasma insulin is eliminated (k_e)."""
    gut_absorption: Scalar = 0.012
    """Rate of absorption from the gut (k_abs)."""
    stomach_emptying: Scalar = 0.18
    """Rate at which the stomach empties (k_emp)."""
    bioavailability: Scalar = 0.8
    """Fraction of a meal that reaches the blood (f)."""
    glucose_volume: Scalar = 12.0
    """Distribution volume of glucose, L (V_g)."""


class DosingState(NamedTuple):
    """State of the body at one point of the day, and the whole day's meals."""

    body: Float[Array, "6"]
    """Blood glucose G (mg/dL), remote insulin X and plasma insulin I (uU/mL), the two stages of
    absorption S1 and S2, gut glucose (mg/dL)."""
    glucose_before: Float[Array, ""]
    """Blood glucose ten minutes ago."""
    meal: Float[Array, ""]
    """Disturbance by meals in the last ten minutes."""
    meal_before: Float[Array, ""]
    """Disturbance by meals in the ten minutes before those."""
    meals: Float[Array, "145"]
    """Disturbance by meals at each point of the day."""
    point: Int[Array, ""]
    """Point of the day: 1 after the first dose, 144 at its end."""


# The policy's outputs are centred at half of the largest dose, in units of 2 mU/min.
_ACTIONS = Box((0.0,), (MOST_INSULIN,), centre=(5.0,), scale=(2.0,))
_PARAMS = DosingParams()


@dataclass(frozen=True, kw_only=True)
class Dosing(Environment[DosingState, DosingParams]):
    """Keep the blood glucose of one person near 80 mg/dL for a day.

    The observation has the six states of the body, the meal of the last ten minutes, the glucose
    ten minutes ago and the meal before that. It does not have the next meal.
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
    """Number of Runge-Kutta steps between two points."""

    @classmethod
    def with_random_meals(cls) -> "Dosing":
        """Returns Dosing-1, in which meals are random."""
        return cls(id="Dosing-1", random_meals=True, reset_size=8 + 3 * len(_RANDOM_MEALS))

    def reset(self, uniforms: Float[Array, " reset_size"], params: DosingParams) -> DosingState:
        """Returns a random body near its equilibrium, ten minutes after the first dose."""
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
        """Simulates ten minutes at one rate of insulin; no state ends an episode."""
        point = state.point + 1
        meal = _at(state.meals, point)
        slopes = partial(_derivative, insulin=action[0], meal=meal, params=params)
        body = integrated(slopes, state.body, self.minutes, self.substeps)
        glucose = body[0]
        near = 1.0 - jnp.square(jnp.tanh(0.1 * jnp.abs(glucose - TARGET) / 0.7))
        reward = jnp.where((glucose < LOWEST) | (glucose > HIGHEST), -1.0, near)
        after = DosingState(body, state.body[0], meal, state.meal, state.meals, point)
        return after, reward, jnp.zeros((), bool)

    def observe(self, state: DosingState, params: DosingParams) -> Float[Array, "9"]:
        """Returns the nine numbers of the simulator, in its order."""
        del params
        return jnp.stack([*state.body, state.meal, state.glucose_before, state.meal_before])


def _derivative(
    body: Float[Array, "6"],
    insulin: Float[Array, ""],
    meal: Float[Array, ""],
    params: DosingParams,
) -> Float[Array, "6"]:
    """Returns time derivatives per minute."""
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
    """Draws one person's meals in Dosing-1: single points above a base, smoothed."""
    base = 800.0 + 400.0 * uniforms[0]
    at_all, when, how_much = uniforms[1:].reshape(len(_RANDOM_MEALS), 3).T
    # The time is normal, truncated to the hours of its meal; it is drawn by the inverse CDF.
    cdf = NormalDist(sigma=_TIME_SPREAD).cdf
    lowest = _array([cdf(_HOUR * (meal.earliest - meal.usual)) for meal in _RANDOM_MEALS])
    highest = _array([cdf(_HOUR * (meal.latest - meal.usual)) for meal in _RANDOM_MEALS])
    usual = _array([_HOUR * meal.usual + 1 for meal in _RANDOM_MEALS])
    deviation = _TIME_SPREAD * _normal(lowest + (highest - lowest) * when)
    points = jnp.minimum(jnp.round(usual + deviation), POINTS - 2).astype(jnp.int32)
    spread = _array([meal.spread for meal in _RANDOM_MEALS])
    amounts = _array([meal.amount for meal in _RANDOM_MEALS]) + spread * _normal(how_much)
    eaten = at_all < _array([meal.probability for meal in _RANDOM_MEALS])

    # A loop is used because XLA would otherwise recompute the times and amounts for each point of
    # the day, and the day for each of the eleven points of the smoother.
    def eat(i: Int[Array, ""], day: Float[Array, "145"]) -> Float[Array, "145"]:
        here = eaten[i] & (jax.lax.iota(jnp.int32, POINTS) == points[i])
        return jnp.where(here, jnp.maximum(jnp.round(amounts[i]), 0.0), day)

    day = jnp.broadcast_to(jnp.floor(base), (POINTS,))
    return jnp.maximum(_smoothed(jax.lax.fori_loop(0, len(_RANDOM_MEALS), eat, day)), base)


def _normal(uniform: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Returns standard normal quantiles; 0 and 1 count as the nearest inner points."""
    inside = jnp.clip(uniform, 2.0**-25, 1.0 - 2.0**-24)
    return math.sqrt(2.0) * jax.lax.erf_inv(2.0 * inside - 1.0)


def _smoothed(values: Float[Array, " n"]) -> Float[Array, " n"]:
    """Applies the Savitzky-Golay filter of order three with windows of 11 values.

    The first and the last five values come from the cubics of the first and the last window.
    """
    half, inner = 5, values.shape[0] - 10
    # The middle of the fit needs the even Gram polynomials only: 1 and x^2 - 10 on -5, ..., 5.
    weights = [1 / 11 - 10 * (x * x - 10) / 858 for x in range(-half, half + 1)]
    middle = weights[0] * values[:inner]
    for j, weight in enumerate(weights[1:], start=1):
        middle = middle + weight * values[j : j + inner]
    return jnp.concatenate([_cubic(values[:11])[:half], middle, _cubic(values[-11:])[-half:]])


def _cubic(window: Float[Array, "11"]) -> Float[Array, "11"]:
    """Fits a cubic to 11 values by least squares and returns it at each of them."""
    x = jax.lax.iota(jnp.float32, 11) - 5.0
    # Gram polynomials: orthogonal on the eleven points.
    basis = (jnp.ones_like(x), x, x * x - 10.0, x * (x * x - 17.8))
    fit = jnp.zeros_like(window)
    for polynomial in basis:
        fit = fit + polynomial * jnp.sum(polynomial * window) / jnp.sum(jnp.square(polynomial))
    return fit


def _at(values: Float[Array, " n"], index: Int[Array, ""]) -> Float[Array, ""]:
    """Returns one value; over a batch, a masked sum is several times as fast as a gather."""
    here = jax.lax.iota(jnp.int32, values.shape[0]) == index
    return jnp.sum(jnp.where(here, values, 0.0))


def _array(values: Sequence[float]) -> Float[Array, " n"]:
    """Returns an array of Python numbers without an array constant."""
    return jnp.stack([jnp.float32(value) for value in values])
