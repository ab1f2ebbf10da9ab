"""Attacks on live people: on the certificate, on other people's share, and on the service."""

import json
import socket
import sqlite3
import time
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from live import SLOTS, SPACES, Live, config, refused, started

from sotto.cli import main
from sotto.people import campaign as campaigns
from sotto.people import updater as updaters
from sotto.people.app import create_app
from sotto.people.campaign import Terms, open_campaign
from sotto.people.database.store import CampaignDatabase
from sotto.people.desk import Desk
from sotto.people.errors import CampaignMismatch, StaleHolder, StoreUnavailable
from sotto.people.updater import Updater, run
from sotto.privacy.answers.storage import KnownTokens
from sotto.privacy.errors import LedgerOlder, LedgerUnavailable
from sotto.privacy.release.stream import Stream


def copied(source: Path, target: Path) -> None:
    """Copies an SQLite database over another one, as a restored backup does."""
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


def charges(live: Live) -> int:
    return sum(stream.releases for stream in live.campaign.open_ledger().streams)


# --- a restored copy -----------------------------------------------------------------------------


@pytest.mark.parametrize("with_certificate", [True, False])
def test_an_older_ledger_is_refused(live, tmp_path, with_certificate):
    """Its certificate would leave out people whose data were released."""
    live.live(0, 1)
    live.updater.step()
    copied(live.campaign.ledger_place, tmp_path / "backup")
    live.live(2, 3)
    live.updater.step()
    copied(tmp_path / "backup", live.campaign.ledger_place)
    if not with_certificate:
        live.campaign.certificate.unlink()
    live.live(4, 5)
    live.now += 31
    with pytest.raises(LedgerOlder, match="newer backup"):
        live.new_updater().step()
    assert live.store.counts().made == 2


def test_older_copies_of_both_are_refused_beside_a_newer_certificate(live, tmp_path):
    """The updater does not replace the only file that reveals them."""
    live.live(0, 1)
    live.updater.step()
    files = (live.campaign.ledger_place, live.campaign.people_place)
    for number, file in enumerate(files):
        copied(file, tmp_path / f"backup {number}")
    live.live(2, 3)
    live.updater.step()
    newest = live.campaign.certificate.read_bytes()
    for number, file in enumerate(files):
        copied(tmp_path / f"backup {number}", file)
    live.now += 31
    assert not live.new_updater().step()
    live.live(4, 5)
    live.now += 31
    with pytest.raises(LedgerOlder, match="newer backup"):
        live.new_updater().step()
    assert live.campaign.certificate.read_bytes() == newest


def test_a_much_older_database_is_refused(live, tmp_path):
    """It has forgotten who took part, and who withdrew."""
    copied(live.campaign.people_place, tmp_path / "backup")
    for update in range(2):
        live.live(2 * update, 2 * update + 1)
        live.updater.step()
    copied(tmp_path / "backup", live.campaign.people_place)
    live.live(0, 1)  # it lets them come again
    live.now += 31
    with pytest.raises(CampaignMismatch, match="older than its ledger"):
        live.new_updater().step()
    assert charges(live) == 2


def test_a_restored_database_remembers_withdrawals(live, tmp_path, caplog):
    live.live(0, 1)
    copied(live.campaign.people_place, tmp_path / "backup")
    live.post(0, "/v1/withdrawals", {})
    copied(tmp_path / "backup", live.campaign.people_place)
    live.updater.step()
    assert (
        next(people.persons.blocks for people in live.campaign.open_ledger().streams)[0].start > 0
    )
    assert live.store.history(0).places == ((0, "withdrawn"),)
    assert "1 withdrawals were missing in the database" in caplog.text
    refused(live.post(0, "/v1/places", {}), 403, "withdrew")


def test_a_restarted_service_remembers_withdrawals(live, tmp_path):
    """Also those that the operator made."""
    copied(live.campaign.people_place, tmp_path / "backup")
    live.post(3, "/v1/withdrawals", {})
    assert main(["campaign", "withdraw", str(live.campaign.path), "5"]) == 0
    copied(tmp_path / "backup", live.campaign.people_place)
    assert not any(live.store.history(person).withdrew for person in (3, 5))
    create_app(live.campaign, live.store, live.campaign.operator.matches)
    assert [person for person in range(12) if live.store.history(person).withdrew] == [3, 5]


