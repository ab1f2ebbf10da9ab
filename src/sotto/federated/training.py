"""Training on people's devices: the server's half of the door, one round for each release.

A round asks people whom the ledger can charge. If as many as promised send their masked vectors,
the ledger is charged, and only then are the devices asked to open the sum. A round that falls below
the promise before is given up: nothing was opened or charged, and other people are asked. It is
also given up if another product took what the budget that they share has for somebody in the sum.
"""

import logging
import math
import os
import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree, UInt32

from sotto.algorithms.base import Algorithm, Progress
from sotto.errors import RunError
from sotto.federated import messages
from sotto.federated.device import ROUND_BYTES
from sotto.federated.errors import RoundGivenUp, RoundLost
from sotto.federated.network import Network
from sotto.federated.plan import Plan
from sotto.federated.round import Round
from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.noise_shares import Promise, SharedStream
from sotto.trees import at, single

_POINTS = 20  # of the learning curve
_EPISODES = 64
_GIVEN_UP = 10
"""Most rounds in a row that are given up. Then the promise is not one that people keep."""

_MORE_SECONDS = 5.0
"""Seconds that a round with enough people waits for more, up to all of its slots."""

_LOST = 3
"""Most releases in a row that are charged and lost."""

_log = logging.getLogger(__name__)


def on_devices(algorithm: Algorithm[Any], network: Network, promise: Promise) -> Algorithm[Any]:
    """Returns the same algorithm, trained on people's devices.

    Args:
        algorithm: an algorithm with `Algorithm.on_devices`.
        network: the way to the devices.
        promise: how many devices are in every sum.
    """

    class OnDevices(type(algorithm)):  # type: ignore[misc]
        def train(
            self,
            config: Any,
            seeds: Sequence[int],
            ledgers: Sequence[Ledger],
            states: PyTree[Any],
            done: int,
            folders: Sequence[Path],
        ) -> Iterator[Progress]:
            """Makes the remaining releases, and yields after each."""
            del folders
            if len(seeds) != 1:
                raise ValueError("a training on devices has one seed; people take part once")
            state = at(states, 0)
            training = DeviceTraining(self, config, network, promise, ledgers[0], state, done)
            yield from training

    made: Algorithm[Any] = OnDevices()
    return made


