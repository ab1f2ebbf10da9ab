"""Entries of a ledger in a database: written once, synced, chained by hashes, never changed.

One database may hold several runs. Whatever wrote an entry, the primary key makes the second of
two writers of the same sequence number fail; writers that take `lock` first wait for each other.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from platform import python_version
from typing import Any, Literal

import sqlalchemy as sa
from pydantic import BaseModel

from sotto.privacy.errors import LedgerCorrupt, LedgerMismatch, LedgerUnavailable
from sotto.privacy.ledger import databases

Kind = Literal["create", "join", "open", "charge", "seen", "student", "revoke"]
GENESIS = "0" * 64
"""Previous hash of the first entry."""
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\+00:00$"
"""Pattern of a time in UTC, ISO 8601 to the second."""

WRITTEN_BY_ANOTHER = (
    "another process has written to the ledger; when it has ended, open the ledger again, or "
    "continue the run with --resume"
)

_PAGE = 1000  # entries read at once
_NAME_LENGTH = 64

_entries = sa.Table(
    "entries",
    sa.MetaData(),
    sa.Column("run_id", sa.String(_NAME_LENGTH), primary_key=True),
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("previous_hash", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)

# Statements of every charge; making them anew takes as long as executing them.
_INSERT = sa.insert(_entries)
_HASH_AT = sa.select(_entries.c.hash).where(
    _entries.c.run_id == sa.bindparam("run"), _entries.c.sequence == sa.bindparam("number")
)


@dataclass(frozen=True)
class Entry:
    """One row: an event, chained to all events before it."""

    run_id: str
    sequence: int
    kind: Kind
    payload: str
    previous_hash: str

    @property
    def hash(self) -> str:
        """SHA-256 over all fields, in hexadecimal."""
        contents = [self.run_id, self.sequence, self.kind, self.payload, self.previous_hash]
        return hashlib.sha256(canonical(contents).encode()).hexdigest()


def canonical(contents: Any) -> str:
    """Returns the canonical JSON text of these contents."""
    return json.dumps(contents, sort_keys=True, separators=(",", ":"), allow_nan=False)


def json_values(model: BaseModel) -> Any:
    """Returns the model as JSON values, with infinity as a string.

    Raises:
        pydantic.ValidationError: `model_copy` has made it, with values that could not be read back.
    """
    return json.loads(type(model).model_validate(model).model_dump_json())


def versions() -> dict[str, str]:
    """Returns versions of the software behind an epsilon and its noise, by distribution name."""
    names = ("sotto", "jax", "jaxlib", "numpy", "randomgen", "jax-privacy", "dp-accounting")
    return {name: version(name) for name in names} | {"python": python_version()}


def now() -> str:
    """Returns the time, ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def find_run(
    engine: sa.Engine,
    run_id: str | None,
    what: str = "ledger",
    remedy: str = "create it first",
) -> str:
    """Returns the run of this name; None stands for the only one that the database holds.

    Args:
        engine: the database.
        run_id: name of the run.
        what: what the run is, for errors.
        remedy: what to do if there is none.

    Raises:
        LedgerMismatch: it holds other runs, or several and none was named.
        LedgerUnavailable: there is no database, or it cannot be read.
        LedgerCorrupt: it is damaged.
    """
    file = databases.file_of(engine)
    missing = f"there is no {what} at {databases.place(engine)}; {remedy}"
    if file is not None and not file.is_file():
        raise LedgerUnavailable(missing)
    with (
        databases.ledger_errors(engine, "nothing was changed"),
        databases.reading(engine) as connection,
    ):
        if not sa.inspect(connection).has_table(_entries.name):
            damaged = f"{file} holds no {what}; name another file, or restore it from a backup"
            raise LedgerUnavailable(missing if file is None else damaged)
        databases.require_plain(connection, _entries)
        held: list[str] = list(connection.scalars(sa.select(_entries.c.run_id).distinct()))
    if run_id is None and len(held) == 1:
        return held[0]
    if run_id is None or run_id not in held:
        names = ", ".join(map(repr, sorted(held))) or "no run"
        raise LedgerMismatch(
            f"this ledger belongs to run {names}, not {run_id!r}"
            if run_id
            else f"this ledger holds {names}; say which run to open"
        )
    return run_id


def follow(connection: sa.Connection, run_id: str, sequence: int, head: str) -> Iterator[Entry]:
    """Yields the entries of a run from `sequence` on, each checked against the one before it.

    Args:
        connection: in a transaction.
        run_id: the run.
        sequence: number of the first entry wanted.
        head: hash of the entry before it, which must still be there.

    Raises:
        LedgerCorrupt: an entry is not what was written, or the one before the first is gone.
    """
    while True:
        query = (
            sa.select(_entries)
            .where(_entries.c.run_id == run_id, _entries.c.sequence >= sequence - 1)
            .order_by(_entries.c.sequence)
            .limit(_PAGE)
        )
        rows = connection.execute(query).all()
        if sequence:
            if not rows or (rows[0].sequence, rows[0].hash) != (sequence - 1, head):
                raise LedgerCorrupt("the ledger's last entries are gone; restore it from a backup")
            rows = rows[1:]
        for row in rows:
            entry = Entry(row.run_id, row.sequence, row.kind, row.payload, row.previous_hash)
            if (entry.sequence, entry.previous_hash, entry.hash) != (sequence, head, row.hash):
                raise LedgerCorrupt(
                    f"entry {sequence} of the ledger is not what was written; "
                    "restore the ledger from a backup"
                )
            yield entry
            sequence, head = sequence + 1, entry.hash
        if len(rows) < _PAGE - 1:
            return


