"""References without privacy for the methods of Sharma et al. 2024.

The main reference is the exact majority of all experts, which is noisy voting without noise and
without a student. CQL on the log (in `arms`) is a weaker reference: in bad states a log contains
only the bad experts who get there, while votes ask all experts.
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
from sotto.trees import at

_SAMPLED, _SAMPLED_EPISODES = 20, 4  # experts that a seed draws, and episodes of each
_EXPERTS_AT_ONCE = 250


def majority_returns(
    config: ExpertOfflineConfig, experts: Policy, seed: int, episodes: int
) -> Float[np.ndarray, " episodes"]:
    """Returns the returns of the policy that always takes the action of most experts.

    Args:
        config: filled settings; the environment and the evaluation cap are used.
        experts: policies with a leading axis of experts.
        seed: seed of the first states.
        episodes: number of parallel episodes.
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
    """Counts the experts who would take each action."""

    def chosen(expert: Policy) -> Int[Array, " n"]:
        return greedy(expert, observations)

    # Some of the experts at a time, so that hidden layers stay in the cache.
    taken = jax.lax.map(chosen, experts, batch_size=_EXPERTS_AT_ONCE)
    votes: Int[Array, "n actions"] = jnp.sum(taken[:, :, None] == jnp.arange(actions), axis=0)
    return votes


def sampled_return(config: ExpertOfflineConfig, experts: Policy, seed: int) -> float:
    """Returns the mean greedy return of 20 experts that are drawn at random.

    Args:
        config: filled settings.
        experts: policies with a leading axis of experts.
        seed: seed of the draw and of the first states.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.choice(known(config.expert_count), _SAMPLED)
    some = at(experts, drawn)
    returns = evaluate(config, some, new_key(seed), _SAMPLED_EPISODES, True)
    return float(returns.mean())
