"""The tables of a campaign in SQLite or PostgreSQL, and transactions on them.

Every writing transaction is alone on the campaign: SQLite has one writer, and on PostgreSQL each of
them locks the campaign's row first. It is on disk when its commit returns. A commit waits for the
disk several times, so `together` joins many writing operations of one thread in one transaction.
Each operation has a savepoint: if it is refused, only its own changes are undone.

SQLite overwrites deleted rows with zeros and empties its journal at every commit. PostgreSQL keeps
single deleted rows until it vacuums their table, and all rows in its write-ahead log until that is
recycled.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from sotto.people.errors import CampaignError, CampaignMismatch, StoreUnavailable
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger import databases

_metadata = sa.MetaData()

campaign = sa.Table(  # one row: the rules, and the release that is not made
    "people_campaign",
    _metadata,
    sa.Column("campaign_id", sa.String(64), primary_key=True),
    sa.Column("key_name", sa.String(64), nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("horizon", sa.Integer, nullable=False),
    sa.Column("participations", sa.Integer, nullable=False),
    sa.Column("min_separation", sa.Integer),
    sa.Column("place_seconds", sa.Double, nullable=False),
    sa.Column("release_seconds", sa.Double, nullable=False),
    sa.Column("fixed_times", sa.Boolean, nullable=False),
    sa.Column("contribution_bytes", sa.Integer, nullable=False),
    sa.Column("release", sa.Integer, nullable=False),  # equals the version that is published
    sa.Column("stage", sa.String(16), nullable=False),  # open, closed, begun
    sa.Column("deadline", sa.Double),  # once a place was taken
    sa.Column("holder", sa.String(255)),  # the updater who began the release
    sa.Column("lease_holder", sa.String(255)),
    sa.Column("lease_until", sa.Double),
)
people = sa.Table(
    "people_people",
    _metadata,
    sa.Column("person", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("token_hash", sa.String(64), nullable=False, unique=True),
    sa.Column("withdrew", sa.Boolean, nullable=False),
    sa.Column("replaced", sa.Integer, unique=True),  # counts tokens that came later or out of order
)
places = sa.Table(
    "people_places",
    _metadata,
    sa.Column("place", sa.String(64), primary_key=True),
    sa.Column("person", sa.Integer, nullable=False),
    sa.Column("release", sa.Integer, nullable=False),
    sa.Column("slot", sa.Integer),  # none once it was given to another person
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("gave", sa.Boolean, nullable=False),  # stays true when the contribution is deleted
    sa.Column("expires", sa.Double, nullable=False),
    sa.UniqueConstraint("person", "release"),
    sa.UniqueConstraint("release", "slot"),
)
contributions = sa.Table(  # of the release that is not made; there is only one
    "people_contributions",
    _metadata,
    sa.Column("place", sa.String(64), primary_key=True),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False),
)
keys = sa.Table(  # of the release that is not made
    "people_keys",
    _metadata,
    sa.Column("release", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("wrapped", sa.LargeBinary, nullable=False),
)
releases = sa.Table(  # those that are made or lost
    "people_releases",
    _metadata,
    sa.Column("release", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("holder", sa.String(255), nullable=False),
    sa.Column("lost", sa.Boolean, nullable=False),
)
policies = sa.Table(
    "people_policies",
    _metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("policy", sa.LargeBinary, nullable=False),
)

_CURRENT = sa.select(campaign).with_for_update()
_CLEARING_MS = 250  # for which destroying contributions waits, and is then tried again

Campaign = sa.Row[Any]
"""The row of `campaign`, as it was read in a transaction."""


def engine(where: Path | str) -> sa.Engine:
    """Returns the database at a path (SQLite) or SQLAlchemy URL, and reads or writes nothing yet.

    Raises:
        StoreUnavailable: the URL or its driver is unknown, or it is neither of the two databases.
    """
    try:
        made = databases.database(where)
    except PrivacyError as error:
        raise StoreUnavailable(f"the campaign's database cannot be used: {error}") from error
    if made.dialect.name == "sqlite":

        @sa.event.listens_for(made, "connect")
        def connected(connection: Any, _record: Any) -> None:
            # The journal of a ledger stays after its commit, with the old contents of its pages.
            connection.execute("PRAGMA journal_mode = TRUNCATE")
            connection.execute("PRAGMA secure_delete = ON")

    return made


def create(database: sa.Engine, row: dict[str, Any], policy: bytes, wrapped: bytes) -> None:
    """Makes the tables of a campaign with its first policy and the key of its first release.

    It is one transaction: the campaign is there as a whole or not at all.

    Raises:
        CampaignMismatch: the database holds a campaign already.
        StoreUnavailable: it cannot be written.
    """
    with campaign_errors(database), database.begin() as connection:
        databases.one_creator(connection)
        _metadata.create_all(connection)
        if connection.execute(sa.select(campaign)).first() is not None:
            raise CampaignMismatch(
                "the database holds a campaign already; open it, or use another database for a "
                "new one"
            )
        connection.execute(sa.insert(campaign).values(**row))
        connection.execute(sa.insert(policies).values(version=0, policy=policy))
        connection.execute(sa.insert(keys).values(release=0, wrapped=wrapped))
    databases.sync_directory(database)


def find(database: sa.Engine, campaign_id: str) -> Campaign:
    """Returns the campaign of this name.

    Raises:
        CampaignMismatch: the database holds another one.
        StoreUnavailable: there is none, or the database cannot be read.
    """
    missing = StoreUnavailable(
        f"there is no campaign at {databases.place(database)}; create it first"
    )
    if (file := databases.file_of(database)) is not None and not file.is_file():
        raise missing
    with reading(database) as connection:
        exists = sa.inspect(connection).has_table(campaign.name)
        found = connection.execute(sa.select(campaign)).first() if exists else None
    if found is None:
        raise missing
    if found.campaign_id != campaign_id:
        raise CampaignMismatch(
            f"the database at {databases.place(database)} belongs to another campaign than "
            f"{campaign_id!r}; give the one that was created with it"
        )
    return found


@contextmanager
def reading(database: sa.Engine) -> Iterator[sa.Connection]:
    """Yields a transaction that writes nothing, locks nobody out and sees one state throughout."""
    with campaign_errors(database), databases.reading(database) as connection:
        yield connection


@dataclass
class _Together:
    """The transaction that the operations of this thread share.

    Attributes:
        database: where it is.
        connection: its connection.
        failed: whether an operation could not be taken back, so that nothing may be committed.
    """

    database: sa.Engine
    connection: sa.Connection
    failed: bool = False


class _Thread(threading.local):
    """The shared transaction of each thread, while there is one."""

    shared: _Together | None = None


_thread = _Thread()


@contextmanager
def together(database: sa.Engine) -> Iterator[None]:
    """Joins what this thread writes to the database in one transaction, committed in the end.

    Nothing that was done within the context may be acknowledged before the context has ended.

    Raises:
        StoreUnavailable: it could not begin or be committed; then nothing is acknowledged.
    """
    with campaign_errors(database), database.begin() as connection:
        connection.execute(_CURRENT)  # waits for other writers once, and not in each operation
        _thread.shared = shared = _Together(database, connection)
        try:
            yield
        finally:
            _thread.shared = None
        if shared.failed:
            raise StoreUnavailable("a change of the database could not be taken back; try again")


@contextmanager
def writing(database: sa.Engine) -> Iterator[tuple[sa.Connection, Campaign]]:
    """Yields a transaction that is alone on the campaign, and the campaign as it is now.

    Within `together` it is a savepoint, which is on disk when the whole is committed.
    """
    shared = _thread.shared
    with campaign_errors(database):
        if shared is None or shared.database is not database:
            with database.begin() as connection:
                yield connection, connection.execute(_CURRENT).one()
        else:
            with _savepoint(shared):
                yield shared.connection, shared.connection.execute(_CURRENT).one()


@contextmanager
def _savepoint(shared: _Together) -> Iterator[None]:
    """Takes back what the context changed if it ends with an error."""
    # A database may have ended the transaction by itself, as SQLite does when the disk is full. A
    # new one would begin unnoticed, so nothing more is done in it.
    if shared.failed:
        raise StoreUnavailable("an earlier change in this transaction failed; try again")
    shared.connection.exec_driver_sql("SAVEPOINT operation")
    try:
        yield
        shared.connection.exec_driver_sql("RELEASE operation")
    except BaseException:
        try:
            shared.connection.exec_driver_sql("ROLLBACK TO operation")
            shared.connection.exec_driver_sql("RELEASE operation")
        except (exc.DBAPIError, exc.InvalidRequestError):
            shared.failed = True
        raise


def clear(connection: sa.Connection, table: sa.Table) -> None:
    """Deletes all rows of a table, and the pages of the file that held them."""
    if connection.dialect.name == "sqlite":
        connection.execute(sa.delete(table))  # without a condition it zeroes every page
        return
    # It waits for every reader, such as a backup, and the campaign waits with it.
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_CLEARING_MS}")
    connection.exec_driver_sql(f"TRUNCATE {table.name}")  # removes the table's file


def require_clearing(database: sa.Engine) -> None:
    """Refuses a role that could not destroy contributions after their release.

    Raises:
        CampaignMismatch: the role may not empty the tables.
        StoreUnavailable: the database cannot be read.
    """
    if database.dialect.name == "sqlite":
        return
    with reading(database) as connection:
        for table in (contributions, keys):
            may = sa.func.has_table_privilege(table.name, "TRUNCATE")
            if not connection.scalar(sa.select(may)):
                raise CampaignMismatch(
                    f"the database's role may not destroy contributions after a release; grant it "
                    f"TRUNCATE on {contributions.name} and {keys.name}"
                )


@contextmanager
def campaign_errors(database: sa.Engine) -> Iterator[None]:
    """Turns each failure of the database into one sentence."""
    try:
        yield
    except CampaignError:
        raise
    except PrivacyError as error:
        raise StoreUnavailable(f"the campaign's database cannot be used: {error}") from error
    except (exc.DBAPIError, exc.TimeoutError, exc.PendingRollbackError) as error:
        cause = error.orig if isinstance(error, exc.DBAPIError) else error
        reason = (str(cause).splitlines() or ["no reason given"])[0]
        raise StoreUnavailable(
            f"the campaign's database at {databases.place(database)} cannot be used ({reason}); "
            "try again"
        ) from error
