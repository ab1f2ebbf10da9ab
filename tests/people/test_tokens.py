"""Tokens of people: a lost one is replaced, and the operator withdraws somebody."""

import asyncio
import hashlib
import time
from collections.abc import Callable

import pytest
from commands import printed, refused, run_json
from fastapi import Request
from live import Live
from small_campaign import MASTER, of, serve

from sotto.cli import main
from sotto.people.database.store import CampaignDatabase
from sotto.people.errors import UnknownPerson
from sotto.privacy.answers.storage import KnownTokens
from sotto.privacy.errors import LedgerUnavailable
from sotto.serving.traffic.callers import Callers
from sotto.serving.traffic.connections import Connections
from sotto.serving.traffic.limits import Limits
from sotto.serving.traffic.refusals import Refusal

Make = Callable[..., CampaignDatabase]


def another_store(live: Live) -> CampaignDatabase:
    """The store as another process opens it."""
    return live.campaign.open_store()


# --- the store -----------------------------------------------------------------------------------


def test_a_new_token_replaces_the_old_one(make: Make, where: str) -> None:
    store = make()
    other = CampaignDatabase.open(where, "campaign", MASTER)
    old = store.enrol(3)
    assert [other.known_tokens().holder(token) for token in old] == ["0", "1", "2"]
    place = serve(store, 1)
    known = store.known_tokens()
    new = [store.replace_token(1) for _ in range(2)]
    assert [known.holder(token) for token in (*old, *new)] == ["0", None, "2", None, "1"]
    assert [store.authenticate(token) for token in (old[1], *new)] == [None, None, "1"]
    changed = other.known_tokens()
    assert [changed.holder(token) for token in (*old, *new)] == ["0", None, "2", None, "1"]
    assert not store.give(place.id, 1, of(1), 0.0)  # the person is the same
    (late,) = store.enrol(1)
    last = store.replace_token(0)
    assert [other.known_tokens().holder(token) for token in (old[0], late, last)] == [
        None,
        "3",
        "0",
    ]
    with pytest.raises(UnknownPerson):
        store.replace_token(4)
    other.close()


# --- the service ---------------------------------------------------------------------------------


def test_a_replaced_token_is_refused(live):
    """At once where it was replaced, and in about a second by another process."""
    old = [live.headers(person) for person in (0, 1)]
    for person, store in ((0, live.store), (1, another_store(live))):
        assert live.get(person, "/v1/me").status_code == 200
        live.tokens[person] = store.replace_token(person)
        began = time.monotonic()
        while (answer := live.http.get("/v1/me", headers=old[person])).status_code == 200:
            assert person == 1
            assert time.monotonic() < began + 1.5
            time.sleep(0.02)
        assert (answer.status_code, answer.json()["error"]) == (401, "unknown-token")
        assert live.get(person, "/v1/me").json()["person"] == person


def test_requests_do_not_read_tokens(live, monkeypatch):
    """Reading for each of them would keep the service from thousands of decisions a second."""
    read, real = [], CampaignDatabase.known_tokens
    monkeypatch.setattr(CampaignDatabase, "known_tokens", lambda self: read.append(1) or real(self))
    monkeypatch.setattr(CampaignDatabase, "authenticate", lambda *_: pytest.fail("it was read"))
    began = time.monotonic()
    for _ in range(40):
        assert live.get(0, "/v1/campaign").status_code == 200
    assert len(read) <= 1 + (time.monotonic() - began) / 1.0


class Failing:
    """Holders in a database that fails once in a while."""

    def __init__(self) -> None:
        self.fails, self.known = False, KnownTokens([])

    def known_tokens(self) -> KnownTokens:
        if self.fails:
            raise LedgerUnavailable("away")
        return self.known

    def authenticate(self, token: str) -> str | None:
        return self.known_tokens().holder(token)


