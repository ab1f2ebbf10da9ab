"""Experts of LunarLander, which plays in Gymnasium's Box2D, one expert after the other.

To train hundreds of experts from nothing would take hours. One public base policy is trained in the
default environment; every expert goes on from it in its own variant, for a public number of
updates. What they share is therefore public, and what differs is theirs.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.baselines.gymnasium import GymnasiumRun
from sotto.algorithms.baselines.ppo import Networks
from sotto.algorithms.experts.training import (
    Floored,
    Plan,
    Recipe,
    actions_of,
    as_log,
    check_floor,
    expert_keys,
)
from sotto.data.trajectories import ExpertLog
from sotto.rl.envs.gymnasium import bridge
from sotto.rl.envs.gymnasium.bridge import Described, GymnasiumUsers
from sotto.rl.networks import Policy
from sotto.rl.rollout import Trajectory

_REWARD_PER_STEP = 1.0  # of LunarLander, at most; the critic's scale
_SEEDS_APART = 10_000  # Box2D's seeds of one expert's episodes


def described(env_id: str) -> Described:
    """The environment's public facts.

    Raises:
        ValueError: Gymnasium cannot make it.
    """
    with _lanes(env_id, 1) as users:
        return replace(users.described(), reward_per_step=_REWARD_PER_STEP)


def train_base(
    env_id: str, recipe: Recipe, seed: int, report: Callable[[float, float], None]
) -> Networks:
    """The base policy and critic, trained in the default environment.

    Args:
        env_id: an environment of Gymnasium's.
        recipe: one that has a base.
        seed: of the networks and the games.
        report: told the share that is done, and the mean return of the last episodes.
    """
    config, facts = recipe.base, described(env_id)
    assert config is not None
    with _lanes(env_id, config.num_envs) as users:
        run = GymnasiumRun(users, facts, seed)
        for state, metrics in run.train_ppo(config):
            report(int(state.updates) / config.num_updates, float(metrics.episode_return))
            networks = state.networks
    return networks


def train(env_id: str, recipe: Recipe, chosen: Plan, seed: int, base: Networks) -> Policy:
    """Every expert goes on from the base policy in its own variant.

    Returns:
        Their policies: every leaf has a leading axis of experts.
    """
    facts = described(env_id)
    trained = []
    for row, number in enumerate(chosen.numbers):
        config = replace(recipe.ppo, learning_rate=float(chosen.learning_rates[row]))
        options = {**chosen.variants.options(row), "max_episode_steps": recipe.time_limit}
        with _lanes(env_id, config.num_envs, options) as users:
            run = GymnasiumRun(users, facts, (seed + 1) * _SEEDS_APART + int(number))
            for state, _ in run.train_ppo(config, base):
                if int(state.updates) >= chosen.stops[row]:
                    break
        trained.append(state.networks.policy)
    policies: Policy = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trained)
    return policies


def judge(
    env_id: str,
    policies: Policy,
    numbers: Int[np.ndarray, " experts"],
    seed: int,
    cap: int,
    episodes: int,
) -> Float[np.ndarray, "experts episodes"]:
    """Undiscounted returns of greedy experts in the default environment, up to `cap` steps."""
    played = _play(env_id, policies, bridge.greedy, expert_keys(seed, 1, numbers), cap, episodes)
    returns: np.ndarray = np.sum(played.rewards, axis=-1)
    return returns


def logs(
    env_id: str,
    policies: Policy,
    numbers: Int[np.ndarray, " experts"],
    seed: int,
    floor: float,
    cap: int,
    episodes: int,
) -> ExpertLog:
    """Episodes of floored experts in the default environment; as `experts.logs`."""
    check_floor(floor, actions_of(described(env_id)))
    keys = expert_keys(seed, 2, numbers)
    return as_log(_play(env_id, Floored(policies, floor), bridge.sampled, keys, cap, episodes))


def _play(
    env_id: str,
    policies: Policy | Floored,
    act: Callable[..., Array],
    keys: PRNGKeyArray,
    cap: int,
    episodes: int,
) -> Trajectory:
    """Whole episodes of every expert, as numpy arrays [experts, episodes, cap, ...]."""
    played: list[Any] = []
    with _lanes(env_id, episodes, {"max_episode_steps": cap}) as users:
        for row, key in enumerate(keys):
            policy = jax.tree.map(lambda x, row=row: x[row], policies)
            game_key, action_key = jax.random.split(key)
            seeds = jax.random.randint(game_key, (episodes,), 0, np.iinfo(np.int32).max)
            trajectory = users.collect(
                partial(act, policy), action_key, np.asarray(seeds).tolist(), cap, one_episode=True
            )
            played.append(jax.tree.map(np.asarray, trajectory))
    together: Trajectory = jax.tree.map(lambda *arrays: np.stack(arrays), *played)
    return together


def _lanes(env_id: str, count: int, options: Mapping[str, Any] | None = None) -> GymnasiumUsers:
    """Lanes of the environment.

    Raises:
        ModuleNotFoundError: Box2D is not installed.
    """
    if importlib.util.find_spec("Box2D") is None:  # Gymnasium says so less clearly
        raise ModuleNotFoundError("LunarLander needs Box2D", name="Box2D")
    return GymnasiumUsers(env_id, count, **(options or {}))
