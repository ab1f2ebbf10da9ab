"""States of Q-learning that protects rewards, and the keys of its random numbers.

All states are public, except in mode paper, which protects nobody.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.baselines.q_learning import QLearner, QNetwork, start_learner
from sotto.algorithms.functional_q import paper, release
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.nodes import GridValues
from sotto.algorithms.functional_q.paper import PaperState
from sotto.algorithms.functional_q.release import Logged
from sotto.keys import keys_of
from sotto.rl.rollout import EpisodeState

INITIAL, RELEASING, STARTING, COLLECTING, LEARNING, PLANNING = range(6)
"""Purposes of random keys."""


class RewardState(NamedTuple):
    """The public state of mode reward-release."""

    logged: Logged
    """Steps of all rounds so far; later rows are zero."""
    lanes: EpisodeState
    """States of the parallel environments."""
    sums: Float[Array, " features"]
    """Noisy sums of rewards minus the middle; zero if the unit is the reward function."""
    rewards: Float[Array, " features"]
    """Released rewards at nodes."""
    learner: QLearner | GridValues


class OutputState(NamedTuple):
    """The released action values of the modes that release them, or a policy, at the end."""

    values: GridValues


State = RewardState | OutputState | PaperState


def initial_states(config: FunctionalQConfig, seeds: Sequence[int]) -> State:
    """Returns the states before training, with leaves of shape [runs, ...]."""
    states: State = eqx.filter_vmap(partial(_initial_state, config))(keys_of(seeds, INITIAL))
    return states


def _initial_state(config: FunctionalQConfig, key: PRNGKeyArray) -> State:
    if config.mode == "paper":
        return paper.init(config, key)
    low = config.rewards[0] / (1 - config.discount)
    table = GridValues(jnp.full((config.grid.size, config.actions), low, jnp.float32), config.grid)
    if config.mode != "reward-release":
        return OutputState(table)
    network_key, lane_key = jax.random.split(key)
    # The largest value is that of the largest reward at every step. It brings targets to order one.
    largest = max(abs(bound) for bound in config.rewards) / (1 - config.discount)
    network = QNetwork(config.environment, config.hidden, network_key, largest)
    nothing = jnp.zeros((config.features,), jnp.float32)
    return RewardState(
        logged=release.empty_log(config),
        lanes=release.start_lanes(config, lane_key),
        sums=nothing,
        rewards=nothing + config.middle,
        learner=(
            start_learner(config.learner_settings.optimizer, network)
            if config.learner == "dqn"
            else table
        ),
    )


def action_values(states: State) -> QNetwork | GridValues:
    """Returns the action values. They are functions of releases, except in mode paper."""
    if isinstance(states, RewardState):
        learner = states.learner
        return learner.values if isinstance(learner, QLearner) else learner
    return states.values


# --- keys ----------------------------------------------------------------------------------------


def folded_keys(seeds: Sequence[int], purpose: int, numbers: Sequence[int]) -> PRNGKeyArray:
    """Returns keys for the steps or the learning of one part."""
    return jax.vmap(jax.random.fold_in)(keys_of(seeds, purpose), jnp.asarray(numbers, jnp.uint32))
