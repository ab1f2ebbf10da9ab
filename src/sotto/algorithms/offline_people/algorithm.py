"""Algorithm `offline` of `sotto train`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sotto.algorithms.base import Progress, Words
from sotto.algorithms.log_facts import LogAlgorithm
from sotto.algorithms.log_release import through_the_door
from sotto.algorithms.offline_people import learning, moments, rounds, steps
from sotto.algorithms.offline_people.config import NO_ENVIRONMENT, OfflinePeopleConfig, filled
from sotto.algorithms.offline_people.model import Model, fit, scales_of
from sotto.algorithms.offline_people.moments import Logged, Scales
from sotto.algorithms.offline_people.rounds import Known
from sotto.algorithms.offline_people.steps import StepsState
from sotto.algorithms.settings import known
from sotto.data.imports.records import Records
from sotto.keys import keys_of
from sotto.privacy.errors import LedgerOlder, NothingReleased
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.release import Release
from sotto.rl.envs.gymnasium.described import described, evaluation_notes
from sotto.rl.envs.registry import is_native, make
from sotto.rl.networks import Policy
from sotto.trees import at, single


class PeopleState(NamedTuple):
    """Public state: zeros at first, later functions of releases."""

    known: Known
    """Public state with which the latest round was made."""
    released: Float[Array, " n"]
    """Mean contribution of the people of that round."""
    policy: Policy


_CHUNKS = 20
"""Parts of a training in steps, after each of which it can be interrupted."""


class Offline(LogAlgorithm[OfflinePeopleConfig]):
    """Offline reinforcement learning from the logs of people, each of whom is protected with
    everything that they logged.

    Each person contributes means of products of observations, actions, rewards and changes, less
    what the answers of earlier people explain. The noisy sums give models of how people change,
    and a policy is learned in the models. This costs nothing more. --method advantage imitates
    people's better actions instead, --method cloning all of them, and --method cql learns values of
    actions, in noisy gradient steps about people who are drawn in secret. All methods cost the
    same. Only these three can learn from many observations.

    `sotto import` makes the dataset. Nothing is learned from --env-id, in which released policies
    are only evaluated.

    Examples:
        sotto train offline --on runs/visits --target-epsilon 1 --out runs/doses
        sotto train offline --on runs/visits --method cloning --out runs/clone
        sotto train offline --on runs/poles --population simulated --env-id CartPole-v1 \\
          --target-epsilon 1 --delta 1e-5 --out runs/balance
    """

    name, summary = "offline", "offline learning from people's logs, each person protected"
    config_type = OfflinePeopleConfig
    unit = moments.UNIT
    words = Words(steps="logged rows")

    def resolved(self, config: OfflinePeopleConfig) -> OfflinePeopleConfig:
        """Returns the settings with the public facts of the dataset."""
        config = filled(config, self._records(config))
        if config.method == "model":
            moments.products(config)
        else:
            steps.noise_multiplier(
                config
            )  # an impossible target is refused before any file is made
        _require_fitting(config)
        return config

    def notes(self, config: OfflinePeopleConfig) -> tuple[str, ...]:
        """Returns what to know of an own environment in which policies are played."""
        return () if config.env_id == NO_ENVIRONMENT else evaluation_notes(config.env_id)

    def most_steps(self, config: OfflinePeopleConfig) -> int:
        """Returns the largest number of rows in the log, all of them in some release."""
        return config.steps_per_update

    def initial_states(self, config: OfflinePeopleConfig, seeds: Sequence[int]) -> PyTree:
        """Returns the state before the first release, leaves of shape [1, ...]."""
        if config.method != "model":
            first = steps.initial_state(config, keys_of(seeds, 0)[0])
            return single(first)
        size = len(known(config.low))
        scales = Scales(jnp.zeros(size), jnp.zeros((size, size)), jnp.zeros(size), jnp.zeros(()))
        state = PeopleState(
            rounds.blank(config, scales),
            jnp.zeros(rounds.size(config)),
            learning.blank_policy(config, keys_of(seeds, 0)[0]),
        )
        return single(state)

    def train(
        self,
        config: OfflinePeopleConfig,
        seeds: Sequence[int],
        ledgers: Sequence[Ledger],
        states: PyTree,
        done: int,
        folders: Sequence[Path],
    ) -> Iterator[Progress]:
        """Makes the releases that are left, and then learns from them.

        Raises:
            PrivacyError: the budget does not cover the releases, or one was charged and lost.
        """
        del folders
        (ledger,) = ledgers
        if config.method != "model":
            yield from self._stepped(config, ledger, states, keys_of(seeds, 1))
            return
        state: PeopleState = at(states, 0)
        if sum(stream.releases for stream in ledger.streams) > done:
            raise NothingReleased(
                "a release of this run was charged and then lost, so its people cannot be asked "
                "again; start a new run, whose epsilon adds to that of this one"
            )
        places = moments.groups(config)
        if done < 1:
            release = moments.scales_release(config)
            found = self._released(config, release, ledger, jnp.zeros(1), places[0])
            scales = scales_of(found, moments.sigma(release))
            state = state._replace(known=rounds.blank(config, scales))
            yield self._progress(config, state, 1)
        share, sigma = float(state.known.scales.share), 0.0
        for number in range(rounds.ROUNDS):
            release = rounds.round_release(config, number)
            if done < 2 + number:
                if number:
                    after = rounds.updated(config, state.known, np.asarray(state.released), sigma)
                    state = state._replace(known=after)
                people = places[1 + number]
                found = self._released(config, release, ledger, state.known, people)
                state = state._replace(released=jnp.asarray(found / share, jnp.float32))
                yield self._progress(config, state, 2 + number)
            sigma = moments.sigma(release) / share
        released = np.asarray(state.released, np.float64)
        policy = learning.learn(config, state.known, released, sigma, keys_of(seeds, 1)[0])
        yield self._progress(config, state._replace(policy=policy), config.num_updates)

    def _stepped(
        self, config: OfflinePeopleConfig, ledger: Ledger, states: StepsState, keys: PRNGKeyArray
    ) -> Iterator[Progress]:
        """Makes the noisy steps that are left. Steps that were charged and lost stay lost."""
        records = self._records(config)
        pool = steps.PeoplePool(rows_of(records, slice(None)))
        chunk = -(-config.steps // _CHUNKS)
        release = steps.steps_release(config, steps.noise_multiplier(config))
        resume = bool(ledger.streams)
        stream = release.open([ledger], states, pool, chunk=chunk, resume=resume)
        made = int(states.made[0])
        if stream.released < made:
            raise LedgerOlder("the ledger", "the stored state", made, stream.released)
        states = states._replace(made=jnp.full(1, stream.released, jnp.int32))
        while stream.released < config.steps:
            states = StepsState(*stream.run(states, keys)[0])
            yield self._measured(config, states, stream.released)

    def policies(self, states: Any) -> dict[str, Policy]:
        """Returns the learned policy."""
        return {"last": states.policy}

    def models(self, config: OfflinePeopleConfig, state: Any) -> Model:
        """Returns the models of a run with --method model, in which its policy was learned.

        Raises:
            ValueError: the run has none, or is not finished.
        """
        if config.method != "model":
            raise ValueError(f"a training with --method {config.method} has no model")
        if not np.asarray(state.released).any():
            raise ValueError("the training has not made its releases; finish it with --resume")
        last = rounds.round_release(config, rounds.ROUNDS - 1)
        sigma = moments.sigma(last) / float(state.known.scales.share)
        released = np.asarray(state.released, np.float64)
        key = jax.random.split(keys_of([config.seed], 1)[0])[0]
        return fit(config, state.known, released, sigma, key)

    def evaluate(
        self,
        config: OfflinePeopleConfig,
        policy: Any,
        key: PRNGKeyArray,
        episodes: int,
        greedy: bool,
    ) -> Float[np.ndarray, "runs episodes"]:
        """Returns the returns of a policy in the public simulator."""
        if config.env_id == NO_ENVIRONMENT:
            raise ValueError(
                "this run has no simulator to be evaluated in; train it with --env-id if there is "
                "one"
            )
        return super().evaluate(config, policy, key, episodes, greedy)

    def _released(
        self,
        config: OfflinePeopleConfig,
        release: Release,
        ledger: Ledger,
        public: Any,
        people: slice,
    ) -> Float[np.ndarray, "..."]:
        """Returns the release about the people in these places."""
        units = rows_of(self._records(config), people)
        found: Float[np.ndarray, ...] = through_the_door(
            release, ledger, public, units, people.start
        )
        return found

    def _progress(self, config: OfflinePeopleConfig, state: PeopleState, done: int) -> Progress:
        return self._measured(config, single(state), done)

    def _measured(self, config: OfflinePeopleConfig, states: Any, done: int) -> Progress:
        learned = done == config.num_updates
        evaluation = {}
        if learned and config.env_id != NO_ENVIRONMENT:
            evaluation = {"last": self.mean_return(config, states, done, 64)}
        rows = config.steps_per_update
        return Progress(done, states, evaluation=evaluation, env_steps=rows, learned=learned)


def rows_of(records: Records, people: slice) -> Logged:
    """Returns the rows of these places, leaves of shape [people, T, ...]."""
    leaves = (
        records.observations,
        records.actions,
        records.rewards,
        records.present,
        records.ends,
        records.cut,
    )
    return Logged(*(jnp.asarray(leaf[people]) for leaf in leaves))


def _require_fitting(config: OfflinePeopleConfig) -> None:
    """Refuses a simulator whose observations or actions are others than those of the log."""
    if config.env_id == NO_ENVIRONMENT:
        return
    env = make(config.env_id) if is_native(config.env_id) else described(config.env_id)
    size, sort = len(known(config.low)), type(config.action)
    if env.observation_size != size or type(env.action) is not sort:
        raise ValueError(
            f"{config.env_id} has {env.observation_size} observations and {env.action}, and the "
            f"log has {size} and {config.action}; choose the simulator of these people"
        )
