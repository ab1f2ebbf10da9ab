"""A device's half of a round: it masks its vector, and helps to open the sum of all.

```
announce()                 two public keys
share(place, people, keys) its secrets in shares, hashed and sealed for each neighbour
mask(sealed, vector)       the vector, plus masks that cancel in the sum of all
unmask(active, dropped)    shares of the masks that are left in the sum
```

The protocol is that of Bell et al. 2020 (SecAgg+), after Bonawitz et al. 2017, for integers modulo
2^bits. A device goes through the stages once, in this order. Beyond these papers, whoever gives a
share also gives its hash. A device says which shares do not fit their hashes, before anything is
charged. A share that it then opens and that does not fit proves that the device is wrong.

Guarantee:
    The vector leaves the device only as y = x + PRG(b) + sum of +-PRG(s_j) over neighbours j,
    modulo 2^bits, with a seed b of 256 random bits. The device gives shares of a neighbour's seed
    or of its key, and never of both. It gives none at all unless the server names as many active
    devices as promised, and as many active neighbours as the threshold.

    The adversary is a server that follows the protocol, with colluding devices as in
    `sotto.federated.neighbours`. All that it sees in a round can be simulated from the sum of the
    vectors of active devices (Bell et al. 2020, section 3). X25519, HKDF and AES must hold, and
    SHA-256 counts as a random oracle (docs/proofs/devices.md).
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt

from sotto.federated import secrets
from sotto.federated.errors import ProtocolError
from sotto.federated.neighbours import Neighbourhood, neighbourhood

PROTOCOL = 2
"""Version of the messages. The first one had no hashes of shares, and did not name its version."""

ROUND_BYTES = 16
"""Bytes of a round's id."""

_STAGES = ("announce", "share", "mask", "unmask")


@dataclass(frozen=True)
class RoundTerms:
    """Public terms of a round, which every device knows before it takes part.

    Attributes:
        round: id of the round, which no other round has.
        bits: number of bits of each number of a vector.
        promised: fewest devices in a sum that is opened.
        colluding: most of all devices that are asked in the round, in the sum or not, that may
            show everything to the server.
    """

    round: bytes
    bits: int
    promised: int
    colluding: int

    def __post_init__(self) -> None:
        if len(self.round) != ROUND_BYTES:
            raise ProtocolError(f"the id of a round has {ROUND_BYTES} bytes")
        if not 1 <= self.bits <= 32:
            raise ProtocolError("a vector has numbers of 1 to 32 bits")

    def circle(self, people: int) -> Neighbourhood:
        """Returns the sizes of the circle of so many devices.

        Raises:
            ValueError: no circle of so many devices is safe.
        """
        return neighbourhood(people, self.promised, self.colluding)

    def of_pair(self, purpose: str, first: int, second: int) -> bytes:
        """Returns the input of HKDF for two places in this round."""
        return f"sotto {purpose} {self.round.hex()} {first} {second}".encode()


