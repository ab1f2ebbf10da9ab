"""The student of private kickstarting (Gohari et al. 2021, section 4): PPO with a hinge.

In each update, the student asks the teacher about some of the states that it has just visited. The
mean over these states of the hinge (equation 16) is added to PPO's loss:

    phi_lambda = ||pi_theta(s) - answer||_2  where that exceeds lambda * radius, else 0

So the student follows an answer only as far as it is likely to be right. The radius is a bound on
the distance of an answer from the teacher's row (`sotto.privacy.mechanisms.dirichlet.radius`). With
lambda = 0, the student does not know of the noise.

Answers are released by the teacher, so learning from them is post-processing, at no privacy cost.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.gymnasium import environment
from sotto.algorithms.baselines.ppo import Collected, Networks, PPOConfig, PPOMetrics, PPOState
from sotto.rl.distributions import Categorical
from sotto.rl.envs.base import Discrete
from sotto.rl.envs.registry import make
from sotto.rl.networks import Policy

STARTING, TRAINING = 2, 3
"""Purposes of a student's random keys. PPO's are 0 and 1: with the same keys, a student of its
teacher's seed would begin with the teacher's weights and meet the people who trained it."""

_ASK = 2  # folded into the key of an update, which PPO splits into two


class Rows(NamedTuple):
    """States, and the teacher's answers about them."""

    observations: Float[Array, "rows obs"]
    answers: Float[Array, "rows actions"]
    thresholds: Float[Array, " rows"]
    """Threshold of each answer: lambda * radius (alpha_lambda)."""
    weights: Float[Array, " rows"]
    """1 where the hinge uses this row, else 0."""
    answered: Float[Array, " rows"]
    """1 where the teacher released this row, else 0."""


class KickstartState(NamedTuple):
    """Training state after an update."""

    ppo: PPOState
    rows: Rows
    """Answers of the last updates, the newest last."""
    answered: Int[Array, ""]
    """Number of answers received so far."""


class KickstartMetrics(NamedTuple):
    """Metrics of one update."""

    ppo: PPOMetrics
    answered: Int[Array, ""]
    """Number of answers received so far."""
    hinge: Float[Array, ""]
    """Mean of phi_lambda over the answered rows after the update, 0 if there are none."""
    active: Float[Array, ""]
    """Share of these rows on which the hinge is active."""


def sizes(env_id: str) -> tuple[int, int]:
    """Returns the length of an observation, and the number of actions.

    Raises:
        ValueError: the environment has no finite set of actions, or is unknown.
    """
    env = environment(env_id)
    if not isinstance(env.action, Discrete):
        raise ValueError(f"kickstarting needs a finite set of actions; those of {env.id} are not")
    return env.observation_size, env.action.n


@partial(jax.jit, static_argnames=("config", "rows"))
def init(config: PPOConfig, rows: int, keys: PRNGKeyArray) -> KickstartState:
    """Returns students that have asked nothing, for several runs.

    Args:
        config: PPO's settings.
        rows: number of answers to remember, a multiple of num_minibatches.
        keys: one for each run.
    """
    return listening(jax.vmap(partial(ppo.init, config))(keys), rows, *sizes(config.env_id))


def listening(states: PPOState, rows: int, observation_size: int, actions: int) -> KickstartState:
    """Returns students that have asked nothing, with PPO's states of shape [runs, ...]."""
    runs = states.updates.shape[0]
    column = jnp.zeros((runs, rows), jnp.float32)
    return KickstartState(
        ppo=states,
        rows=Rows(
            observations=jnp.zeros((runs, rows, observation_size), jnp.float32),
            answers=jnp.zeros((runs, rows, actions), jnp.float32),
            thresholds=column,
            weights=column,
            answered=column,
        ),
        answered=jnp.zeros((runs,), jnp.int32),
    )


