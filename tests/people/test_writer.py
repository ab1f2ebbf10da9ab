"""Operations that are committed in groups: their results, refusals, and commits that fail."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
import pytest
import sqlalchemy as sa
from postgres import cut_off
from small_campaign import MASTER, of

from sotto.people.database import tables
from sotto.people.database.store import CampaignDatabase
from sotto.people.database.writer import MOST_TOGETHER, Writer
from sotto.people.errors import StoreUnavailable, UnknownPerson, UnknownPlace

Make = Callable[..., CampaignDatabase]


@contextmanager
def one_group(store: CampaignDatabase) -> Iterator[Writer]:
    """A writer that does what is submitted in this context in one group."""
    writer, free = Writer(store), threading.Event()
    writer.submit(free.wait)
    time.sleep(0.05)
    yield writer
    free.set()
    writer.close()


def commits(store: CampaignDatabase) -> list[object]:
    seen: list[object] = []
    sa.event.listen(store._engine, "commit", lambda connection: seen.append(connection))
    return seen


def test_what_waits_is_committed_at_once(make: Make) -> None:
    store = make(slots=9)
    store.enrol(9)
    seen = commits(store)
    with one_group(store) as writer:
        jobs = [writer.submit(store.take_place, person, 0.0) for person in range(9)]
    assert [job.result().slot for job in jobs] == [*range(9)]
    assert len(seen) == 2  # the operation that held the others back, and their group
    assert store.counts().taken == 9


def test_a_group_has_a_largest_size(make: Make) -> None:
    store = make()
    store.enrol(1)
    seen = commits(store)
    with one_group(store) as writer:
        jobs = [writer.submit(store.withdraw, 0) for _ in range(MOST_TOGETHER + 1)]
    assert {job.result() for job in jobs} == {jobs[0].result()}
    assert len(seen) == 3


def test_refusals_take_back_their_own_changes_only(make: Make) -> None:
    store = make()
    store.enrol(3)
    with one_group(store) as writer:
        first = writer.submit(store.take_place, 0, 0.0)
        bad = [
            writer.submit(store.take_place, 7, 0.0),
            writer.submit(store.give, "nothing", 0, of(0), 0.0),
            writer.submit(store.give, "\0", 0, of(0), 0.0),  # PostgreSQL has no such text
            writer.submit(store.give, "nothing", 0, b"", 0.0),
        ]
        last = writer.submit(store.take_place, 1, 0.0)
    kinds = [type(job.exception()) for job in bad]
    assert kinds[:2] == [UnknownPerson, UnknownPlace]
    assert kinds[2] in (UnknownPlace, StoreUnavailable)
    assert kinds[3] is ValueError
    assert [first.result().slot, last.result().slot] == [0, 1]
    assert store.counts().taken == 2


def test_a_refused_operation_leaves_no_row(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make()
    store.enrol(2)
    real = CampaignDatabase._place

    def fails(self: CampaignDatabase, *arguments: object) -> object:
        monkeypatch.setattr(CampaignDatabase, "_place", real)
        raise UnknownPlace("after the row was written")

    monkeypatch.setattr(CampaignDatabase, "_place", fails)
    with one_group(store) as writer:
        refused = writer.submit(store.take_place, 0, 0.0)
        kept = writer.submit(store.take_place, 1, 0.0)
    assert isinstance(refused.exception(), UnknownPlace)
    assert kept.result().slot == 0
    assert store.history(0).places == ()


def test_nothing_is_acknowledged_if_the_commit_fails(make: Make) -> None:
    store = make()
    store.enrol(2)

    def fail(connection: sa.Connection) -> None:
        sa.event.remove(store._engine, "commit", fail)
        raise sa.exc.OperationalError("COMMIT", None, Exception("the disk is full"))

    with one_group(store) as writer:
        jobs = [writer.submit(store.take_place, person, 0.0) for person in range(2)]
        jobs_of_failure(store, fail)
    for job in jobs:
        assert isinstance(job.exception(), StoreUnavailable)
    assert store.counts().taken == 0
    assert store.take_place(0, 0.0).slot == 0


def jobs_of_failure(store: CampaignDatabase, fail: Callable[..., None]) -> None:
    """Lets the commit after the present one fail."""

    def present(_connection: sa.Connection) -> None:
        sa.event.remove(store._engine, "commit", present)
        sa.event.listen(store._engine, "commit", fail)

    sa.event.listen(store._engine, "commit", present)


def test_a_transaction_that_the_database_ended_is_not_continued(make: Make) -> None:
    """SQLite ends a transaction by itself if the disk is full, and a new one would be committed."""
    store = make()
    store.enrol(3)

    def ended() -> None:
        with tables.writing(store._engine) as (connection, _):
            connection.exec_driver_sql("ROLLBACK")
            raise StoreUnavailable("the disk is full")

    with one_group(store) as writer:
        jobs: list[Future[object]] = [
            writer.submit(store.take_place, 0, 0.0),
            writer.submit(ended),
            writer.submit(store.take_place, 1, 0.0),
        ]
    for job in jobs:
        assert isinstance(job.exception(), StoreUnavailable)
    assert store.counts().taken == 0
    assert store.take_place(2, 0.0).slot == 0


def test_a_server_that_goes_away_in_a_group(make: Make, where: str) -> None:
    if where.endswith(".sqlite"):
        pytest.skip("SQLite has no server")
    store = make()
    store.enrol(2)
    admin = sa.create_engine(where, isolation_level="AUTOCOMMIT")

    def cut() -> None:
        with admin.connect() as connection:
            cut_off(connection)

    with one_group(store) as writer:
        jobs: list[Future[object]] = [
            writer.submit(store.take_place, 0, 0.0),
            writer.submit(cut),
            writer.submit(store.take_place, 1, 0.0),
        ]
    for job in jobs:
        assert isinstance(job.exception(), StoreUnavailable)
    assert store.counts().taken == 0
    admin.dispose()


def test_another_process_finds_the_database_free(make: Make, where: str) -> None:
    """The updater's lease is extended while people write without a pause."""
    store = make(slots=5000, release_seconds=1e6)
    store.enrol(2000)
    other, writer = CampaignDatabase.open(where, "campaign", MASTER), Writer(store)
    jobs = [writer.submit(store.take_place, person, 0.0) for person in range(1000)]
    waited = []
    while not jobs[-1].done():
        began = time.perf_counter()
        assert other.lease("updater", 30.0, 0.0)
        waited.append(time.perf_counter() - began)
    writer.close()
    assert np.median(waited) < 4  # seconds; a starved process gives up after five
    other.close()


def test_after_a_group_operations_are_alone_again(make: Make) -> None:
    store = make()
    store.enrol(1)
    seen = commits(store)
    with store.together():
        store.take_place(0, 0.0)
        store.withdraw(0)
        assert seen == []
    store.enrol(1)
    store.withdraw(1)
    assert len(seen) == 3
