"""Sharma et al. 2024: what private learning is measured by, none of it private.

The reference is the exact majority of all experts: what noisy votes would be without noise and
without a student. CQL on the log (`arms`) is a weaker one: in bad states a log shows the
bad experts who get there, while votes ask everybody.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.prefixes import greedy
from sotto.algorithms.expert_offline.states import evaluate
from sotto.algorithms.expert_offline.votes import world
from sotto.algorithms.settings import known
from sotto.keys import new_key
from sotto.rl.networks import Policy

_SAMPLED, _SAMPLED_EPISODES = 20, 4  # experts that a seed draws, and the episodes of each
_EXPERTS_AT_ONCE = 250


def majority_returns(
    config: ExpertOfflineConfig, experts: Policy, seed: int, episodes: int
) -> Float[np.ndarray, " episodes"]:
    """Returns of the policy that takes, at every state, the action that most experts would take.

    It is what votes would be without noise, and without a student.

    Args:
        config: filled settings, of which the environment and the evaluation cap are read.
        experts: with a leading axis of experts.
        seed: of the first states.
        episodes: played side by side.
    """
    cap: int = known(config.evaluation_cap)
    returns = np.zeros(episodes)
    with world(replace(config, rollout_cap=cap), new_key(seed), seed) as where:
        observations = where.reset(episodes)
        for _ in range(cap):
            votes = _votes(experts, jnp.asarray(observations), where.num_actions)
            observations, rewards, ended = where.step(np.asarray(jnp.argmax(votes, axis=1)))
            returns += rewards
            if ended.all():
                break
    return returns


@functools.partial(jax.jit, static_argnums=2)
def _votes(
    experts: Policy, observations: Float[Array, "n obs"], actions: int
) -> Int[Array, "n actions"]:
    """How many experts would take each action."""

    def chosen(expert: Policy) -> Int[Array, " n"]:
        return greedy(expert, observations)

    # A part of the experts at a time: hidden layers then stay in the cache.
    taken = jax.lax.map(chosen, experts, batch_size=_EXPERTS_AT_ONCE)
    votes: Int[Array, "n actions"] = jnp.sum(taken[:, :, None] == jnp.arange(actions), axis=0)
    return votes


def sampled_return(config: ExpertOfflineConfig, experts: Policy, seed: int) -> float:
    """Mean greedy return of some experts, drawn at random.

    Args:
        config: filled settings.
        experts: with a leading axis of experts.
        seed: of the draw and of the first states.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.choice(known(config.expert_count), _SAMPLED)
    some = jax.tree.map(lambda x: x[drawn], experts)
    returns = evaluate(config, some, new_key(seed), _SAMPLED_EPISODES, True)
    return float(returns.mean())
