"""Noisy votes as the data of an offline learner, kept on disk.

A poll is a function of public randomness and of the noisy votes. Votes are written to a file and
synced before they are used. A training that was killed repeats the poll: rounds on disk are
answered from the file at no cost, and the others are asked.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from sotto.algorithms.calibration import gaussian_multiplier
from sotto.algorithms.expert_offline.clones import Clones
from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.distillation import DistillationConfig
from sotto.algorithms.expert_offline.states import evaluate, first_policy
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
from sotto.privacy.claims.logs import NOT_IMPORTED, AboutLog
from sotto.privacy.errors import LedgerOlder, NothingReleased, PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.storage import ReleaseFile
from sotto.rl.envs.registry import is_native, make
from sotto.rl.networks import Policy
from sotto.rl.world import GymnasiumWorld, JaxWorld, World
from sotto.trees import stacked


def vote_multiplier(config: ExpertOfflineConfig) -> float:
    """Returns the noise multiplier of the whole poll, a single Gaussian mechanism."""
    return gaussian_multiplier(
        known(config.target_epsilon),
        known(config.delta),
        draws=known(config.rounds) * known(config.queries) * known(config.actions),
    )


class KeptVotes(Votes):
    """A poll whose answers are on disk before they are used.

    Args:
        voters, weights: arguments of `Votes`.
        ledger: ledger of the run. If it holds a poll, that poll continues.
        config: completed settings.
        file: file of the answers; None keeps them in memory.
        about: sentences of the certificate about an imported log.

    Attributes:
        lost: number of rounds that were charged and not written. Their votes were never seen and
            are not asked again.

    Raises:
        PrivacyError: the budget does not cover the poll, or the file belongs to another poll.
    """

    def __init__(
        self,
        voters: Policy | Clones,
        weights: Float[np.ndarray, " voters"] | None,
        ledger: Ledger,
        config: ExpertOfflineConfig,
        file: Path | None,
        about: AboutLog = NOT_IMPORTED,
    ) -> None:
        super().__init__(
            voters,
            ledger,
            weights=weights,
            queries=known(config.queries),
            rounds=known(config.rounds),
            noise_multiplier=vote_multiplier(config),
            population=known(config.population),
            first_policy=config.first_policy is not None,
            about=about,
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
        """Number of rounds that have an answer on disk or may still be asked."""
        return super().rounds_left + len(self._kept) - self._answered

    def ask(self, observations: Float[np.ndarray, "q obs"]) -> Float[np.ndarray, "q actions"]:
        """Asks one round as `Votes.ask` does, or answers it from disk.

        Raises:
            PrivacyError: the round on disk was about other states.
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
                "this machine plays another poll than the interrupted one, so the votes on disk do "
                "not fit; continue on the machine where the poll began, or start a new run"
            )
        self._answered += 1
        return flat.reshape(self.queries, self.actions)


class Polled(NamedTuple):
    """The public results of a poll."""

    asked: Asked
    transitions: Transitions | None
    """Transitions of vote rollouts; None for other states."""
    student: Policy
    """Student distilled from all votes, or the one that was chosen."""
    chosen: int
    """Number of the answered round after which that student was fitted; 0 is the first policy."""


def poll(config: ExpertOfflineConfig, votes: Votes, key: PRNGKeyArray, seed: int) -> Polled:
    """Asks the remaining rounds of a poll at the states that the settings name.

    Args:
        config: completed settings.
        votes: poll to finish.
        key: public randomness of states and students.
        seed: seed of a Gymnasium environment.

    Raises:
        NothingReleased: all rounds were charged, and their votes were lost.
    """
    rounds = votes.rounds_left
    if rounds == 0:
        raise NothingReleased(
            "all rounds of votes were charged, and their answers are lost; start a new run, which "
            "is charged again"
        )
    scale = known(config.observation_scale)
    distillation, first = DistillationConfig(hidden=config.student_hidden), first_policy(config)
    ask_key, world_key, fit_key, choice_key = jax.random.split(key, 4)

    def fit(asked: Asked) -> Policy:
        return fit_student(votes, asked, distillation, scale, fit_key, first=first)

    if config.states == "box":
        low, high = (
            np.asarray(known(end), np.float32) for end in (config.box_low, config.box_high)
        )
        asked = ask_in_box(votes, low, high, ask_key)
        return Polled(asked, None, fit(asked), rounds)
    with world(config, world_key, seed) as where:
        if config.states == "students":
            dagger = DaggerConfig(config.lanes, config.exploration, distillation)
            students, asked = ask_along_students(votes, where, dagger, scale, ask_key, first)
            numbered = dict(enumerate(students, 1)) | ({} if first is None else {0: first})
            chosen = _chosen(config, numbered, choice_key)
            return Polled(asked, None, numbered[chosen], chosen)
        transitions, asked = vote_rollouts(votes, where)
    return Polled(asked, transitions, fit(asked), rounds)


def _chosen(config: ExpertOfflineConfig, students: Mapping[int, Policy], key: PRNGKeyArray) -> int:
    """Returns the number of the student with the largest return in the public simulator.

    Among equals it is the last one. The choice is post-processing.
    """
    numbers = sorted(students)
    if config.choice_episodes == 0:
        return numbers[-1]
    candidates = stacked([students[number] for number in numbers])
    means = evaluate(config, candidates, key, config.choice_episodes, greedy=True).mean(axis=1)
    return numbers[-1 - int(np.argmax(means[::-1]))]


@contextmanager
def world(config: ExpertOfflineConfig, key: PRNGKeyArray, seed: int) -> Iterator[World]:
    """Opens the public simulator of the default environment, for new rollouts.

    Args:
        config: completed settings.
        key: randomness of an environment written in JAX.
        seed: seed of a Gymnasium environment.
    """
    env_id, cap = known(config.env_id), known(config.rollout_cap)
    if is_native(env_id):
        env: Any = make(env_id)
        yield JaxWorld(env, env.default_params, key, cap)
        return
    with GymnasiumWorld(env_id, seed, cap) as simulator:
        yield simulator


def _store(file: Path | None, header: dict[str, Any]) -> ReleaseFile | None:
    if file is None:
        return None
    if not ReleaseFile.exists(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        return ReleaseFile.create(file, header)
    store = ReleaseFile.open(file)
    if store.header != header:
        raise PrivacyError(f"{file} does not hold the votes of this run; remove it")
    return store
