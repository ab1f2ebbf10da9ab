"""Entries of the ledger in a database: written once, synced, chained by hashes, never changed.

Any database that SQLAlchemy reaches will do. What is particular to SQLite, the default, is in
`_prepare_sqlite` and beside it; everywhere the primary key makes the second of two writers fail.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import exc

from sotto.privacy.errors import LedgerCorrupt, LedgerMismatch, LedgerUnavailable

GENESIS = "0" * 64
"""What the first entry has for the hash of the one before it."""

_LOCK_WAIT_SECONDS = 5.0
_READS = "sotto_reads"  # execution option of transactions that write nothing, and lock nobody out

_entries = sa.Table(
    "entries",
    sa.MetaData(),
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("previous_hash", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)


@dataclass(frozen=True)
class Entry:
    """One row: what happened, chained to everything that happened before."""

    run_id: str
    sequence: int
    kind: Literal["create", "open", "charge"]
    payload: str
    previous_hash: str

    @property
    def hash(self) -> str:
        """SHA-256 over all of it, in hexadecimal."""
        contents = [self.run_id, self.sequence, self.kind, self.payload, self.previous_hash]
        return hashlib.sha256(canonical(contents).encode()).hexdigest()


def canonical(contents: Any) -> str:
    """The one JSON text of these contents."""
    return json.dumps(contents, sort_keys=True, separators=(",", ":"), allow_nan=False)


def database(where: Path | str) -> sa.Engine:
    """The database at a path (SQLite) or SQLAlchemy URL; nothing is read or written yet.

    Raises:
        LedgerUnavailable: the URL or its driver is unknown.
    """
    text = str(where)
    try:
        engine = sa.create_engine(
            text if "://" in text else sa.URL.create("sqlite", database=str(Path(where).absolute()))
        )
    except (exc.ArgumentError, ModuleNotFoundError) as error:
        raise LedgerUnavailable(
            f"this is no database that can be used ({error}); give the path of a file, or a "
            "SQLAlchemy URL whose driver is installed"
        ) from error
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine)
    return engine


def runs(engine: sa.Engine) -> list[str]:
    """The runs that the database holds.

    Raises:
        LedgerUnavailable: there is no database, or it cannot be read.
        LedgerCorrupt: it is damaged.
    """
    file = engine.url.database
    if engine.dialect.name == "sqlite" and not (file and Path(file).is_file()):
        raise LedgerUnavailable(f"there is no ledger at {file}; create it first")
    with _failures(engine, "nothing was changed"), _reading(engine) as connection:
        return list(connection.scalars(sa.select(_entries.c.run_id).distinct()))


def read(engine: sa.Engine, run_id: str) -> list[Entry]:
    """All entries of a run, in order.

    Raises:
        LedgerCorrupt: one of them is not what was written, or the database is damaged.
        LedgerUnavailable: it cannot be read.
    """
    query = sa.select(_entries).where(_entries.c.run_id == run_id).order_by(_entries.c.sequence)
    with _failures(engine, "nothing was changed"), _reading(engine) as connection:
        rows = connection.execute(query).all()
    found: list[Entry] = []
    head = GENESIS
    for sequence, row in enumerate(rows):
        entry = Entry(row.run_id, row.sequence, row.kind, row.payload, row.previous_hash)
        if (entry.sequence, entry.previous_hash, entry.hash) != (sequence, head, row.hash):
            raise LedgerCorrupt(
                f"entry {sequence} of the ledger is not what was written; "
                "restore the ledger from a backup"
            )
        found.append(entry)
        head = entry.hash
    return found


def create(engine: sa.Engine, entry: Entry) -> None:
    """Writes the first entry of a run; makes the database and its table if need be.

    Raises:
        LedgerMismatch: the run exists.
        LedgerUnavailable: it cannot be written.
    """
    with _failures(engine, "nothing was created"), engine.begin() as connection:
        _create_table(connection)
        if _hash_at(connection, entry) is not None:
            raise LedgerMismatch(
                f"the run {entry.run_id!r} has a ledger already; open it, or name the new run "
                "differently"
            )
        _insert(connection, entry)
    _sync_directory(engine)


def append(engine: sa.Engine, entry: Entry) -> None:
    """Writes an entry; when it returns, the entry is on disk. Writing it again changes nothing.

    Raises:
        LedgerMismatch: there is another entry in its place.
        LedgerUnavailable: it cannot be written, or whether it was written is not known.
    """
    with (
        _failures(engine, "nothing was charged, and trying again is safe"),
        engine.begin() as connection,
    ):
        found = _hash_at(connection, entry)
        if found is None:
            _insert(connection, entry)
        elif found != entry.hash:
            raise LedgerMismatch("another process has written to the ledger; open it again")


def _hash_at(connection: sa.Connection, entry: Entry) -> str | None:
    here = (_entries.c.run_id == entry.run_id, _entries.c.sequence == entry.sequence)
    return connection.scalar(sa.select(_entries.c.hash).where(*here))


def _insert(connection: sa.Connection, entry: Entry) -> None:
    connection.execute(sa.insert(_entries).values(**vars(entry), hash=entry.hash))


def _reading(engine: sa.Engine) -> AbstractContextManager[sa.Connection]:
    return engine.execution_options(**{_READS: True}).begin()


def _prepare_sqlite(engine: sa.Engine) -> None:
    """Durable transactions, one writer at a time, and rows that cannot be changed."""

    @sa.event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin where we say, below
        for pragma in (
            f"busy_timeout = {int(1000 * _LOCK_WAIT_SECONDS)}",
            "journal_mode = DELETE",
            "synchronous = EXTRA",  # also syncs the directory once the journal is gone
        ):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begun(connection: sa.Connection) -> None:
        reads = connection.get_execution_options().get(_READS, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _create_table(connection: sa.Connection) -> None:
    _entries.create(connection, checkfirst=True)
    if connection.dialect.name == "sqlite":
        for action in ("UPDATE", "DELETE"):
            connection.exec_driver_sql(
                f"CREATE TRIGGER IF NOT EXISTS no_{action.lower()} BEFORE {action} ON entries "
                "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
            )


def _sync_directory(engine: sa.Engine) -> None:
    """Makes a new SQLite file's name as durable as its contents."""
    if engine.dialect.name == "sqlite" and engine.url.database:
        directory = os.open(Path(engine.url.database).parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextmanager
def _failures(engine: sa.Engine, consequence: str) -> Iterator[None]:
    """Turns the database's failures into one sentence each."""
    where = engine.url.render_as_string(hide_password=True)
    try:
        yield
    except exc.IntegrityError as error:
        raise LedgerMismatch(
            f"another process has written to the ledger at {where}; open it again"
        ) from error
    except (exc.OperationalError, exc.InterfaceError) as error:
        raise LedgerUnavailable(
            f"the ledger at {where} cannot be used ({error.orig}); {consequence}"
        ) from error
    except exc.DatabaseError as error:
        raise LedgerCorrupt(
            f"the ledger at {where} is damaged ({error.orig}); restore it from a backup"
        ) from error
