"""A budget that several products share: durable, append-only, charged before any of them.

Its unit is one person, who has the same number in all products. The entries are `create`, `open`
for each stream of a product, `charge` for people who are new in a stream, and `seen` for the last
entry of a product's ledger. A stream costs its people its whole horizon from the first time that
they take part, so nobody is charged twice for it. Entries are chained by hashes like those of a
ledger. Any number of processes may add to them.

Guarantee:
    Every person's streams, in all products together, cost at most the budget (`Allowance`). A
    charge is on disk before the product's ledger is charged, and that before the release is made.
    So a process that is killed at any moment leaves a budget that holds at least the releases.
    Between the last two, the budget writes down the ledger's new entry. A copy of the ledger that
    lacks it makes no release, so nobody's data are released again for nothing.
    A file beside that of an SQLite budget has the hash of an entry that the budget must hold. So
    its file alone cannot be put back from a backup, and new products cannot charge people again.
    Entries hold statements, the operator's numbers, hashes and no data.
"""

import math
import os
import shlex
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from sotto.privacy.errors import LedgerMismatch
from sotto.privacy.ledger import databases, entries
from sotto.privacy.ledger.allowances import Allowance
from sotto.privacy.ledger.chain import Chain
from sotto.privacy.ledger.entries import GENESIS, Entry, Kind, canonical, json_values, now, versions
from sotto.privacy.ledger.persons import PersonBlock, as_blocks
from sotto.privacy.ledger.shared_account import People, SharedAccount, SharedStream
from sotto.privacy.statements import StreamStatement

_FORMAT = "shared-1"
_RUN = "shared budget"  # its name among the runs of a database, which holds at most one
_ROUNDING = 1e-9  # relative; what a cost may change by if libraries compute it differently


