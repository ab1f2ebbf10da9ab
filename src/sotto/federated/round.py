"""The server's half of a round: it passes messages on, and opens the sum of those who stayed.

```
begin(keys)       who answered stands in a circle         -> keys of everybody's neighbours
pass_on(sealed)   who gave shares                         -> the shares for each of them
collect(vectors)  who is in the sum: `active`             -> what each is asked to open
open(answers)     the sum of the active devices' vectors
```

Devices may be missing in every message; they have dropped out. Messages of another form count as
missing. The ledger is charged between `collect` and the questions to the devices.

Who gives shares gives their hashes, too. Only shares that fit their hashes count. Three things
prove a device wrong, and nothing else does:

- it opens a share that does not fit the hash, which an honest device would not have kept;
- its shares fit their hashes, and have no secret or not that of its public key;
- as many neighbours as the threshold cannot read its shares: fewer than that collude.
"""

import secrets as random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

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

    Attributes:
        wrong: persons whose devices are proved wrong.
    """

    def __init__(self, terms: RoundTerms, size: int) -> None:
        self._terms, self._size = terms, size
        self.wrong: set[int] = set()
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

    def collect(
        self,
        vectors: Mapping[int, bytes],
        unread: Mapping[int, Collection[int]] = MappingProxyType({}),
    ) -> dict[int, Question]:
        """Returns the question to each person who sent a masked vector; they are `active` now.

        Args:
            vectors: masked vector of each person.
            unread: places of neighbours whose shares the person cannot read.

        Raises:
            RoundGivenUp: they are fewer than promised, or too few of them can read the shares of a
                device, so that the sum could not be opened.
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
        self._require_readable(unread)
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
            RoundLost: too few shares came that fit their hashes, or they do not fit each other.
        """
        shares: dict[int, dict[int, bytes]] = {place: {} for place in self._sharing}
        for holder in self._active:
            answer = answers.get(self._persons[holder], {})
            if sorted(answer) == self._linked(holder):
                for place, share in answer.items():
                    if self._fits(place, holder, share):
                        shares[place][holder + 1] = share
                    elif share:  # who cannot read a share opens nothing
                        self.wrong.add(self._persons[holder])
        total, lost = np.zeros(self._size, np.uint32), set[str]()
        for place, neighbours in self._to_open():
            if len(shares[place]) < self._circle.threshold:
                lost.add("too few devices gave right shares of a secret")
                continue
            try:
                secret = secrets.joined(shares[place], self._circle.threshold)
                if place in self._active:
                    total += self._active[place]
                    total -= secrets.mask(secret, self._size, self._terms.bits)
                else:  # neighbours added masks that the dropped device did not cancel
                    total += self._missing(place, secret, neighbours)
            except ProtocolError as error:
                lost.add(str(error))
                self.wrong.add(self._persons[place])
        if lost:
            reasons = ", and ".join(sorted(lost))
            raise RoundLost(f"{reasons}, so the sum of a charged release is lost")
        return total & np.uint32(2**self._terms.bits - 1)

    def _missing(
        self, place: int, key: bytes, neighbours: list[int]
    ) -> UInt32[np.ndarray, " size"]:
        """Returns the masks that a dropped device would have added."""
        if secrets.public_key(key) != self._keys[place][: secrets.KEY_BYTES]:
            raise ProtocolError("a device gave shares of another key than its own")
        total = np.zeros(self._size, np.uint32)
        for other in neighbours:
            total += pair_mask(self._terms, key, self._keys[other], place, other, self._size)
        return total

    def _fits(self, place: int, holder: int, share: bytes) -> bool:
        """Whether a holder's share, of the secret that is opened of a place, fits its hash."""
        active, size = place in self._active, secrets.HASH_BYTES
        given = self._sharing[place][holder]
        about = self._terms.of_pair("seed" if active else "key", place, holder)
        hashed = given[:size] if active else given[size : 2 * size]
        return len(share) == secrets.SHARE_BYTES and secrets.hash_of(share, about) == hashed

    def _to_open(self) -> Iterator[tuple[int, list[int]]]:
        """Yields each place of which a secret is needed, with its neighbours in the sum."""
        for place in self._sharing:
            neighbours = [other for other in self._linked(place) if other in self._active]
            if place in self._active or neighbours:
                yield place, neighbours

    def _require_readable(self, unread: Mapping[int, Collection[int]]) -> None:
        """Gives the round up if too few devices in the sum can read the shares of a device."""
        threshold, fewest = self._circle.threshold, len(self._persons)
        said = {place: set(unread.get(self._persons[place], ())) for place in self._active}
        for place, neighbours in self._to_open():
            unable = sum(place in said[one] for one in neighbours)
            fewest = min(fewest, len(neighbours) - unable)
            if unable >= threshold:
                self.wrong.add(self._persons[place])
        if fewest < threshold:
            reason = f"{fewest} devices can read some device's shares, and {threshold} are needed"
            raise RoundGivenUp(reason, len(self._active))

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
