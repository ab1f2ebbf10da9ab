"""Returns of whole episodes of trained policies, in JAX or through Gymnasium."""

from functools import partial

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto import cluster
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.gymnasium import bridge
from sotto.rl.envs.gymnasium.blocks import BLOCK, Block, blocks_of
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers, processes_for
from sotto.rl.envs.registry import is_native, make
from sotto.rl.rollout import Actor, evaluate
from sotto.trees import at


def returns_of(
    env_id: str, policies: Actor, key: PRNGKeyArray, episodes: int, greedy: bool
) -> Float[np.ndarray, "runs episodes"]:
    """Returns the undiscounted returns of whole episodes, with one decision per environment step.

    Args:
        env_id: name of an environment in JAX or in Gymnasium.
        policies: policies with a leading axis of runs.
        key: randomness of the episodes.
        episodes: number of episodes of each run.
        greedy: whether actions are the policy's mode; otherwise they are sampled.
    """
    if is_native(env_id):
        return np.asarray(returns_in_jax(make(env_id), policies, key, episodes, greedy))
    return _through_gymnasium(env_id, policies, key, episodes, greedy)


@eqx.filter_jit
def returns_in_jax(
    env: AnyEnvironment, policies: Actor, key: PRNGKeyArray, episodes: int, greedy: bool
) -> Float[Array, "runs episodes"]:
    """Returns the undiscounted returns of whole episodes of an environment in JAX.

    The other arguments are those of `returns_of`. Every run has the same episodes.
    """

    def one(policy: Actor) -> Float[Array, " episodes"]:
        return evaluate(env, env.default_params, policy, key, episodes, greedy)

    returns: Float[Array, "runs episodes"] = eqx.filter_vmap(one)(policies)
    return returns


def _through_gymnasium(
    env_id: str, policies: Actor, key: PRNGKeyArray, episodes: int, greedy: bool
) -> Float[np.ndarray, "runs episodes"]:
    runs = jax.tree.leaves(policies)[0].shape[0]
    drawn = jax.random.randint(key, (episodes,), 0, 2**31 - 1, jax.numpy.int32)
    seeds = [int(seed) for seed in np.asarray(drawn)]
    each = [at(policies, run) for run in range(runs)]
    if cluster.connected():
        blocks = blocks_of(key, seeds, BLOCK)
        tasks = [(policy, block) for policy in each for block in blocks]
        found = cluster.ordered(partial(_play_block, env_id, greedy), tasks)
        return np.concatenate(found).reshape(runs, episodes)
    with GymnasiumUsers(env_id, episodes, processes_for(episodes)) as users:
        return np.stack([_play(users, policy, greedy, key, seeds) for policy in each])


def _play(
    users: GymnasiumUsers, policy: Actor, greedy: bool, key: PRNGKeyArray, seeds: list[int]
) -> Float[np.ndarray, " episodes"]:
    """Plays one episode of each environment and returns the returns."""
    act = partial(bridge.greedy if greedy else bridge.sampled, policy)
    return users.returns(act, key, seeds, users.max_episode_steps)[0]


def _play_block(
    env_id: str, greedy: bool, task: tuple[Actor, Block]
) -> Float[np.ndarray, " episodes"]:
    """Plays a block of episodes on a node."""
    policy, block = task
    with GymnasiumUsers(env_id, len(block.seeds)) as users:
        return _play(users, policy, greedy, block.key, block.seeds)
