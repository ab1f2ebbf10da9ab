"""An updater whose database or ledger fails: nothing charged is lost, and nobody is named."""

import multiprocessing
import os
import signal
import stat
import time
import traceback
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from live import SLOTS, SPACES, config
from small_campaign import serve

from sotto.cli.live import campaign as command
from sotto.errors import RunError
from sotto.people import campaign as campaigns
from sotto.people import start
from sotto.people import updater as updaters
from sotto.people.campaign import Campaign, Terms
from sotto.people.database import tables
from sotto.people.database.store import CampaignDatabase
from sotto.people.errors import CampaignMismatch, StaleHolder, StoreUnavailable
from sotto.people.plan import CampaignPlan
from sotto.people.updater import Updater, run
from sotto.privacy.certificates.model import Certificate
from sotto.privacy.errors import LedgerMismatch
from sotto.privacy.ledger import databases
from sotto.serving.traffic import logs


def given(tmp_path: Path, database: str | None = None) -> tuple[Campaign, CampaignDatabase]:
    """A campaign whose first release is full."""
    settings = campaigns.new_settings("test", SPACES, config(), Terms(), database)
    campaign = start.create(tmp_path / "campaign", settings, named_database=database)
    store = campaign.open_store()
    store.enrol(SLOTS)
    for person in range(SLOTS):
        place = store.take_place(person, time.time())
        assert store.give(place.id, person, bytes(store.rules.contribution_bytes), time.time())
    return campaign, store


def test_a_release_that_was_charged_is_published_when_the_database_is_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign, store = given(tmp_path)
    updater, finish = Updater(campaign), CampaignDatabase.finish
    tries = []

    def fails(self: CampaignDatabase, *what: Any, **how: Any) -> None:
        tries.append(what)
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(CampaignDatabase, "finish", fails)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            updater.step()
    assert store.version() == 0
    monkeypatch.setattr(CampaignDatabase, "finish", finish)
    assert updater.step()
    assert store.version() == 1
    assert tries[0] == tries[1] == tries[2]  # one policy, which was paid for once
    assert not any(lost for _, lost in losses(store))
    assert sum(one.releases for one in campaign.open_ledger().streams) == 1


def losses(store: CampaignDatabase) -> list[Any]:
    with store._engine.connect() as connection:
        return list(connection.execute(sa.text("SELECT release, lost FROM people_releases")))


def test_what_another_updater_has_taken_over_is_not_published(tmp_path: Path) -> None:
    campaign, store = given(tmp_path)
    now = time.time()
    updater = Updater(campaign, lambda: now)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            CampaignDatabase, "finish", lambda *_, **__: (_ for _ in ()).throw(StoreUnavailable(""))
        )
        with pytest.raises(StoreUnavailable):
            updater.step()
    assert Updater(campaign, lambda: now + 60).step()  # it was charged, and is lost for this one
    now += 120
    with pytest.raises(StaleHolder):
        updater.step()
    assert not updater.step()
    assert losses(store) == [(0, True)]


def test_a_stop_waits_for_what_was_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign, store = given(tmp_path)
    finish, tries = CampaignDatabase.finish, []

    def fails_twice(self: CampaignDatabase, *what: Any, **how: Any) -> None:
        tries.append(what)
        if len(tries) < 3:
            raise StoreUnavailable("the database is away")
        finish(self, *what, **how)

    monkeypatch.setattr(CampaignDatabase, "finish", fails_twice)
    run(campaign, lambda: bool(tries), pause=0.01)
    assert store.version() == 1
    assert losses(store) == [(0, False)]


def test_a_stop_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign, store = given(tmp_path)

    def fails(*_what: Any, **_how: Any) -> None:
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(CampaignDatabase, "finish", fails)
    monkeypatch.setattr(updaters, "_LAST_SECONDS", 0.2)
    began = time.monotonic()
    run(campaign, lambda: True, pause=0.01)
    assert time.monotonic() - began < 5  # nothing was begun
    assert store.version() == 0
    asked = iter([False])
    run(campaign, lambda: next(asked, True), pause=0.01)
    assert store.version() == 0


