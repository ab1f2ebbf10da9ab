"""Noisy votes as the data of an offline learner: asked, kept on disk, and asked only once.

A poll is a function of public randomness and of the noisy votes. So votes are written to a file,
synced, before anything is made of them, and a training that was killed plays the same poll again:
rounds that were written answer from the file at no cost, the others are asked.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.distillation import DistillationConfig
from sotto.algorithms.expert_offline.states import evaluate, stacked
from sotto.algorithms.expert_offline.voting import Asked, Votes
from sotto.algorithms.expert_offline.voting_rounds import (
    DaggerConfig,
    ask_along_students,
    ask_in_box,
    fit_student,
    vote_rollouts,
)
from sotto.algorithms.settings import known
from sotto.data.trajectories import Transitions
from sotto.privacy.errors import LedgerOlder, PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.mechanisms import noise
from sotto.privacy.mechanisms.functions.calibration import multiplier_for
from sotto.privacy.release.storage import Store
from sotto.rl.envs.registry import is_native, make
from sotto.rl.networks import Policy
from sotto.rl.world import GymnasiumWorld, JaxWorld, World


def vote_multiplier(config: ExpertOfflineConfig) -> float:
    """The noise multiplier of the whole poll."""
    epsilon, delta = known(config.target_epsilon), known(config.delta)
    draws = known(config.rounds) * known(config.queries) * known(config.actions)
    return noise.calibrate_with_sampler(
        partial(multiplier_for, epsilon), lambda z: noise.sampler_delta(z, draws), delta
    )


class KeptVotes(Votes):
    """A poll whose answers are on disk before anybody sees them.

    Args:
        voters: policies with a leading axis of voters.
        weights: of their ballots, see `voting.Voter`.
        ledger: of the run. If it has a poll already, that one goes on.
        config: filled settings.
        file: where answers are kept; None keeps them in memory.

    Attributes:
        lost: rounds that were charged and not written. Nobody has seen them, and they are over.

    Raises:
        PrivacyError: the budget does not cover the poll, or the file is another poll's.
    """

    def __init__(
        self,
        voters: Policy,
        weights: Float[np.ndarray, " voters"],
        ledger: Ledger,
        config: ExpertOfflineConfig,
        file: Path | None = None,
    ) -> None:
        super().__init__(
            voters,
            ledger,
            weights=weights,
            queries=known(config.queries),
            rounds=known(config.rounds),
            noise_multiplier=vote_multiplier(config),
            population=config.population,
            kind=known(config.voters),
            resume=bool(ledger.streams),
        )
        self._store = _store(file, {"kind": "votes", "run": ledger.run_id})
        self._kept = [] if self._store is None else list(self._store.read())
        self._answered = 0
        asked = known(config.rounds) - super().rounds_left
        if len(self._kept) > asked:
            raise LedgerOlder(
                f"the ledger of run {ledger.run_id}", f"{file}", len(self._kept), asked
            )
        self.lost = asked - len(self._kept)

    @property
    def rounds_left(self) -> int:
        """Rounds that have an answer on disk, or may still be asked."""
        return super().rounds_left + len(self._kept) - self._answered

    def ask(self, observations: Float[np.ndarray, "q obs"]) -> Float[np.ndarray, "q actions"]:
        """As `Votes.ask`; a round that is on disk is answered from there.

        Raises:
            PrivacyError: the poll on disk was about other states.
        """
        if self._answered == len(self._kept):
            counts = super().ask(observations)
            asked = np.asarray(observations, np.float64).ravel()
            if self._store is not None:
                self._store.append(asked, counts)
            self._kept.append((asked, counts.ravel()))
        asked, flat = self._kept[self._answered]
        if not np.array_equal(asked, np.asarray(observations, np.float64).ravel()):
            raise PrivacyError(
                "this machine plays another poll than the one that was interrupted, so that its "
                "votes do not fit; go on where it was started, or start a new run"
            )
        self._answered += 1
        return flat.reshape(self.queries, self.actions)


class Polled(NamedTuple):
    """What a poll leaves: everything is public."""

    asked: Asked
    transitions: Transitions | None
    """Of vote rollouts; None where states were met or drawn."""
    student: Policy
    """Distilled from all votes, or, of students, the one that was chosen."""


def poll(config: ExpertOfflineConfig, votes: Votes, key: PRNGKeyArray, seed: int) -> Polled:
    """Asks what is left of a poll at the states that the settings say.

    Args:
        config: filled settings.
        votes: the poll.
        key: public randomness of states and students.
        seed: of the world, where it is Gymnasium's.
    """
    scale = known(config.observation_scale)
    distillation = DistillationConfig(hidden=config.student_hidden)
    ask_key, world_key, fit_key, choice_key = jax.random.split(key, 4)
    if config.states == "box":
        low, high = (
            np.asarray(known(end), np.float32) for end in (config.box_low, config.box_high)
        )
        asked = ask_in_box(votes, low, high, ask_key)
        return Polled(asked, None, fit_student(votes, asked, distillation, scale, fit_key))
    with world(config, world_key, seed) as where:
        if config.states == "students":
            dagger = DaggerConfig(config.lanes, config.exploration, distillation)
            students, asked = ask_along_students(votes, where, dagger, scale, ask_key)
            return Polled(asked, None, _chosen(config, students, choice_key))
        transitions, asked = vote_rollouts(votes, where)
    return Polled(asked, transitions, fit_student(votes, asked, distillation, scale, fit_key))


def _chosen(config: ExpertOfflineConfig, students: Sequence[Policy], key: PRNGKeyArray) -> Policy:
    """The student that returns most in the public simulator: post-processing of the votes."""
    if config.choice_episodes == 0:
        return students[-1]
    returns = evaluate(config, stacked(students), key, config.choice_episodes, greedy=True)
    return students[int(np.argmax(returns.mean(axis=1)))]


@contextmanager
def world(config: ExpertOfflineConfig, key: PRNGKeyArray, seed: int) -> Iterator[World]:
    """The public simulator of the default environment, in fresh rollouts.

    Args:
        config: filled settings.
        key: of an environment written in JAX.
        seed: of one of Gymnasium's.
    """
    env_id, cap = known(config.env_id), known(config.rollout_cap)
    if is_native(env_id):
        env: Any = make(env_id)
        yield JaxWorld(env, env.default_params, key, cap)
        return
    with GymnasiumWorld(env_id, seed, cap) as hosted:
        yield hosted


def _store(file: Path | None, header: dict[str, Any]) -> Store | None:
    if file is None:
        return None
    if not Store.exists(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        return Store.create(file, header)
    store = Store.open(file)
    if store.header != header:
        raise PrivacyError(f"{file} holds something else than this run's votes; remove it")
    return store
