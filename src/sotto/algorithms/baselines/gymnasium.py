"""PPO in Gymnasium environments, which run outside JAX.

The environments are stepped in Python. One compiled call of the policy chooses the actions for all
of them, and learning uses the same compiled step as for JAX environments. An object is one run, and
several seeds are several objects.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

import jax
from jaxtyping import PRNGKeyArray

from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.ppo import Collected, Networks, PPOConfig, PPOMetrics, PPOState
from sotto.keys import new_key
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers, sampled
from sotto.rl.envs.gymnasium.described import described
from sotto.rl.envs.registry import is_native, make
from sotto.rl.rollout import Trajectory


def environment(env_id: str) -> AnyEnvironment:
    """Returns an environment, written in JAX or not, of which only public facts are used."""
    if is_native(env_id):
        return make(env_id)
    found = described(env_id)
    # Only the scale of the critic depends on it. An unknown reward per step counts as one.
    return found if found.reward_per_step else replace(found, reward_per_step=1.0)


class GymnasiumRun:
    """Parallel Gymnasium environments of one run.

    Args:
        users: num_envs parallel environments. The caller closes them.
        env: public facts about the environment.
        seed: seed of networks, environments and actions.

    Attributes:
        env: public facts about the environment.
        network_key, key: keys of the networks, and of the training.
    """

    purposes: ClassVar[tuple[int, int]] = (0, 1)
    """Purposes of these two keys. Runs with one seed and other purposes share no random numbers."""

    def __init__(self, users: GymnasiumUsers, env: AnyEnvironment, seed: int) -> None:
        self._users = users
        self.env = env
        self.network_key, self.key = (
            jax.random.fold_in(new_key(seed), purpose) for purpose in self.purposes
        )
        first = (seed + self.purposes[0] * 2**31) * users.num_users  # seeds are below 2^31
        users.begin(range(first, first + users.num_users))

    def train_ppo(
        self, config: PPOConfig, networks: Networks | None = None
    ) -> Iterator[tuple[PPOState, PPOMetrics]]:
        """Trains PPO from the start, or from given networks, and yields after every update."""
        state = ppo.begin(config, self.env, self.network_key, ())
        if networks is not None:
            state = state._replace(networks=networks)
        yield from self.go_on(config, state)

    def go_on(self, config: PPOConfig, state: PPOState) -> Iterator[tuple[PPOState, PPOMetrics]]:
        """Trains PPO from a state to the end, and yields after every update.

        A state from another process continues in environments that start from a reset.
        """
        for _ in range(int(state.updates), config.num_updates):
            key = jax.random.fold_in(self.key, state.updates)
            rollout_key, shuffle_key = jax.random.split(key)
            collected = self.play(config, state, rollout_key)
            state, metrics = _optimise(config, state, collected, shuffle_key)
            yield state, metrics

    def play(self, config: PPOConfig, state: PPOState, key: PRNGKeyArray) -> Collected:
        """Plays num_steps steps in every environment, and returns what PPO learns from."""
        act = partial(sampled, state.networks.policy)
        trajectory = self._users.advance(act, key, config.num_steps)
        collected: Collected = _gather(config, state, trajectory)
        return collected


@partial(jax.jit, static_argnames=("config",))
def _gather(config: PPOConfig, state: PPOState, trajectory: Trajectory) -> Collected:
    return ppo.gather(config, state, trajectory, ())


@partial(jax.jit, static_argnames=("config",))
def _optimise(
    config: PPOConfig, state: PPOState, collected: Collected, key: PRNGKeyArray
) -> tuple[PPOState, PPOMetrics]:
    return ppo.optimise(config, state, collected, key)
