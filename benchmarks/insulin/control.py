"""The best doses found for a day that is known in advance, by gradient ascent.

Gradients go through ten minutes in closed form (`insulin.model`), in single precision. All returns
that are reported come from the simulator itself, `sotto.rl.envs.dosing`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from insulin import model
from insulin.model import STEP, Step
from sotto.rl.envs.dosing import (
    HIGHEST,
    LOWEST,
    MOST_INSULIN,
    TARGET,
    Dosing,
    DosingState,
)

STEPS = 143
USUAL_DOSE = 2.9
"""In mU/min."""
_STEP = Step(**{name: np.asarray(x, np.float32) for name, x in vars(STEP).items()})


def first_states(env: Dosing, key: PRNGKeyArray, days: int) -> DosingState:
    """Random bodies and days."""
    uniforms = jax.random.uniform(key, (days, env.reset_size), jnp.float32)
    states: DosingState = jax.vmap(env.reset, (0, None))(uniforms, env.default_params)
    return states


def advance(body: Float[Array, "6"], dose: Array, meal: Array) -> Float[Array, "6"]:
    """The body after ten minutes, in single precision."""
    after: Array = model.advance(body, dose, meal, _STEP, jnp)
    return after


def smooth_reward(glucose: Array, width: Array, pull: Array) -> Array:
    """The reward with limits of a width, and a pull towards the target from everywhere."""
    near = 1.0 - jnp.square(jnp.tanh((glucose - TARGET) / 7.0))
    beyond = jax.nn.sigmoid((LOWEST - glucose) / width) + jax.nn.sigmoid(
        (glucose - HIGHEST) / width
    )
    return near - (1.0 + near) * beyond - pull * jnp.abs(glucose - TARGET) / 25.0


def annealed(part: Array) -> tuple[Array, Array]:
    """Width and pull after a part of the training; at its end, those of nearly the reward."""
    return 3.0 * (1.0 - part) + 0.3, 0.5 * jnp.maximum(0.0, 1.0 - 2.0 * part)


def replay(
    env: Dosing, states: DosingState, doses: Float[Array, "days T"]
) -> tuple[Float[Array, "days T"], Float[Array, "days T"]]:
    """Glucose and reward of each step in the simulator itself."""

    def step(state: DosingState, dose: Array) -> tuple[DosingState, tuple[Array, Array]]:
        state, reward, _ = env.step(state, dose[None], env.default_params)
        return state, (state.body[0], reward)

    def day(state: DosingState, doses: Array) -> tuple[Array, Array]:
        seen: tuple[Array, Array] = jax.lax.scan(step, state, doses)[1]
        return seen

    seen: tuple[Array, Array] = jax.jit(jax.vmap(day))(states, doses)
    return seen


@eqx.filter_jit
def best_doses(states: DosingState, updates: int = 1500) -> Float[Array, "days T"]:
    """Doses of each day, by gradient ascent from a usual dose within the limits of doses."""

    def glucose(state: DosingState, doses: Array) -> Array:
        def step(body: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            body = advance(body, *now)
            return body, body[0]

        after: Array = jax.lax.scan(step, state.body, (doses, state.meals[2:]))[1]
        return after

    def loss(doses: Array, part: Array) -> Array:
        return -jnp.sum(smooth_reward(jax.vmap(glucose)(states, doses), *annealed(part)))

    optimiser = optax.adam(optax.cosine_decay_schedule(0.3, updates), b2=0.99)

    def update(
        carry: tuple[Array, optax.OptState], i: Array
    ) -> tuple[tuple[Array, optax.OptState], None]:
        doses, memory = carry
        change, memory = optimiser.update(jax.grad(loss)(doses, i / updates), memory)
        return (jnp.clip(doses + change, 0.0, MOST_INSULIN), memory), None

    start = jnp.full_like(states.meals[:, 2:], USUAL_DOSE)
    (doses, _), _ = jax.lax.scan(update, (start, optimiser.init(start)), jnp.arange(updates))
    return doses
