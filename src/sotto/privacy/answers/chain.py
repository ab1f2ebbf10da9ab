"""The chain of entries of an answer ledger, which any number of processes may add to.

A process that adds an entry takes the database's lock, reads the entries of other processes, checks
the budget against all of them, and commits. All of that is one transaction. The account only
contains committed entries: an entry of this process counts once it is read back.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import sqlalchemy as sa

from sotto.privacy.answers.account import AnswerAccount
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.errors import LedgerCorrupt, LedgerMismatch
from sotto.privacy.ledger import entries
from sotto.privacy.ledger.databases import failures, reading
from sotto.privacy.ledger.entries import GENESIS, Entry, canonical
from sotto.privacy.ledger.spending import Budget

FORMAT = "answers-1"


class AnswerChain:
    """The entries of one run, added up as far as they have been read.

    Attributes:
        engine: the database.
        run_id: name of the run.
        created: time of creation, ISO 8601 in UTC.
        versions: versions of the software that created it.
        head: hash of the last entry read.
    """

    created: str
    versions: dict[str, str]
    _account: AnswerAccount

    def __init__(self, engine: sa.Engine, run_id: str, last: str | None = None) -> None:
        self.engine = engine
        self.run_id = run_id
        self._last = last  # hash of the last entry to read; None reads all
        self.head = GENESIS
        self._next_sequence = 0
        self._mutex = threading.Lock()
        self.current()

    def current(self) -> tuple[AnswerAccount, str]:
        """Returns the account of all committed entries, and the hash of the last one.

        Raises:
            LedgerCorrupt: an entry was changed, or entries are missing.
            LedgerMismatch: the run is not a teacher's.
            LedgerUnavailable: the database cannot be read.
        """
        with (
            self._mutex,
            failures(self.engine, "nothing was changed"),
            reading(self.engine) as connection,
        ):
            self._catch_up(connection)
            return self._account.copy(), self.head

    @contextmanager
    def writing(self, consequence: str) -> Iterator[tuple[sa.Connection, AnswerAccount]]:
        """Yields a transaction that is alone on the run, and the account of all entries before it.

        Args:
            consequence: text for the user if the database fails.
        """
        with (
            self._mutex,
            failures(self.engine, consequence),
            self.engine.begin() as connection,
        ):
            entries.lock(connection, self.run_id)
            self._catch_up(connection)
            yield connection, self._account

    def insert(
        self,
        connection: sa.Connection,
        kind: Literal["student", "revoke", "charge"],
        contents: dict[str, Any],
    ) -> int:
        """Adds an entry to a transaction of `writing` and returns its number."""
        entry = Entry(self.run_id, self._next_sequence, kind, canonical(contents), self.head)
        entries.insert(connection, entry)
        return entry.sequence

    def _catch_up(self, connection: sa.Connection) -> None:
        """Adds up new entries, under the rules that they were written under."""
        for entry in entries.follow(connection, self.run_id, self._next_sequence, self.head):
            if self.head == self._last:
                return
            try:
                self._add_up(entry, json.loads(entry.payload))
            except LedgerMismatch:
                raise
            except (ValueError, KeyError, TypeError) as error:
                raise LedgerCorrupt(
                    f"entry {entry.sequence} of the ledger breaks its rules ({error}); "
                    "restore the ledger from a backup"
                ) from error
            self.head = entry.hash
            self._next_sequence = entry.sequence + 1

    def _add_up(self, entry: Entry, contents: dict[str, Any]) -> None:
        if (entry.kind == "create") != (entry.sequence == 0):
            raise ValueError(f"an entry of kind {entry.kind!r} is out of place")
        match entry.kind:
            case "create":
                if contents["format"] != FORMAT:
                    raise LedgerMismatch(
                        f"run {self.run_id!r} is a training run and not a teacher who answers; "
                        "open it as a `Ledger`"
                    )
                self.created = contents["created"]
                self.versions = contents["versions"]
                self._account = AnswerAccount(
                    AnswerStatement.model_validate(contents["statement"]),
                    Budget.model_validate(contents["budget"]),
                )
            case "student":
                self._account.check_add(contents["student"], contents["queries"])
                self._account.apply_add(contents["student"], contents["queries"])
            case "revoke":
                self._account.apply_revoke(self._account.student(contents["student"]).name)
            case "charge":
                name, rows = contents["student"], contents["rows"]
                self._account.check_charge(name, rows)
                if contents["first_query"] != self._account.students[name].answered:
                    raise ValueError("its first query is not the student's next one")
                self._account.apply_charge(name, rows)
            case other:
                raise ValueError(f"an answer ledger has no entries of kind {other!r}")
