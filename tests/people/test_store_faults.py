"""Processes of one store are killed: nothing acknowledged is lost, and nothing is used twice."""

import contextlib
import itertools
import json
import os
import random
import re
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from nursery import Nursery, is_running, wait_for
from postgres import cut_off
from products import BUDGET, UNIT, statement
from small_campaign import MASTER, create, make_release, serve
from store_replica import PEOPLE, contribution, whole_release

from sotto.people.database import tables
from sotto.people.database.store import CampaignDatabase
from sotto.people.database.tables import reading
from sotto.people.errors import NoPlace
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock

SIZE = 600
RULES = {
    "slots": 5,
    "horizon": 7,
    "participations": 2,
    "min_separation": 3,
    "place_seconds": 0.5,
    "release_seconds": 2.0,
    "contribution_bytes": SIZE,
}
FIELDS = ("event", "release", "who", "slot", "place")


class Processes(Nursery):
    """Processes that use a store, and what they report."""

    def __init__(self, where: str, out: Path) -> None:
        super().__init__(Path(__file__).with_name("store_replica.py"), where, out)

    def reported(self, event: str) -> list[tuple[int, str, str, str]]:
        """Release, person or holder, slot and place of each event of a kind."""
        lines = self.lines()
        assert all(len(line) == len(FIELDS) for line in lines)
        return [(int(one[1]), one[2], one[3], one[4]) for one in lines if one[0] == event]


@pytest.fixture
def processes(where: str, tmp_path: Path) -> Iterator[Processes]:
    started = Processes(where, tmp_path / "out.txt")
    yield started
    started.close()


def check(store: CampaignDatabase, processes: Processes) -> None:
    """Compares what the policies say they were made of with what was acknowledged and allowed."""
    used: dict[int, list[int]] = defaultdict(list)
    given_in: dict[tuple[int, int], str] = {}
    for version in range(1, store.version() + 1):
        release = version - 1
        made_of = json.loads(store.policy(version)[1])
        assert len(made_of) <= RULES["slots"]
        for person, given in made_of:
            used[person].append(release)
            given_in[release, person] = given
    assert len(set(given_in.values())) == len(given_in) > 20
    for releases in used.values():
        assert len(releases) <= RULES["participations"]
        assert all(later - earlier >= 3 for earlier, later in itertools.pairwise(releases))
    # Whatever was acknowledged is in the policy of its release.
    acknowledged = processes.reported("gave")
    for release, person, _, place in acknowledged:
        if release < store.version():
            assert given_in[release, int(person)] == contribution(place, SIZE).hex()
    assert len({(release, person) for release, person, *_ in acknowledged}) <= len(given_in)
    # A place is one person's. A slot goes to another one only after its place expired unused.
    owners, givers = defaultdict(set), defaultdict(set)
    for release, person, slot, place in processes.reported("took"):
        owners[place].add((release, person, slot))
        assert int(slot) < RULES["slots"]
    for release, person, slot, place in acknowledged:
        givers[release, slot].add((person, place))
    assert all(len(one) == 1 for one in (*owners.values(), *givers.values()))
    with reading(store._engine) as connection:
        passed_on = sa.select(tables.places).where(tables.places.c.slot.is_(None))
        for one in connection.execute(passed_on):
            assert (one.state, one.gave) == ("expired", False)
            assert one.place not in {place for *_, place in acknowledged}
    for person in range(PEOPLE):
        released = [r for r, state in store.history(person).places if state == "released"]
        assert released == used[person]
    counts = store.counts()
    assert counts.empty_slots == counts.made * RULES["slots"] - len(given_in)
    assert counts.took_part == len([one for one in used.values() if one])
    assert processes.reported("failed") == []