def test_without_the_database_no_token_is_believed_for_long():
    holders, limits = Failing(), Limits()
    store_hash = hashlib.sha256(b"ann-token").hexdigest()
    holders.known.add([("0", store_hash)])
    callers = Callers(
        *(holders, lambda _token: False, limits, Connections(limits)), believed_seconds=0.3
    )
    headers = [(b"authorization", b"Bearer ann-token")]
    request = Request({"type": "http", "headers": headers, "client": ("127.0.0.1", 1)})

    async def ask() -> None:
        assert (await callers.caller(request)).name == "0"
        holders.fails = True
        assert (await callers.caller(request)).name == "0"
        await asyncio.sleep(0.35)
        for _ in range(2):  # a reading that failed does not count
            with pytest.raises(Refusal) as caught:
                await callers.caller(request)
            assert caught.value.status == 503
        holders.fails = False
        assert (await callers.caller(request)).name == "0"

    asyncio.run(ask())
    callers.close()


class Slow(Failing):
    """Holders in a database that takes its time; the readings are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.readings = 0

    def known_tokens(self) -> KnownTokens:
        self.readings += 1
        time.sleep(0.05)
        return self.known


def test_requests_beside_a_reading_do_not_wait_for_another_one():
    """A person who floods the service would delay everybody by a quarter of a second."""
    holders, limits = Slow(), Limits()
    holders.known.add([("0", hashlib.sha256(b"ann-token").hexdigest())])
    callers = Callers(
        *(holders, lambda _token: False, limits, Connections(limits)), believed_seconds=0.3
    )
    callers.read_now()
    headers = [(b"authorization", b"Bearer ann-token")]
    request = Request({"type": "http", "headers": headers, "client": ("127.0.0.1", 1)})

    async def asked(after: float) -> str | None:
        await asyncio.sleep(after)
        return (await callers.caller(request)).name

    async def ask() -> None:
        assert await asyncio.gather(asked(0), asked(0.02), asked(0.02)) == ["0"] * 3

    asyncio.run(ask())
    callers.close()
    assert holders.readings == 2  # one before the start, and one for all requests


# --- the commands --------------------------------------------------------------------------------


def test_the_operator_replaces_a_lost_token(live, capsys):
    path = str(live.campaign.path)
    assert main(["campaign", "replace-token", path, "3"]) == 0
    said = capsys.readouterr()
    token = said.out.strip()
    assert said.err == ""
    assert live.store.authenticate(token) == "3"
    assert live.store.authenticate(live.tokens[3]) is None
    made = run_json(capsys, "campaign", "replace-token", path, "4")
    assert (made["person"], live.store.authenticate(made["token"])) == (4, "4")
    files = [file.read_bytes() for file in live.campaign.path.iterdir()]
    assert [file for file in files if token.encode() in file] == []


def test_the_operator_withdraws_people(live, capsys):
    """It has the effect of their own withdrawal, and gives the same receipt."""
    path = str(live.campaign.path)
    live.live(0)
    said = run_json(capsys, "campaign", "withdraw", path, "0", "5")
    own = live.post(0, "/v1/withdrawals", {}).json()
    assert own["receipt"] == {"person": 0, "deleted_from_releases": [0], "part_of_releases": []}
    assert said["receipts"][0] == own["receipt"]
    assert said["meaning"] == own["meaning"]
    for person in (0, 5):
        assert live.post(person, "/v1/places", {}).json()["error"] == "withdrew"
    text = printed(capsys, "campaign", "withdraw", path, "0")
    assert "Person 0 has withdrawn.\n  Deleted from releases: 0\n  Part of releases: none" in text
    assert "not refunded" in text


def test_who_is_not_there_is_named(live, capsys):
    path = str(live.campaign.path)
    for numbers in (["12"], ["0", "12"], ["0", str(10**30)], []):
        error = refused(capsys, "campaign", "withdraw", path, *numbers)
        assert ("no person 1" if numbers else "name at least one person") in error
        assert not live.store.history(0).withdrew
    for number in ("12", "-1"):
        refused(capsys, "campaign", "replace-token", path, number)