def test_a_withdrawal_that_cannot_be_noted_is_not_acknowledged(live, monkeypatch):
    live.live(0)

    def full(_file: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("sotto.people.database.withdrawals.os.write", full)
        answer = live.post(0, "/v1/withdrawals", {})
        refused(answer, 503, "store-unavailable")
        assert str(live.campaign.path) not in answer.text  # nobody is told where its files are
    assert not live.store.history(0).withdrew
    assert live.post(0, "/v1/withdrawals", {}).status_code == 200


@pytest.mark.parametrize("participations", [1, 2])
def test_people_whom_the_ledger_has_charged_do_not_stop_a_restored_campaign(
    tmp_path, caplog, participations
):
    """The copy is one release older, and has forgotten who took part in it."""
    changes = {}
    if participations == 2:
        changes = {"participations": 2, "min_separation": 3, "correlated_noise": False}
    with started(tmp_path, **changes) as live:
        copied(live.campaign.people_place, tmp_path / "backup")
        live.live(0, 1)
        live.updater.step()
        copied(tmp_path / "backup", live.campaign.people_place)
        live.now += 31
        updater = live.new_updater()
        live.live(2, 3)
        assert updater.step()  # the release that was charged is lost
        live.live(0, 4)  # the database lets the first one come again
        assert updater.step()
        taken = [one.persons.blocks for one in live.campaign.open_ledger().streams if one.releases]
        assert sum(len(range(*block)) for blocks in taken for block in blocks) == 3
        assert charges(live) == 2
        assert live.store.counts().release == 2
        assert live.store.history(0).places == ((1, "refused"),)
        assert live.get(0, "/v1/me").json()["cost"] is not None  # it was charged before the copy
        assert live.store.history(4).places == ((1, "released"),)
        assert "1 contributions to release 1 were dropped" in caplog.text
        refused(live.post(0, "/v1/places", {}), 403, "took-part")


def test_a_release_of_people_who_were_all_charged_stays_open(live, tmp_path):
    copied(live.campaign.people_place, tmp_path / "backup")
    live.live(0, 1)
    live.updater.step()
    copied(tmp_path / "backup", live.campaign.people_place)
    live.now += 31
    updater = live.new_updater()
    live.live(2, 3)
    updater.step()
    live.live(0, 1)
    updater.step()
    assert (charges(live), live.store.version()) == (1, 1)
    live.live(4, 5)  # the slots are free for them
    assert updater.step()
    assert (charges(live), live.store.version()) == (2, 2)


def test_people_of_a_failed_release_are_told_what_it_costs(live, tmp_path):
    """Also if a policy with their data was published, and the database has forgotten it."""
    live.live(0, 1)
    copied(live.campaign.people_place, tmp_path / "backup")
    live.updater.step()
    stated = live.get(0, "/v1/me").json()["cost"]
    copied(tmp_path / "backup", live.campaign.people_place)
    live.now += 31
    assert live.new_updater().step()
    me = live.get(0, "/v1/me").json()
    assert me["places"] == [{"release": 0, "state": "lost"}]
    assert me["cost"] == stated is not None
    receipt = live.post(0, "/v1/withdrawals", {}).json()["receipt"]
    assert receipt["part_of_releases"] == [0]


def test_who_withdrew_from_a_lost_release_is_told_so(live, tmp_path):
    """The copy was made before the release and the withdrawal, which the file remembers."""
    live.live(0, 1)
    copied(live.campaign.people_place, tmp_path / "backup")
    live.updater.step()
    live.post(0, "/v1/withdrawals", {})
    copied(tmp_path / "backup", live.campaign.people_place)
    live.now += 31
    assert live.new_updater().step()
    assert live.store.history(0).withdrew
    assert live.store.history(0).places == ((0, "lost"),)
    assert live.get(0, "/v1/me").json()["cost"] is not None


def test_an_updater_that_comes_back_reads_what_another_one_charged(live, monkeypatch):
    live.live(0, 1)
    assert live.updater.step()  # it has the ledger in memory from now on
    live.live(2, 3)
    live.now += 31
    other = live.new_updater()
    monkeypatch.setattr(other._store, "finish", lambda *_a, **_k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        other.step()
    receipt = live.post(2, "/v1/withdrawals", {}).json()["receipt"]
    assert receipt["part_of_releases"] == [1]
    live.now += 31
    assert live.updater.step()
    assert charges(live) == 2
    assert live.store.history(2).places == ((1, "lost"),)
    assert live.get(2, "/v1/me").json()["cost"] is not None


# --- a release that was begun and not charged ----------------------------------------------------


@pytest.mark.parametrize("everybody", [False, True])
def test_who_withdraws_before_the_charge_is_in_no_release(live, everybody):
    live.live(0, 1)
    with closing(sqlite3.connect(live.campaign.ledger_place, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable):
            live.updater.step()
        withdrawing = (0, 1) if everybody else (0,)
        for person in withdrawing:
            receipt = live.post(person, "/v1/withdrawals", {}).json()["receipt"]
            assert receipt["part_of_releases"] == [0]  # it may still be charged
    live.now += 31
    assert live.new_updater().step() or everybody
    for person in withdrawing:
        assert live.store.history(person).places == ((0, "withdrawn"),)
        receipt = live.post(person, "/v1/withdrawals", {}).json()["receipt"]
        assert receipt == {"person": person, "deleted_from_releases": [0], "part_of_releases": []}
    assert charges(live) == (0 if everybody else 1)
    assert live.campaign.open_ledger().persons == (0 if everybody else 1)


def test_who_withdraws_after_the_charge_stays_in_a_lost_release(live, monkeypatch):
    live.live(0, 1)
    monkeypatch.setattr(live.updater._store, "finish", lambda *_a, **_k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        live.updater.step()
    live.post(0, "/v1/withdrawals", {})
    live.now += 31
    assert live.new_updater().step()
    assert live.store.history(0).places == ((0, "lost"),)
    assert live.get(0, "/v1/me").json()["cost"] is not None


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"adjacency": "replace-one"}},
        {"config": {"clip_norm": 3.0}},
        {"config": {"participations": 2, "min_separation": 1}},
        {"terms": {"gives": "update"}},
        {"spaces": {"reward_per_step": 2.0}},
    ],
)
def test_changed_settings_are_refused(live, change):
    """People were promised the settings of the start, and the certificate is about them."""
    live.live(0, 1)
    live.updater.step()
    file = live.campaign.path / "campaign.json"
    settings = json.loads(file.read_text())
    for name, values in change.items():
        settings[name] |= values
    file.write_text(json.dumps(settings))
    changed = open_campaign(live.campaign.path)
    for begin in (
        lambda: Updater(changed, lambda: live.now),
        lambda: Desk(changed, live.store, lambda: live.now),
        lambda: create_app(changed, live.store, changed.operator.matches),
    ):
        with pytest.raises(CampaignMismatch, match="settings"):
            begin()


