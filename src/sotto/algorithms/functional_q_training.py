"""Trains Q-learning that protects rewards, several seeds side by side.

Each seed is a run of its own: its steps, its ledger, its noise, its certificate. Iterating over
`train` yields what may be logged after each chunk; the first chunk of a round is its release, so
that what was released is stored before anything is made of it. A resumed training goes on with it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms import functional_q, functional_q_functions, functional_q_paper
from sotto.algorithms.functional_q import Dynamics, Logged
from sotto.algorithms.functional_q_config import FunctionalQConfig
from sotto.algorithms.functional_q_paper import Algorithm1, PaperState
from sotto.algorithms.q_learning import (
    EpsilonGreedy,
    Learner,
    QNetwork,
    Transitions,
    learn,
    start_learner,
)
from sotto.algorithms.reward_nodes import GridValues
from sotto.privacy.ledger import Ledger
from sotto.privacy.spending import Budget
from sotto.privacy.streams import Stream
from sotto.rl.rollout import Lane

_PAPER_CHUNKS = 25
_INITIAL, _RELEASING, _STARTING, _COLLECTING, _LEARNING = range(5)  # what keys are for


class RewardState(NamedTuple):
    """Mode reward-release: all that is known, and nothing of it is secret."""

    logged: Logged
    """Steps of all rounds so far; the rest is zero."""
    lanes: Lane
    sums: Float[Array, " features"]
    """Noisy sums of rewards about the middle; zero where the unit is the reward function."""
    rewards: Float[Array, " features"]
    """Released rewards at nodes."""
    learner: Learner | GridValues


class OutputState(NamedTuple):
    """Modes output-release and per-iteration: the released action values."""

    values: GridValues


State = RewardState | OutputState | PaperState


@dataclass(frozen=True)
class Progress:
    """What one chunk leaves behind.

    Attributes:
        updates: made so far.
        env_steps: taken so far.
        states: public, leaves of shape [runs, ...].
        released: one value for each update of the chunk, [runs, updates] each.
        simulated: of a simulator's rewards, for the experimenter, [runs, updates] each.
        learned: whether the action values have changed.
    """

    updates: int
    env_steps: int
    states: State
    released: dict[str, np.ndarray]
    simulated: dict[str, np.ndarray]
    learned: bool = True


def check(config: FunctionalQConfig) -> None:
    """Refuses settings that do not fit the environment, before anything is made.

    Raises:
        ValueError: what is wrong, and what to do.
    """
    grid = config.grid
    if config.noise == "process" and len(grid.nodes) != 1:
        raise ValueError(
            f"sample paths are calibrated in one dimension, and {config.env_id} has "
            f"{len(grid.nodes)}; choose --noise vector, and another --mode than paper"
        )
    if config.unit == "transition" and config.delta * config.samples >= 1:
        raise ValueError(
            f"delta {config.delta:g} is vacuous for {config.samples} transitions, since publishing "
            f"one of them at random would meet it; give --delta below {1 / config.samples:g}"
        )
    if config.mode == "reward-release" and config.unit == "transition":
        functional_q.reward_multiplier(config)
    elif config.mode != "paper" and config.target_epsilon is not None:
        functional_q.calibrated(config, config.features * config.iterations)


def create_ledger(
    config: FunctionalQConfig, where: Path | str, run_id: str | None = None
) -> Ledger:
    """A new ledger with the budget and the unit of these settings."""
    budget = Budget(epsilon=config.budget_epsilon, delta=config.delta)
    return Ledger.create(where, run_id, unit=config.privacy_unit, budget=budget)


def initial_states(config: FunctionalQConfig, seeds: Sequence[int]) -> State:
    """The states before training, leaves of shape [runs, ...]."""
    states: State = eqx.filter_vmap(partial(_initial_state, config))(_keys(seeds, _INITIAL))
    return states


def _initial_state(config: FunctionalQConfig, key: PRNGKeyArray) -> State:
    if config.mode == "paper":
        return functional_q_paper.init(config, key)
    low = config.rewards[0] / (1 - config.discount)
    table = GridValues(jnp.full((config.grid.size, config.actions), low, jnp.float32), config.grid)
    if config.mode != "reward-release":
        return OutputState(table)
    network_key, lane_key = jax.random.split(key)
    # The largest reward at every step is the largest value: targets are then of order one.
    largest = max(abs(bound) for bound in config.rewards) / (1 - config.discount)
    network = QNetwork(config.environment, config.hidden, network_key, largest)
    nothing = jnp.zeros((config.features,), jnp.float32)
    return RewardState(
        logged=functional_q.empty_log(config),
        lanes=functional_q.start_lanes(config, lane_key),
        sums=nothing,
        rewards=nothing + config.middle,
        learner=(
            start_learner(config.learner_settings, network) if config.learner == "dqn" else table
        ),
    )


def action_values(states: State) -> QNetwork | GridValues:
    """What may be asked for ever: released, or made of what was released (except in paper)."""
    if isinstance(states, RewardState):
        learner = states.learner
        return learner.values if isinstance(learner, Learner) else learner
    return states.values


def train(
    config: FunctionalQConfig,
    seeds: Sequence[int],
    ledgers: Sequence[Ledger],
    states: State | None = None,
    done: int = 0,
) -> Iterator[Progress]:
    """Trains from `states` on, `done` updates into the training, to the end.

    Args:
        config: settings.
        seeds: one per run.
        ledgers: one per run, from `create_ledger`, or re-opened to resume.
        states: where to go on from; None starts afresh. Releases in it are not made again.
        done: updates behind `states`.

    Raises:
        PrivacyError: the budget does not cover the training. After a kill between the charge of a
            release and its checkpoint the release is lost and stays charged; transitions are then
            collected and released afresh, and a reward function has no budget left.
        ValueError: settings that do not fit the environment.
    """
    states = initial_states(config, seeds) if states is None else states
    match states:
        case RewardState():
            yield from _train_on_released_rewards(config, seeds, ledgers, states, done)
        case OutputState():
            yield _release_output(config, seeds, ledgers)
        case PaperState():
            yield from _train_as_printed(config, seeds, ledgers, states, done)


# --- mode reward-release -------------------------------------------------------------------------


def _train_on_released_rewards(
    config: FunctionalQConfig,
    seeds: Sequence[int],
    ledgers: Sequence[Ledger],
    states: RewardState,
    done: int,
) -> Iterator[Progress]:
    """Rounds of: collect, release, learn in parts."""
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
            states = _collected(config, states, _folded(seeds, _COLLECTING, enrolled), number)
            states = _released(config, states, ledgers, stream, seeds, number)
            spread = np.asarray(states.rewards).std(axis=1)[:, None]
            yield Progress(done, steps, states, {"reward_spread": spread}, {}, learned=False)
            continue
        states, loss = _learned(
            config, states, _folded(seeds, _LEARNING, [done] * len(seeds)), steps
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
    seen, lanes = _collect(config, action_values(states), states.lanes, keys, epsilon)
    first = number * config.round_samples
    logged = jax.tree.map(
        lambda log, new: jax.lax.dynamic_update_slice_in_dim(log, new, first, axis=1),
        states.logged,
        seen,
    )
    return states._replace(logged=logged, lanes=lanes)


@eqx.filter_jit
def _collect(
    config: FunctionalQConfig,
    values: QNetwork | GridValues,
    lanes: Lane,
    keys: PRNGKeyArray,
    epsilon: float,
) -> tuple[Logged, Lane]:
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
    sums, _, _ = stream.run(states.sums, _keys(seeds, _RELEASING), persons, units)
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


# --- the other modes -----------------------------------------------------------------------------


def _release_output(
    config: FunctionalQConfig, seeds: Sequence[int], ledgers: Sequence[Ledger]
) -> Progress:
    """Collects uniformly, learns in secret, and releases action values."""
    functions = {
        "output-release": functional_q_functions.release_output,
        "per-iteration": functional_q_functions.release_iterations,
    }
    enrolled = [ledger.next_person for ledger in ledgers]
    lanes = jax.vmap(partial(functional_q.start_lanes, config))(_keys(seeds, _STARTING))
    nothing = initial_states(config, seeds)
    logged, _ = _collect(
        config, action_values(nothing), lanes, _folded(seeds, _COLLECTING, enrolled), 1.0
    )
    tables = [
        functions[config.mode](config, jax.tree.map(lambda x, i=run: x[i], logged), ledger)
        for run, ledger in enumerate(ledgers)
    ]
    states = OutputState(GridValues(jnp.asarray(np.stack(tables), jnp.float32), config.grid))
    return Progress(1, config.samples, states, {}, {})


def _train_as_printed(
    config: FunctionalQConfig,
    seeds: Sequence[int],
    ledgers: Sequence[Ledger],
    states: PaperState,
    done: int,
) -> Iterator[Progress]:
    keys = _keys(seeds, _RELEASING)
    runs = [
        Algorithm1(config, jax.tree.map(lambda x, i=run: x[i], states), ledger, keys[run])
        for run, ledger in enumerate(ledgers)
    ]
    chunk = math.ceil(config.num_updates / _PAPER_CHUNKS)
    while done < config.num_updates:
        count = min(chunk, config.num_updates - done)
        done += count
        seen = np.array([[one.advance() for _ in range(count)] for one in runs])
        states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[one.state for one in runs])
        simulated = {"reward": seen[..., 0], "noise": seen[..., 1]}
        yield Progress(done, done * config.batch, states, {}, simulated)


# --- keys ----------------------------------------------------------------------------------------


def _keys(seeds: Sequence[int], purpose: int) -> PRNGKeyArray:
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    return jax.vmap(lambda key: jax.random.fold_in(key, purpose))(keys)


def _folded(seeds: Sequence[int], purpose: int, numbers: Sequence[int]) -> PRNGKeyArray:
    """Fresh keys for the steps or the learning of one part."""
    return jax.vmap(jax.random.fold_in)(_keys(seeds, purpose), jnp.asarray(numbers, jnp.uint32))
