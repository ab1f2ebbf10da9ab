"""Sets of persons by enrolment number. The owner of the data keeps the mapping from names."""

from collections.abc import Iterator, Sequence
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


_PAGE_BITS = 12
_PAGE = 1 << _PAGE_BITS
FULL_PAGE = (1 << _PAGE) - 1
"""Bits of a page on which everybody is in the set."""


class PersonSet:
    """A set of persons, who may be enrolled in any order. It only grows.

    Attributes:
        pages: for each page of 4096 persons, an integer with one bit for each person. Full pages
            are one object. Persons 0 to a million take less than a megabyte, however they come.
    """

    def __init__(self) -> None:
        self.pages: dict[int, int] = {}
        self._size = 0
        self._next = 0
        self._last: PersonBlock | None = None

    def __len__(self) -> int:
        return self._size

    @property
    def blocks(self) -> list[PersonBlock]:
        """Sorted blocks that neither touch nor overlap."""
        found: list[PersonBlock] = []
        for page in sorted(self.pages):
            for start, stop in _runs(self.pages[page]):
                first, last = page * _PAGE + start, page * _PAGE + stop
                if found and found[-1].stop == first:
                    first = found.pop().start
                found.append(PersonBlock(first, last))
        return found

    @property
    def next_person(self) -> int:
        """Number after the largest one in the set."""
        return self._next

    def first_common(self, block: PersonBlock) -> int | None:
        """Returns the first person of `block` who is in the set."""
        for page, mask in _masks(block):
            if common := self.pages.get(page, 0) & mask:
                return page * _PAGE + _lowest(common)
        return None

    def count_common(self, block: PersonBlock) -> int:
        """Returns the number of persons of `block` in the set."""
        if block == self._last:
            return block.stop - block.start
        return sum((self.pages.get(page, 0) & mask).bit_count() for page, mask in _masks(block))

    def count_new(self, blocks: Sequence[PersonBlock]) -> int:
        """Returns the number of persons of these blocks who are not in the set."""
        if len(blocks) == 1:
            (block,) = blocks
            return block.stop - block.start - self.count_common(block)
        people = PersonSet()
        for block in blocks:
            people.add(block)
        return len(people) - sum(map(self.count_common, people.blocks))

    def add(self, block: PersonBlock) -> None:
        """Adds everybody in `block`."""
        if block == self._last:  # under Poisson sampling, every release has the same block
            return
        for page, mask in _masks(block):
            before = self.pages.get(page, 0)
            if (after := before | mask) != before:
                self.pages[page] = FULL_PAGE if after == FULL_PAGE else after
                self._size += after.bit_count() - before.bit_count()
        self._next = max(self._next, block.stop)
        self._last = block


def _masks(block: PersonBlock) -> Iterator[tuple[int, int]]:
    """Yields each page of a block, with the bits of the block's persons."""
    start, stop = block
    for page in range(start >> _PAGE_BITS, (stop - 1 >> _PAGE_BITS) + 1):
        low, high = max(0, start - page * _PAGE), min(_PAGE, stop - page * _PAGE)
        yield page, FULL_PAGE if high - low == _PAGE else ((1 << high - low) - 1) << low


def _runs(page: int) -> Iterator[tuple[int, int]]:
    """Yields begin and end of each run of ones."""
    at = 0
    while page:
        zeros = _lowest(page)
        page >>= zeros
        ones = _lowest(~page)
        page >>= ones
        yield at + zeros, at + zeros + ones
        at += zeros + ones


def _lowest(bits: int) -> int:
    """Returns the place of the lowest one."""
    return (bits & -bits).bit_length() - 1