def test_unchanged_settings_are_read_again_as_they_were(live):
    again = open_campaign(live.campaign.path)
    assert again.settings.fingerprint == live.campaign.settings.fingerprint


def test_delta_covers_all_people_who_may_come(tmp_path):
    """The ledger would refuse the last of them, and the campaign would stand still."""
    changes = {"participations": 2, "min_separation": 1, "correlated_noise": False}
    fits = config(**changes, delta=0.12)
    campaigns.new_settings("test", SPACES, fits, Terms(), None)
    with pytest.raises(ValueError, match="each place"):
        campaigns.new_settings("test", SPACES, config(**changes, delta=0.2), Terms(), None)


# --- the updater ---------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StoreUnavailable, StaleHolder, LedgerUnavailable])
@pytest.mark.parametrize("operation", ["open", "lease", "begin", "finish"])
def test_the_updater_outlives_a_database_that_fails_once(live, monkeypatch, operation, error):
    real, failed = getattr(CampaignDatabase, operation), []

    def fails_once(*arguments, **options):
        if not failed:
            failed.append(operation)
            raise error("busy")
        return real(*arguments, **options)

    live.live(0, 1)
    patch = staticmethod(fails_once) if operation == "open" else fails_once
    monkeypatch.setattr(CampaignDatabase, operation, patch)
    until = time.monotonic() + 60
    run(live.campaign, lambda: live.store.version() == 1 or time.monotonic() > until, pause=0.01)
    assert (failed, live.store.version(), charges(live)) == ([operation], 1, 1)
    # What another updater has taken over is lost, and never made again.
    assert live.store.counts().lost == (operation == "finish" and error is StaleHolder)