def test_killed_at_any_moment(where: str, processes: Processes) -> None:
    store = create(where, **RULES)
    store.enrol(PEOPLE)
    moments = random.Random(0)
    jobs = {"people 0 3", "people 1 3", "people 2 3", "updater ann", "updater bob"}
    running: dict[str, int] = {}
    killed = 0
    longest = 0.05 if where.endswith(".sqlite") else 0.25  # PostgreSQL's clients begin slowly
    deadline = time.monotonic() + 60
    while store.version() < RULES["horizon"]:
        assert time.monotonic() < deadline
        for job in sorted(jobs):
            if job not in running or not is_running(running[job]):
                running[job] = processes.start(job)
        # The first ones come sooner: on a fast disk the campaign is over after a few.
        time.sleep(moments.uniform(0.005, longest if killed > 6 else longest / 4))
        victim = running.pop(moments.choice(sorted(running)))
        with contextlib.suppress(ProcessLookupError):  # the process may have ended
            os.kill(victim, signal.SIGKILL)
            killed += 1
        wait_for(victim, 25)
    for process in running.values():
        wait_for(process, 25)
    assert killed > 5
    check(store, processes)
    store.close()


def test_killed_before_each_change(where: str, processes: Processes, tmp_path: Path) -> None:
    """What a killed process leaves is consistent, and goes on to the same end."""
    out = os.open(tmp_path / "out of this process.txt", os.O_WRONLY | os.O_CREAT)
    step = 2 if where.endswith(".sqlite") else 4  # PostgreSQL's tables take longer to make
    for change in range(1, 100, step):
        # Long times, so that a slow machine lets no place expire.
        store = create(where, **(RULES | {"slots": 2, "place_seconds": 60, "release_seconds": 60}))
        store.enrol(2)
        wait_for(processes.start(f"die {change}"), 25)
        with reading(store._engine) as connection:
            states = connection.execute(sa.select(tables.places.c.state)).scalars().all()
            kept = connection.execute(sa.select(tables.contributions.c.place)).all()
            keys = connection.execute(sa.select(tables.keys.c.release)).scalars().all()
            policies = connection.execute(sa.select(tables.policies.c.version)).all()
        assert len(kept) == states.count("given")
        assert keys == [store.version()]
        assert len(policies) == store.version() + 1
        finished = processes.reported("finished")
        whole_release(store, out)
        with reading(store._engine) as connection:
            first = sa.select(tables.places.c.place).where(tables.places.c.person == 0)
            place = connection.execute(first).scalar_one()
        ((person, given),) = json.loads(store.policy(1)[1])
        assert (person, given) == (0, contribution(place, SIZE).hex())
        assert store.version() == 1
        assert store.withdraw(1).dropped == (0,)
        assert store.history(0).places == ((0, "released"),)
        tables._metadata.drop_all(store._engine)
        store.close()
        if finished:
            break
    os.close(out)
    assert 25 < change < 99


def test_a_group_that_is_killed_is_lost_as_a_whole(where: str, processes: Processes) -> None:
    """None of it was acknowledged, and a kill after the commit loses nothing."""
    store = create(where, **RULES)
    store.enrol(4)
    step = 3 if where.endswith(".sqlite") else 7
    kept = 0
    for change in range(1, 99, step):
        wait_for(processes.start(f"group {change}"), 25)
        kept = store.counts().given
        acknowledged = [line for line in processes.lines() if line[0] == "gave"]
        if kept:
            break
        assert acknowledged == []
        assert store.counts().taken == 0
    assert change > 12
    assert (kept, len(acknowledged)) == (4, 4)
    assert ["refused"] in processes.lines()
    with reading(store._engine) as connection:
        places = connection.execute(sa.select(tables.contributions.c.place)).scalars().all()
    assert {line[4] for line in acknowledged} == set(places)
    store.close()


