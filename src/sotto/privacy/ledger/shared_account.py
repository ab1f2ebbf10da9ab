"""The account of a shared budget: its streams, the people in each, and the costs of every person.

The checks change nothing, and the updates check nothing: the shared budget checks, writes an entry
durably, and then updates.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Int64

from sotto.privacy.errors import BudgetExceeded, LedgerMismatch
from sotto.privacy.ledger.allowances import PARTS, WHOLE, Allowance, Cost
from sotto.privacy.statements import StreamStatement

_SHOWN = 5  # numbers of people in an error

People = Int64[np.ndarray, " people"]
"""Numbers of different people, in any order."""


@dataclass
class SharedStream:
    """One stream of a product.

    Attributes:
        run_id: the product's run.
        index: place of the stream in the product's ledger.
        statement: as in the product's ledger.
        delta: of the product's budget.
        cost: of the stream, for each of its people.
        members: whether the person of each row of the account took part; rows beyond have not.
    """

    run_id: str
    index: int
    statement: StreamStatement
    delta: float
    cost: Cost
    members: Bool[np.ndarray, " rows"] = field(default_factory=lambda: np.zeros(1, bool))

    @property
    def size(self) -> int:
        """Number of people who took part."""
        return int(self.members.sum())


class SharedAccount:
    """The sum of a shared budget's entries.

    Attributes:
        allowance: the most that each person may pay.
        streams: in the order in which they were opened.
    """

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self.streams: list[SharedStream] = []
        self._rows: dict[int, int] = {}  # of each person, from 1 on; row 0 is for all others
        self._units = np.zeros((1, len(PARTS)), np.int64)

    @property
    def people(self) -> People:
        """Numbers of all people who took part in anything, in the order of their first charge."""
        return np.fromiter(self._rows, np.int64, len(self._rows))

    def units(self, people: People) -> Int64[np.ndarray, "people 4"]:
        """Returns the units of each of the `PARTS` that people have spent."""
        units: Int64[np.ndarray, "people 4"] = self._units[self._rows_of(people)]
        return units

    def find(self, run_id: str, index: int, statement: StreamStatement) -> int | None:
        """Returns the number of a product's stream; None if it is not open here.

        Raises:
            LedgerMismatch: it is open with another statement.
        """
        for number, one in enumerate(self.streams):
            if (one.run_id, one.index) == (run_id, index):
                if one.statement != statement:
                    raise LedgerMismatch(
                        f"stream {index} of run {run_id!r} has another statement in the shared "
                        "budget than in its own ledger, so one of them is an older copy; restore it"
                    )
                return number
        return None

    def new(self, stream: int, people: People) -> People:
        """Returns those of these people who did not take part in the stream before."""
        members, rows = self.streams[stream].members, self._rows_of(people)
        found: People = people[~members[np.where(rows < len(members), rows, 0)]]
        return found

    def over(self, stream: int, people: People) -> Bool[np.ndarray, " people"]:
        """Returns who of these new people of a stream would exceed the budget."""
        after = self.units(people) + np.array(self.streams[stream].cost)
        exceeds: Bool[np.ndarray, " people"] = (after > WHOLE).any(axis=1)
        return exceeds

    def uncovered(self, stream: int, people: People) -> Bool[np.ndarray, " people"]:
        """Returns who of these new people would exceed the budget, or be too many for its delta."""
        uncovered = self.over(stream, people)
        newcomers = np.flatnonzero((self._rows_of(people) == 0) & ~uncovered)
        count = len(self._rows) + 1 + np.arange(len(newcomers))
        uncovered[newcomers[self.allowance.delta * count >= 1]] = True
        return uncovered

    def check(self, stream: int, people: People) -> None:
        """Refuses a charge of new people of a stream if it exceeds the budget for any of them.

        Raises:
            BudgetExceeded: it does, or there are too many people for the budget's delta.
        """
        over = people[self.over(stream, people)]
        if over.size:
            names = ", ".join(map(str, np.sort(over)[:_SHOWN].tolist()))
            one, more = over.size == 1, ", ..." if over.size > _SHOWN else ""
            raise BudgetExceeded(
                f"{self.streams[stream].statement.name!r} would bring {over.size} "
                f"{'person' if one else 'people'} over the shared budget ({names}{more}), so "
                "nobody was charged; leave them out, or add noise"
            )
        count = len(self._rows) + int((self._rows_of(people) == 0).sum())
        if self.allowance.delta * count >= 1:
            raise BudgetExceeded(
                f"delta {self.allowance.delta:.2g} of the shared budget is vacuous for {count} "
                "people, since publishing one of them at random would meet it; create a budget "
                f"with delta below 1/{count}"
            )

    def add_stream(self, stream: SharedStream) -> None:
        """Adds a stream without checks."""
        self.streams.append(stream)

    def add_people(self, stream: int, people: People) -> None:
        """Adds new people of a stream without checks."""
        added = self.streams[stream]
        rows = [self._rows.setdefault(one, len(self._rows) + 1) for one in people.tolist()]
        size = len(self._rows) + 1
        if (more := size - len(self._units)) > 0:
            self._units = np.pad(self._units, [(0, more + size), (0, 0)])
        if len(added.members) < size:
            added.members = np.pad(added.members, (0, len(self._units) - len(added.members)))
        self._units[rows] += np.array(added.cost)
        added.members[rows] = True

    def _rows_of(self, people: People) -> Int64[np.ndarray, " people"]:
        """Returns the row of each person; 0 for somebody who took part in nothing."""
        return np.fromiter(
            (self._rows.get(one, 0) for one in people.tolist()), np.int64, len(people)
        )