class DeviceTraining:
    """The remaining releases of a run. Iterating makes them, and yields after each.

    Args:
        algorithm, config: the algorithm and its settings.
        network: the way to the devices.
        promise: how many devices are in every sum.
        ledger: of the run.
        state: public state after `done` releases, without an axis of runs.
        done: number of releases behind it. The rest are a new stream, about people who were never
            charged. Releases that were charged and lost stay charged.

    Raises:
        PrivacyError: the budget does not cover the releases.
        ValueError: devices cannot make them.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        config: Any,
        network: Network,
        promise: Promise,
        ledger: Ledger,
        state: PyTree[Any],
        done: int,
    ) -> None:
        self._algorithm, self._config, self._network = algorithm, config, network
        self._promise, self._ledger = promise, ledger
        self._state, self._done = state, done
        self._total = algorithm.num_updates(config)
        self._random = random.SystemRandom()
        self._asked: dict[int, int] = {}  # how often each person was asked
        self._charged: set[int] = set()  # with those whom the ledger refuses
        self._wrong: set[int] = set()  # whose devices were proved wrong before they were charged
        self._open()

    def _open(self) -> None:
        """Opens a stream for the releases that are left."""
        self._plan = Plan(self._algorithm, self._config, self._promise, self._total - self._done)
        self._settings = self._plan.to_json()
        self._stream: SharedStream = self._plan.shared.open(self._ledger, self._state)

    def __iter__(self) -> Iterator[Progress]:
        interval = math.ceil(self._total / _POINTS)
        # Nobody real is met for an evaluation; settings may ask for none.
        simulated = self._plan.shared.release.population == "simulated"
        episodes = getattr(self._config, "evaluation_episodes", _EPISODES)
        lost_in_a_row = 0
        while self._done < self._total:
            if self._stream.releases == self._plan.horizon:  # some were charged and lost
                self._open()
            known = len(self._wrong)
            try:
                log = self._release()
            except RoundLost as lost:
                _log.warning("a release was charged and lost: %s", lost)
                lost_in_a_row += len(self._wrong) == known
                if lost_in_a_row == _LOST:
                    raise
                continue
            lost_in_a_row = 0
            self._done += 1
            states = single(self._state)
            due = self._done % interval == 0 or self._done == self._total
            evaluation = {}
            if due and simulated and episodes:
                measure = self._algorithm.mean_return
                returns = measure(self._config, states, self._done, episodes)
                evaluation = {self._algorithm.default_policy: returns}
            yield Progress(self._done, states, _numbers(log), evaluation)

    def _release(self) -> Any:
        """Makes one release; returns its log."""
        most, last = 0, ""
        for _ in range(_GIVEN_UP):
            try:
                total = self._summed()
            except RoundGivenUp as reason:
                _log.warning("a round is given up, and other people are asked: %s", reason)
                most, last = max(most, reason.answered), str(reason)
                continue
            self._state, log = self._stream.release(total)
            return log
        if not most:
            raise RunError(
                f"in {_GIVEN_UP} rounds in a row every device refused, failed or did not answer, "
                "so there is no release; the devices' logs say why"
            )
        raise RunError(
            f"{_GIVEN_UP} rounds in a row were given up, the last because {last}; ask when more "
            "are connected, or start a run that promises fewer"
        )

    def _summed(self) -> UInt32[np.ndarray, " size"]:
        """Goes through the stages of one round; returns the sum, for which it has charged.

        Raises:
            RoundGivenUp: too few devices answered, or other products have taken somebody's budget.
                Nothing was charged.
            RoundLost: too few devices answered after the charge.
        """
        round_id = os.urandom(ROUND_BYTES)
        one = Round(self._plan.terms(round_id), self._plan.shared.size)
        try:
            return self._stages(one, round_id)
        finally:
            # A device that is not in the sum is not charged, and could do this again for ever.
            self._wrong |= one.wrong - self._charged

    def _stages(self, one: Round, round_id: bytes) -> UInt32[np.ndarray, " size"]:
        """Asks the stages of one round, and charges for its sum."""
        ask = partial(self._network.ask, settings=self._settings, round_id=round_id)
        nothing = {person: messages.of_bytes(b"") for person in self._chosen()}
        keys = ask(messages.KEYS, nothing, read=messages.bytes_in)
        seats = {p: messages.of_seat(seat) for p, seat in one.begin(keys).items()}
        sealed = ask(messages.SHARES, seats, read=messages.places_in)
        passed = {p: messages.of_places(shares) for p, shares in one.pass_on(sealed).items()}
        state = self._plan.of_state(self._state)
        masked = ask(messages.VECTORS, passed, read=messages.vector_in, state=state)
        vectors = {p: vector for p, (vector, _) in masked.items()}
        asked = one.collect(vectors, {p: unread for p, (_, unread) in masked.items()})
        questions = {p: messages.of_question(q) for p, q in asked.items()}
        try:
            self._stream.charge(np.array(one.active))
        except BudgetExceeded:
            if not (spent := self._stream.refused(one.active)):
                raise
            text = f"other products took the shared budget of {len(spent)} people"
            raise RoundGivenUp(text, len(one.active)) from None
        self._charged |= set(one.active)
        answers = ask(messages.OPEN, questions, read=messages.places_in)
        return one.open(answers)

    def _chosen(self) -> list[int]:
        """Returns people for a round, once enough of those who can be charged are connected.

        Raises:
            RunError: they are still too few after the time of two stages.
        """
        promised, slots = self._promise.promised, self._plan.shared.release.slots
        chosen = self._network.wait_for(self._fitting, promised)
        if promised <= len(chosen) < slots:
            chosen = self._network.wait_for(self._fitting, slots, _MORE_SECONDS)
        if len(chosen) < promised:  # somebody left, or a silent node took the time of the others
            chosen = self._network.wait_for(self._fitting, promised)
        if len(chosen) < promised:
            people = self._network.people()
            if len(people) < promised:
                raise RunError(
                    f"{len(people)} people's devices are connected, and a release needs "
                    f"{promised}; start more devices, and continue"
                )
            raise RunError(
                f"{len(chosen)} of {len(people)} connected people can be charged{self._others}, "
                f"and a release needs {promised}; start devices of other people, and continue"
            )
        self._asked |= {person: self._asked.get(person, 0) + 1 for person in chosen}
        return chosen

    def _fitting(self, people: list[int]) -> list[int]:
        """Returns those who can be charged, as many as a release has, least often asked first."""
        slots = self._plan.shared.release.slots
        while True:
            left = [one for one in people if one not in self._charged | self._wrong]
            self._random.shuffle(left)
            chosen = sorted(left, key=lambda person: self._asked.get(person, 0))[:slots]
            # By an earlier process, or by other products that share the budget.
            refused = set(self._stream.refused(chosen))
            self._charged |= refused
            if not refused:
                return chosen

    @property
    def _others(self) -> str:
        """Says why people cannot be charged."""
        shared = ", have spent the shared budget or are too many for it"
        spent = shared if self._ledger.joined else ""
        return f" (others took part{spent})"


def _numbers(log: Any) -> dict[str, np.ndarray]:
    """Returns the numbers of a log, [runs, releases] each, if it is a dictionary."""
    arrays = {name: np.asarray(x) for name, x in log.items()} if isinstance(log, dict) else {}
    return {name: x[None, None] for name, x in arrays.items() if x.ndim == 0}
