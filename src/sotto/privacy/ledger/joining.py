"""The link between a product's ledger and a shared budget, with the numbers of the same people."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from sotto.privacy.errors import LedgerCorrupt, LedgerMismatch, ParticipationViolation
from sotto.privacy.ledger.persons import LARGEST_PERSON, PersonBlock, PersonSet, as_blocks
from sotto.privacy.ledger.shared import SharedBudget
from sotto.privacy.statements import StreamStatement

Said = dict[str, Any]
"""Contents of an entry `join`: the id of the budget, the digest of numbers, and what the budget
allows each person, epsilon and delta. Entries of earlier versions lack the last two."""


class Numbers:
    """The operator's numbers of a product's people, in the order of enrolment.

    Attributes:
        digest: SHA-256 of the numbers, in hexadecimal.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        """Takes the operator's number of each enrolment number.

        A place that may be empty has a number, too, for whether it is empty cannot be seen here.

        Raises:
            ValueError: a number is out of range, or belongs to two enrolment numbers.
        """
        found = np.array(numbers, dtype=np.int64).reshape(-1)
        if not ((found >= 0) & (found <= LARGEST_PERSON)).all():
            raise ValueError(
                f"people have numbers from 0 to {LARGEST_PERSON}; give an empty place one that "
                "nobody has"
            )
        people, counts = np.unique(found, return_counts=True)
        if (counts > 1).any():
            raise ValueError(
                f"person {people[counts > 1][0]} is listed twice; a person has one place in a "
                "product, since the noise covers one"
            )
        self._numbers: Int64[np.ndarray, " enrolled"] = found
        self.digest = hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()

    @classmethod
    def read(cls, path: Path) -> "Numbers":
        """Reads a text file with one number on each line.

        An empty line is an error: to leave it out would shift everybody after it.

        Raises:
            ValueError: a line is not a number, or a number cannot be used.
            OSError: the file cannot be read.
        """
        text = path.read_text(encoding="utf-8-sig", errors="replace")
        lines = [line.strip() for line in text.splitlines()]
        for line, word in enumerate(lines, 1):
            if not (word.isascii() and word.isdecimal()):
                raise ValueError(
                    f"line {line} of {path} is not a whole number; write one on each line, in the "
                    "order of enrolment, and for an empty place a number that nobody has"
                )
        if not lines or max(map(len, lines)) > len(str(LARGEST_PERSON)):
            raise ValueError(
                f"{path} has no numbers, or too large ones; write numbers from 0 to "
                f"{LARGEST_PERSON}, one on each line"
            )
        return cls([int(word) for word in lines])

    @property
    def all(self) -> list[int]:
        """All numbers, in the order of enrolment."""
        found: list[int] = self._numbers.tolist()
        return found

    def of(self, blocks: Sequence[PersonBlock]) -> tuple[PersonBlock, ...]:
        """Returns people by the operator's numbers.

        Raises:
            ParticipationViolation: more people enrol than are listed.
        """
        if blocks and (last := max(block.stop for block in blocks)) > len(self._numbers):
            raise ParticipationViolation(
                f"{len(self._numbers)} numbers of people are listed, and enrolment number "
                f"{last - 1} takes part; list everybody who may enrol, before the product starts"
            )
        found = np.concatenate(
            [np.zeros(0, np.int64), *(self._numbers[block.start : block.stop] for block in blocks)]
        )
        return as_blocks(np.unique(found))

    def number(self, person: int) -> int:
        """Returns the operator's number of one enrolment number."""
        return self.of([PersonBlock(person, person + 1)])[0].start


