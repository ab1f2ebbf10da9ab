"""Sets of persons by enrolment number. The owner of the data keeps the mapping from names."""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int32

from sotto.privacy.errors import ParticipationViolation

LARGEST_PERSON = 2**31 - 1
"""Largest enrolment number; persons are int32 in compiled programs."""


class PersonBlock(NamedTuple):
    """The persons with enrolment numbers start, start + 1, ..., stop - 1."""

    start: int
    stop: int


Persons = Int[np.ndarray, " _"] | PersonBlock
"""The persons in one release: enrolment numbers in any order, or a block of them."""


def as_blocks(persons: Persons) -> tuple[PersonBlock, ...]:
    """Returns the persons of one release as sorted blocks that neither touch nor overlap.

    Raises:
        ParticipationViolation: if somebody is there twice, or a number is not an enrolment number.
    """
    if isinstance(persons, PersonBlock):
        start, stop = map(int, persons)
        blocks = [PersonBlock(start, stop)] if start < stop else []
    else:
        people = np.asarray(persons).ravel()
        if people.size == 0:
            return ()
        if not np.issubdtype(people.dtype, np.integer):
            raise ParticipationViolation(
                f"persons must be enrolment numbers (integers), got {people.dtype}"
            )
        people = np.sort(people.astype(np.int64))
        steps = np.diff(people)
        if not steps.all():
            twice = people[:-1][steps == 0][0]
            raise ParticipationViolation(
                f"person {twice} is twice in one release; give every slot another person"
            )
        edges = np.flatnonzero(steps > 1)
        starts, stops = people[np.r_[0, edges + 1]], people[np.r_[edges, people.size - 1]] + 1
        blocks = list(map(PersonBlock, starts.tolist(), stops.tolist()))
    if blocks and not (blocks[0].start >= 0 and blocks[-1].stop - 1 <= LARGEST_PERSON):
        raise ParticipationViolation(
            f"enrolment numbers are from 0 to {LARGEST_PERSON}; number people from "
            "`ledger.next_person` on"
        )
    return tuple(blocks)


def as_slots(persons: Int[np.ndarray, " *slots"]) -> Int32[np.ndarray, " *slots"]:
    """Returns a copy as compiled programs use it, so that everybody in them is charged.

    An int64 such as 7 - 2^32 would become person 7 in a program, and is nobody in a ledger.

    Raises:
        ParticipationViolation: a number is neither an enrolment number nor -1, an empty slot.
    """
    numbers = np.array(persons)
    integers = np.issubdtype(numbers.dtype, np.integer)
    if not integers or numbers.min() < -1 or numbers.max() > LARGEST_PERSON:
        raise ParticipationViolation(
            f"persons are enrolment numbers from 0 to {LARGEST_PERSON}, and -1 where nobody is"
        )
    return numbers.astype(np.int32)


class PersonSet:
    """A set of persons as sorted blocks; a million people enrolled in order are one block."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def blocks(self) -> list[PersonBlock]:
        """Sorted blocks that neither touch nor overlap."""
        return list(map(PersonBlock, self._starts, self._stops))

    @property
    def next_person(self) -> int:
        """Number after the largest one in the set."""
        return self._stops[-1] if self._stops else 0

    def first_common(self, block: PersonBlock) -> int | None:
        """Returns the first person of `block` who is in the set."""
        i = bisect_right(self._stops, block.start)
        if i < len(self._starts) and self._starts[i] < block.stop:
            return max(self._starts[i], block.start)
        return None

    def count_common(self, block: PersonBlock) -> int:
        """Returns the number of persons of `block` in the set."""
        i, j = bisect_right(self._stops, block.start), bisect_left(self._starts, block.stop)
        return sum(
            min(stop, block.stop) - max(start, block.start)
            for start, stop in zip(self._starts[i:j], self._stops[i:j], strict=True)
        )

    def add(self, block: PersonBlock) -> None:
        """Adds everybody in `block`."""
        i, j = bisect_left(self._stops, block.start), bisect_right(self._starts, block.stop)
        start, stop = block
        if i < j:
            start, stop = min(start, self._starts[i]), max(stop, self._stops[j - 1])
        replaced = sum(self._stops[i:j]) - sum(self._starts[i:j])
        self._starts[i:j], self._stops[i:j] = [start], [stop]
        self._size += stop - start - replaced
