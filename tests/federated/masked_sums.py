"""Rounds of masked sums in one process: devices that drop out where a test says so."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from sotto.federated.device import RoundDevice, RoundTerms
from sotto.federated.round import Round


@dataclass(frozen=True)
class Drops:
    """Persons who do not answer, by the stage from which on they are silent."""

    keys: Collection[int] = ()
    shares: Collection[int] = ()
    vectors: Collection[int] = ()
    opened: Collection[int] = ()


def terms(promised: int, bits: int = 16, colluding: int = 0) -> RoundTerms:
    return RoundTerms(os.urandom(16), bits, promised, colluding)


def summed(
    agreed: RoundTerms, vectors: Mapping[int, np.ndarray], drops: Drops = Drops()
) -> tuple[np.ndarray, list[int]]:
    """The opened sum, and who is in it."""
    size = len(next(iter(vectors.values())))
    server, devices = Round(agreed, size), {person: RoundDevice(agreed) for person in vectors}

    def stay(gone: Collection[int]) -> None:
        for person in gone:
            devices.pop(person, None)

    stay(drops.keys)
    seats = server.begin({p: one.announce() for p, one in devices.items()})
    stay(drops.shares)
    sealed = {
        p: one.share(seats[p].place, seats[p].people, seats[p].keys) for p, one in devices.items()
    }
    passed = server.pass_on(sealed)
    stay(drops.vectors)
    for person, one in devices.items():  # what a device remembers survives its process
        devices[person] = RoundDevice.from_bytes(one.to_bytes())
    masked = {p: one.mask(passed[p], vectors[p]).tobytes() for p, one in devices.items()}
    questions = server.collect(masked)
    stay(drops.opened)
    answers = {
        p: one.unmask(questions[p].active, questions[p].dropped, questions[p].count)
        for p, one in devices.items()
    }
    return server.open(answers), server.active


def plain(vectors: Mapping[int, np.ndarray], persons: Collection[int], bits: int) -> np.ndarray:
    """The sum without any masks."""
    return sum(vectors[p].astype(np.uint64) for p in persons) % 2**bits


def random_vectors(people: int, size: int, bits: int, seed: int = 0) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {p: rng.integers(0, 2**bits, size).astype(np.uint32) for p in range(people)}
