"""Algorithms `ppo`, `a2c` and `dqn` of `sotto train`: baselines without privacy."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from sotto.algorithms.base import Algorithm, Config, Progress
from sotto.algorithms.baselines import dqn, ppo
from sotto.algorithms.baselines.a2c import A2CConfig
from sotto.algorithms.baselines.dqn import DQNConfig
from sotto.algorithms.baselines.gymnasium import GymnasiumRun, environment
from sotto.algorithms.baselines.ppo import PPOConfig, PPOMetrics
from sotto.algorithms.baselines.presets import a2c_preset, ppo_preset
from sotto.algorithms.baselines.q_learning import EpsilonGreedy, greedy_runs
from sotto.keys import keys_of
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers, processes_for, tell_first_update
from sotto.rl.envs.registry import is_native
from sotto.rl.networks import Policy
from sotto.trees import at, stacked

_CHUNK = 10  # updates in one program: XLA once hung on longer ones
_PROGRESS_POINTS = 20  # through Gymnasium, where episodes of evaluation take their time
_DQN_CHUNKS = 20
_EVALUATION_EPISODES = 16
_GYMNASIUM_EVALUATION_EPISODES = 4
_DQN_EVALUATION_EPISODES = 64


class _OnPolicy(Algorithm[Config]):
    """PPO, or an algorithm that is PPO with other settings."""

    @abstractmethod
    def as_ppo(self, config: Config) -> PPOConfig:
        """Returns settings of PPO that train the same."""

    def resolved(self, config: Config) -> Config:
        """Returns the settings unchanged, if the environment exists."""
        environment(self.as_ppo(config).env_id)
        return config

    def initial_states(self, config: Config, seeds: Sequence[int]) -> PyTree:
        """Returns networks, optimisers and environments before training."""
        settings, keys = self.as_ppo(config), keys_of(seeds, 0)
        if is_native(settings.env_id):
            return jax.jit(jax.vmap(partial(ppo.init, settings)))(keys)
        env = environment(settings.env_id)
        return jax.vmap(lambda key: ppo.begin(settings, env, key, ()))(keys)

    def train(
        self,
        config: Config,
        seeds: Sequence[int],
        ledgers: Sequence[Any],
        states: PyTree,
        done: int,
        folders: Sequence[Path],
    ) -> Iterator[Progress]:
        """Makes the remaining updates."""
        del ledgers, folders
        settings = self.as_ppo(config)
        native = is_native(settings.env_id)
        trained = (train_in_jax if native else _through_gymnasium)(settings, seeds, states, done)
        episodes = _EVALUATION_EPISODES if native else _GYMNASIUM_EVALUATION_EPISODES
        for updates, after, metrics in trained:
            returns = {"last": self.mean_return(config, after, updates, episodes)}
            yield Progress(updates, after, evaluation=returns, simulated=_named(metrics))

    def policies(self, states: PyTree) -> dict[str, Policy]:
        """Returns the last policy."""
        return {"last": states.networks.policy}


class PPO(_OnPolicy[PPOConfig]):
    """Trains PPO, a baseline without privacy. It protects nobody and has no certificate.

    Examples:
      sotto train ppo --env-id CartPole-v1 --out runs/ppo
      sotto train ppo --env-id Acrobot-v1 --total-steps 300000 --seeds 5 --out runs/ppo5
      sotto train ppo --env-id HalfCheetah-v5 --out runs/cheetah
    """

    name, summary = "ppo", "a baseline without privacy"
    config_type = PPOConfig
    teaches = True

    def defaults(self, flags: Mapping[str, str]) -> dict[str, Any]:
        """Returns settings for the environment that the flags name."""
        return vars(ppo_preset(flags.get("env_id", "CartPole-v1")))

    def as_ppo(self, config: PPOConfig) -> PPOConfig:
        """Returns the settings themselves."""
        return config


class A2C(_OnPolicy[A2CConfig]):
    """Trains A2C, a simpler baseline without privacy. It is PPO with one pass over short rollouts
    and with RMSprop. It protects nobody and has no certificate.

    Examples:
      sotto train a2c --env-id CartPole-v1 --out runs/a2c
      sotto train a2c --env-id HalfCheetah-v5 --total-steps 1000000 --out runs/cheetah
    """

    name, summary = "a2c", "a simpler baseline without privacy"
    config_type = A2CConfig

    def defaults(self, flags: Mapping[str, str]) -> dict[str, Any]:
        """Returns settings for the environment that the flags name."""
        return vars(a2c_preset(flags.get("env_id", "CartPole-v1")))

    def as_ppo(self, config: A2CConfig) -> PPOConfig:
        """Returns settings of PPO with one pass over short rollouts, and with RMSprop."""
        return config.ppo


class DQN(Algorithm[DQNConfig]):
    """Trains DQN, a baseline without privacy. It protects nobody and has no certificate.

    Examples:
      sotto train dqn --env-id CartPole-v1 --out runs/dqn
      sotto train dqn --env-id Line-v0 --discount 0.9 --total-steps 20480 --out runs/line
    """

    name, summary = "dqn", "Q-learning without privacy"
    config_type = DQNConfig

    def resolved(self, config: DQNConfig) -> DQNConfig:
        """Returns the settings unchanged, if networks can be made for the environment."""
        self.initial_states(config, [config.seed])
        return config

    def initial_states(self, config: DQNConfig, seeds: Sequence[int]) -> PyTree:
        """Returns networks, replay buffers and environments before training."""
        return eqx.filter_jit(eqx.filter_vmap(partial(dqn.init, config)))(keys_of(seeds, 0))

    def train(
        self,
        config: DQNConfig,
        seeds: Sequence[int],
        ledgers: Sequence[Any],
        states: PyTree,
        done: int,
        folders: Sequence[Path],
    ) -> Iterator[Progress]:
        """Makes the remaining updates."""
        del ledgers, folders
        keys = keys_of(seeds, 1)
        size = max(1, config.num_updates // _DQN_CHUNKS)
        while done < config.num_updates:
            # The last chunk may be shorter. It is then compiled once more.
            count = min(size, config.num_updates - done)
            states, metrics = jax.vmap(dqn.train_chunk, in_axes=(None, 0, 0, None))(
                config, states, keys, count
            )
            done += count
            returns = {"last": self.mean_return(config, states, done, _DQN_EVALUATION_EPISODES)}
            yield Progress(done, states, evaluation=returns, simulated=_named(metrics))

    def policies(self, states: PyTree) -> dict[str, EpsilonGreedy]:
        """Returns the greedy policy of the last action values."""
        return {"last": greedy_runs(states.learner.values)}


Trained = Iterator[tuple[int, PyTree, PPOMetrics]]
"""Number of updates so far, states, and metrics of shape [runs, updates of the chunk]."""


def train_in_jax(
    settings: PPOConfig, seeds: Sequence[int], states: PyTree, done: int, every: int = _CHUNK
) -> Trained:
    """Trains all runs in one compiled program, which ends at each multiple of `every` updates."""
    keys = keys_of(seeds, 1)
    while done < settings.num_updates:
        count = min(_CHUNK, every - done % every, settings.num_updates - done)
        states, metrics = jax.vmap(ppo.train_chunk, in_axes=(None, 0, 0, None))(
            settings, states, keys, count
        )
        done += count
        yield done, states, metrics


def _through_gymnasium(
    settings: PPOConfig, seeds: Sequence[int], states: PyTree, done: int
) -> Trained:
    """Trains one run after the other, each in its own environments."""
    env = environment(settings.env_id)
    chunk = -(-settings.num_updates // _PROGRESS_POINTS)
    processes = processes_for(settings.num_envs)
    tell_first_update(settings.env_id, settings.num_envs, settings.num_steps)
    with ExitStack() as stack:
        going = []
        for index, seed in enumerate(seeds):
            users = GymnasiumUsers(settings.env_id, settings.num_envs, processes)
            run = GymnasiumRun(stack.enter_context(users), env, seed)
            state = at(states, index)
            # The environments start new episodes, whose returns start at zero.
            fresh = state._replace(returns_so_far=jnp.zeros_like(state.returns_so_far))
            going.append(run.go_on(settings, fresh))
        while done < settings.num_updates:
            count = min(chunk, settings.num_updates - done)
            after = [[next(run) for _ in range(count)] for run in going]
            done += count
            states = stacked([steps[-1][0] for steps in after])
            metrics = stacked([stacked([one for _, one in steps]) for steps in after])
            yield done, states, metrics


def _named(metrics: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in metrics._asdict().items()}
