"""Durable databases for ledgers: SQLite (a file) and PostgreSQL.

This module holds all that differs between the two. In both, a transaction that writes is on disk
when its commit returns, and a writer waits for another one only for seconds. A PostgreSQL server
that hands over to a standby must replicate synchronously, or its last commits are lost.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from sotto import files
from sotto.extras import EXTRAS, missing
from sotto.privacy.errors import LedgerCorrupt, LedgerMismatch, LedgerUnavailable

LOCK_WAIT_SECONDS = 5.0
_IDLE_SECONDS = 60.0  # after which PostgreSQL takes the lock away from a writer that hangs
_TIMEOUTS = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,  # for what was sent, and with probes also for an answer to come
    "keepalives_idle": 10,
    "keepalives_interval": 10,
}
"""When a client gives up a server that does not answer, for libpq, unless the URL says it."""

_WARNINGS = "sotto_warnings"  # key of what the server has warned of over a connection
_FILE = "sotto_file"  # key of what is known of a connection: which file it opened
_READS = "sotto_reads"  # execution option of transactions that write nothing, and lock nobody out
_NAMES = ("sqlite", "postgresql")
_CHANGES = ("UPDATE", "DELETE")
_HASH = re.compile("[0-9a-f]{64}")
_APPEND_ONLY = "the ledger is append-only"
_NO_CHANGE = (  # in the words of pg_get_triggerdef
    "CREATE TRIGGER no_change BEFORE DELETE OR UPDATE OR TRUNCATE ON {} "
    "FOR EACH STATEMENT EXECUTE FUNCTION sotto_append_only()"
)
_FOREIGN = sa.text(
    "SELECT 'trigger' AS kind, tgname::text AS name FROM pg_trigger "
    "WHERE tgrelid = to_regclass(:table) AND pg_get_triggerdef(oid, true) <> :own "
    "UNION ALL SELECT 'rule', rulename::text FROM pg_rewrite WHERE ev_class = to_regclass(:table) "
    "UNION ALL SELECT 'policy', polname::text FROM pg_policy WHERE polrelid = to_regclass(:table) "
    "UNION ALL SELECT 'unusual table', relname::text FROM pg_class "
    "WHERE oid = to_regclass(:table) AND (relkind <> 'r' OR relrowsecurity "
    "OR relpersistence <> 'p')"
)
"""Query of all that PostgreSQL does with a table beside the trigger of `make_append_only`."""


def database(where: Path | str) -> sa.Engine:
    """Returns the database at a path (SQLite) or SQLAlchemy URL, and reads or writes nothing yet.

    Raises:
        LedgerUnavailable: the URL or its driver is unknown, or it is neither of the two databases,
            or in memory, or an SQLite URL has options.
    """
    text = str(where)
    advice = "give the path of a file, or the SQLAlchemy URL of an SQLite or PostgreSQL database"
    try:
        url = sa.make_url(text) if "://" in text else sa.URL.create("sqlite", database=text)
        name, file = url.get_backend_name(), url.database or ""
        if name == "sqlite":
            if not file or ("://" in text and file.startswith((":memory:", "file:"))):
                raise LedgerUnavailable(
                    "a ledger in memory forgets what was spent when its process ends, and a URI "
                    "(file:...) may name one; give the path of a file"
                )
            if url.query:
                raise LedgerUnavailable(
                    "an SQLite URL takes no options (?...), since they may name another file; give "
                    "the path of a file"
                )
            url = url.set(database=str(Path(file).absolute()))  # the same in every directory
        options: dict[str, Any] = {"hide_parameters": True}  # errors would show who took part
        if name != "sqlite":
            # PostgreSQL's commands see what was committed before each; SQLite is set up below.
            options["isolation_level"] = "READ COMMITTED"
        if name in _NAMES:
            engine = sa.create_engine(url, pool_pre_ping=name != "sqlite", **options)
        else:
            raise LedgerUnavailable(f"no driver here makes {name!r} durable; {advice}")
    except (exc.ArgumentError, ModuleNotFoundError) as error:
        if (package := getattr(error, "name", None)) in EXTRAS:
            raise LedgerUnavailable(missing(package)) from error
        raise LedgerUnavailable(
            f"this is no database that can be used ({error}); {advice}, whose driver is installed"
        ) from error
    (_prepare_sqlite if name == "sqlite" else _prepare_postgresql)(engine)
    return engine


def file_of(engine: sa.Engine) -> Path | None:
    """Returns the file of an SQLite database; a server has none."""
    return Path(str(engine.url.database)) if engine.dialect.name == "sqlite" else None


def reading(engine: sa.Engine) -> AbstractContextManager[sa.Connection]:
    """Returns a transaction that writes nothing, locks nobody out and sees one state throughout."""
    options: dict[str, Any] = {_READS: True}
    if engine.dialect.name == "postgresql":
        options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    return engine.execution_options(**options).begin()


def only_read(connection: sa.Connection) -> None:
    """Says that later transactions of a connection write nothing."""
    connection.execution_options(**{_READS: True})


def make_append_only(connection: sa.Connection, table: sa.Table) -> None:
    """Refuses to change or remove rows of a table that was just made."""
    if connection.dialect.name == "sqlite":
        for action in _CHANGES:
            connection.exec_driver_sql(_refusal(action, table.name))
        return
    connection.exec_driver_sql(
        "CREATE OR REPLACE FUNCTION sotto_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_APPEND_ONLY}'; END $$"
    )
    connection.exec_driver_sql(_NO_CHANGE.format(table.name))


def require_plain(connection: sa.Connection, table: sa.Table) -> None:
    """Refuses a table of PostgreSQL that could drop or hide rows, which none made here can.

    An SQLite file is looked at as a whole when it is opened.

    Raises:
        LedgerCorrupt: the table is a view or is split, or has a rule, a policy or a trigger that
            was not made here.
    """
    if connection.dialect.name == "sqlite":
        return
    made = {"table": table.name, "own": _NO_CHANGE.format(table.name)}
    if (found := connection.execute(_FOREIGN, made).first()) is not None:
        raise _not_plain(found.kind, found.name)


def _refusal(action: str, table: str) -> str:
    """Returns the trigger of an SQLite file that refuses an action on a table."""
    return (
        f"CREATE TRIGGER no_{action.lower()} BEFORE {action} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{_APPEND_ONLY}'); END"
    )


def one_creator(connection: sa.Connection) -> None:
    """Lets nobody else make tables until the transaction ends; SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('sotto tables'))")


