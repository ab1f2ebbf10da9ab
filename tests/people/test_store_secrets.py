"""The files, errors and objects of a store show no contribution, token or key."""

import asyncio
import hashlib
import re
import sqlite3
import stat
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi import Request
from small_campaign import MASTER, begun, create, make_release, of, serve

from sotto.people.database import tables
from sotto.people.database.sealing import MasterKey
from sotto.people.database.store import CampaignDatabase
from sotto.people.errors import CampaignMismatch, MasterKeyLost, StoreUnavailable
from sotto.serving.traffic.callers import Callers
from sotto.serving.traffic.connections import Connections
from sotto.serving.traffic.limits import Limits
from sotto.serving.traffic.refusals import Refusal

WINDOW = 12
"""A run of so many equal bytes is no coincidence."""


def held(where: str) -> bytes:
    """All bytes that the database and its journal hold on disk."""
    folder = Path(where).parent
    return b"".join(one.read_bytes() for one in sorted(folder.iterdir()))


def secrets_of(where: str) -> list[bytes]:
    """The sealed contributions, their digests and the wrapped keys that the database has now."""
    with sqlite3.connect(where) as connection:
        rows = connection.execute(
            "SELECT sealed FROM people_contributions UNION ALL SELECT digest FROM "
            "people_contributions UNION ALL SELECT wrapped FROM people_keys"
        ).fetchall()
    connection.close()
    return [bytes(one) for (one,) in rows]


def found(secrets: list[bytes], contents: bytes) -> int:
    """How many of the secrets have any part of them in the contents."""
    windows = {contents[i : i + WINDOW] for i in range(len(contents) - WINDOW + 1)}
    return sum(
        any(one[i : i + WINDOW] in windows for i in range(len(one) - WINDOW + 1)) for one in secrets
    )


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A place for an SQLite file, alone in its folder."""
    (tmp_path / "folder").mkdir()
    return str(tmp_path / "folder" / "campaign.sqlite")


@pytest.mark.parametrize("size", [8, 300, 20_000])
def test_a_made_release_leaves_no_byte_behind(file: str, size: int) -> None:
    """Small contributions share pages and are moved between them, large ones have many pages."""
    slots = 60 if size < 1000 else 12
    store = create(file, slots=slots, contribution_bytes=size)
    store.enrol(slots)
    for person in range(slots):
        serve(store, person)
    secrets = secrets_of(file)
    assert len(secrets) == 2 * slots + 1
    assert found(secrets, held(file)) == len(secrets)
    assert found([of(person, size) for person in range(slots)] if size > 8 else [], held(file)) == 0
    store.withdraw(3)
    assert len(secrets_of(file)) == 2 * slots - 1
    make_release(store, 100.0)
    for one in (store, CampaignDatabase.open(file, "campaign", MASTER)):
        assert one.counts().took_part == slots - 1
        assert found(secrets, held(file)) == 0
    assert len(secrets_of(file)) == 1  # the next release's key


def test_a_withdrawn_contribution_leaves_no_byte_behind(file: str) -> None:
    store = create(file, contribution_bytes=20_000)
    store.enrol(2)
    serve(store, 0)
    secrets = secrets_of(file)
    del secrets[-1]  # the key stays
    assert found(secrets, held(file)) == 2
    store.withdraw(0)
    assert found(secrets, held(file)) == 0


def test_a_release_of_postgresql_leaves_no_row_behind(postgresql_url: str) -> None:
    store = create(postgresql_url)
    store.enrol(3)
    for person in range(3):
        serve(store, person)
    engine = sa.create_engine(postgresql_url)
    with engine.connect() as connection:
        files = "SELECT pg_relation_filenode('people_contributions')"
        before = connection.exec_driver_sql(files).scalar()
        assert len(connection.execute(sa.select(tables.contributions)).all()) == 3
        connection.rollback()
        make_release(store)
        assert connection.execute(sa.select(tables.contributions)).all() == []
        assert connection.execute(sa.select(tables.keys.c.release)).scalars().all() == [1]
        assert connection.exec_driver_sql(files).scalar() != before  # its file is gone
    engine.dispose()
    store.close()


def test_the_file_is_durable_and_its_owners_alone(file: str) -> None:
    store = create(file)
    store.enrol(1)
    with store._engine.connect() as connection:
        for pragma, value in (
            ("synchronous", 3),
            ("secure_delete", 1),
            ("journal_mode", "truncate"),
        ):
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() == value
    for one in Path(file).parent.iterdir():
        assert stat.S_IMODE(one.stat().st_mode) == 0o600


def test_tokens_and_places_secrets_and_the_master_key_are_not_stored(file: str) -> None:
    store = create(file)
    tokens = store.enrol(3)
    place = serve(store, 0)
    contents = held(file)
    assert hashlib.sha256(tokens[0].encode()).hexdigest().encode() in contents
    for secret in (*(token.encode() for token in tokens), place.secret, bytes(range(32)), of(0)):
        for form in (secret, secret.hex().encode()):
            assert form not in contents


def test_objects_show_no_secret(file: str) -> None:
    store = create(file, slots=1)
    store.enrol(1)
    place = serve(store, 0)
    closed = begun(store)
    assert repr(of(0)) not in repr(closed)
    assert repr(place.secret) not in repr(place)


# --- failures ------------------------------------------------------------------------------------


def one_sentence(error: BaseException) -> bool:
    return re.fullmatch(r"[^\n]+[^.\n]", str(error)) is not None


def test_a_failing_database_is_one_sentence_without_data(
    make: Callable[..., CampaignDatabase],
) -> None:
    store = make(contribution_bytes=64)
    store.enrol(1)
    place = store.take_place(0, 0.0)
    with store._engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE people_contributions")
    with pytest.raises(StoreUnavailable, match="try again") as caught:
        store.give(place.id, 0, b"x" * 64, 0.0)
    assert one_sentence(caught.value)
    whole = "".join(traceback.format_exception(caught.value))
    assert "INSERT INTO people_contributions" in whole  # the cause is there, its parameters are not
    for text in ("xxx", "\\x", place.id):
        assert text not in whole
    assert store.history(0).places == ((0, "taken"),)


def test_a_changed_contribution_is_no_contribution(make: Callable[..., CampaignDatabase]) -> None:
    """Also one that was moved to another person's place."""
    sealed = tables.contributions.c.sealed
    for moved in (False, True):
        store = make(slots=2)
        store.enrol(2)
        for person in range(2):
            serve(store, person)
        with store._engine.begin() as connection:
            first = connection.execute(sa.select(sealed)).scalars().all()[0]
            value = first if moved else bytes(len(first))
            connection.execute(sa.update(tables.contributions).values(sealed=value))
        with pytest.raises(StoreUnavailable, match="restore it from a backup"):
            store.close_due(0.0)
        tables._metadata.drop_all(store._engine)


