"""Students of a teacher in Gymnasium environments, which run outside JAX."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.gymnasium import GymnasiumRun, environment
from sotto.algorithms.baselines.ppo import Collected, PPOConfig
from sotto.algorithms.kickstarting import student as kickstarting
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.student import KickstartState
from sotto.algorithms.kickstarting.training import Collect
from sotto.keys import keys_of
from sotto.rl.envs.base import Discrete
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers, processes_for, tell_first_update
from sotto.trees import at, single


class GymnasiumStudent(GymnasiumRun):
    """Parallel Gymnasium environments of one student."""

    purposes = (kickstarting.STARTING, kickstarting.TRAINING)

    def student(self, config: KickstartConfig) -> KickstartState:
        """Returns a student that has asked nothing, with an axis of one run, for `StudentTraining`.

        Raises:
            ValueError: the environment has no finite set of actions to ask about.
        """
        if not isinstance(self.env.action, Discrete):
            raise ValueError(
                f"{self.env.id} has no finite set of actions, which kickstarting needs"
            )
        state = ppo.begin(config.ppo, self.env, self.network_key, ())
        runs = single(state)
        rows = config.queries_per_update * config.remember_updates
        return kickstarting.listening(runs, rows, self.env.observation_size, self.env.action.n)

    def collect(
        self, config: PPOConfig, queries: int, states: KickstartState, keys: PRNGKeyArray
    ) -> tuple[Collected, Float[Array, "1 queries obs"]]:
        """Collects like `kickstarting.collect`, but in Gymnasium, for `StudentTraining`."""
        state = at(states.ppo, 0)
        key = jax.random.fold_in(keys[0], state.updates)
        collected = self.play(config, state, jax.random.split(key)[0])
        asked = kickstarting.to_ask(config, queries, collected, key)
        collected = single(collected)
        return collected, asked[None]


def initial_states(config: KickstartConfig, seeds: Sequence[int]) -> KickstartState:
    """Returns students that have asked nothing, leaves of shape [runs, ...]."""
    env = environment(config.env_id)
    runs = jax.vmap(lambda key: ppo.begin(config.ppo, env, key, ()))(
        keys_of(seeds, kickstarting.STARTING)
    )
    rows = config.queries_per_update * config.remember_updates
    return kickstarting.listening(runs, rows, *kickstarting.sizes(config.env_id))


@contextmanager
def collecting(config: KickstartConfig, seeds: Sequence[int]) -> Iterator[Collect]:
    """Yields the function that collects steps of several students, each in its own environments.

    Episodes start from a reset, also those of a training that goes on.
    """
    env, processes = environment(config.env_id), processes_for(config.num_envs)
    tell_first_update(config.env_id, config.num_envs, config.num_steps)
    with ExitStack() as stack:
        students = []
        for seed in seeds:
            users = GymnasiumUsers(config.env_id, config.num_envs, processes)
            students.append(GymnasiumStudent(stack.enter_context(users), env, seed))

        def collect(
            settings: PPOConfig, queries: int, states: KickstartState, keys: PRNGKeyArray
        ) -> tuple[Collected, Float[Array, "runs queries obs"]]:
            each = []
            for index, one in enumerate(students):
                run = slice(index, index + 1)
                state = at(states, run)
                each.append(one.collect(settings, queries, state, keys[run]))
            together: tuple[Collected, Array] = jax.tree.map(
                lambda *parts: jnp.concatenate(parts), *each
            )
            return together

        yield collect
