"""Mode reward-release: each round collects steps, releases their rewards, and learns from them."""

from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.base import Progress
from sotto.algorithms.baselines.q_learning import (
    EpsilonGreedy,
    QLearner,
    QNetwork,
    Transitions,
    learn,
)
from sotto.algorithms.functional_q import functions
from sotto.algorithms.functional_q import release as functional_q
from sotto.algorithms.functional_q.accounts import Place, RunAccount, explaining
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.nodes import GridValues
from sotto.algorithms.functional_q.release import Dynamics, Logged
from sotto.algorithms.functional_q.states import (
    COLLECTING,
    LEARNING,
    RELEASING,
    RewardState,
    action_values,
    folded_keys,
)
from sotto.keys import keys_of
from sotto.privacy.release.released import ReleasedValues
from sotto.privacy.release.stream import Stream
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.rollout import EpisodeState
from sotto.trees import at


def train_on_released_rewards(
    config: FunctionalQConfig,
    seeds: Sequence[int],
    accounts: Sequence[RunAccount],
    states: RewardState,
    done: int,
) -> Iterator[Progress]:
    """Trains from `states` on. A round is one update that releases and several that learn."""
    per_round = 1 + config.chunks_per_round
    rewards = _RewardReleases(config, seeds, accounts)
    while done < config.num_updates:
        number, part = divmod(done, per_round)
        done += 1
        steps = (number + 1) * config.round_samples
        if part == 0:
            places = [account.place(number) for account in accounts]
            keys = folded_keys(seeds, COLLECTING, [place.charge for place in places])
            states = _collected(config, states, keys, number)
            states = rewards.released(states, places, number)
            spread = np.asarray(states.rewards).std(axis=1)[:, None]
            yield Progress(done, states, {"reward_spread": spread}, env_steps=steps, learned=False)
            continue
        states, loss = _learned(
            config, states, folded_keys(seeds, LEARNING, [done] * len(seeds)), steps
        )
        yield Progress(done, states, {"loss": np.asarray(loss)[:, None]}, env_steps=steps)


def _collected(
    config: FunctionalQConfig, states: RewardState, keys: PRNGKeyArray, number: int
) -> RewardState:
    """Collects one round's steps, without rewards."""
    epsilon = 1.0 if number == 0 else config.exploration
    seen, lanes = collect_steps(
        config.environment, config.lane_steps, action_values(states), states.lanes, keys, epsilon
    )
    first = number * config.round_samples
    logged = jax.tree.map(
        lambda log, new: jax.lax.dynamic_update_slice_in_dim(log, new, first, axis=1),
        states.logged,
        seen,
    )
    return states._replace(logged=logged, lanes=lanes)


@eqx.filter_jit
def collect_steps(
    env: AnyEnvironment,
    steps: int,
    values: QNetwork | GridValues,
    begin: EpisodeState,
    keys: PRNGKeyArray,
    epsilon: Float[Array, ""] | float,
) -> tuple[Logged, EpisodeState]:
    """Takes steps in every parallel environment of every run, without rewards.

    Args:
        env: the environment.
        steps: number of steps of each parallel environment.
        values: action values of each run.
        begin: states of the parallel environments of each run.
        keys: one for each run.
        epsilon: probability of a uniform action. Arrays share a compiled program, and each float
            has its own.
    """
    dynamics = Dynamics(env)

    def one(
        values: QNetwork | GridValues, begin: EpisodeState, key: PRNGKeyArray
    ) -> tuple[Logged, EpisodeState]:
        actor = EpsilonGreedy(values, epsilon)
        return functional_q.collect(dynamics, actor, begin, key, steps)

    collected: tuple[Logged, EpisodeState] = eqx.filter_vmap(one)(values, begin, keys)
    return collected


class _RewardReleases:
    """The releases of each round's rewards; it reads from disk what was released before."""

    def __init__(
        self, config: FunctionalQConfig, seeds: Sequence[int], accounts: Sequence[RunAccount]
    ) -> None:
        self._config, self._seeds, self._accounts = config, seeds, accounts
        self._stream: Stream | None = None
        self._runs: list[int] = []

    def released(self, states: RewardState, places: Sequence[Place], number: int) -> RewardState:
        """Returns the state with the rewards of all rounds up to this one."""
        config, runs = self._config, range(len(places))
        logged = [at(states.logged, run) for run in runs]
        if config.unit == "reward-function":
            found = [
                functions.release_rewards(config, log, account)
                for log, account in zip(logged, self._accounts, strict=True)
            ]
            return states._replace(rewards=jnp.asarray(np.stack(found)))
        sums = np.array(states.sums)
        for run, place in enumerate(places):
            if place.file is not None:
                sums[run] = ReleasedValues.open(place.file).values
        new = [run for run in runs if places[run].file is None]
        if new:
            sums[new] = self._new_sums(states, new, number)
        found = [
            functional_q.fit_rewards(config, row, log, number + 1)
            for row, log in zip(sums, logged, strict=True)
        ]
        return states._replace(sums=jnp.asarray(sums), rewards=jnp.asarray(np.stack(found)))

    def _new_sums(
        self, states: RewardState, runs: list[int], number: int
    ) -> Float[np.ndarray, "runs features"]:
        """Releases the round's sums of these runs, which are on disk on return."""
        config, size = self._config, self._config.round_samples
        accounts = [self._accounts[run] for run in runs]
        chosen = at((states.sums, states.logged.states, states.logged.actions), np.array(runs))
        before, *logged = chosen
        units = jax.tree.map(lambda x: x[:, None, number * size : (number + 1) * size], logged)
        keys = keys_of([self._seeds[run] for run in runs], RELEASING)
        with explaining(accounts):
            if self._stream is None or self._runs != runs:
                release = functional_q.reward_release(config, config.rounds - number)
                example = at(tuple(units), (0, 0))
                ledgers = [account.ledger for account in accounts]
                self._stream = release.open(ledgers, before, example, chunk=1)
                self._runs = runs
            persons = np.stack([one.ledger.next_person + np.arange(size)[None] for one in accounts])
            sums, _, _ = self._stream.run(before, keys, persons, tuple(units))
        for account, row in zip(accounts, np.asarray(sums), strict=True):
            account.keep(row)
        return np.asarray(sums)


@eqx.filter_jit
def _learned(
    config: FunctionalQConfig, states: RewardState, keys: PRNGKeyArray, steps: int
) -> tuple[RewardState, Float[Array, " runs"]]:
    """Learns from released rewards, which is post-processing."""

    def one(state: RewardState, key: PRNGKeyArray) -> tuple[QLearner | GridValues, Array]:
        logged = state.logged
        transitions = Transitions(
            logged.observations,
            logged.actions,
            functional_q.released_rewards(config, state.rewards, logged),
            logged.next_observations,
            logged.terminated,
        )
        if isinstance(state.learner, QLearner):
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
    """Runs fitted Q-iteration with weighted means at nodes; also returns the last change."""
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