def test_a_server_that_cuts_everybody_off(
    postgresql_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """People give the same contribution again, and updaters begin again."""
    store = create(postgresql_url, **RULES)
    store.enrol(PEOPLE)
    processes = Processes(postgresql_url, tmp_path / "out.txt")
    request.addfinalizer(processes.close)
    started = [processes.start(job) for job in ("people 0 2", "people 1 2", "updater ann")]
    engine = sa.create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    cut = 0
    with engine.connect() as admin:
        while cut < 30 and any(map(is_running, started)):
            time.sleep(0.01)
            cut += cut_off(admin)
    engine.dispose()
    for process in started:
        wait_for(process, 25)
    assert cut > 5
    assert store.version() == RULES["horizon"]
    check(store, processes)
    store.close()


def test_people_who_come_at_once(where: str) -> None:
    """Sixty people ask four stores for thirty places, each twice."""
    store = create(where, slots=30, release_seconds=1e6)
    store.enrol(60)
    stores = [CampaignDatabase.open(where, "campaign", MASTER) for _ in range(4)]

    def ask(job: tuple[int, int]) -> tuple[int, str, int] | None:
        position, person = job
        try:
            place = stores[position % 4].take_place(person, 0.0)
        except NoPlace:
            return None
        return place.slot, place.id, person

    people = [*range(60)] * 2
    random.Random(1).shuffle(people)
    with ThreadPoolExecutor(8) as pool:
        taken = [one for one in pool.map(ask, enumerate(people)) if one is not None]
    distinct = set(taken)
    assert sorted(slot for slot, _, _ in distinct) == [*range(30)]
    assert len({place for _, place, _ in distinct}) == len({who for *_, who in distinct}) == 30
    assert store.counts().taken == 30
    for one in (store, *stores):
        one.close()


def test_a_contribution_given_by_many_at_once_is_kept_once(where: str) -> None:
    store = create(where)
    store.enrol(1)
    place = store.take_place(0, 0.0)
    stores = [CampaignDatabase.open(where, "campaign", MASTER) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        kept = [*pool.map(lambda i: stores[i % 4].give(place.id, 0, bytes(8), 0.0), range(24))]
    assert sum(kept) == 1
    for one in (store, *stores):
        one.close()


def test_updaters_who_begin_and_finish_at_once(where: str) -> None:
    """Each release has one maker, whose policy stays."""
    store = create(where, slots=1, horizon=8)
    store.enrol(8)
    stores = {
        name: CampaignDatabase.open(where, "campaign", MASTER) for name in ("ann", "bob", "eve")
    }
    for number in range(8):
        place = store.take_place(number, 0.0)
        store.give(place.id, number, bytes(8), 0.0)
        store.close_due(0.0)

        def work(name: str, number: int = number) -> str | None:
            try:
                stores[name].begin(number, name)
                stores[name].finish(number, name, name.encode())
            except ValueError:  # a stale holder
                return None
            return name

        with ThreadPoolExecutor(3) as pool:
            makers = [one for one in pool.map(work, stores) if one is not None]
        assert len(makers) == 1
        assert store.policy() == (number + 1, makers[0].encode())
    for one in (store, *stores.values()):
        one.close()


def test_a_role_needs_the_rights_of_the_guide_only(postgresql_url: str) -> None:
    """It makes a whole release and charges a ledger, in tables that another role has made."""
    create(postgresql_url).close()
    Ledger.create(postgresql_url, unit=UNIT, budget=BUDGET)
    guide = (Path(__file__).parents[2] / "docs" / "people.md").read_text()
    rights = re.search(r"All other commands need (.*?) on these tables", guide, re.DOTALL)
    assert rights
    named = ", ".join(re.findall("`([A-Z]+)`", rights[1]))
    admin = sa.create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql("CREATE ROLE small LOGIN")
        connection.exec_driver_sql(f"GRANT {named} ON ALL TABLES IN SCHEMA public TO small")
    admin.dispose()
    small = postgresql_url.replace("sotto@", "small@")
    store = CampaignDatabase.open(small, "campaign", MASTER)
    store.enrol(3)
    for person in range(3):
        serve(store, person)
    make_release(store)
    store.withdraw(0)
    assert store.version() == 1
    store.close()
    Ledger.open(small).open_stream(statement()).charge(0, 1, [PersonBlock(0, 3)])
