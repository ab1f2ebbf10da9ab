"""Rows of a database table or query as batches of texts; the database is only read.

An SQLite file is opened read-only, and PostgreSQL in a transaction that is read-only. Other
databases are read by a table's name alone, because a query of the user's could write there. No
message says the password, the options of the URL, or what a driver reports about rows.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc

from sotto.data.imports.declaration import Declaration
from sotto.errors import RunError
from sotto.extras import EXTRAS, missing


def batches(
    url: str, declaration: Declaration, *, table: str | None, query: str | None, size: int
) -> Iterator[pa.RecordBatch]:
    """Yields rows of a database; every cell is a text or null.

    Args:
        url: SQLAlchemy URL; its driver must be installed.
        declaration: the declaration.
        table: name of a table, or SCHEMA.TABLE; give this or a query.
        query: SELECT statement, for SQLite and PostgreSQL.
        size: number of rows of a batch.

    Raises:
        RunError: the database cannot be read, or lacks the table or a column; or the declaration
            names no column of times, and the horizon is not 1.
    """
    if declaration.time is None and declaration.horizon > 1:
        raise RunError(
            "the rows of a database have no order; name the column of times, or of numbers that "
            "count a person's rows, with --time"
        )
    if (table is None) == (query is None):
        raise RunError("give the database's --table, or a --query that selects the columns")
    columns = tuple(dict.fromkeys(declaration.columns))
    ids = [one for one in columns if one in (declaration.person, declaration.episode)]
    engine = _engine(url)
    place = engine.url.set(query={}).render_as_string(hide_password=True)
    known = engine.dialect.name in ("sqlite", "postgresql")
    if query is not None and not known:
        raise RunError(
            f"a query on {engine.dialect.name} could write; make it a view, and name the view with "
            "--table"
        )
    options: dict[str, Any] = {"stream_results": True, "max_row_buffer": size}
    if engine.dialect.name == "postgresql":
        options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    try:
        with _understood(place), engine.connect() as connection:
            connection = connection.execution_options(**options)
            asked = sa.text(query) if query is not None else _selected(connection, table, columns)
            result = connection.execute(asked)
            if not result.returns_rows:
                raise RunError("the --query returns no rows; give a SELECT statement")
            names = list(result.keys())
            for name in columns:
                if names.count(name) != 1:
                    raise RunError(
                        f"{place} gives {names.count(name)} columns {name!r}; the columns are "
                        f"{', '.join(map(repr, names))}"
                    )
            places = {name: names.index(name) for name in columns}
            for rows in result.partitions(size):
                cells = {name: [row[place] for row in rows] for name, place in places.items()}
                for name in ids:  # equal people could get unequal ids as real numbers
                    real = (float, Decimal)
                    cells[name] = [None if isinstance(x, real) else x for x in cells[name]]
                yield pa.record_batch({name: _texts(values) for name, values in cells.items()})
    finally:
        engine.dispose()


def _engine(url: str) -> sa.Engine:
    """Returns an engine that opens an SQLite file read-only."""
    try:
        made = sa.make_url(url)
        if made.get_backend_name() != "sqlite":
            engine = sa.create_engine(made)
            if engine.dialect.driver == "psycopg":
                sa.event.listen(engine, "connect", _lenient)
            return engine
    except (exc.ArgumentError, ModuleNotFoundError, ValueError) as error:
        package = getattr(error, "name", None)
        advice = missing(package) if package in EXTRAS else "is its driver installed?"
        raise RunError(f"this is no URL of a database that can be opened; {advice}") from None
    path = Path(made.database or "")
    if made.drivername not in ("sqlite", "sqlite+pysqlite") or made.query or not path.is_file():
        raise RunError("give an existing SQLite file, as in sqlite:///records.db")
    place, read_only = path.absolute().as_uri(), {"mode": "ro", "uri": "true"}
    engine = sa.create_engine(sa.URL.create("sqlite", database=place, query=read_only))
    sa.event.listen(engine, "connect", _only_read)
    return engine


def _lenient(connection: Any, _record: Any) -> None:
    """Has psycopg read times that Python has no object for, such as infinity, as null.

    It would raise an error otherwise, and one person's cell would stop everybody's import.
    """
    from psycopg import DataError
    from psycopg.adapt import Loader
    from psycopg.pq import Format

    def lenient(kind: type[Any], written: Format) -> type[Loader]:
        class Lenient(Loader):
            format = written

            def __init__(self, oid: int, context: Any = None) -> None:
                super().__init__(oid, context)
                self._strict = kind(oid, context)

            def load(self, data: Any) -> Any:
                try:
                    return self._strict.load(data)
                except (DataError, ValueError, OverflowError):
                    return None

        return Lenient

    for name in ("date", "time", "timetz", "timestamp", "timestamptz", "interval"):
        oid = connection.adapters.types[name].oid
        for written in (Format.TEXT, Format.BINARY):
            kind = connection.adapters.get_loader(oid, written)
            if kind is not None:
                connection.adapters.register_loader(oid, lenient(kind, written))


def _only_read(connection: Any, _record: Any) -> None:
    """Lets SQLite do what reading a table needs, and nothing else, such as making another file."""
    needed = {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
        sqlite3.SQLITE_TRANSACTION,
    }

    def allowed(action: int, name: str | None, *_: str | None) -> int:
        columns = action == sqlite3.SQLITE_PRAGMA and name in ("table_info", "table_xinfo")
        return sqlite3.SQLITE_OK if action in needed or columns else sqlite3.SQLITE_DENY

    connection.set_authorizer(allowed)
    connection.text_factory = decoded


def decoded(content: bytes) -> str | None:
    """Returns bytes as a text, or null if they are not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


@contextmanager
def _understood(place: str) -> Iterator[None]:
    try:
        yield
    except exc.SQLAlchemyError as error:
        cause = type(getattr(error, "orig", None) or error).__name__
        check = "the name" if place.startswith("sqlite") else "the name, the password"
        raise RunError(
            f"{place} cannot be read as a database ({cause}); check {check}, the table or query, "
            "and your right to read it"
        ) from None


def _selected(
    connection: sa.Connection, table: str | None, columns: tuple[str, ...]
) -> sa.Select[Any]:
    """Returns the statement that reads a table's columns, which are there.

    SQLite would take the quoted name of a missing column for a text.
    """
    schema, _, name = (table or "").rpartition(".")
    try:
        there = [one["name"] for one in sa.inspect(connection).get_columns(name, schema or None)]
    except exc.NoSuchTableError:
        raise RunError(f"the database has no table or view {table!r}; check the name") from None
    for one in columns:
        if one not in there:
            raise RunError(f"{table} has no column {one!r}; its columns are {', '.join(there)}")
    wanted: list[sa.ColumnClause[Any]] = [sa.column(one) for one in columns]
    return sa.select(*wanted).select_from(sa.table(name, *wanted, schema=schema or None))


def _texts(values: list[Any]) -> pa.Array:
    """Returns cells as texts; anything but a text, number, truth value, UUID or time is null."""
    return pa.array([_text(value) for value in values], pa.string())


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float | Decimal | UUID):
        return str(value)
    return value.isoformat() if isinstance(value, datetime | date) else None
