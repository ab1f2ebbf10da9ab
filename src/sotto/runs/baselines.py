"""Runs of the baselines without privacy: PPO and A2C, in JAX or through Gymnasium."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.a2c import A2CConfig
from sotto.algorithms.baselines.gymnasium import HostedRun
from sotto.algorithms.baselines.ppo import PPOConfig, PPOMetrics
from sotto.algorithms.dppg import gymnasium_users
from sotto.privacy.ledger.ledger import Ledger
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers, described, processes_for
from sotto.rl.envs.registry import is_native, make
from sotto.rl.networks import Policy
from sotto.runs.adapters import Algorithm, Chunk, evaluate_native, evaluation, keys_of
from sotto.runs.directory import AnyLedger, RunError

_CHUNK = 10  # updates in one program: XLA once hung on longer ones
_PROGRESS_POINTS = 20  # through Gymnasium, where episodes of evaluation take their time
_EVALUATION_EPISODES = 16
_HOSTED_EVALUATION_EPISODES = 4


@dataclass
class _Baseline:
    """PPO, or what can be said in its settings."""

    name: str
    config_type: type[Any]
    as_ppo: Callable[[Any], PPOConfig]
    default_policy: str = "last"

    def resolved(self, config: Any) -> Any:
        _environment(config.env_id)
        return config

    def has_ledger(self, config: Any) -> bool:
        del config
        return False

    def updates(self, config: Any) -> int:
        return self.as_ppo(config).num_updates

    def steps_per_update(self, config: Any) -> int:
        return self.as_ppo(config).batch_size

    def create_ledger(self, config: Any, where: Path | str, run_id: str) -> AnyLedger:
        del config, where, run_id
        raise RunError(f"a run of {self.name} has no ledger")

    def initial_states(self, config: Any, seeds: Sequence[int]) -> PyTree:
        settings, keys = self.as_ppo(config), keys_of(seeds, 0)
        if is_native(settings.env_id):
            return jax.jit(jax.vmap(partial(ppo.init, settings)))(keys)
        env = _environment(settings.env_id)
        return jax.vmap(lambda key: ppo.begin(settings, env, key, ()))(keys)

    def chunks(
        self,
        config: Any,
        seeds: Sequence[int],
        ledgers: Sequence[Ledger],
        states: PyTree,
        done: int,
    ) -> Iterator[Chunk]:
        del ledgers
        settings = self.as_ppo(config)
        native = is_native(settings.env_id)
        trained = (_native if native else _hosted)(settings, seeds, states, done)
        episodes = _EVALUATION_EPISODES if native else _HOSTED_EVALUATION_EPISODES
        for updates, after, metrics in trained:
            returns = evaluation(self, config, after, updates, episodes)
            simulated = {name: np.asarray(value) for name, value in metrics._asdict().items()}
            yield Chunk(updates, after, {}, {"last": returns}, simulated)

    def policies(self, states: PyTree) -> dict[str, Policy]:
        return {"last": states.networks.policy}

    def evaluate(
        self, config: Any, policy: Policy, key: PRNGKeyArray, episodes: int, greedy: bool
    ) -> Float[np.ndarray, "runs episodes"]:
        if is_native(config.env_id):
            return evaluate_native(config.env_id, policy, key, episodes, greedy)
        return gymnasium_users.evaluate(config.env_id, policy, key, episodes, greedy)


Trained = Iterator[tuple[int, PyTree, PPOMetrics]]
"""Updates made, states, and metrics of [runs, updates of the chunk]."""


def _native(settings: PPOConfig, seeds: Sequence[int], states: PyTree, done: int) -> Trained:
    """All runs in one program."""
    keys = keys_of(seeds, 1)
    while done < settings.num_updates:
        count = min(_CHUNK, settings.num_updates - done)
        states, metrics = jax.vmap(ppo.train_chunk, in_axes=(None, 0, 0, None))(
            settings, states, keys, count
        )
        done += count
        yield done, states, metrics


def _hosted(settings: PPOConfig, seeds: Sequence[int], states: PyTree, done: int) -> Trained:
    """One run after the other, each in games of its own."""
    env = _environment(settings.env_id)
    chunk = -(-settings.num_updates // _PROGRESS_POINTS)
    processes = processes_for(settings.num_envs)
    with ExitStack() as stack:
        going = []
        for index, seed in enumerate(seeds):
            users = GymnasiumUsers(settings.env_id, settings.num_envs, processes)
            run = HostedRun(stack.enter_context(users), env, seed)
            state = jax.tree.map(lambda x, i=index: x[i], states)
            # Its games begin anew, and so do the returns of their episodes.
            fresh = state._replace(returns_so_far=jnp.zeros_like(state.returns_so_far))
            going.append(run.go_on(settings, fresh))
        while done < settings.num_updates:
            count = min(chunk, settings.num_updates - done)
            after = [[next(run) for _ in range(count)] for run in going]
            done += count
            states = _stacked([steps[-1][0] for steps in after])
            metrics = _stacked([_stacked([one for _, one in steps]) for steps in after])
            yield done, states, metrics


def _environment(env_id: str) -> AnyEnvironment:
    """The environment's public facts."""
    if is_native(env_id):
        return make(env_id)
    found = described(env_id)
    # Only the critic's scale depends on it: where nothing is known, ordinary steps earn one.
    return found if found.reward_per_step else replace(found, reward_per_step=1.0)


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


PPO_RUNS: Algorithm = _Baseline("ppo", PPOConfig, lambda config: config)
"""PPO without privacy."""

A2C_RUNS: Algorithm = _Baseline("a2c", A2CConfig, lambda config: config.ppo)
"""A2C without privacy."""
