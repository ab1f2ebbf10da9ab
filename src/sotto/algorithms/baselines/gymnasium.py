"""PPO and kickstarting in Gymnasium environments, which run outside JAX.

The environments are stepped in Python. One compiled call of the policy chooses the actions for all
of them, and learning uses the same compiled step as for JAX environments. An object is one run, and
several seeds are several objects.
"""

from collections.abc import Iterator
from functools import partial

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.ppo import Collected, Networks, PPOConfig, PPOMetrics, PPOState
from sotto.algorithms.kickstarting import student as kickstarting
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.student import KickstartState
from sotto.keys import new_key
from sotto.rl.envs.base import AnyEnvironment, Discrete
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers, sampled
from sotto.rl.rollout import Trajectory


class GymnasiumRun:
    """Parallel Gymnasium environments of one run.

    Args:
        users: num_envs parallel environments. The caller closes them.
        env: public facts about the environment.
        seed: seed of networks, environments and actions.
    """

    def __init__(self, users: GymnasiumUsers, env: AnyEnvironment, seed: int) -> None:
        self._users = users
        self._env = env
        self._network_key, self.key = (
            jax.random.fold_in(new_key(seed), purpose) for purpose in (0, 1)
        )
        first = seed * users.num_users
        users.begin(range(first, first + users.num_users))

    def train_ppo(
        self, config: PPOConfig, networks: Networks | None = None
    ) -> Iterator[tuple[PPOState, PPOMetrics]]:
        """Trains PPO from the start, or from given networks, and yields after every update."""
        state = ppo.begin(config, self._env, self._network_key, ())
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
            collected = self._collect(config, state, rollout_key)
            state, metrics = _optimise(config, state, collected, shuffle_key)
            yield state, metrics

    def student(self, config: KickstartConfig) -> KickstartState:
        """Returns a student that has asked nothing, with an axis of one run, for `Training`.

        Raises:
            ValueError: the environment has no finite set of actions to ask about.
        """
        if not isinstance(self._env.action, Discrete):
            raise ValueError(
                f"{self._env.id} has no finite set of actions, which kickstarting needs"
            )
        state = ppo.begin(config.ppo, self._env, self._network_key, ())
        runs = jax.tree.map(lambda x: x[None], state)
        rows = config.queries_per_update * config.remember_updates
        return kickstarting.listening(runs, rows, self._env.observation_size, self._env.action.n)

    def collect(
        self, config: PPOConfig, queries: int, states: KickstartState, keys: PRNGKeyArray
    ) -> tuple[Collected, Float[Array, "1 queries obs"]]:
        """Collects like `kickstarting.collect`, but in Gymnasium, for `Training`."""
        state = jax.tree.map(lambda x: x[0], states.ppo)
        key = jax.random.fold_in(keys[0], state.updates)
        collected = self._collect(config, state, jax.random.split(key)[0])
        asked = kickstarting.to_ask(config, queries, collected, key)
        collected = jax.tree.map(lambda x: x[None], collected)
        return collected, asked[None]

    def _collect(self, config: PPOConfig, state: PPOState, key: PRNGKeyArray) -> Collected:
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
