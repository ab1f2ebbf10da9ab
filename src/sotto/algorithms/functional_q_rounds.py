"""Mode reward-release: rounds of collecting without rewards, releasing them, and learning."""

from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms import functional_q, functional_q_functions
from sotto.algorithms.functional_q import Dynamics, Logged
from sotto.algorithms.functional_q_config import FunctionalQConfig
from sotto.algorithms.functional_q_states import (
    COLLECTING,
    LEARNING,
    RELEASING,
    Progress,
    RewardState,
    action_values,
    folded_keys,
    keys_of,
)
from sotto.algorithms.q_learning import EpsilonGreedy, Learner, QNetwork, Transitions, learn
from sotto.algorithms.reward_nodes import GridValues
from sotto.privacy.ledger import Ledger
from sotto.privacy.streams import Stream
from sotto.rl.rollout import Lane


def train_on_released_rewards(
    config: FunctionalQConfig,
    seeds: Sequence[int],
    ledgers: Sequence[Ledger],
    states: RewardState,
    done: int,
) -> Iterator[Progress]:
    """Trains from `states` on; each round is one update that releases, and some that learn."""
    per_round = 1 + config.chunks_per_round
    stream = None
    while done < config.num_updates:
        number, part = divmod(done, per_round)
        done += 1
        steps = (number + 1) * config.round_samples
        if part == 0:
            if config.unit == "transition" and stream is None:
                stream = _open(config, ledgers, states, config.rounds - number)
            # People of a resumed training are new ones, also where a release was lost.
            enrolled = [ledger.next_person for ledger in ledgers]
            states = _collected(config, states, folded_keys(seeds, COLLECTING, enrolled), number)
            states = _released(config, states, ledgers, stream, seeds, number)
            spread = np.asarray(states.rewards).std(axis=1)[:, None]
            yield Progress(done, steps, states, {"reward_spread": spread}, {}, learned=False)
            continue
        states, loss = _learned(
            config, states, folded_keys(seeds, LEARNING, [done] * len(seeds)), steps
        )
        yield Progress(done, steps, states, {"loss": np.asarray(loss)[:, None]}, {})


def _open(
    config: FunctionalQConfig, ledgers: Sequence[Ledger], states: RewardState, rounds_left: int
) -> Stream:
    example = jax.tree.map(
        lambda x: x[0, : config.round_samples], (states.logged.states, states.logged.actions)
    )
    release = functional_q.reward_release(config, rounds_left)
    return release.open(ledgers, states.sums, example, chunk=1)


def _collected(
    config: FunctionalQConfig, states: RewardState, keys: PRNGKeyArray, number: int
) -> RewardState:
    """Takes one round's steps, without rewards."""
    epsilon = 1.0 if number == 0 else config.exploration
    seen, lanes = collect_steps(config, action_values(states), states.lanes, keys, epsilon)
    first = number * config.round_samples
    logged = jax.tree.map(
        lambda log, new: jax.lax.dynamic_update_slice_in_dim(log, new, first, axis=1),
        states.logged,
        seen,
    )
    return states._replace(logged=logged, lanes=lanes)


@eqx.filter_jit
def collect_steps(
    config: FunctionalQConfig,
    values: QNetwork | GridValues,
    lanes: Lane,
    keys: PRNGKeyArray,
    epsilon: float,
) -> tuple[Logged, Lane]:
    """One round's steps of every run, epsilon-greedily on action values, without rewards."""
    dynamics = Dynamics(config.environment)

    def one(values: QNetwork | GridValues, lanes: Lane, key: PRNGKeyArray) -> tuple[Logged, Lane]:
        actor = EpsilonGreedy(values, epsilon)
        return functional_q.collect(dynamics, actor, lanes, key, config.lane_steps)

    collected: tuple[Logged, Lane] = eqx.filter_vmap(one)(values, lanes, keys)
    return collected


def _released(
    config: FunctionalQConfig,
    states: RewardState,
    ledgers: Sequence[Ledger],
    stream: Stream | None,
    seeds: Sequence[int],
    number: int,
) -> RewardState:
    """Releases the rewards of the round's steps."""
    logged = [jax.tree.map(lambda x, i=run: x[i], states.logged) for run in range(len(ledgers))]
    if stream is None:
        found = [
            functional_q_functions.release_rewards(config, log, ledger)
            for log, ledger in zip(logged, ledgers, strict=True)
        ]
        return states._replace(rewards=jnp.asarray(np.stack(found)))
    size = config.round_samples
    persons = np.stack([ledger.next_person + np.arange(size)[None] for ledger in ledgers])
    units = jax.tree.map(
        lambda x: x[:, None, number * size : (number + 1) * size],
        (states.logged.states, states.logged.actions),
    )
    sums, _, _ = stream.run(states.sums, keys_of(seeds, RELEASING), persons, units)
    found = [
        functional_q.fit_rewards(config, row, log, number + 1)
        for row, log in zip(np.asarray(sums), logged, strict=True)
    ]
    return states._replace(sums=sums, rewards=jnp.asarray(np.stack(found)))


@eqx.filter_jit
def _learned(
    config: FunctionalQConfig, states: RewardState, keys: PRNGKeyArray, steps: int
) -> tuple[RewardState, Float[Array, " runs"]]:
    """Learns from released rewards: post-processing."""

    def one(state: RewardState, key: PRNGKeyArray) -> tuple[Learner | GridValues, Array]:
        logged = state.logged
        transitions = Transitions(
            logged.observations,
            logged.actions,
            functional_q.released_rewards(config, state.rewards, logged),
            logged.next_observations,
            logged.terminated,
        )
        if isinstance(state.learner, Learner):
            return learn(
                config.learner_settings,
                state.learner,
                transitions,
                steps,
                key,
                config.chunk_gradient_steps,
            )
        return _averaged(config, state.learner, transitions, steps)

    learner, loss = eqx.filter_vmap(one)(states, keys)
    return states._replace(learner=learner), loss


def _averaged(
    config: FunctionalQConfig, values: GridValues, transitions: Transitions, steps: int
) -> tuple[GridValues, Float[Array, ""]]:
    """Fitted Q-iteration with weighted means at nodes; returns how far the last one moved."""
    grid, count = config.grid, config.actions
    index, weight = grid.weights(transitions.observations)
    there = jnp.arange(transitions.actions.size) < steps
    weight = jnp.where(there[:, None], weight, 0.0)
    pairs = index * count + transitions.actions[:, None]
    mass = jnp.zeros((grid.size * count,)).at[pairs].add(weight)
    onwards = config.discount * ~transitions.terminated

    def iterate(table: Array, _: None) -> tuple[Array, Array]:
        best = grid.interpolate(table, transitions.next_observations).max(axis=-1)
        goals = transitions.rewards + onwards * best
        total = jnp.zeros_like(mass).at[pairs].add(weight * goals[:, None])
        found = jnp.where(mass > 0, total / jnp.where(mass > 0, mass, 1.0), table.reshape(-1))
        found = found.reshape(table.shape)
        return found, jnp.max(jnp.abs(found - table))

    table, moved = jax.lax.scan(iterate, values.table, None, length=config.chunk_iterations)
    return GridValues(table, grid), moved[-1]
