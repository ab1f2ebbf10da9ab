"""Logged steps and their rewards, for tests of releases about one reward."""

import jax
import jax.numpy as jnp
import numpy as np

from sotto.algorithms.baselines.q_learning import EpsilonGreedy
from sotto.algorithms.functional_q import release as functional_q


def logged(config, runs=2):
    """Returns a round of uniform steps of each run, and their rewards."""
    env = config.environment
    dynamics = functional_q.Dynamics(env)
    actor = EpsilonGreedy(lambda o: jnp.zeros((*o.shape[:-1], 2)), 1.0)
    seen = [
        functional_q.collect(
            dynamics,
            actor,
            functional_q.start_lanes(config, jax.random.key(run)),
            jax.random.key(run),
            config.lane_steps,
        )[0]
        for run in range(runs)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *seen)
    rewards = 0.5 - np.abs(np.asarray(stacked.next_observations)[..., 0] - 0.5)
    return stacked, rewards
