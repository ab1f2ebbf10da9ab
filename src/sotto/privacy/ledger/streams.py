"""An open stream of a ledger: who may take part in its next release, and the charge for it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sotto.privacy import settings
from sotto.privacy.errors import ParticipationViolation
from sotto.privacy.ledger.joining import Joining
from sotto.privacy.ledger.persons import PersonBlock, Persons, as_blocks
from sotto.privacy.statements import Poisson, StreamStatement

if TYPE_CHECKING:
    from sotto.privacy.ledger.ledger import Ledger


class LedgerStream:
    """An open stream of one ledger. `Ledger.open_stream` makes it.

    Attributes:
        index: place among the ledger's streams; streams with equal statements differ in it.
    """

    def __init__(self, ledger: "Ledger", index: int) -> None:
        self._ledger = ledger
        self.index = index

    @property
    def statement(self) -> StreamStatement:
        """The statement in the ledger."""
        return self._ledger.streams[self.index].statement

    @property
    def releases(self) -> int:
        """Number of releases charged."""
        return self._ledger.streams[self.index].releases

    def refused(self, persons: Sequence[int]) -> list[int]:
        """Returns those persons whom the next charge would refuse, and charges nobody.

        They took part too often or too recently, or in something that excludes this stream, or have
        spent a budget that this run shares with others.

        Raises:
            LedgerUnavailable: the shared budget cannot be read.
        """
        return self._refused(persons, lambda joining: joining.refused)

    def hold(self, persons: Sequence[int]) -> list[int]:
        """Returns what `refused` returns, and charges the shared budget for the other persons.

        So no other product takes their part of it. This ledger is not changed.

        Raises:
            LedgerUnavailable: the shared budget cannot be read or written.
        """
        return self._refused(persons, lambda joining: joining.hold)

    def _refused(
        self,
        persons: Sequence[int],
        ask: Callable[[Joining], Callable[[int, Sequence[int]], list[int]]],
    ) -> list[int]:
        refused, account = [], self._ledger._account
        with self._ledger._mutex:
            for person in persons:
                try:
                    alone = (PersonBlock(person, person + 1),)
                    account.check_charge(self.index, self.releases, [alone])
                except ParticipationViolation:
                    refused.append(person)
            if (joining := self._ledger._joining) is None:
                return refused
            others = set(persons).difference(refused)
            return refused + ask(joining)(self.index, sorted(others))

    def charge(
        self, first_release: int, count: int, persons: Sequence[Persons] | None = None
    ) -> None:
        """Charges `count` releases; when it returns they are on disk, and may be made.

        Args:
            first_release: number of the first of them in the stream; it must be the next one.
            count: how many.
            persons: who takes part in each; None under Poisson sampling, where everybody may.

        Raises:
            ParticipationViolation, HorizonExceeded, BudgetExceeded: not covered by the statement.
            LedgerMismatch: not the next release, or another process has written to the ledger.
            PrivacyError: a setting of JAX or XLA is in force that is not understood.
            LedgerUnavailable: the ledger cannot be written. Nothing may be released; charging the
                same releases again is safe, and never charges them twice.
        """
        sampled = isinstance(self.statement.participation, Poisson)
        settings.in_force()  # they may have changed since the stream was opened
        if sampled != (persons is None) or (persons is not None and len(persons) != count):
            raise ValueError(
                f"a charge of {count} releases takes persons for each of them, "
                "or None under Poisson sampling"
            )
        blocks = None if persons is None else [as_blocks(one) for one in persons]
        self._ledger._charge(self.index, first_release, count, blocks)
