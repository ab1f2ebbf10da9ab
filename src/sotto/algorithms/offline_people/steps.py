"""Imitation of logged people, or Q-learning from their logs, in noisy gradient steps.

Each step draws people in secret and at a public rate. A drawn person contributes the clipped
gradient of the mean loss over their own rows:

    w_t |a_t - mu(x_t)|^2 / 2  +  (V(x_t) - g_t)^2 / 2

with the cross-entropy in place of the square for categories of actions. Here g_t is the discounted
mean of the person's later rewards, in units of the reward's range. With the method `cloning` all
weights are 1. With `advantage` w_t = exp((g_t - V(x_t)) / spread), at most `MOST_WEIGHT`
(advantage-weighted regression, Peng et al. 2019). The spread is the people's mean
absolute advantage, of which each person contributes their own bounded mean beside the gradient.

With `cql` the policy's outputs are values of actions, and the loss is that of `offline.cql` (Kumar
et al. 2020), over the rows whose next observation is known. The target network is the moving
average of released policies.

Guarantee:
    The unit is everything that one person logged, under zero-out adjacency. N steps cost N
    Poisson-sampled Gaussian releases (docs/privacy.md, sections 6 and 23).
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sotto.algorithms.calibration import calibrated_multiplier
from sotto.algorithms.offline.cql import CQL
from sotto.algorithms.offline.learner import averaged
from sotto.algorithms.offline_people.config import OfflinePeopleConfig
from sotto.algorithms.offline_people.moments import Logged, declared
from sotto.algorithms.settings import known
from sotto.data.trajectories import Transitions
from sotto.keys import new_key
from sotto.privacy.accounting.composition import SampledGaussian
from sotto.privacy.claims import logs as claims
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part, Poisson
from sotto.rl.networks import Policy, Value, scaled
from sotto.trees import at

HIDDEN = (64, 64)
CLIP_NORM = 1.0
DISCOUNT = 0.95
MOST_WEIGHT = 10.0
"""Largest weight of a row. Without a bound, a few rows would be a person's whole contribution."""
_Q_DISCOUNT = 0.99
"""Discount of Q-learning. Rewards are scaled so that values are about 1 at most."""
_SPREAD_NORM = 0.2
"""Norm of the part of a contribution that measures the spread of advantages."""
_FIRST_SPREAD = 0.1
_SPREAD_DECAY = 0.95
_LEARNING_RATE = 3e-3
_AVERAGE_DECAY = 0.98
_MICROBATCH = 64


class StepsState(NamedTuple):
    """Public state between two steps: a function of releases."""

    policy: Policy
    """Moving average of the released policies, which is the result."""
    networks: tuple[Policy, Value]
    optimizer: optax.OptState
    spread: Float[Array, ""]
    """Moving average of people's mean absolute advantages, in units of the reward's range."""
    made: Int[Array, ""]


class Gradient(NamedTuple):
    """The contribution of a person to a step."""

    networks: tuple[Policy, Value]
    spread: Float[Array, ""]


def initial_state(config: OfflinePeopleConfig, key: PRNGKeyArray) -> StepsState:
    """Returns the state before the first step."""
    actor_key, critic_key = jax.random.split(key)
    size = len(known(config.low))
    shape: dict[str, Any] = {
        "observation_scale": config.scale,
        "observation_centre": config.centre,
    }
    policy = Policy(size, config.action, HIDDEN, actor_key, **shape)
    value = Value(size, HIDDEN, critic_key, last_gain=0.01, **shape)
    networks = (policy, value)
    return StepsState(
        policy,
        networks,
        _optimizer(config).init(networks),
        jnp.float32(_FIRST_SPREAD),
        jnp.zeros((), jnp.int32),
    )


def steps_release(config: OfflinePeopleConfig, multiplier: float) -> Release:
    """Returns the release of all steps, with a multiplier from `noise_multiplier`."""
    part = Part(clip_norm=CLIP_NORM, noise_multiplier=multiplier)
    people = known(config.people)

    def local(
        state: StepsState, unit: Logged, key: PRNGKeyArray
    ) -> tuple[dict[str, Gradient], tuple[()]]:
        del key
        return {"gradient": person_gradient(config, state, unit)}, ()

    def server(state: StepsState, released: dict[str, Gradient]) -> tuple[StepsState, tuple[()]]:
        return stepped(config, state, released["gradient"]), ()

    return declared(
        config,
        name="offline steps",
        local=local,
        server=server,
        parts={"gradient": part},
        slots=people,
        divisor=people * config.sampling_rate,
        horizon=config.steps,
        participation=Poisson(sampling_rate=config.sampling_rate, population=people),
        microbatch=min(_MICROBATCH, people),
        protects=(claims.LEARNED_IN_STEPS(),),
    )


@functools.lru_cache(maxsize=8)
def noise_multiplier(config: OfflinePeopleConfig) -> float:
    """Returns the least noise multiplier with which all steps together meet the target."""
    shapes = jax.eval_shape(lambda: initial_state(config, new_key(0)).networks)
    size = 1 + sum(leaf.size for leaf in jax.tree.leaves(shapes))
    rate, steps = config.sampling_rate, config.steps
    return calibrated_multiplier(
        lambda z: [SampledGaussian(noise_multiplier=z, sampling_rate=rate, count=steps)],
        config.target_epsilon,
        known(config.delta),
        draws=steps * size,
        met=steps,
    )


