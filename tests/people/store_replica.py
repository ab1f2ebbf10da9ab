"""Processes that use one store, which `test_store_faults` kills.

    python store_replica.py DATABASE OUT

Every line on standard input forks a child, because forks are faster than imports, and prints its
process number. `people FIRST STEP` serves the people FIRST, FIRST + STEP, ... in turn until the
campaign is finished. `updater NAME` closes, begins and finishes releases until then. `die N` does a
`whole_release` and kills itself before its N-th change. `group N` lets people give in one group of
operations and kills itself in the same way. A child appends a line to OUT for every
call that returned.

The policy that an updater publishes lists the people of its release and their contributions.
"""

import contextlib
import hashlib
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

import sqlalchemy as sa

sys.path.append(str(Path(__file__).parents[1]))

from nursery import fork_for_each
from small_campaign import MASTER

from sotto.people.database.records import Closed
from sotto.people.database.store import CampaignDatabase
from sotto.people.database.writer import Writer
from sotto.people.errors import (
    CampaignError,
    Finished,
    NoPlace,
    PlaceClosed,
    StaleHolder,
    StoreUnavailable,
    TookPart,
)

LEASE_SECONDS = 0.05
PEOPLE = 40


def contribution(place_id: str, size: int) -> bytes:
    """The contribution that belongs to a place, the same for whoever gives it."""
    return hashlib.shake_256(place_id.encode()).digest(size)


def policy_of(closed: Closed) -> bytes:
    """A policy that tells what it was made of."""
    both = [*zip(closed.persons.tolist(), closed.contributions, strict=True)]
    assert all((given is None) == (person == -1) for person, given in both)
    used = [(person, given.hex()) for person, given in both if given is not None]
    return json.dumps(used).encode()


def serve(store: CampaignDatabase, out: int, person: int) -> None:
    place = store.take_place(person, time.time())
    os.write(out, f"took {place.release} {person} {place.slot} {place.id}\n".encode())
    given = contribution(place.id, store.rules.contribution_bytes)
    while True:
        try:
            store.give(place.id, person, given, time.time())
            break
        except StoreUnavailable:
            continue  # like a client, sends the same contribution again
    os.write(out, f"gave {place.release} {person} {place.slot} {place.id}\n".encode())


def people(store: CampaignDatabase, out: int, first: int, step: int) -> None:
    while True:
        for person in range(first, PEOPLE, step):
            try:
                serve(store, out, person)
            except Finished:
                return
            except (NoPlace, TookPart, PlaceClosed, StoreUnavailable):
                time.sleep(0.002)


def updater(store: CampaignDatabase, out: int, name: str) -> None:
    finished = False
    while not finished:
        time.sleep(0.005)
        try:
            finished = store.version() == store.rules.horizon
            if not store.lease(name, LEASE_SECONDS, time.time()):
                continue
            closed = store.close_due(time.time())
            if closed is None:
                continue
            closed = store.begin(closed.release, name)
            if closed is None:
                continue
            os.write(out, f"began {closed.release} {name} - -\n".encode())
            store.finish(closed.release, name, policy_of(closed))
        except (StaleHolder, StoreUnavailable):
            continue


def whole_release(store: CampaignDatabase, out: int) -> None:
    """Two people give, one of them withdraws, and the release is made; goes on where it stopped."""
    for person in (0, 1):
        if store.history(person).places in ((), ((0, "taken"),)):
            serve(store, out, person)
    store.withdraw(1)
    if store.version() == 0:
        assert store.close_due(time.time() + 99.0) is not None
        closed = store.begin(0, "updater")
        assert closed is not None
        store.finish(0, "updater", policy_of(closed))
    os.write(out, b"finished 0 updater - -\n")


def group(store: CampaignDatabase, out: int) -> None:
    """Four people take a place and give in one group; one of them is refused in between."""
    writer = Writer(store)
    blocked = writer.submit(time.sleep, 0.05)  # so that the others are a group
    jobs = {person: writer.submit(_gives, store, person) for person in range(4)}
    jobs[PEOPLE] = writer.submit(_gives, store, PEOPLE)  # there is no such person
    blocked.result()
    for person, job in jobs.items():
        answer = "refused" if job.exception() else f"gave 0 {person} - {job.result()}"
        os.write(out, f"{answer}\n".encode())
    writer.close()


def _gives(store: CampaignDatabase, person: int) -> str:
    place = store.take_place(person, 0.0)
    assert store.give(place.id, person, contribution(place.id, store.rules.contribution_bytes), 0.0)
    return place.id


def kill_before(store: CampaignDatabase, number: int) -> None:
    """Kills this process before its N-th change of a row, where a commit counts as a change."""
    left = itertools.count(number - 1, -1)

    def one_less() -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def executing(_connection, _cursor, statement: str, *_: object) -> None:
        if statement.startswith(("INSERT", "UPDATE", "DELETE", "TRUNCATE")):
            one_less()

    sa.event.listen(store._engine, "before_cursor_execute", executing)
    sa.event.listen(store._engine, "commit", lambda _connection: one_less())


def opened(where: str) -> CampaignDatabase:
    while True:
        with contextlib.suppress(StoreUnavailable):
            return CampaignDatabase.open(where, "campaign", MASTER)


def work(where: str, out: int, words: list[str]) -> None:
    kind, *numbers = words
    try:
        store = opened(where)
        if kind == "people":
            people(store, out, int(numbers[0]), int(numbers[1]))
        elif kind == "die":
            kill_before(store, int(numbers[0]))
            whole_release(store, out)
        elif kind == "group":
            kill_before(store, int(numbers[0]))
            group(store, out)
        else:
            updater(store, out, numbers[0])
    except CampaignError as error:
        os.write(out, f"failed 0 {error.code} - -\n".encode())


if __name__ == "__main__":
    fork_for_each(work)
