"""A chain of entries: read in order, each checked under its rules, and added up.

Teachers' answers and shared budgets have any number of writers. A writer takes the database's lock,
reads the entries of others, checks the new one against all of them, and commits. All of that is one
transaction. The `Ledger` of a training has one writer, who refuses entries of others. What was
added up contains committed entries alone.
"""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import sqlalchemy as sa

from sotto.privacy.errors import LedgerCorrupt, LedgerMismatch
from sotto.privacy.ledger import entries
from sotto.privacy.ledger.databases import ledger_errors, reading
from sotto.privacy.ledger.entries import GENESIS, Entry, Kind, canonical


class Chain(ABC):
    """The entries of one run, added up as far as they have been read. Threads may share it.

    A kind of chain says how an entry is checked (`_check`) and what it adds (`_add_up`).

    Args:
        engine: the database.
        run_id: name of the run.
        last: hash of the last entry to read; None reads all.

    Attributes:
        name: the chain in words, for errors.
        run_id: name of the run.
        head_hash: hash of the last entry that was read, which fixes all of them.
    """

    name: ClassVar[str]

    def __init__(self, engine: sa.Engine, run_id: str, last: str | None = None) -> None:
        self._engine, self.run_id, self._last = engine, run_id, last
        self._mutex = threading.Lock()
        self.head_hash, self._next_sequence = GENESIS, 0
        self._inserted: list[Entry] = []  # in the transaction that is open
        with self._up_to_date():
            pass

    def holds(self, entry_hash: str) -> bool:
        """Returns whether any entry has this hash; an older copy lacks the newer entries.

        Raises:
            LedgerUnavailable: the database cannot be read.
        """
        return entries.holds(self._engine, self.run_id, entry_hash)

    def at(self, entry_hash: str) -> Self | None:
        """Returns the chain up to the entry with this hash, or None; do not write to it.

        Raises:
            LedgerUnavailable, LedgerCorrupt: the database cannot be read, or was changed.
        """
        if not self.holds(entry_hash):
            return None
        return type(self)(self._engine, self.run_id, entry_hash)

    @contextmanager
    def _up_to_date(self) -> Iterator[None]:
        """Adds up all committed entries, and keeps other threads out in the context.

        Raises:
            LedgerCorrupt: an entry was changed, or entries are missing.
            LedgerUnavailable: the database cannot be read.
        """
        with (
            self._mutex,
            ledger_errors(self._engine, "nothing was changed"),
            reading(self._engine) as connection,
        ):
            self._catch_up(connection)
            yield

    @contextmanager
    def _alone(self, consequence: str) -> Iterator[sa.Connection]:
        """Yields a transaction that is alone on the run, after all entries before it are added up.

        The entry of `_insert` is added up after the commit.

        Args:
            consequence: text for the user if the database fails.
        """
        with self._mutex:
            self._inserted.clear()
            with ledger_errors(self._engine, consequence), self._engine.connect() as connection:
                with connection.begin():
                    entries.lock(connection, self.run_id)
                    self._catch_up(connection)
                    yield connection
                for entry in self._inserted:
                    entries.require_kept(connection, entry)
            for entry in self._inserted:
                self._append(entry, json.loads(entry.payload))

    def _insert(self, connection: sa.Connection, kind: Kind, contents: dict[str, Any]) -> Entry:
        """Adds the one entry of a transaction of `_alone`."""
        entry = self._next(kind, contents)
        entries.insert(connection, entry)
        self._inserted.append(entry)
        return entry

    def _next(self, kind: Kind, contents: dict[str, Any]) -> Entry:
        """Returns the entry that would follow the last one, not yet written."""
        payload = canonical(contents)
        return Entry(self.run_id, self._next_sequence, kind, payload, self.head_hash)

    def _catch_up(self, connection: sa.Connection) -> None:
        """Adds up new entries, under the rules that they were written under."""
        for entry in entries.follow(connection, self.run_id, self._next_sequence, self.head_hash):
            if self.head_hash == self._last:
                return
            try:
                if (entry.kind == "create") != (entry.sequence == 0):
                    raise ValueError(f"an entry of kind {entry.kind!r} is out of place")
                contents = json.loads(entry.payload)
                self._check(entry, contents)
                self._append(entry, contents)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                if entry.kind == "create" and isinstance(error, LedgerMismatch):
                    raise
                raise LedgerCorrupt(
                    f"entry {entry.sequence} of {self.name} breaks its rules ({error}); "
                    "restore it from a backup"
                ) from error

    def _append(self, entry: Entry, contents: dict[str, Any]) -> None:
        self._add_up(entry, contents)
        self.head_hash, self._next_sequence = entry.hash, entry.sequence + 1

    @abstractmethod
    def _check(self, entry: Entry, contents: dict[str, Any]) -> None:
        """Repeats the checks that were made before the entry was written.

        Raises:
            LedgerMismatch: the first entry is that of another kind of chain.
            ValueError: the entry breaks the rules.
        """

    @abstractmethod
    def _add_up(self, entry: Entry, contents: dict[str, Any]) -> None:
        """Adds an entry without checks."""