@partial(jax.jit, static_argnames=("config", "queries"))
def collect(
    config: PPOConfig, queries: int, states: KickstartState, keys: PRNGKeyArray
) -> tuple[Collected, Float[Array, "runs queries obs"]]:
    """Collects one update's steps, and draws the states to ask about, for several runs.

    Args:
        config: PPO's settings.
        queries: number of states to draw, without replacement.
        states: leaves of shape [runs, ...].
        keys: one for each run, for the whole training.
    """

    env = make(config.env_id)

    def one(state: PPOState, key: PRNGKeyArray) -> tuple[Collected, Float[Array, "queries obs"]]:
        key = jax.random.fold_in(key, state.updates)
        collected = ppo.collect(env, env.default_params, config, state, jax.random.split(key)[0])
        return collected, to_ask(config, queries, collected, key)

    return jax.vmap(one)(states.ppo, keys)


def to_ask(
    config: PPOConfig, queries: int, collected: Collected, key: PRNGKeyArray
) -> Float[Array, "queries obs"]:
    """Draws the states to ask about from those of one run's update, whose key is `key`."""
    order = jax.random.permutation(jax.random.fold_in(key, _ASK), config.steps_per_update)
    return collected.batch.observations[order[:queries]]


@partial(jax.jit, static_argnames=("config",))
def optimise(
    config: PPOConfig,
    states: KickstartState,
    collected: Collected,
    answered: Rows | None,
    weight: Float[Array, ""],
    keys: PRNGKeyArray,
) -> tuple[KickstartState, KickstartMetrics]:
    """Learns from the collected steps and the answers, for several runs.

    Args:
        config: PPO's settings.
        states: leaves of shape [runs, ...].
        collected: from `collect`.
        answered: the new rows of each run, at most as many as are remembered. None: no new or
            remembered row has a weight. The hinge is 0, and is not computed.
        weight: weight of the hinge.
        keys: as for `collect`.
    """

    def one(
        state: KickstartState, collected: Collected, answered: Rows | None, key: PRNGKeyArray
    ) -> tuple[KickstartState, KickstartMetrics]:
        key = jax.random.fold_in(key, state.ppo.updates)
        if answered is None:
            after, metrics = ppo.optimise(config, state.ppo, collected, jax.random.split(key)[1])
            nothing = jnp.float32(0)
            return state._replace(ppo=after), KickstartMetrics(
                metrics, state.answered, nothing, nothing
            )
        rows = _remembered(state.rows, answered)
        after, metrics = ppo.optimise(
            config,
            state.ppo,
            collected,
            jax.random.split(key)[1],
            lambda networks, chosen: weight * _penalty(networks, chosen),
            # So scaled, means over minibatches add up to the mean over all answered rows.
            rows._replace(weights=rows.weights / jnp.maximum(jnp.mean(rows.weights), 1e-9)),
        )
        count = state.answered + jnp.sum(answered.answered, dtype=jnp.int32)
        distance = hinge(after.networks.policy, rows)
        total = jnp.maximum(jnp.sum(rows.weights), 1.0)
        return KickstartState(after, rows, count), KickstartMetrics(
            ppo=metrics,
            answered=count,
            hinge=jnp.sum(rows.weights * distance) / total,
            active=jnp.sum(rows.weights * (distance > 0)) / total,
        )

    return jax.vmap(one)(states, collected, answered, keys)


def hinge(policy: Policy, rows: Rows) -> Float[Array, " rows"]:
    """Returns phi_lambda of each row (equation 16).

    Where the hinge is inactive, its gradient is 0, also at a distance of exactly 0.
    """
    distribution = policy(rows.observations)
    assert isinstance(distribution, Categorical)
    probabilities = jax.nn.softmax(distribution.logits)
    squared = jnp.sum(jnp.square(probabilities - rows.answers), axis=-1)
    active = squared > jnp.square(rows.thresholds)
    # The root's gradient is infinite at 0, and infinity times an unused 0 is NaN.
    return jnp.where(active, jnp.sqrt(jnp.where(active, squared, 1.0)), 0.0)


def _penalty(networks: Networks, rows: Rows) -> Float[Array, ""]:
    return jnp.mean(rows.weights * hinge(networks.policy, rows))


def _remembered(old: Rows, new: Rows) -> Rows:
    """Returns the newest rows, the new ones last."""
    kept: Rows = jax.tree.map(lambda a, b: jnp.concatenate([a[len(b) :], b]), old, new)
    return kept
