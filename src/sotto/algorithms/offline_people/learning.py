"""Policies from the released rounds, without further cost: learning in the models."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.baselines import ppo
from sotto.algorithms.offline_people.config import OfflinePeopleConfig
from sotto.algorithms.offline_people.model import (
    DISCOUNT,
    Model,
    environment,
    fit,
)
from sotto.algorithms.offline_people.rounds import Known
from sotto.algorithms.settings import known
from sotto.rl.networks import Policy
from sotto.rl.rollout import rollout, start_all

_log = logging.getLogger(__name__)

HIDDEN = (64, 64)
EPISODE = 100
"""Most steps of an episode in a model, so that its errors stay small."""
_STEPS = 800_000
_TRAININGS = 4
_JUDGED = 1024


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
    """Returns the policy that is learned in the models; the arguments are those of `model.fit`."""
    fit_key, learn_key = jax.random.split(key)
    model = fit(config, before, released, sigma, fit_key)
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
        lanes = start_all(env, model, lane_key, settings.num_envs)

        def update(state: ppo.PPOState, key: PRNGKeyArray) -> tuple[ppo.PPOState, None]:
            return ppo.update_in(env, model, settings, state, key)[0], None

        first = ppo.begin(settings, env, begin_key, lanes)
        keys = jax.random.split(learn_key, settings.num_updates)
        policy: Policy = jax.lax.scan(update, first, keys)[0].networks.policy
        return policy, mean_return(config, model, policy, judge_key)

    found = []
    for number, one in enumerate(jax.random.split(key, _TRAININGS), start=1):
        _log.info("a policy learns in the model, training %d of %d", number, _TRAININGS)
        found.append(jax.block_until_ready(trained(model, one)))
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
