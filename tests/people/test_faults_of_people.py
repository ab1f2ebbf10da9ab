"""A few faults of the whole service; `benchmarks/people_faults.py` injects a thousand."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import people_faults
import pytest
import sqlalchemy as sa
from faulty.crowd import Told, code, seed_of
from faulty.inspection import Inspector
from faulty.service import Nursery
from live import SLOTS, Live, started

from sotto.people.campaign import Campaign, Terms, open_campaign
from sotto.people.database import tables
from sotto.people.errors import CampaignError
from sotto.people.plan import CampaignPlan


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


@pytest.mark.parametrize(("database", "faults"), [("sqlite", 6), ("postgresql", 4)])
def test_nothing_is_lost_or_used_twice(
    request, nursery: Nursery, database: str, faults: int
) -> None:
    server = None
    if database == "postgresql":
        from postgres import Server

        server = Server()  # the others would be killed with it
        request.addfinalizer(server.stop)
    settings = people_faults.Settings(faults=faults, database=database, seed=3)
    report = people_faults.inject(settings, server, nursery, pace=0.1)
    assert report.violations == []
    assert report.faults.total() == faults
    assert report.kept > 0


# --- the inspection notices ----------------------------------------------------------------------


def give(live: Live, told: Told, person: int) -> str:
    """Lets a person give, and notes it as a crowd does."""
    place = live.store.take_place(person, live.now)
    numbers = code(CampaignPlan(live.campaign), np.random.default_rng(seed_of(place.id, 0)))
    contribution = numbers.astype(np.float32).tobytes()
    assert live.store.give(place.id, person, contribution, live.now)
    told.owner[place.id] = (person, place.release)
    told.sent[place.id] = [contribution]
    told.kept[place.id] = contribution
    return place.id


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A campaign with one release made, and one person's contribution for the next one."""
    folder = tmp_path_factory.mktemp("inspected")
    changes = {"target_epsilon": None, "noise_multiplier": 0.1, "correlated_noise": False}
    with started(folder, Terms(gives="update"), hidden=(64,), **changes) as live:
        told = Told()
        for person in range(SLOTS):
            give(live, told, person)
        assert live.updater.step()
        waiting = give(live, told, SLOTS)
        yield live, told, waiting


def inspect(campaign: Campaign, told: Told) -> list[str]:
    with (
        closing(campaign.open_store()) as store,
        closing(Inspector(campaign, store)) as inspector,
    ):
        return inspector.check(told)


def changed(live: Live, folder: Path, statement: sa.Executable) -> Campaign:
    """Returns a copy of the campaign whose database was changed behind everybody's back."""
    campaign = open_campaign(shutil.copytree(live.campaign.path, folder / "copy"))
    engine = tables.engine(campaign.people_place)
    with engine.begin() as connection:
        connection.execute(statement)
    engine.dispose()
    return campaign


def test_a_campaign_without_faults_has_no_violation(played) -> None:
    live, told, _ = played
    assert inspect(live.campaign, told) == []


def test_a_lost_contribution_is_noticed(played) -> None:
    live, told, waiting = played
    person, release = told.owner[waiting]
    never = Told(told.sent, told.owner | {"p": (person, release)}, told.kept | {"p": b""})
    assert any("acknowledged contribution is None" in one for one in inspect(live.campaign, never))


def test_another_contribution_is_noticed(played) -> None:
    live, told, waiting = played
    other = Told(told.sent, told.owner, told.kept | {waiting: bytes(len(told.kept[waiting]))})
    assert any("not what was sent" in one for one in inspect(live.campaign, other))


def test_another_sum_is_noticed(played) -> None:
    """The release is checked against a contribution that was not used."""
    live, told, waiting = played
    used = next(place for place in told.kept if place != waiting)
    changed = {used: told.kept[waiting]}
    swapped = Told(
        {place: [changed.get(place, one)] for place, one in told.kept.items()},
        told.owner,
        told.kept | changed,
    )
    assert any("too much" in one for one in inspect(live.campaign, swapped))


def test_a_withdrawal_that_was_ignored_is_noticed(played) -> None:
    live, told, _ = played
    receipt = {"person": 0, "deleted_from_releases": [0], "part_of_releases": []}
    ignored = Told(told.sent, told.owner, told.kept, receipts={0: receipt})
    assert any("with the receipt" in one for one in inspect(live.campaign, ignored))


FIRST = tables.places.c.person == 0


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (sa.update(tables.places).where(FIRST).values(state="expired"), "is released for {1}"),
        (sa.update(tables.places).where(FIRST).values(state="lost"), "is released for {1}"),
        (sa.update(tables.places).where(FIRST).values(person=9), "the place of an acknowledged"),
        (sa.update(tables.releases).values(lost=True), "is lost for set()"),
        (sa.delete(tables.policies).where(tables.policies.c.version == 0), "policies [1]"),
        (sa.update(tables.people).where(tables.people.c.person == 5).values(withdrew=True),
         "did not ask"),
    ],
)  # fmt: skip
def test_a_changed_database_is_noticed(played, tmp_path, statement, said) -> None:
    live, told, _ = played
    assert any(said in one for one in inspect(changed(live, tmp_path, statement), told))


@pytest.mark.parametrize("table", [tables.contributions, tables.keys])
def test_a_lost_row_is_noticed(played, tmp_path, table: sa.Table) -> None:
    live, told, _ = played
    with pytest.raises(CampaignError):
        inspect(changed(live, tmp_path, sa.delete(table)), told)


def test_a_second_charge_is_noticed(played, monkeypatch) -> None:
    live, told, _ = played
    monkeypatch.setattr(Inspector, "_read_charges", lambda _self: [{0, 1}, {1}, {1}])
    said = "\n".join(inspect(live.campaign, told))
    assert "3 charges at version 1" in said
    assert "person 1 was charged for [0, 1, 2]" in said


def test_another_certificate_is_noticed(played, tmp_path) -> None:
    live, told, _ = played
    campaign = changed(live, tmp_path, sa.text("SELECT 1"))
    text = campaign.certificate.read_text()
    campaign.certificate.write_text(text.replace('"persons": 2', '"persons": 1'))
    assert any("certificate.json is false" in one for one in inspect(campaign, told))
