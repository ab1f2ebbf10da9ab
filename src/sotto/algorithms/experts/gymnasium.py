"""Trains experts of LunarLander, which runs in Gymnasium's Box2D, one after the other.

Training hundreds of experts from fresh networks would take hours. Instead one public base policy is
trained in the default environment, and every expert continues from it in its own variant for a
public number of updates. So the experts share public parameters only.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.baselines.gymnasium import GymnasiumRun
from sotto.algorithms.baselines.ppo import Networks
from sotto.algorithms.experts.training import (
    ExpertPlan,
    Floored,
    Recipe,
    expert_keys,
)
from sotto.rl.envs.gymnasium import bridge
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers
from sotto.rl.envs.gymnasium.described import Described
from sotto.rl.networks import Policy
from sotto.rl.rollout import Trajectory
from sotto.trees import at, stacked

_REWARD_PER_STEP = 1.0
"""Largest reward of a step of LunarLander, which scales the critic."""

_SEEDS_APART = 10_000
"""Distance between the seeds of Box2D that two experts use."""


def described(env_id: str) -> Described:
    """Returns the public facts of the environment.

    Raises:
        ValueError: Gymnasium cannot make the environment.
    """
    with _environments(env_id, 1) as users:
        return replace(users.described(), reward_per_step=_REWARD_PER_STEP)


def train_base(
    env_id: str, recipe: Recipe, seed: int, report: Callable[[float, float], None]
) -> Networks:
    """Trains the base policy and critic in the default environment.

    Args:
        env_id: name of a Gymnasium environment.
        recipe: recipe with a base.
        seed: seed of the networks and the episodes.
        report: function of the share of the training that is done and of the mean return of the
            last episodes.
    """
    config, facts = recipe.base, described(env_id)
    assert config is not None
    with _environments(env_id, config.num_envs) as users:
        run = GymnasiumRun(users, facts, seed)
        for state, metrics in run.train_ppo(config):
            report(int(state.updates) / config.num_updates, float(metrics.episode_return))
            networks = state.networks
    return networks


def train(env_id: str, recipe: Recipe, chosen: ExpertPlan, seed: int, base: Networks) -> Policy:
    """Trains every expert from the base policy on, in its own variant.

    Returns:
        The policies; every leaf has a leading axis of experts.
    """
    facts = described(env_id)
    trained = []
    for row, number in enumerate(chosen.numbers):
        config = replace(recipe.ppo, learning_rate=float(chosen.learning_rates[row]))
        options = {**chosen.variants.options(row), "max_episode_steps": recipe.time_limit}
        with _environments(env_id, config.num_envs, options) as users:
            run = GymnasiumRun(users, facts, (seed + 1) * _SEEDS_APART + int(number))
            for state, _ in run.train_ppo(config, base):
                if int(state.updates) >= chosen.stops[row]:
                    break
        trained.append(state.networks.policy)
    return stacked(trained)


def judge(
    env_id: str,
    policies: Policy,
    numbers: Int[np.ndarray, " experts"],
    seed: int,
    cap: int,
    episodes: int,
) -> Float[np.ndarray, "experts episodes"]:
    """Returns the undiscounted returns of greedy experts in the default environment.

    Episodes have at most `cap` steps.
    """
    keys = expert_keys(seed, 1, numbers)
    played = play(env_id, policies, keys, cap, episodes, bridge.greedy)
    returns: np.ndarray = np.sum(played.rewards, axis=-1)
    return returns


def play(
    env_id: str,
    policies: Policy | Floored,
    keys: PRNGKeyArray,
    cap: int,
    episodes: int,
    act: Callable[..., Array] = bridge.sampled,
) -> Trajectory:
    """Plays episodes of every expert; returns numpy arrays [experts, episodes, cap, ...]."""
    played: list[Any] = []
    with _environments(env_id, episodes, {"max_episode_steps": cap}) as users:
        for row, key in enumerate(keys):
            policy = at(policies, row)
            game_key, action_key = jax.random.split(key)
            seeds = jax.random.randint(game_key, (episodes,), 0, np.iinfo(np.int32).max)
            trajectory = users.collect(
                partial(act, policy), action_key, np.asarray(seeds).tolist(), cap, one_episode=True
            )
            played.append(jax.tree.map(np.asarray, trajectory))
    together: Trajectory = jax.tree.map(lambda *arrays: np.stack(arrays), *played)
    return together


def _environments(
    env_id: str, count: int, options: Mapping[str, Any] | None = None
) -> GymnasiumUsers:
    """Makes `count` parallel environments.

    Raises:
        ModuleNotFoundError: Box2D is not installed.
    """
    if importlib.util.find_spec("Box2D") is None:  # Gymnasium's own message is less clear
        raise ModuleNotFoundError("LunarLander needs Box2D", name="Box2D")
    return GymnasiumUsers(env_id, count, **(options or {}))