def test_a_full_disk_does_not_end_the_updater(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release that it has charged would be lost with it."""
    campaign, store = given(tmp_path)
    write, tries = Certificate.write, []

    def full_twice(self: Certificate, *what: Any, **how: Any) -> None:
        tries.append(what)
        if len(tries) < 3:
            raise OSError(28, "No space left on device")
        write(self, *what, **how)

    monkeypatch.setattr(Certificate, "write", full_twice)
    run(campaign, lambda: store.version() == 1, pause=0.01)
    assert losses(store) == [(0, False)]


def test_a_damaged_certificate_costs_no_release(tmp_path: Path) -> None:
    """It is found before the charge, also by an updater that has its ledger in memory."""
    campaign, store = given(tmp_path)
    updater = Updater(campaign)
    assert updater.step()
    whole = campaign.certificate.read_bytes()
    store.enrol(SLOTS)
    for person in range(SLOTS, 2 * SLOTS):
        serve(store, person, time.time())
    campaign.certificate.write_text("{")
    with pytest.raises(RunError, match="is damaged"):
        updater.step()
    campaign.certificate.write_bytes(whole)
    assert sum(one.releases for one in campaign.open_ledger().streams) == 1


def test_files_of_a_campaign_are_their_owners_alone(tmp_path: Path) -> None:
    campaign, _ = given(tmp_path)
    assert Updater(campaign).step()
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in campaign.path.iterdir()}
    assert {"campaign.json", "certificate.json", "contributions.key"} <= set(modes)
    assert set(modes.values()) == {0o600}


def test_another_process_that_writes_to_the_ledger_does_not_end_the_updater(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found out when a stream is opened, or when it is charged."""
    campaign, store = given(tmp_path)
    opened, tries = CampaignPlan.open, []

    def fails_once(self: CampaignPlan, *what: Any) -> Any:
        tries.append(what)
        if len(tries) == 1:
            raise LedgerMismatch("another process has written to the ledger")
        return opened(self, *what)

    monkeypatch.setattr(CampaignPlan, "open", fails_once)
    run(campaign, lambda: store.version() == 1, pause=0.01)
    assert losses(store) == [(0, False)]


def test_a_backup_delays_a_release_and_does_not_lose_it(
    tmp_path: Path, postgresql_url: str
) -> None:
    """`pg_dump` reads the tables, which emptying them waits for."""
    campaign, store = given(tmp_path, postgresql_url)
    updater = Updater(campaign)
    with store._engine.connect() as backup:
        backup.execute(sa.text("SELECT count(*) FROM people_contributions"))
        with pytest.raises(StoreUnavailable):
            updater.step()
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            updater.step()
        assert time.monotonic() - began < 2  # everybody else waits for it, too
        assert store.version() == 0
    assert updater.step()
    assert losses(store) == [(0, False)]


def test_a_role_that_cannot_destroy_contributions_is_refused_before_a_charge(
    tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign, _ = given(tmp_path, postgresql_url)
    plain = sa.make_url(postgresql_url)
    with psycopg.connect(
        plain.set(drivername="postgresql").render_as_string(False), autocommit=True
    ) as owner:
        owner.execute("CREATE ROLE weak LOGIN")
        owner.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO weak")
    weak = tables.engine(plain.set(username="weak").render_as_string(False))
    with pytest.raises(CampaignMismatch, match="grant it TRUNCATE on"):
        tables.require_clearing(weak)
    monkeypatch.setattr(
        CampaignDatabase, "_engine", property(lambda _: weak, lambda *_: None), raising=False
    )
    with pytest.raises(CampaignMismatch, match="grant it TRUNCATE on"):
        Updater(campaign)


def test_an_unexpected_error_is_told_without_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    campaign, _ = given(tmp_path)

    def fails(_self: Updater) -> bool:
        raise RuntimeError("person 4711 gave 0.25")

    monkeypatch.setattr(Updater, "step", fails)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(logs, "log_safely", lambda: None)
    with pytest.raises(SystemExit) as ended:
        command._update_beside(campaign.path, None, None, os.getppid())
    said = capfd.readouterr().err
    assert ended.value.code == 1
    assert "RuntimeError" in said
    assert "4711" not in said


def test_an_updater_that_must_not_go_on_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_RESTART_SECONDS", 0.2)
    campaign, _ = given(tmp_path / "one")
    other, _ = given(tmp_path / "other")
    database = campaign.path / "people.sqlite"
    database.write_bytes((other.path / "people.sqlite").read_bytes())
    with command._updating(campaign.path, None, None):
        (process,) = [one for one in multiprocessing.active_children() if "Spawn" in repr(one)]
        process.join(60)
        time.sleep(1)
        assert process.exitcode == command._MUST_STOP
        assert multiprocessing.active_children() == []
    said = capfd.readouterr().err
    assert "belongs to another campaign" in said
    assert "started again" not in said


def test_errors_of_a_ledger_do_not_show_what_was_written(tmp_path: Path) -> None:
    engine = databases.database(tmp_path / "ledger.sqlite")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE charges (person INTEGER PRIMARY KEY)")
    person = 4700 + 11  # a traceback shows the lines of this test, too

    def charge() -> None:
        with databases.ledger_errors(engine, "nothing was charged"), engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO charges VALUES (:person)"), {"person": person})

    charge()
    with pytest.raises(LedgerMismatch) as caught:
        charge()
    shown = "".join(traceback.format_exception(caught.value))
    assert "IntegrityError" in shown
    assert str(person) not in shown