def sync_directory(engine: sa.Engine) -> None:
    """Syncs the directory of a new SQLite file, so that its name is as durable as its contents."""
    if (file := file_of(engine)) is not None:
        files.sync_directory(file.parent)


def write_head(engine: sa.Engine, head: str) -> None:
    """Writes the hash of the last entry to a file beside an SQLite file, with its permissions.

    It is not synced, and of two processes the slower one may write the older hash: the file may
    name an earlier entry, which the SQLite file holds, too. A database server has no such file.

    Raises:
        LedgerUnavailable: it cannot be written.
    """
    if (path := _head_file(engine)) is None:
        return
    try:
        if path.exists():
            files.overwrite(path, f"{head}\n")
        else:  # never seen empty, not even after a kill
            files.write_whole(path, f"{head}\n")
            path.chmod(path.with_suffix("").stat().st_mode & 0o666)
    except OSError as error:
        raise LedgerUnavailable(
            f"{path} cannot be written ({error.strerror}); the entry was made, and nothing was "
            "released"
        ) from error


def read_head(engine: sa.Engine) -> str | None:
    """Returns the hash in the file beside an SQLite file; None if there is no such file.

    Read it before the entries: others may be added in the meantime.

    Raises:
        LedgerCorrupt: the file is damaged.
        LedgerUnavailable: it cannot be read.
    """
    path = _head_file(engine)
    if path is None or not path.exists():
        return None
    try:
        head = files.read_at_most(path, 1000).decode("ascii", "replace").removesuffix("\n")
    except (ValueError, OSError) as error:
        raise LedgerUnavailable(f"{path} cannot be read: {error}") from error
    if not _HASH.fullmatch(head):
        raise LedgerCorrupt(f"{path} is damaged; if {place(engine)} is the newest, remove it")
    return head


def forget_head(engine: sa.Engine) -> None:
    """Removes the file beside an SQLite file that is gone, so that a new one can begin."""
    path = _head_file(engine)
    if path is not None and not path.with_suffix("").exists():
        path.unlink(missing_ok=True)


def older(engine: sa.Engine) -> LedgerCorrupt:
    """Returns the refusal of an SQLite file that lacks the entry of the file beside it."""
    return LedgerCorrupt(
        f"{place(engine)} lacks the entry that is written in {_head_file(engine)}, as an older "
        "copy does; restore the newest copy"
    )


def _head_file(engine: sa.Engine) -> Path | None:
    """Returns the file beside an SQLite file with the hash of its last entry."""
    file = file_of(engine)
    return None if file is None else Path(f"{file.resolve()}.head")


def place(engine: sa.Engine) -> str:
    """Returns the place of the database without secrets; a URL's options may hold a password."""
    return engine.url.set(query={}).render_as_string(hide_password=True)


@contextmanager
def ledger_errors(engine: sa.Engine, consequence: str) -> Iterator[None]:
    """Turns each failure of the database into one sentence."""
    try:
        yield
    except exc.IntegrityError as error:
        raise LedgerMismatch(
            f"another process has written to the ledger at {place(engine)}; open it again"
        ) from error
    except exc.DBAPIError as error:
        reason = (str(error.orig).splitlines() or ["no reason given"])[0]
        if _is_damage(error):
            raise LedgerCorrupt(
                f"the ledger at {place(engine)} is damaged, or is no ledger ({reason}); restore it "
                "from a backup, or name another file"
            ) from error
        raise LedgerUnavailable(
            f"the ledger at {place(engine)} cannot be used ({reason}); {consequence}"
        ) from error
    except exc.TimeoutError as error:
        raise LedgerUnavailable(
            f"all connections to the ledger at {place(engine)} are in use; {consequence}"
        ) from error


