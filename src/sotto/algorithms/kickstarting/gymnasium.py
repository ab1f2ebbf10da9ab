"""Students of a teacher in Gymnasium environments, which run outside JAX."""

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.gymnasium import GymnasiumRun
from sotto.algorithms.baselines.ppo import Collected, PPOConfig
from sotto.algorithms.kickstarting import student as kickstarting
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.student import KickstartState
from sotto.rl.envs.base import Discrete


class GymnasiumStudent(GymnasiumRun):
    """Parallel Gymnasium environments of one student."""

    def student(self, config: KickstartConfig) -> KickstartState:
        """Returns a student that has asked nothing, with an axis of one run, for `Training`.

        Raises:
            ValueError: the environment has no finite set of actions to ask about.
        """
        if not isinstance(self.env.action, Discrete):
            raise ValueError(
                f"{self.env.id} has no finite set of actions, which kickstarting needs"
            )
        state = ppo.begin(config.ppo, self.env, self.network_key, ())
        runs = jax.tree.map(lambda x: x[None], state)
        rows = config.queries_per_update * config.remember_updates
        return kickstarting.listening(runs, rows, self.env.observation_size, self.env.action.n)

    def collect(
        self, config: PPOConfig, queries: int, states: KickstartState, keys: PRNGKeyArray
    ) -> tuple[Collected, Float[Array, "1 queries obs"]]:
        """Collects like `kickstarting.collect`, but in Gymnasium, for `Training`."""
        state = jax.tree.map(lambda x: x[0], states.ppo)
        key = jax.random.fold_in(keys[0], state.updates)
        collected = self.play(config, state, jax.random.split(key)[0])
        asked = kickstarting.to_ask(config, queries, collected, key)
        collected = jax.tree.map(lambda x: x[None], collected)
        return collected, asked[None]
