"""Controllers of Dosing that do not know the next meal: one by hand, others by training.

Training differentiates the reward of whole days through the simulator, without privacy, on new
random days in every update.
"""

from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from insulin.control import STEPS, advance, annealed, first_states, smooth_reward
from insulin.model import EATEN, GB, KABS, KE, P1, SI
from sotto.rl.envs.dosing import MOST_INSULIN, TARGET, Dosing, DosingState

USUAL_OUTPUT = -0.85
"""At which the dose is 3 mU/min."""


class Seen(NamedTuple):
    """All that a controller with a memory may use besides the observation."""

    point: Array
    """The point of the day."""
    least_meal: Array
    """The smallest meal so far, which is what the person eats all the time."""
    since: Array
    """Points since the last meal above that."""


class Controller(Protocol):
    """Chooses doses."""

    def dose(self, observation: Float[Array, "9"], seen: Seen) -> Array:
        """The rate of insulin for the next ten minutes."""


class ModelController(eqx.Module):
    """Feedback on insulin, linear in the observation up to its limits, without training.

    With the last meal, prolonged by its trend, glucose stays at the target if remote insulin is

        X* = ((p_1 G_b + b) / 80 - p_1) / s_i,
        b = (f / V_g) (meal + trend (meal - meal before) + k_abs gut),

    and the dose is k_e X* + gain (X* - X) + damping (X* - I). It does not use glucose, which
    follows X within about a minute.
    """

    gain: float = 2.2
    damping: float = 0.15
    trend: float = 0.75

    def dose(self, observation: Float[Array, "9"], seen: Seen) -> Array:
        """The rate of insulin for the next ten minutes."""
        del seen
        return jnp.clip(self.without_limits(observation), 0.0, MOST_INSULIN)

    def without_limits(self, observation: Float[Array, "9"]) -> Array:
        """The rate before it is limited, which is linear in the observation."""
        _, remote, plasma, _, _, gut, meal, _, before = observation
        source = P1 * GB + EATEN * (meal + self.trend * (meal - before) + KABS * gut)
        needed = (source / TARGET - P1) / SI
        dose: Array = KE * needed + self.gain * (needed - remote) + self.damping * (needed - plasma)
        return dose


class Network(eqx.Module):
    """A multilayer perceptron, which begins near a usual dose."""

    layers: eqx.nn.MLP
    env: Dosing = eqx.field(static=True)
    memory: bool = eqx.field(static=True)
    """Whether it has the time of the day and remembers meals, which the agent does not."""

    def dose(self, observation: Float[Array, "9"], seen: Seen) -> Array:
        """The rate of insulin for the next ten minutes."""
        centre, scale = (
            jnp.array(self.env.observation_centre),
            jnp.array(self.env.observation_scale),
        )
        inputs = (observation - centre) * scale
        if self.memory:
            time = seen.point * jnp.pi / 72.0
            several = time * jnp.arange(1, 5)
            known = jnp.stack([time - 3.0, (seen.least_meal - 1000.0) / 200.0, seen.since / 36.0])
            inputs = jnp.concatenate([inputs, known, jnp.sin(several), jnp.cos(several)])
        return MOST_INSULIN * jax.nn.sigmoid(self.layers(inputs)[0] + USUAL_OUTPUT)


def play(
    env: Dosing, controller: Controller, state: DosingState, simulator: bool
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """Glucose and reward of a day, in the simulator or in the closed form of `insulin.model`."""

    def step(
        carry: tuple[DosingState, Seen], _: Array
    ) -> tuple[tuple[DosingState, Seen], tuple[Array, Array]]:
        now, seen = carry
        dose = controller.dose(env.observe(now, env.default_params), seen)
        if simulator:
            after, reward, _ = env.step(now, dose[None], env.default_params)
        else:
            meal, reward = now.meals[now.point + 1], jnp.float32(jnp.nan)
            body = advance(now.body, dose, meal)
            after = DosingState(body, now.body[0], meal, now.meal, now.meals, now.point + 1)
        least = jnp.minimum(seen.least_meal, after.meal)
        since = jnp.where(after.meal > least + 20.0, 0.0, seen.since + 1.0)
        return (after, Seen(seen.point + 1.0, least, since)), (after.body[0], reward)

    seen = Seen(jnp.float32(1.0), state.meal, jnp.float32(36.0))
    found: tuple[Array, Array] = jax.lax.scan(step, (state, seen), jnp.arange(STEPS))[1]
    return found


@eqx.filter_jit
def returns(env: Dosing, controller: Controller, states: DosingState) -> Float[Array, " days"]:
    """The returns of a controller in the simulator."""
    rewards = jax.vmap(lambda state: play(env, controller, state, simulator=True)[1])(states)
    return jnp.sum(rewards, axis=1)


@eqx.filter_jit
def trained(
    env: Dosing,
    key: PRNGKeyArray,
    memory: bool,
    updates: int,
    width: int = 64,
    rate: float = 3e-3,
    days: int = 32,
) -> Network:
    """Trains a network of two hidden layers on new days in every update.

    The gradient of each day is scaled to norm one, since those of a few days are far larger than
    all others.
    """
    inputs = 9 + (11 if memory else 0)
    layers = eqx.nn.MLP(inputs, 1, width, 2, jnp.tanh, key=key)
    layers = eqx.tree_at(lambda x: x.layers[-1].weight, layers, replace_fn=lambda x: 0.1 * x)
    network = Network(layers, env, memory)
    changing, fixed = eqx.partition(network, eqx.is_inexact_array)
    schedule = optax.cosine_decay_schedule(rate, updates)
    optimiser = optax.adam(schedule)

    def loss(changing: Network, state: DosingState, part: Array) -> Array:
        glucose = play(env, eqx.combine(changing, fixed), state, simulator=False)[0]
        return -jnp.sum(smooth_reward(glucose, *annealed(part)))

    def direction(changing: Network, state: DosingState, part: Array) -> Network:
        gradient = jax.grad(loss)(changing, state, part)
        norm = optax.tree.norm(gradient) + 1e-6
        scaled: Network = jax.tree.map(lambda x: x / norm, gradient)
        return scaled

    def update(
        carry: tuple[Network, optax.OptState], i: Array
    ) -> tuple[tuple[Network, optax.OptState], None]:
        changing, memory = carry
        states = first_states(env, jax.random.fold_in(key, i), days)
        each = jax.vmap(direction, (None, 0, None))(changing, states, i / updates)
        gradient = jax.tree.map(lambda x: jnp.mean(x, axis=0), each)
        change, memory = optimiser.update(gradient, memory)
        return (eqx.apply_updates(changing, change), memory), None

    begin = (changing, optimiser.init(changing))
    (changing, _), _ = jax.lax.scan(update, begin, jnp.arange(updates))
    result: Network = eqx.combine(changing, fixed)
    return result