def _is_damage(error: exc.DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None)  # PostgreSQL's; XX: internal error, corruption
    if state is not None:
        return str(state).startswith("XX")
    return not isinstance(error, (exc.OperationalError, exc.InterfaceError))


def _prepare_sqlite(engine: sa.Engine) -> None:
    """Sets up durable transactions, and one writer at a time."""

    @sa.event.listens_for(engine, "do_connect")
    def connecting(_dialect: Any, _record: Any, given: list[Any], _named: dict[str, Any]) -> None:
        # What will be in it concerns its owner alone: hashes, names, stored answers. SQLite gives
        # its journals the same mode. What cannot be made is SQLite's to complain about.
        with contextlib.suppress(OSError):
            os.close(os.open(given[0], os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    @sa.event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        path = str(engine.url.database)  # may hold a link, which can point to another file later
        record.info[_FILE] = path, _identity(path)
        if os.path.getsize(path) == 0:  # one that somebody else has made
            os.chmod(path, 0o600)
        connection.isolation_level = None  # transactions begin where we say, below
        for pragma in (
            f"busy_timeout = {int(1000 * LOCK_WAIT_SECONDS)}",
            # A commit zeroes the journal's head and syncs that: nothing to delete, no directory
            # to sync. Measured 5 to 10 times faster than DELETE, and as durable.
            "journal_mode = PERSIST",
            "synchronous = EXTRA",
        ):
            connection.execute(f"PRAGMA {pragma}")
        _require_plain(connection)

    @sa.event.listens_for(engine, "begin")
    def begun(connection: sa.Connection) -> None:
        path, opened = connection.info[_FILE]
        if opened is None or _identity(path) != opened:
            raise LedgerUnavailable(
                f"the ledger at {place(engine)} is no longer the file that was opened, and what is "
                "written to that one would be lost; nothing was written, put the newest one back "
                "and start again"
            )
        reads = connection.get_execution_options().get(_READS, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _identity(path: str) -> tuple[int, int] | None:
    """Returns which file stands at a path, by its device and number, or None where none does."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _require_plain(connection: Any) -> None:
    """Refuses a file that could drop or hide entries, which no file made here can.

    A view can show other rows. Another trigger, a virtual table, or a table with a rule for
    conflicts can leave an entry out and report success.
    """
    made = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    for kind, name, table, sql in made:
        text = " ".join((sql or "").upper().split())
        plain = {
            "table": text.startswith("CREATE TABLE ") and "CONFLICT" not in text,
            "index": "CONFLICT" not in text,
            "trigger": sql in [_refusal(action, table) for action in _CHANGES],
        }
        if not plain.get(kind, False):
            connection.close()
            raise _not_plain(kind, name)


def _not_plain(kind: str, name: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"the database holds the {kind} {name!r}, which could drop or hide what is charged; use a "
        "ledger that was made here"
    )


def _prepare_postgresql(engine: sa.Engine) -> None:
    """Refuses to write to a server that may lose commits, and limits the waiting of writers.

    Every transaction looks at the settings, since a server can be reconfigured.
    """
    if engine.dialect.driver == "psycopg":
        _prepare_psycopg(engine)
    settings = (
        "SELECT current_setting('fsync'), current_setting('synchronous_commit'), "
        f"set_config('lock_timeout', '{int(1000 * LOCK_WAIT_SECONDS)}', true), "
        f"set_config('idle_in_transaction_session_timeout', '{int(1000 * _IDLE_SECONDS)}', true)"
    )

    @sa.event.listens_for(engine, "begin")
    def begun(connection: sa.Connection) -> None:
        if connection.get_execution_options().get(_READS, False):
            return
        fsync, synchronous_commit, *_ = connection.exec_driver_sql(settings).one()
        for name, value in (("fsync", fsync), ("synchronous_commit", synchronous_commit)):
            if value == "off":
                raise LedgerUnavailable(
                    f"the PostgreSQL server at {place(engine)} may forget what was committed "
                    f"({name} is off); turn {name} on, nothing was written"
                )


def _prepare_psycopg(engine: sa.Engine) -> None:
    """Gives up servers that do not answer, and takes a commit with a warning for a failed one.

    If somebody cancels the wait for a synchronous standby, the server commits alone and warns.
    """
    dialect: Any = engine.dialect
    commit = dialect.do_commit

    @sa.event.listens_for(engine, "do_connect")
    def connecting(_dialect: Any, _record: Any, _given: Any, named: dict[str, Any]) -> None:
        for name, value in _TIMEOUTS.items():
            named.setdefault(name, value)

    @sa.event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        warnings = record.info[_WARNINGS] = []

        def noticed(said: Any) -> None:
            if said.severity_nonlocalized == "WARNING":
                warnings.append(said.message_primary)

        connection.add_notice_handler(noticed)

    def commit_without_warning(connection: Any) -> None:
        warnings = connection.info[_WARNINGS]
        warnings.clear()
        commit(connection)
        if warnings:
            raise dialect.dbapi.OperationalError(warnings[0])

    dialect.do_commit = commit_without_warning