def person_gradient(config: OfflinePeopleConfig, state: StepsState, unit: Logged) -> Gradient:
    """Returns the gradient of one person's mean loss; zero for somebody without rows."""
    counts = unit.present.astype(jnp.float32)
    share = counts / jnp.maximum(jnp.sum(counts), 1)
    goals = later_rewards(config, unit)
    values = jax.lax.stop_gradient(state.networks[1](unit.observations))
    advantages = (goals - values) * counts
    weights = jnp.ones_like(goals)
    if config.method == "advantage":
        most = jnp.log(jnp.float32(MOST_WEIGHT))
        weights = jnp.exp(jnp.minimum(advantages / state.spread, most))

    def loss(networks: tuple[Policy, Value]) -> Float[Array, ""]:
        policy, value = networks
        if config.method == "cql":
            return conservative(config, policy, state.policy, unit)
        errors = jnp.square(value(unit.observations) - goals) / 2
        return jnp.sum(share * (weights * imitation(config, policy, unit) + errors))

    networks = jax.grad(loss)(state.networks)
    spread = jnp.minimum(jnp.sum(share * jnp.abs(advantages)), 1)
    return Gradient(networks, _SPREAD_NORM * spread)


def conservative(
    config: OfflinePeopleConfig, policy: Policy, target: Policy, unit: Logged
) -> Float[Array, ""]:
    """Returns the mean loss of Q-learning over the rows whose next observation is known."""
    low, high = known(config.reward_bounds)
    learner = CQL(discount=_Q_DISCOUNT, reward_scale=(1 - _Q_DISCOUNT) / (high - low))
    later = jnp.roll(unit.present, -1).at[-1].set(False)
    usable = (unit.present & ~unit.cut & (unit.ends | later)).astype(jnp.float32)
    following = jnp.roll(unit.observations, -1, axis=0)
    rewards = jnp.clip(unit.rewards, low, high)
    rows = Transitions(unit.observations, unit.actions, rewards, following, unit.ends)

    def row(step: Transitions) -> Float[Array, ""]:
        goal = jax.lax.stop_gradient(learner.goal(policy, target, step))
        outputs = policy.network(scaled(step.observations, config.scale, config.centre))
        return learner.loss(outputs, goal, step)

    return jnp.sum(usable * jax.vmap(row)(rows)) / jnp.maximum(jnp.sum(usable), 1)


def imitation(config: OfflinePeopleConfig, policy: Policy, unit: Logged) -> Float[Array, " T"]:
    """Returns each row's distance between the logged action and the policy."""
    seen = scaled(unit.observations, config.scale, config.centre)
    outputs = policy.network(seen)
    if config.actions:
        chosen = jax.nn.one_hot(unit.actions, config.actions, dtype=outputs.dtype)
        return -jnp.sum(chosen * jax.nn.log_softmax(outputs), axis=-1)
    low, high = known(config.action_low), known(config.action_high)
    factors = tuple(2 / (b - a) for a, b in zip(low, high, strict=True))
    middle = tuple((a + b) / 2 for a, b in zip(low, high, strict=True))
    taken = jnp.clip(scaled(unit.actions, factors, middle), -1, 1)
    return jnp.sum(jnp.square(outputs - taken), axis=-1) / 2


def later_rewards(config: OfflinePeopleConfig, unit: Logged) -> Float[Array, " T"]:
    """Returns the discounted mean of the rewards from each row to the end of its episode.

    Rewards are in units of their range, from 0 to 1. Where an episode was cut or the rows end, the
    mean is over the rewards that there are. After an end there are no more rewards, which counts as
    rewards of 0 on the declared scale.
    """
    low, high = known(config.reward_bounds)
    span = high - low
    gained = jnp.clip(unit.rewards / span, low / span, high / span)
    present = unit.present.astype(jnp.float32)

    def back(carry: tuple[Array, Array], row: Any) -> tuple[tuple[Array, Array], Array]:
        total, weight = carry
        reward, there, ends, cut = row
        # After an end the rest of the weight stands for rewards of zero; after a cut nothing does.
        total = jnp.where(ends | cut, 0.0, total)
        weight = jnp.where(cut, 0.0, jnp.where(ends, 1.0 / (1 - DISCOUNT), weight))
        total = there * (reward + DISCOUNT * total)
        weight = there * (1 + DISCOUNT * weight)
        return (total, weight), total / jnp.maximum(weight, 1)

    rows = (gained, present, unit.ends & ~unit.cut, unit.cut)
    nothing = (jnp.float32(0), jnp.float32(0))
    return jax.lax.scan(back, nothing, rows, reverse=True)[1]


def stepped(config: OfflinePeopleConfig, state: StepsState, released: Gradient) -> StepsState:
    """Makes a step of Adam on the released mean gradient, and updates the averages."""
    updates, optimizer = _optimizer(config).update(released.networks, state.optimizer)
    networks = eqx.apply_updates(state.networks, updates)
    seen = jnp.clip(released.spread / _SPREAD_NORM, 0.0, 1.0)
    spread = _SPREAD_DECAY * state.spread + (1 - _SPREAD_DECAY) * seen
    return StepsState(
        averaged(state.policy, networks[0], state.made, _AVERAGE_DECAY),
        networks,
        optimizer,
        jnp.maximum(spread, 1e-3),
        state.made + 1,
    )


class PeoplePool:
    """The log, of which a release gets the rows of the people whom it draws."""

    def __init__(self, rows: Logged) -> None:
        self._rows: Logged = jax.tree.map(np.asarray, rows)

    def draw(self, persons: Int[np.ndarray, " n"], generator: np.random.Generator) -> Logged:
        """Returns the rows of these people, leaves of shape [n, T, ...]."""
        del generator  # all rows of a person are used
        inside: Bool[np.ndarray, " n"] = persons >= 0
        places = np.where(inside, persons, 0)
        found = at(self._rows, places)
        return found._replace(present=found.present & inside[:, None])


def _optimizer(config: OfflinePeopleConfig) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(_LEARNING_RATE, config.steps, 0.1))