def test_a_slow_release_is_not_taken_over(live, monkeypatch):
    """Its people would be charged for nothing. Programs are compiled after the charge."""
    one, other, real, tried = Updater(live.campaign), Updater(live.campaign), Stream.run, []

    def slow(*arguments, **options):
        monkeypatch.setattr(Stream, "run", real)
        time.sleep(2)
        tried.append(other.step())
        return real(*arguments, **options)

    live.live(0, 1)
    monkeypatch.setattr(updaters, "LEASE_SECONDS", 0.6)
    monkeypatch.setattr(Stream, "run", slow)
    assert one.step()
    assert tried == [False]
    assert live.store.counts().lost == 0


# --- other people's share ------------------------------------------------------------------------


def test_a_lookup_of_a_token_does_not_grow_with_the_people():
    """Strangers may ask before they are limited, and the event loop looks for their tokens."""

    def seconds(people: int) -> float:
        known = KnownTokens((str(number), f"{number:064x}") for number in range(people))
        best = []
        for _ in range(20):
            began = time.perf_counter()
            assert known.holder("a" * 43) is None
            best.append(time.perf_counter() - began)
        return min(best)

    assert seconds(100_000) < 50 * seconds(10)


def test_unknown_tokens_do_not_cause_all_tokens_to_be_read(live, monkeypatch):
    read, real = [], KnownTokens.add

    def counted(self, hashes):
        hashes = list(hashes)
        read.append(len(hashes))
        real(self, hashes)

    store = live.campaign.open_store()
    monkeypatch.setattr(KnownTokens, "add", counted)
    store.known_tokens()
    store.known_tokens()
    (new,) = live.store.enrol(1)
    assert store.known_tokens().holder(new) == "12"
    assert read == [12, 0, 1]
    replaced = live.store.replace_token(3)
    read.clear()
    assert store.known_tokens().holder(replaced) == "3"
    store.known_tokens()
    assert read == [1, 0]
    store.close()


def test_withdrawing_again_writes_nothing(live):
    """Each write waits for the disk on PostgreSQL, and there is one writer."""
    live.live(0)
    first = live.post(0, "/v1/withdrawals", {}).json()
    said: list[str] = []

    def saw(_connection, _cursor, statement, *_rest) -> None:
        said.append(statement.split()[0])

    sa.event.listen(live.store._engine, "before_cursor_execute", saw)
    assert live.post(0, "/v1/withdrawals", {}).json() == first
    assert "SELECT" in said
    assert not {"UPDATE", "DELETE", "INSERT"} & set(said)
    live.post(1, "/v1/withdrawals", {})
    assert "UPDATE" in said


def test_slow_bodies_of_one_person_are_limited(live):
    address = urlsplit(live.url)
    head = (
        f"POST /v1/places HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 99\r\n"
        f"Authorization: Bearer {live.tokens[0]}\r\nContent-Type: application/json\r\n\r\n{{"
    )
    with ExitStack() as stack:
        until = time.monotonic() + 30
        opened = 0
        while (answer := live.post(0, "/v1/places", {})).status_code != 429:
            assert answer.status_code == 200
            assert time.monotonic() < until
            slow = socket.create_connection((address.hostname, address.port))
            stack.enter_context(slow)
            slow.sendall(head.encode())
            opened += 1  # a computer that stands still for seconds ends some by their time limits
            time.sleep(0.05)
        assert opened >= 8
        refused(answer, 429, "too-many-requests")
        assert live.get(0, "/v1/me").status_code == 200
        assert live.post(1, "/v1/places", {}).status_code == 200
    until = time.monotonic() + 30
    while live.post(0, "/v1/places", {}).status_code != 200:  # their connections have ended
        assert time.monotonic() < until


def test_hoarders_do_not_take_all_places_of_every_release(live):
    """As many tokens as places stop a campaign: each release is charged, empty and wasted."""
    for _ in range(3):
        for hoarder in range(SLOTS):
            live.post(hoarder, "/v1/places", {})
        if live.post(SLOTS, "/v1/places", {}).status_code == 200:
            return
        live.now += 3601
        assert not live.updater.step()
    pytest.fail("the person who would give found no place in three releases")


