"""Policies from the released rounds, without further cost: learning in the models, and cloning."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.common import rollouts
from sotto.algorithms.offline_people.config import OfflinePeopleConfig
from sotto.algorithms.offline_people.model import (
    DISCOUNT,
    Model,
    environment,
    fit,
    in_units,
)
from sotto.algorithms.offline_people.moments import inputs, monomials, products
from sotto.algorithms.offline_people.rounds import Known
from sotto.algorithms.settings import known
from sotto.rl.networks import Policy, scaled
from sotto.rl.rollout import rollout, start

HIDDEN = (64, 64)
EPISODE = 100
"""Most steps of an episode in a model, so that its errors stay small."""
_STEPS = 800_000
_TRAININGS = 4
_JUDGED = 1024
_CLONING_STEPS = 1_000


def blank_policy(config: OfflinePeopleConfig, key: PRNGKeyArray) -> Policy:
    """Returns a policy with random weights, of the shape of all policies of these settings."""
    return Policy(
        len(known(config.low)),
        config.action,
        HIDDEN,
        key,
        observation_scale=config.scale,
        observation_centre=config.centre,
    )


def learn(
    config: OfflinePeopleConfig,
    before: Known,
    released: Float[np.ndarray, " n"],
    sigma: float,
    key: PRNGKeyArray,
) -> Policy:
    """Returns the policy of `config.method`; the arguments are those of `model.fit`."""
    fit_key, learn_key = jax.random.split(key)
    model, after = fit(config, before, released, sigma, fit_key)
    if config.method == "cloning":
        return clone(config, model, after, learn_key)
    return improve(config, model, learn_key)


def improve(config: OfflinePeopleConfig, model: Model, key: PRNGKeyArray) -> Policy:
    """Returns the policy that PPO learns in the models: the best of several trainings there.

    PPO fails once in a while. The models tell which training it was, without asking people again.
    """
    settings = ppo.PPOConfig(
        env_id="none",
        total_steps=_STEPS,
        num_envs=128,
        num_steps=32,
        num_epochs=8,
        num_minibatches=8,
        discount=DISCOUNT,
        hidden=HIDDEN,
    )

    @jax.jit
    def trained(model: Model, key: PRNGKeyArray) -> tuple[Policy, Float[Array, ""]]:
        env = environment(config, model, EPISODE)
        begin_key, lane_key, learn_key, judge_key = jax.random.split(key, 4)
        lanes = jax.vmap(lambda k: start(env, model, k))(
            jax.random.split(lane_key, settings.num_envs)
        )

        def update(state: ppo.PPOState, key: PRNGKeyArray) -> tuple[ppo.PPOState, None]:
            rollout_key, shuffle_key = jax.random.split(key)
            steps, after = rollouts(env, settings, state.networks.policy, state.lanes, rollout_key)
            gathered = ppo.gather(settings, state, steps, after)
            return ppo.optimise(settings, state, gathered, shuffle_key)[0], None

        first = ppo.begin(settings, env, begin_key, lanes)
        keys = jax.random.split(learn_key, settings.num_updates)
        policy: Policy = jax.lax.scan(update, first, keys)[0].networks.policy
        return policy, mean_return(config, model, policy, judge_key)

    found = [trained(model, one) for one in jax.random.split(key, _TRAININGS)]
    best: Policy = max(found, key=lambda one: float(one[1]))[0]
    return best


def mean_return(
    config: OfflinePeopleConfig, model: Model, policy: Policy, key: PRNGKeyArray
) -> Float[Array, ""]:
    """Returns the mean return of the greedy policy in the models.

    Episodes are twice as long as those in which it learned, so that what fails late counts.
    """
    steps = 2 * EPISODE
    env = environment(config, model, steps)
    keys = jax.random.split(key, _JUDGED)
    lived = jax.vmap(lambda k: rollout(env, model, policy, k, steps, True, True))(keys)
    return jnp.mean(jnp.sum(lived.rewards * lived.alive, axis=1))


def clone(
    config: OfflinePeopleConfig,
    model: Model,
    after: Known,
    key: PRNGKeyArray,
) -> Policy:
    """Returns a network that imitates the least-squares fit of people's actions.

    The first feature is the constant, so the first column of psi psi^T of one category of action
    is psi times the indicator of this action. A real action is one of the features.
    """
    chosen, size = products(config), len(known(config.low))
    plain = [i for i, row in enumerate(chosen) if all(j < size for j in row)]
    taken = np.asarray(after.gram, np.float64)
    gram = taken.sum(axis=0)[np.ix_(plain, plain)]
    if config.actions:
        crossed = taken[:, plain, 0].T
    else:
        acted = [chosen.index((size + i,)) for i in range(len(known(config.action_low)))]
        crossed = taken[0][np.ix_(plain, acted)]
    values, vectors = np.linalg.eigh(gram)
    least = max(8 / math.sqrt(float(after.precision)), 1e-6)
    inverse = np.where(values > least, 1 / np.maximum(values, least), 0)
    weights = jnp.asarray(vectors @ np.diag(inverse) @ vectors.T @ crossed, jnp.float32)
    seen = in_units(config, model.starts)
    nothing = jnp.zeros((len(seen), len(config.action_low or ())), jnp.float32)
    psi = monomials(inputs(config, model.starts, nothing, model.scales), chosen)
    return _distilled(config, seen, psi[:, jnp.asarray(plain)] @ weights, key)


def _distilled(
    config: OfflinePeopleConfig,
    seen: Float[Array, "n obs"],
    wanted: Float[Array, "n a"],
    key: PRNGKeyArray,
) -> Policy:
    """Returns a network with these probabilities of actions, or mean real actions from -1 to 1."""
    shape, first = eqx.partition(blank_policy(config, key), lambda x: not eqx.is_array(x))
    optimizer = optax.adam(optax.linear_schedule(3e-3, 0.0, _CLONING_STEPS))

    def loss(arrays: Any) -> Array:
        policy = eqx.combine(arrays, shape)
        outputs = policy.network(scaled(seen, config.scale, config.centre))
        if config.actions:
            shares = jnp.clip(wanted, 0.0, 1.0)
            return -jnp.mean(jnp.sum(shares * jax.nn.log_softmax(outputs), axis=1))
        return jnp.mean(jnp.square(outputs - jnp.clip(wanted, -1, 1)))

    def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        arrays, state = carry
        updates, state = optimizer.update(jax.grad(loss)(arrays), state)
        return (optax.apply_updates(arrays, updates), state), None

    @jax.jit
    def fitted(arrays: Any) -> Any:
        return jax.lax.scan(step, (arrays, optimizer.init(arrays)), None, _CLONING_STEPS)[0][0]

    policy: Policy = eqx.combine(fitted(first), shape)
    return policy
