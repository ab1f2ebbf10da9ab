"""The server's half of a round: it passes messages on, and opens the sum of those who stayed.

```
begin(keys)       who answered stands in a circle         -> keys of everybody's neighbours
pass_on(sealed)   who gave shares                         -> the shares for each of them
collect(vectors)  who is in the sum: `active`             -> what each is asked to open
open(answers)     the sum of the active devices' vectors
```

Devices may be missing in every message; they have dropped out. Messages of another form count as
missing. The ledger is charged between `collect` and the questions to the devices.
"""

import secrets as random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt32

from sotto.federated import secrets
from sotto.federated.device import RoundTerms, pair_mask
from sotto.federated.errors import ProtocolError, RoundGivenUp, RoundLost
from sotto.federated.neighbours import Neighbourhood


@dataclass(frozen=True)
class Seat:
    """One device's place in the circle, with the public keys of its neighbours by their places."""

    place: int
    people: int
    keys: dict[int, bytes]


@dataclass(frozen=True)
class Question:
    """Everything that a device is asked to open.

    Attributes:
        active, dropped: places of neighbours whose vectors are in the sum, and of the others.
        count: number of devices in the sum.
    """

    active: list[int]
    dropped: list[int]
    count: int


class Round:
    """One round of the server. Persons are numbers; their places in the circle are random.

    Args:
        terms: public terms of the round.
        size: length of the vectors.
    """

    def __init__(self, terms: RoundTerms, size: int) -> None:
        self._terms, self._size = terms, size
        self._circle = Neighbourhood(0, 0, 0)
        self._persons: list[int] = []  # by place
        self._keys: dict[int, bytes] = {}  # by place
        self._sharing: dict[int, dict[int, bytes]] = {}  # by place, for the place of a neighbour
        self._active: dict[int, UInt32[np.ndarray, " size"]] = {}  # masked vectors, by place

    @property
    def active(self) -> list[int]:
        """Persons whose masked vectors are in the sum."""
        return [self._persons[place] for place in self._active]

    def begin(self, keys: Mapping[int, bytes]) -> dict[int, Seat]:
        """Returns the seat of each person who sent two keys, other than anybody else's.

        Raises:
            RoundGivenUp: they are fewer than promised.
            ValueError: no circle of so many devices is safe.
        """
        found = _sound(keys)
        self._require_promised(len(found), "sent keys")
        self._circle = self._terms.circle(len(found))
        self._persons = list(found)
        random.SystemRandom().shuffle(self._persons)
        self._keys = {place: found[one] for place, one in enumerate(self._persons)}
        people = len(found)
        return {
            one: Seat(place, people, {other: self._keys[other] for other in self._circle.of(place)})
            for place, one in enumerate(self._persons)
        }

    def pass_on(self, sealed: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Returns the sealed shares for each person who gave shares, by the giver's place.

        Raises:
            RoundGivenUp: fewer people than promised gave shares.
        """
        for place, one in enumerate(self._persons):
            if one in sealed and tuple(sorted(sealed[one])) == self._circle.of(place):
                self._sharing[place] = dict(sealed[one])
        self._require_promised(len(self._sharing), "gave shares")
        return {
            self._persons[place]: {
                giver: self._sharing[giver][place] for giver in self._linked(place)
            }
            for place in self._sharing
        }

    def collect(self, vectors: Mapping[int, bytes]) -> dict[int, Question]:
        """Returns the question to each person who sent a masked vector; they are `active` now.

        Raises:
            RoundGivenUp: they are fewer than promised.
        """
        kind, limit = secrets.number_type(self._terms.bits), 2**self._terms.bits
        for place in self._sharing:
            data = vectors.get(self._persons[place], b"")
            if len(data) != self._size * kind.itemsize:
                continue
            numbers = np.frombuffer(data, kind).astype(np.uint32)
            if numbers.max() < limit:
                self._active[place] = numbers
        self._require_promised(len(self._active), "sent vectors")
        questions = {}
        for place in self._active:
            linked = self._linked(place)
            questions[self._persons[place]] = Question(
                [other for other in linked if other in self._active],
                [other for other in linked if other not in self._active],
                len(self._active),
            )
        return questions

    def open(self, answers: Mapping[int, Mapping[int, bytes]]) -> UInt32[np.ndarray, " size"]:
        """Returns the sum of the active devices' vectors, modulo 2^bits.

        Args:
            answers: shares from each person who answered, by the places of their neighbours.

        Raises:
            RoundLost: too few shares came, or they do not fit each other.
        """
        shares: dict[int, dict[int, bytes]] = {place: {} for place in self._sharing}
        for giver in self._active:
            answer = answers.get(self._persons[giver], {})
            if sorted(answer) == self._linked(giver):
                for place, share in answer.items():
                    shares[place][giver + 1] = share
        total, lost = np.zeros(self._size, np.uint32), dict[int, str]()
        for place in self._sharing:
            neighbours = [other for other in self._linked(place) if other in self._active]
            if place not in self._active and not neighbours:
                continue
            try:
                secret = self._joined(shares[place])
                if place in self._active:
                    total += self._active[place]
                    total -= secrets.mask(secret, self._size, self._terms.bits)
                else:  # neighbours added masks that the dropped device did not cancel
                    total += self._missing(place, secret, neighbours)
            except ProtocolError as error:
                lost[self._persons[place]] = str(error)
        if lost:
            reason = next(iter(lost.values()))
            raise RoundLost(f"{reason}, so the sum of a charged release is lost", [*lost])
        return total & np.uint32(2**self._terms.bits - 1)

    def _missing(
        self, place: int, key: bytes, neighbours: list[int]
    ) -> UInt32[np.ndarray, " size"]:
        """Returns the masks that a dropped device would have added."""
        if secrets.public_key(key) != self._keys[place][: secrets.KEY_BYTES]:
            raise ProtocolError("a device gave a wrong share")
        total = np.zeros(self._size, np.uint32)
        for other in neighbours:
            total += pair_mask(self._terms, key, self._keys[other], place, other, self._size)
        return total

    def _joined(self, shares: Mapping[int, bytes]) -> bytes:
        """Returns the secret of a device from the shares of its neighbours."""
        threshold = self._circle.threshold
        fitting = {at: one for at, one in shares.items() if len(one) == secrets.SHARE_BYTES}
        if len(fitting) < threshold:
            raise ProtocolError("too few devices gave their shares of a secret")
        try:
            return secrets.joined(fitting, threshold)
        except ProtocolError as error:
            raise ProtocolError("a device gave a wrong share") from error

    def _linked(self, place: int) -> list[int]:
        """Returns the neighbours of a place with whom it shares masks: those who gave shares."""
        return [other for other in self._circle.of(place) if other in self._sharing]

    def _require_promised(self, count: int, did: str) -> None:
        if count < self._terms.promised:
            reason = f"{count} devices {did}, and {self._terms.promised} are promised"
            raise RoundGivenUp(reason, count)


def _sound(keys: Mapping[int, bytes]) -> dict[int, bytes]:
    """Returns the pairs of keys that every device accepts; one bad pair would stop all neighbours.

    Keys that two people sent count for neither: no device knows another one's before it sends its
    own.
    """
    size = secrets.KEY_BYTES
    pairs = {one: (both[:size], both[size:]) for one, both in keys.items() if len(both) == 2 * size}
    sent = Counter(half for pair in pairs.values() for half in pair)
    return {
        one: keys[one]
        for one, pair in pairs.items()
        if all(sent[half] == 1 and secrets.is_public_key(half) for half in pair)
    }