# --- requests ------------------------------------------------------------------------------------


def test_odd_observations_are_one_sentence(tmp_path):
    with started(tmp_path, Terms(acts="server")) as live:
        place = live.post(0, "/v1/places", {}).json()["place"]
        deep = "[" * 900 + "]" * 900
        odd = ["[1e400, 0]", f"[{10**400}, 0]", "[null, 0]", '["a", 0]', "{}", deep, "[[1], 0]"]
        headers = live.headers(0) | {"Content-Type": "application/json"}
        for one in odd:
            body = f'{{"place": "{place}", "step": 0, "observation": {one}}}'
            answer = live.http.post("/v1/actions", content=body, headers=headers)
            refused(answer, 422, "bad-contribution")
            body = f'{{"place": "{place}", "observations": [{one}, [0, 0]], "rewards": [1]}}'
            answer = live.http.post("/v1/contributions", content=body, headers=headers)
            refused(answer, 422, "bad-contribution")


@pytest.mark.parametrize("odd", ["1e400", str(10**400), "null", '"1"', "true", "[1]", "{}"])
def test_odd_numbers_are_one_sentence(live, odd):
    place = live.post(0, "/v1/places", {}).json()["place"]
    headers = live.headers(0) | {"Content-Type": "application/json"}
    body = (
        f'{{"place": "{place}", "observations": [[0, 0], [0, 0]], "actions": [1], '
        f'"rewards": [{odd}], "terminated": false}}'
    )
    answer = live.http.post("/v1/contributions", content=body, headers=headers)
    refused(answer, 422, "bad-contribution")


def test_a_place_that_utf_8_cannot_write_is_one_sentence(live):
    headers = live.headers(0) | {"Content-Type": "application/json"}
    answer = live.http.post("/v1/contributions", content='{"place": "\\ud800"}', headers=headers)
    refused(answer, 422, "bad-contribution")


def test_a_place_in_memory_expires(tmp_path):
    with started(tmp_path, Terms(acts="server")) as live:
        place = live.post(0, "/v1/places", {}).json()["place"]
        asked = {"place": place, "step": 0, "observation": [0.3, -0.2]}
        assert live.post(0, "/v1/actions", asked).status_code == 200
        live.now += 3600
        refused(live.post(0, "/v1/actions", asked), 409, "place-closed")


def test_whoever_withdrew_gets_no_more_actions(tmp_path):
    with started(tmp_path, Terms(acts="server")) as live:
        places = [live.post(person, "/v1/places", {}).json()["place"] for person in (0, 1)]
        asked = [{"place": one, "step": 0, "observation": [0.3, -0.2]} for one in places]
        for person in (0, 1):
            assert live.post(person, "/v1/actions", asked[person]).status_code == 200
        live.post(0, "/v1/withdrawals", {})
        refused(live.post(0, "/v1/actions", asked[0]), 409, "place-closed")
        assert live.post(1, "/v1/actions", asked[1]).status_code == 200


def test_a_zero_with_a_sign_asks_for_the_same_action(tmp_path):
    with started(tmp_path, Terms(acts="server")) as live:
        place = live.post(0, "/v1/places", {}).json()["place"]
        for step in range(3):
            found = [
                live.post(0, "/v1/actions", {"place": place, "step": step, "observation": seen})
                for seen in ([0.0, 1.0], [-0.0, 1.0], [0, 1])
            ]
            assert len({one.json()["action"] for one in found}) == 1


def test_places_of_earlier_releases_are_forgotten(tmp_path):
    """Their secrets follow from the key of the release, which is destroyed."""
    with started(tmp_path, Terms(acts="server")) as live:
        desk = Desk(live.campaign, live.store, lambda: live.now)
        for update in range(2):
            place = live.store.take_place(2 * update, live.now)
            asked = {"step": 0, "observation": [0, 0]}
            desk.action(asked, place.id, 2 * update)
            assert [kept.release for kept in desk._places.values()] == [update]
            live.live(2 * update, 2 * update + 1)
            live.updater.step()
