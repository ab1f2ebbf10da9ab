"""A small campaign for tests: its rules, its master key, and people who take part."""

import random

from sotto.people.database.records import Closed, Place
from sotto.people.database.sealing import MasterKey
from sotto.people.database.store import CampaignDatabase

MASTER = MasterKey(bytes(range(32)))
RULES = {
    "slots": 3,
    "horizon": 4,
    "participations": 1,
    "min_separation": None,
    "place_seconds": 10.0,
    "release_seconds": 100.0,
    "contribution_bytes": 8,
}


def create(where: str, **changes) -> CampaignDatabase:
    """Creates the campaign with some rules changed."""
    return CampaignDatabase.create(
        where, "campaign", **(RULES | changes), master=MASTER, first_policy=b"policy 0"
    )


def of(person: int, size: int = 8) -> bytes:
    """The contribution of a person."""
    return random.Random(person).randbytes(size)


def serve(store: CampaignDatabase, person: int, now: float = 0.0) -> Place:
    """Takes a place and gives the person's contribution."""
    place = store.take_place(person, now)
    assert store.give(place.id, person, of(person, store.rules.contribution_bytes), now)
    return place


def begun(store: CampaignDatabase, now: float = 0.0, holder: str = "updater") -> Closed:
    """Closes the release that is due, and begins it."""
    due = store.close_due(now)
    assert due is not None
    closed = store.begin(due.release, holder)
    assert closed is not None
    return closed


def make_release(store: CampaignDatabase, now: float = 0.0, **how) -> Closed:
    """Closes, begins and finishes the release that is due."""
    closed = begun(store, now)
    store.finish(closed.release, "updater", f"policy {closed.release + 1}".encode(), **how)
    return closed