class RoundDevice:
    """One device in one round.

    Args:
        terms: public terms of the round, which every later message must repeat.
    """

    def __init__(self, terms: RoundTerms) -> None:
        self.terms = terms
        self._stage = 0
        self._mask_key = secrets.new_secret()
        self._seal_key = secrets.new_secret()
        self._seed = secrets.new_secret()
        self._place = -1
        self._circle = Neighbourhood(0, 0, 0)
        self._keys: dict[int, bytes] = {}  # of neighbours: public keys for masks and for seals
        self._held: dict[int, bytes] = {}  # of neighbours: a share of the seed, and one of the key

    @property
    def unread(self) -> list[int]:
        """Places of neighbours whose shares cannot be read, or do not fit their hashes."""
        return [other for other, shares in self._held.items() if not shares]

    def __repr__(self) -> str:
        return f"RoundDevice(stage={self._stage})"  # nothing secret

    def announce(self) -> bytes:
        """Returns the device's two public keys."""
        self._next("announce")
        return secrets.public_key(self._mask_key) + secrets.public_key(self._seal_key)

    def share(self, place: int, people: int, keys: Mapping[int, bytes]) -> dict[int, bytes]:
        """Returns shares of the device's two secrets for each neighbour: their hashes, then a seal.

        Args:
            place: the device's place in the circle.
            people: number of devices in the circle.
            keys: public keys of the neighbours, by their places.

        Raises:
            ProtocolError: these are not the neighbours of this place, or not keys.
        """
        self._next("share")
        terms = self.terms
        try:
            circle = terms.circle(people)
        except ValueError as error:
            raise ProtocolError(f"this circle is not safe: {error}") from error
        if not 0 <= place < people or tuple(sorted(keys)) != circle.of(place):
            raise ProtocolError(
                f"a device among {people} needs the keys of its {circle.neighbours} neighbours"
            )
        own = secrets.public_key(self._mask_key) + secrets.public_key(self._seal_key)
        every = [own, *keys.values()]
        halves = {pair[i : i + secrets.KEY_BYTES] for pair in every for i in (0, secrets.KEY_BYTES)}
        if any(len(pair) != len(own) for pair in every) or len(halves) != 2 * len(every):
            raise ProtocolError("the keys of a round are two for each device, and all different")
        self._place, self._circle, self._keys = place, circle, dict(keys)
        points = [other + 1 for other in keys]
        seeds = secrets.split(self._seed, circle.threshold, points)
        mask_keys = secrets.split(self._mask_key, circle.threshold, points)
        given = {other: seeds[other + 1] + mask_keys[other + 1] for other in keys}
        return {
            other: hashes_of(terms, place, other, both)
            + secrets.sealed(
                self._seal(other, place, other), both, terms.of_pair("share", place, other)
            )
            for other, both in given.items()
        }

    def mask(
        self, sealed: Mapping[int, bytes], vector: UInt[np.ndarray, " size"]
    ) -> UInt[np.ndarray, " size"]:
        """Returns the masked vector.

        Args:
            sealed: shares for this device, by the places of the neighbours who made them. Those
                who are missing have dropped out. What cannot be read is `unread` afterwards.
            vector: numbers modulo 2^bits.

        Raises:
            ProtocolError: there are fewer neighbours than the threshold.
            ValueError: it is no vector, or its numbers are too large.
        """
        self._next("mask")
        terms, place = self.terms, self._place
        if not set(sealed) <= set(self._keys) or len(sealed) < self._circle.threshold:
            raise ProtocolError(
                f"shares of at least {self._circle.threshold} neighbours are needed, and of no "
                "others"
            )
        if vector.ndim != 1 or vector.size < 1 or vector.max() >= 2**terms.bits:
            raise ValueError(f"a vector has at least one number, each of {terms.bits} bits")
        self._held = {other: self._opened(other, data) for other, data in sealed.items()}
        total = vector.astype(np.uint32) + secrets.mask(self._seed, vector.size, terms.bits)
        for other in sealed:
            key = self._keys[other]
            # Modulo 2^32, of which 2^bits is a divisor.
            total += pair_mask(terms, self._mask_key, key, place, other, vector.size)
        return np.asarray(total & np.uint32(2**terms.bits - 1), secrets.number_type(terms.bits))

    def unmask(
        self, active: Collection[int], dropped: Collection[int], count: int
    ) -> dict[int, bytes]:
        """Returns one share for each neighbour: of the seed if active, of the key if dropped.

        Args:
            active: neighbours whose masked vectors are in the sum.
            dropped: neighbours who gave shares, and no masked vector.
            count: number of devices in the sum, which the server vouches for.

        Raises:
            ProtocolError: the sum has fewer devices than promised, the active neighbours are fewer
                than the threshold, or the two lists are not exactly the neighbours with masks.
        """
        self._next("unmask")
        if count < self.terms.promised:
            raise ProtocolError(
                f"a sum of {count} devices has too little noise; at least "
                f"{self.terms.promised} are promised"
            )
        if len(active) < self._circle.threshold:
            raise ProtocolError(
                f"{len(active)} of the neighbours are active, and {self._circle.threshold} are "
                "needed"
            )
        if sorted([*active, *dropped]) != sorted(self._held):
            raise ProtocolError("each neighbour is either active or dropped, and nobody is both")
        size = secrets.SHARE_BYTES
        answer = {other: self._held[other][:size] for other in active}
        answer |= {other: self._held[other][size:] for other in dropped}
        self._mask_key = self._seal_key = self._seed = b""
        self._held = {}
        return answer

    def require(self, stage: str) -> None:
        """Raises ProtocolError if the stage, named as its method, is not the next one."""
        if self._stage >= len(_STAGES) or _STAGES[self._stage] != stage:
            raise ProtocolError(f"the stage {stage!r} is not this device's next one")

    def to_bytes(self) -> bytes:
        """Returns everything that the device must remember between stages; it is secret."""
        memory: dict[str, Any] = {
            "terms": asdict(self.terms) | {"round": self.terms.round.hex()},
            "stage": self._stage,
            "secrets": [one.hex() for one in (self._mask_key, self._seal_key, self._seed)],
            "place": self._place,
            "circle": self._circle,
            "keys": {place: key.hex() for place, key in self._keys.items()},
            "held": {place: share.hex() for place, share in self._held.items()},
        }
        return json.dumps(memory).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "RoundDevice":
        """Returns the device that `to_bytes` wrote."""
        memory = json.loads(data)
        terms = memory["terms"] | {"round": bytes.fromhex(memory["terms"]["round"])}
        device = cls(RoundTerms(**terms))
        device._stage, device._place = memory["stage"], memory["place"]
        device._circle = Neighbourhood(*memory["circle"])
        device._mask_key, device._seal_key, device._seed = map(bytes.fromhex, memory["secrets"])
        device._keys = {int(place): bytes.fromhex(key) for place, key in memory["keys"].items()}
        device._held = {int(place): bytes.fromhex(one) for place, one in memory["held"].items()}
        return device

    def _next(self, stage: str) -> None:
        """Enters a stage, also if it then fails: a second try could show more than the first."""
        self.require(stage)
        self._stage += 1

    def _opened(self, giver: int, data: bytes) -> bytes:
        """Returns the two shares of a neighbour, or nothing if they cannot be read."""
        about = self.terms.of_pair("share", giver, self._place)
        hashes, seal = data[: 2 * secrets.HASH_BYTES], data[2 * secrets.HASH_BYTES :]
        try:
            shares = secrets.unsealed(self._seal(giver, giver, self._place), seal, about)
        except ProtocolError:
            return b""
        whole = len(shares) == 2 * secrets.SHARE_BYTES
        fits = whole and hashes_of(self.terms, giver, self._place, shares) == hashes
        return shares if fits else b""

    def _seal(self, other: int, giver: int, receiver: int) -> bytes:
        """Returns the key under which shares go from one place to another."""
        public = self._keys[other][secrets.KEY_BYTES :]
        purpose = self.terms.of_pair("seal", giver, receiver)
        return secrets.common_secret(self._seal_key, public, purpose)


def hashes_of(terms: RoundTerms, giver: int, holder: int, shares: bytes) -> bytes:
    """Returns the hashes of two shares, of the giver's seed and of its key, for one holder."""
    size = secrets.SHARE_BYTES
    seed = secrets.hash_of(shares[:size], terms.of_pair("seed", giver, holder))
    return seed + secrets.hash_of(shares[size:], terms.of_pair("key", giver, holder))


def pair_mask(
    terms: RoundTerms, secret: bytes, keys: bytes, place: int, other: int, size: int
) -> UInt[np.ndarray, " size"]:
    """Returns the mask that `place` adds for a neighbour, modulo 2^32; the neighbour's cancels it.

    Args:
        terms: terms of the round.
        secret: secret key of `place` for masks.
        keys: public keys of `other`.
        place, other: the two places.
        size: length of the vectors.
    """
    purpose = terms.of_pair("mask", min(place, other), max(place, other))
    seed = secrets.common_secret(secret, keys[: secrets.KEY_BYTES], purpose)
    common = secrets.mask(seed, size, terms.bits).astype(np.uint32)
    return common if place < other else np.uint32(0) - common