class SharedBudget(Chain):
    """The durable account of people in several products; use `create` or `open`.

    Attributes:
        budget_id: hash of the first entry, by which products know the budget.
        created: time of creation, ISO 8601 in UTC.
    """

    name = "the shared budget"
    budget_id: str
    created: str
    _account: SharedAccount
    _seen: dict[str, str]  # the last entry of each product's ledger

    def __init__(self, engine: sa.Engine, run_id: str = _RUN, last: str | None = None) -> None:
        head = databases.read_head(engine)
        super().__init__(engine, run_id, last)
        self._writer = uuid.uuid4().hex
        if head is not None and not self.holds(head):
            raise databases.older(engine)

    @classmethod
    def create(cls, where: Path | str, allowance: Allowance) -> "SharedBudget":
        """Creates a budget that products can share.

        Args:
            where: path of an SQLite file, or the SQLAlchemy URL of an SQLite or PostgreSQL
                database. It may hold ledgers of runs, and at most one shared budget.
            allowance: the most that each person may pay.

        Raises:
            LedgerMismatch: there is a shared budget already.
            LedgerUnavailable: it cannot be written.
            ValueError: nothing is left for Gaussian streams.
        """
        if not allowance.squared_shift > 0:
            raise ValueError("so small an epsilon and delta allow nothing; give larger ones")
        engine = databases.database(where)
        contents = {
            "format": _FORMAT,
            "created": now(),
            "name": uuid.uuid4().hex,
            "allowance": json_values(allowance),
            "versions": versions(),
        }
        entry = Entry(_RUN, 0, "create", canonical(contents), GENESIS)
        databases.forget_head(engine)
        try:
            entries.create(engine, entry)
        except LedgerMismatch as error:
            raise LedgerMismatch(
                f"there is a shared budget at {databases.place(engine)} already; give another place"
            ) from error
        databases.write_head(engine, entry.hash)
        return cls(engine)

    @classmethod
    def open(cls, where: Path | str) -> "SharedBudget":
        """Opens a budget and verifies every entry.

        Raises:
            LedgerMismatch: the database holds no shared budget.
            LedgerCorrupt: its entries are not what was written, or it is an older copy.
            LedgerUnavailable: there is none, or it cannot be read.
        """
        engine = databases.database(where)
        place = str(databases.file_of(engine) or databases.place(engine))
        command = f"sotto budget create {shlex.quote(place)} --epsilon EPSILON --delta DELTA"
        remedy = f"create one with: {command}"
        try:
            entries.find_run(engine, _RUN, "shared budget", remedy)
        except LedgerMismatch as error:
            raise LedgerMismatch(f"there is no shared budget at {place}; {remedy}") from error
        return cls(engine)

    @property
    def allowance(self) -> Allowance:
        """The most that each person may pay."""
        return self._account.allowance

    def account(self) -> SharedAccount:
        """Returns the account of all committed entries; callers do not change it.

        Raises:
            LedgerCorrupt: an entry was changed, or entries are missing.
            LedgerUnavailable: the database cannot be read.
        """
        with self._up_to_date():
            return self._account

    def open_stream(self, run_id: str, index: int, statement: StreamStatement, delta: float) -> int:
        """Returns the number of a product's stream, which is written down if it is new.

        Args:
            run_id: the product's run.
            index: place of the stream in the product's ledger.
            statement: as in the product's ledger.
            delta: of the product's budget.

        Raises:
            LedgerMismatch: it is not about real people, or has another statement here.
            BudgetExceeded: its kind has no place in the budget, or it costs more than all of it.
            LedgerUnavailable: the budget cannot be written.
        """
        cost = self.allowance.cost(statement, delta)
        with self._writing() as connection:
            found = self._account.find(run_id, index, statement)
            if found is None:
                found = len(self._account.streams)
                contents = {"run": run_id, "index": index, "statement": json_values(statement)}
                self._write(connection, "open", contents | {"delta": delta, "cost": cost})
        return found

    def charge(self, stream: int, blocks: Sequence[PersonBlock]) -> str:
        """Charges people for a stream, once; when it returns the charge is on disk.

        Returns:
            The hash of an entry that holds the charge.

        Raises:
            BudgetExceeded: somebody would exceed the budget. Nobody is charged.
            LedgerUnavailable: the budget cannot be written; charging again is safe.
        """
        with self._writing() as connection:
            new = self._account.new(stream, _people(blocks))
            if new.size:
                self._account.check(stream, new)
                self._write(connection, "charge", {"stream": stream, "persons": as_blocks(new)})
        return self.head_hash

    def refused(self, stream: int, people: Sequence[int]) -> list[int]:
        """Returns those people whom the budget does not cover for a stream. Nobody is charged.

        Raises:
            LedgerUnavailable: the budget cannot be read.
        """
        account = self.account()
        new = account.new(stream, np.array(people, np.int64))
        return [int(one) for one in new[account.uncovered(stream, new)]]

    def hold(self, stream: int, people: Sequence[int]) -> list[int]:
        """Charges those people whom the budget covers for a stream, and returns the others.

        Raises:
            LedgerUnavailable: the budget cannot be written.
        """
        with self._writing() as connection:
            new = self._account.new(stream, np.array(people, np.int64))
            over = self._account.uncovered(stream, new)
            if (held := new[~over]).size:
                self._account.check(stream, held)
                self._write(connection, "charge", {"stream": stream, "persons": as_blocks(held)})
        return [int(one) for one in new[over]]

    def seen(self, product: str) -> str | None:
        """Returns the last entry of a product's ledger that was written down; None if none was.

        Raises:
            LedgerUnavailable: the budget cannot be read.
        """
        with self._up_to_date():
            return self._seen.get(product)

    def see(self, product: str, before: str | None, head: str) -> None:
        """Writes down a product's last entry, if the one before is what its ledger knows.

        Args:
            product: the product.
            before: entry that the budget saw last, which the product's ledger holds.
            head: hash of the last entry of the product's ledger.

        Raises:
            LedgerMismatch: the budget has seen another entry since.
            LedgerUnavailable: the budget cannot be written.
        """
        with self._writing() as connection:
            if self._seen.get(product) != before:
                run_id = product.rpartition(" ")[0]
                raise LedgerMismatch(
                    f"a copy of run {run_id!r} has made a release; go on with one of them alone"
                )
            self._write(connection, "seen", {"product": product, "head": head})

    # --- entries ---------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        before = self.head_hash
        with self._alone("nothing was released, and trying again is safe") as connection:
            yield connection
        if self.head_hash != before:
            databases.write_head(self._engine, self.head_hash)

    def _write(self, connection: sa.Connection, kind: Kind, contents: dict[str, Any]) -> None:
        self._insert(connection, kind, contents | {"writer": f"{self._writer}-{os.getpid()}"})

    def _check(self, entry: Entry, contents: dict[str, Any]) -> None:
        if entry.kind == "create" and contents["format"] != _FORMAT:
            raise ValueError(f"it has format {contents['format']!r}, not {_FORMAT!r}")
        if entry.kind == "open":
            statement = StreamStatement.model_validate(contents["statement"])
            cost = self.allowance.cost(statement, contents["delta"])
            if not all(map(_is_close, contents["cost"], cost)):
                raise ValueError("a stream has not the cost of its statement")
            if self._account.find(contents["run"], contents["index"], statement) is not None:
                raise ValueError("a stream is open already")
        if entry.kind == "charge":
            people = _people(contents["persons"])
            new = self._account.new(contents["stream"], people)
            if not len(np.unique(people)) == len(new) == len(people):
                raise ValueError("somebody is charged twice for a stream")
            self._account.check(contents["stream"], new)

    def _add_up(self, entry: Entry, contents: dict[str, Any]) -> None:
        if entry.kind == "create":
            self.budget_id, self.created = entry.hash, contents["created"]
            self._account = SharedAccount(Allowance.model_validate(contents["allowance"]))
            self._seen = {}
        elif entry.kind == "open":
            statement = StreamStatement.model_validate(contents["statement"])
            which = contents["run"], contents["index"]
            cost = tuple(contents["cost"])
            self._account.add_stream(SharedStream(*which, statement, contents["delta"], cost))
        elif entry.kind == "seen":
            self._seen[contents["product"]] = contents["head"]
        else:
            self._account.add_people(contents["stream"], _people(contents["persons"]))


def _people(blocks: Sequence[Sequence[int]]) -> People:
    """Returns the people of blocks that do not overlap."""
    return np.fromiter(chain.from_iterable(range(*one) for one in blocks), np.int64)


def _is_close(stored: int, computed: int) -> bool:
    return math.isclose(stored, computed, rel_tol=_ROUNDING, abs_tol=1)
