"""Training of the methods in the figures of Wang and Hegde 2019, with all seeds at once.

Each method yields the environment steps so far and the action values of every seed while it learns.
A curve belongs to one training: all action values of a method may be published under the epsilon of
its ledgers, except those of the paper's algorithm and of DQN. Steps are taken without rewards
(`functional_q.collect`); the release evaluates the rewards.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sotto.algorithms.baselines import dqn
from sotto.algorithms.baselines.q_learning import (
    LearnerSettings,
    QLearner,
    Transitions,
    learn,
)
from sotto.algorithms.functional_q import release as functional_q
from sotto.algorithms.functional_q import training
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.nodes import Grid, GridValues, mesh
from sotto.algorithms.functional_q.release import Logged
from sotto.algorithms.functional_q.rounds import collect_steps
from sotto.algorithms.functional_q.states import RewardState, action_values, initial_states
from sotto.experiments.wang2019 import dp_sgd as dp_sgd_dqn
from sotto.experiments.wang2019 import policy_evaluation, reward_perturbation
from sotto.experiments.wang2019.dp_sgd import DPSGDConfig
from sotto.keys import keys_of
from sotto.privacy.ledger.ledger import Ledger

Curve = Iterator[tuple[int, Any]]
"""Pairs of environment steps so far, and action values with a leading axis of runs."""


def functional(config: FunctionalQConfig, seeds: Sequence[int], ledgers: Sequence[Ledger]) -> Curve:
    """Trains any mode of functional Q-learning.

    Only several rounds of reward-release give a curve. In each round, learning begins when all
    steps of the round are taken, so only its end is a point.
    """
    for progress in training.train(config, seeds, ledgers):
        at_end = progress.updates % (1 + config.chunks_per_round) == 0
        if not isinstance(progress.states, RewardState) or (progress.learned and at_end):
            assert progress.env_steps is not None
            yield progress.env_steps, action_values(progress.states)


def input_perturbation(
    config: FunctionalQConfig, seeds: Sequence[int], ledgers: Sequence[Ledger]
) -> Curve:
    """Adds independent noise to every logged reward, and trains the same network on all of them.

    For the unit reward-function, all rewards are released together after the last step.
    """
    runs = len(seeds)
    states = initial_states(config, seeds)
    assert isinstance(states, RewardState)
    logged, lanes, learner = states.logged, states.lanes, states.learner
    rewards = jnp.zeros((runs, config.samples), jnp.float32)
    stream = None
    for number in range(config.rounds):
        epsilon = jnp.float32(1.0 if number == 0 else config.exploration)
        values = learner.values if isinstance(learner, QLearner) else learner
        seen, lanes = collect_steps(
            config.environment, config.lane_steps, values, lanes, _keys(seeds, 1, number), epsilon
        )
        first = number * config.round_samples
        logged = jax.tree.map(partial(_put, first), logged, seen)
        if config.unit == "reward-function":
            noisy = _whole_function(config, seen, ledgers)
        else:
            if stream is None:
                release = reward_perturbation.input_perturbation(config, config.rounds)
                stream = reward_perturbation.open_sums(
                    release, list(ledgers), seen, config.round_samples
                )
            noisy = reward_perturbation.release_inputs(config, stream, seen, first)
        rewards = _put(first, rewards, jnp.asarray(noisy, jnp.float32))
        assert isinstance(learner, QLearner)
        learner = _learn(
            config.learner_settings,
            config.chunk_gradient_steps * config.chunks_per_round,
            learner,
            logged,
            rewards,
            jnp.int32(first + config.round_samples),
            _keys(seeds, 2, number),
        )
        yield first + config.round_samples, learner.values


def policy_iteration(
    config: FunctionalQConfig,
    seeds: Sequence[int],
    ledgers: Sequence[Ledger],
    *,
    features: int = 5,
    ridge: float | None = None,
) -> Curve:
    """Alternates private policy evaluation and improvement, in rounds of whole episodes.

    Each round acts with the released values, evaluates that policy privately and releases values.

    Args:
        config: settings; the nodes are the cells of first visits, in one dimension.
        seeds: one for each run.
        ledgers: one for each run.
        features: number of nodes of the functions that fit the values.
        ridge: lambda of DP-LSL; None: DP-LSW.
    """
    grid, actions = config.grid, config.actions
    coarse = Grid(grid.low, grid.high, (features,) * len(grid.nodes))
    basis = np.kron(coarse.matrix(mesh(grid)).toarray(), np.eye(actions))
    size = basis.shape[1]
    middle = config.middle / (1 - config.discount)
    table = jnp.full((len(seeds), coarse.size, actions), middle, jnp.float32)
    stream = None
    for number in range(config.rounds):
        keys = _keys(seeds, 1, number)
        lanes = jax.vmap(partial(functional_q.start_lanes, config))(_keys(seeds, 3, number))
        epsilon = jnp.float32(1.0 if number == 0 else config.exploration)
        seen, _ = collect_steps(
            config.environment, config.lane_steps, GridValues(table, coarse), lanes, keys, epsilon
        )
        weights, factors = [], []
        for run in range(len(seeds)):
            one = jax.tree.map(lambda x, i=run: np.asarray(x[i]), seen)
            cells = policy_evaluation.nearest_cells(grid, one.observations, one.actions, actions)
            visits = policy_evaluation.first_visits(
                cells, _episode_ends(config, one.terminated), config.discount, len(basis)
            )
            matrix = (
                policy_evaluation.lsw(basis, visits.counts.astype(float), visits)
                if ridge is None
                else policy_evaluation.lsl(basis, np.ones(len(basis)), ridge, visits)
            )
            columns, factor = policy_evaluation.unit_columns(matrix)
            weights.append(columns)
            factors.append(factor)
        if stream is None:
            name = "policy evaluations"
            release = reward_perturbation.weighted_sums(config, name, size, config.rounds)
            stream = reward_perturbation.open_sums(release, list(ledgers), seen, size)
        first = number * config.round_samples
        sums = reward_perturbation.release_sums(
            stream, seen, jnp.asarray(np.stack(weights), jnp.float32), first
        )
        found = middle + sums * np.asarray(factors)[:, None]
        low, high = (bound / (1 - config.discount) for bound in config.rewards)
        table = jnp.asarray(np.clip(found, low, high).reshape(table.shape), jnp.float32)
        yield first + config.round_samples, GridValues(table, coarse)


def dp_sgd(config: DPSGDConfig, seeds: Sequence[int], ledgers: Sequence[Ledger]) -> Curve:
    """Logs all steps first and then trains with DP-SGD; the curve has about ten points.

    A point of the curve after some share of the gradient steps stands at the same share of the
    environment steps.

    Args:
        config: settings.
        seeds: one for each run.
        ledgers: one for each run, with the unit `dp_sgd_dqn.UNIT`.
    """
    task = config.task
    lanes = jax.vmap(partial(functional_q.start_lanes, task))(_keys(seeds, 3, 0))
    flat = Grid((0.0,), (1.0,), (1,)) if task.environment.observation_size == 1 else task.grid
    nothing = GridValues(jnp.zeros((len(seeds), flat.size, task.actions), jnp.float32), flat)
    logged, _ = collect_steps(
        task.environment, task.lane_steps, nothing, lanes, _keys(seeds, 1, 0), jnp.float32(1.0)
    )
    states = jax.vmap(partial(dp_sgd_dqn.initial_state, config))(_keys(seeds, 4, 0))
    chunk = -(-config.steps // 10)
    stream = dp_sgd_dqn.open_gradients(config, list(ledgers), states, logged, chunk)
    units = dp_sgd_dqn.unit_data(logged)
    keys = _keys(seeds, 5, 0)
    while stream.released < config.steps:
        states, _, _ = stream.run(states, keys, units=units)
        share = stream.released / config.steps
        yield round(share * task.samples), states.values


def non_private(config: dqn.DQNConfig, seeds: Sequence[int]) -> Curve:
    """Trains DQN without privacy; the curve has about ten points."""
    states = jax.vmap(partial(dqn.init, config))(_keys(seeds, 3, 0))
    keys = _keys(seeds, 6, 0)
    chunk, made = max(1, config.num_updates // 10), 0
    while made < config.num_updates:
        count = min(chunk, config.num_updates - made)
        states, _ = jax.vmap(lambda s, k, n=count: dqn.train_chunk(config, s, k, n))(states, keys)
        made += count
        yield made * config.steps_per_update, states.learner.values


# --- parts ---------------------------------------------------------------------------------------


@eqx.filter_jit
def _learn(
    settings: LearnerSettings,
    steps: int,
    learner: QLearner,
    logged: Logged,
    rewards: Float[Array, "runs steps"],
    filled: Int[Array, ""],
    keys: PRNGKeyArray,
) -> QLearner:
    def one(learner: QLearner, logged: Logged, rewards: Array, key: PRNGKeyArray) -> QLearner:
        transitions = Transitions(
            logged.observations,
            logged.actions,
            rewards,
            logged.next_observations,
            logged.terminated,
        )
        return learn(settings, learner, transitions, filled, key, steps)[0]

    learned: QLearner = eqx.filter_vmap(one)(learner, logged, rewards, keys)
    return learned


def _whole_function(
    config: FunctionalQConfig, logged: Logged, ledgers: Sequence[Ledger]
) -> Float[np.ndarray, "runs samples"]:
    env, release = config.environment, reward_perturbation.whole_function(config)
    step = jax.jit(jax.vmap(jax.vmap(lambda s, a: env.step(s, a, env.default_params)[1])))
    secret = np.clip(np.asarray(step(logged.states, logged.actions), np.float64), *config.rewards)
    noisy = [
        release.open(ledger).release(row[:, None]).values[:, 0]
        for row, ledger in zip(secret, ledgers, strict=True)
    ]
    return np.stack(noisy)


def _episode_ends(
    config: FunctionalQConfig, terminated: Bool[np.ndarray, " steps"]
) -> Bool[np.ndarray, " steps"]:
    """Marks the steps at which episodes of fresh environments end, or the round cuts them off."""
    limit = config.environment.max_episode_steps
    ends = np.zeros(terminated.shape, bool)
    elapsed = 0
    for step, over in enumerate(terminated):
        elapsed += 1
        if over or elapsed == limit or (step + 1) % config.lane_steps == 0:
            ends[step], elapsed = True, 0
    return ends


def _put(first: int, log: Array, new: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(log, new, first, axis=1)


def _keys(seeds: Sequence[int], purpose: int, number: int) -> PRNGKeyArray:
    fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
    return fold(keys_of(seeds, 100 + purpose), number)