def holds(engine: sa.Engine, run_id: str, entry_hash: str) -> bool:
    """Whether one of the run's entries has this hash.

    Raises:
        LedgerUnavailable: it cannot be read.
    """
    query = sa.select(_entries.c.sequence).where(
        _entries.c.run_id == run_id, _entries.c.hash == entry_hash
    )
    with (
        databases.ledger_errors(engine, "nothing was changed"),
        databases.reading(engine) as connection,
    ):
        return connection.execute(query).first() is not None


def create(engine: sa.Engine, entry: Entry, tables: Sequence[sa.Table] = ()) -> None:
    """Writes the first entry of a run, and makes the database and its tables if needed.

    Args:
        engine: the database.
        entry: the run's first entry.
        tables: needed beside the entries.

    Raises:
        LedgerMismatch: the run exists.
        LedgerUnavailable: it cannot be written.
    """
    if not 1 <= len(entry.run_id) <= _NAME_LENGTH or not entry.run_id.isprintable():
        raise ValueError(f"a run's name has 1 to {_NAME_LENGTH} printable characters")
    with databases.ledger_errors(engine, "nothing was created"), engine.connect() as connection:
        with connection.begin():
            databases.one_creator(connection)
            if not sa.inspect(connection).has_table(_entries.name):
                _entries.create(connection)
                databases.make_append_only(connection, _entries)
            databases.require_plain(connection, _entries)
            for table in tables:
                table.create(connection, checkfirst=True)
            if _hash_at(connection, entry.run_id, entry.sequence) is not None:
                raise LedgerMismatch(
                    f"the run {entry.run_id!r} has a ledger already; open it, or name the new run "
                    "differently"
                )
            insert(connection, entry)
        require_kept(connection, entry)
    databases.sync_directory(engine)


def append(engine: sa.Engine, entry: Entry) -> None:
    """Writes an entry; when it returns, the entry is on disk. Writing it again changes nothing.

    Raises:
        LedgerMismatch: there is another entry in its place, or before it. The file may be an older
            copy, which was put in the place of the ledger while it was open.
        LedgerUnavailable: it cannot be written, or whether it was written is not known.
        LedgerCorrupt: the database does not keep it.
    """
    with (
        databases.ledger_errors(engine, "nothing was charged, and trying again is safe"),
        engine.connect() as connection,
    ):
        with connection.begin():
            found = _hash_at(connection, entry.run_id, entry.sequence)
            if found is None:
                if _hash_at(connection, entry.run_id, entry.sequence - 1) != entry.previous_hash:
                    raise LedgerMismatch(
                        "the ledger does not end with the entry that was written last; nothing was "
                        "charged, put its newest copy back and open it again"
                    )
                insert(connection, entry)
            elif found != entry.hash:
                raise LedgerMismatch(WRITTEN_BY_ANOTHER)
        require_kept(connection, entry)


def lock(connection: sa.Connection, run_id: str) -> None:
    """Locks the run until the end of the transaction, against others who take the lock.

    On SQLite the transaction itself is the lock, from its beginning.
    """
    if connection.dialect.name != "sqlite":
        first = (_entries.c.run_id == run_id, _entries.c.sequence == 0)
        connection.execute(sa.select(_entries.c.sequence).where(*first).with_for_update())


def insert(connection: sa.Connection, entry: Entry) -> None:
    """Adds the next entry to a transaction, whose commit makes it durable.

    Raises:
        LedgerCorrupt: the database did not take it, because of a rule or a trigger.
    """
    connection.execute(_INSERT, vars(entry) | {"hash": entry.hash})
    _require_held(connection, entry)


def require_kept(connection: sa.Connection, entry: Entry) -> None:
    """Reads an entry after its commit, at which a deferred trigger of PostgreSQL may remove it.

    Args:
        connection: that of the transaction, which has ended. It writes nothing any more.
        entry: the entry.

    Raises:
        LedgerCorrupt: the database did not keep it.
    """
    if connection.dialect.name != "sqlite":
        databases.only_read(connection)
        _require_held(connection, entry)


def _require_held(connection: sa.Connection, entry: Entry) -> None:
    if _hash_at(connection, entry.run_id, entry.sequence) != entry.hash:
        raise LedgerCorrupt(
            "the database does not keep what is written into the ledger, because of a rule or a "
            "trigger; nothing was charged, remove it"
        )


def payload_at(connection: sa.Connection, run_id: str, sequence: int) -> str | None:
    """Returns the payload of an entry; None if there is no such entry."""
    here = (_entries.c.run_id == run_id, _entries.c.sequence == sequence)
    return connection.scalar(sa.select(_entries.c.payload).where(*here))


def _hash_at(connection: sa.Connection, run_id: str, sequence: int) -> str | None:
    return connection.scalar(_HASH_AT, {"run": run_id, "number": sequence})