@dataclass(frozen=True)
class Joining:
    """A shared budget as one product's ledger charges it.

    Attributes:
        budget: the shared budget.
        run_id: the product's run.
        entry: hash of the entry in which its ledger joined, for names of runs may be equal; empty
            before that.
        delta: of the product's budget.
        numbers: the operator's numbers; None if the product enrols people under them.
    """

    budget: SharedBudget
    run_id: str
    entry: str
    delta: float
    numbers: Numbers | None
    _streams: dict[int, int] = field(default_factory=dict)  # by index in the product's ledger

    @property
    def said(self) -> Said:
        """Contents of the entry in which the product's ledger joins the budget."""
        digest = None if self.numbers is None else self.numbers.digest
        limits = self.budget.allowance.model_dump(include={"epsilon", "delta"})
        return {"budget": self.budget.budget_id, "numbers": digest} | limits

    def check_ledger(
        self, joined: Said | None, head: str | None, began: bool, holds: Callable[[str], bool]
    ) -> None:
        """Refuses a ledger that cannot share this budget.

        Args:
            joined: what the ledger says about the budget that it joined.
            head: entry of the shared budget at the ledger's last charge.
            began: whether the ledger has streams.
            holds: function that says whether the ledger has an entry.

        Raises:
            LedgerMismatch: it has streams and has joined none, or has joined another one, or its
                people had other numbers.
            LedgerCorrupt: the shared budget or the ledger was restored from an older copy.
        """
        if joined is None and began:
            raise LedgerMismatch(
                "this run began without a shared budget, which would lack its releases; start a "
                "new run with --budget"
            )
        if joined is not None and not joined.items() <= self.said.items():
            raise LedgerMismatch(
                "this run shares another budget, or its people had other numbers; give the same "
                "--budget, and the same --numbers if there were any"
            )
        if head is not None and not self.budget.holds(head):
            raise LedgerCorrupt(
                f"the shared budget lacks charges of run {self.run_id!r}, so it is an older copy; "
                "restore it from a newer backup"
            )
        self._last_seen(holds)

    def _last_seen(self, holds: Callable[[str], bool]) -> str | None:
        """Returns the ledger's entry that the budget saw last, which the ledger must hold."""
        seen = self.budget.seen(self._product)
        if seen is not None and not holds(seen):
            raise LedgerCorrupt(
                f"the ledger of run {self.run_id!r} lacks charges that the shared budget has seen, "
                "so it is an older copy; restore it from a newer backup"
            )
        return seen

    def see(self, head: str, holds: Callable[[str], bool]) -> None:
        """Has the budget write down the ledger's last entry, before the release that it charges.

        Args:
            head: hash of the entry.
            holds: function that says whether the ledger has an entry.

        Raises:
            LedgerCorrupt: the ledger is an older copy.
            LedgerMismatch: a copy of the ledger was charged at the same time.
            LedgerUnavailable: the budget cannot be written; nothing was released.
        """
        self.budget.see(self._product, self._last_seen(holds), head)

    @property
    def _product(self) -> str:
        return f"{self.run_id} {self.entry[:16]}"

    def open_stream(self, index: int, statement: StreamStatement) -> None:
        """Opens a stream of the product in the shared budget, or finds it there."""
        self._streams[index] = self.budget.open_stream(self._product, index, statement, self.delta)

    def charge(self, index: int, releases: Sequence[tuple[PersonBlock, ...]]) -> str:
        """Charges everybody in these releases, and returns the hash of the budget's last entry.

        Raises:
            BudgetExceeded: somebody would exceed the budget. Nobody is charged.
            ParticipationViolation: somebody has no number.
            LedgerUnavailable: the budget cannot be written.
        """
        return self.budget.charge(self._streams[index], self._numbered(releases))

    def refused(self, index: int, persons: Sequence[int]) -> list[int]:
        """Returns those people whom the shared budget does not cover, and charges nobody."""
        numbers = {self._number(one): one for one in persons}
        return [numbers[one] for one in self.budget.refused(self._streams[index], list(numbers))]

    def hold(self, index: int, persons: Sequence[int]) -> list[int]:
        """Charges those people whom the shared budget covers, and returns the others."""
        numbers = {self._number(one): one for one in persons}
        return [numbers[one] for one in self.budget.hold(self._streams[index], list(numbers))]

    def _number(self, person: int) -> int:
        return person if self.numbers is None else self.numbers.number(person)

    def _numbered(self, releases: Sequence[tuple[PersonBlock, ...]]) -> Sequence[PersonBlock]:
        blocks: Sequence[PersonBlock] = releases[0]
        if len(releases) > 1:  # in several of which somebody may take part
            people = PersonSet()
            for block in {block for release in releases for block in release}:
                people.add(block)
            blocks = people.blocks
        return blocks if self.numbers is None else self.numbers.of(blocks)


def check_stream(joining: Joining | None, joined: Said | None, statement: StreamStatement) -> None:
    """Refuses a stream that the ledger's shared budget, if it has one, does not know or cover.

    Args:
        joining: the shared budget that the ledger was given.
        joined: the entry in which it joined one.
        statement: statement of the stream.

    Raises:
        LedgerMismatch: the ledger has joined a budget and was not given it, or the stream is not
            about real people.
        BudgetExceeded: the budget does not cover the stream even for new people.
    """
    if joining is not None:
        joining.budget.allowance.cost(statement, joining.delta)
    elif joined is not None:
        raise not_given(joined)


def not_given(joined: Said) -> LedgerMismatch:
    """Returns the refusal of a ledger that has joined a budget and was not given it."""
    flags = "--budget PLACE" + (" --numbers FILE" if joined["numbers"] else "")
    return LedgerMismatch(
        f"this run shares the budget {str(joined['budget'])[:12]} with other products and is "
        f"charged there, too; give its place again: {flags}"
    )