def test_a_campaign_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"there is no campaign at .*; create it first"):
        CampaignDatabase.open(tmp_path / "nothing.sqlite", "campaign", MASTER)
    assert list(tmp_path.iterdir()) == []
    for url in ("sqlite://", "mysql://somewhere/db", "nonsense://"):
        with pytest.raises(StoreUnavailable) as caught:
            CampaignDatabase.open(url, "campaign", MASTER)
        assert one_sentence(caught.value)
    (tmp_path / "text.sqlite").write_text("this is no database, but a text of some length" * 30)
    with pytest.raises(StoreUnavailable):
        CampaignDatabase.open(tmp_path / "text.sqlite", "campaign", MASTER)


def test_another_campaign_or_key_is_refused(
    make: Callable[..., CampaignDatabase], where: str
) -> None:
    make()
    with pytest.raises(CampaignMismatch, match="belongs to another campaign than 'mine'"):
        CampaignDatabase.open(where, "mine", MASTER)
    with pytest.raises(CampaignMismatch, match="holds a campaign already"):
        make()
    with pytest.raises(MasterKeyLost, match="restore that key"):
        CampaignDatabase.open(where, "campaign", MasterKey(bytes(32)))
    assert CampaignDatabase.open(where, "campaign", MASTER).version() == 0


@pytest.mark.parametrize(
    "change",
    [
        {"slots": 0},
        {"horizon": 0},
        {"participations": 0},
        {"participations": 2},
        {"participations": 2, "min_separation": 0},
        {"place_seconds": 0.0},
        {"release_seconds": float("inf")},
        {"release_seconds": float("nan")},
        {"contribution_bytes": 0},
    ],
)
def test_such_rules_make_no_campaign(file: str, change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be|need a"):
        create(file, **change)
    assert not Path(file).exists()


# --- the service's callers -----------------------------------------------------------------------


@pytest.fixture
def callers(make: Callable[..., CampaignDatabase]) -> Iterator[tuple[CampaignDatabase, Callers]]:
    store = make()
    limits = Limits()
    made = Callers(store, lambda token: token == "operator", limits, Connections(limits))
    yield store, made
    made.close()


def request(token: str) -> Request:
    headers = [(b"authorization", f"Bearer {token}".encode())]
    return Request({"type": "http", "headers": headers, "client": ("127.0.0.1", 1)})


def test_callers_know_a_store(callers: tuple[CampaignDatabase, Callers]) -> None:
    store, made = callers
    (token,) = store.enrol(1)

    async def ask() -> None:
        assert (await made.caller(request(token))).name == "0"
        assert (await made.caller(request("operator"))).name is None
        with pytest.raises(Refusal) as caught:
            await made.caller(request("stranger"))
        assert caught.value.status == 401
        with store._engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE people_people")
        with pytest.raises(Refusal) as caught:
            await made.caller(request(token))
        assert caught.value.status == 503
        assert Path(store._engine.url.database).name not in str(vars(caught.value))

    asyncio.run(ask())
