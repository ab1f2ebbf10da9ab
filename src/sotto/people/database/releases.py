"""The updater's side of a store: releases are closed, begun, and finished with a new policy."""

from collections.abc import Collection
from contextlib import AbstractContextManager

import numpy as np
import sqlalchemy as sa

from sotto.people.database import tables
from sotto.people.database.records import Closed, Counts, Rules
from sotto.people.database.sealing import MasterKey, ReleaseKey, place_name
from sotto.people.database.tables import (
    Campaign,
    campaign,
    contributions,
    keys,
    people,
    places,
    policies,
    reading,
    releases,
    writing,
)
from sotto.people.errors import PlaceClosed, StaleHolder, StoreUnavailable, UnknownVersion


class Releases:
    """The part of a `CampaignDatabase` that the updater uses, with what the whole store is made of.

    Attributes:
        campaign_id: name of the campaign.
        rules: its public rules.
    """

    def __init__(self, engine: sa.Engine, campaign_id: str, rules: Rules, master: MasterKey):
        self._engine = engine
        self._master = master
        self.campaign_id = campaign_id
        self.rules = rules

    def close(self) -> None:
        """Closes the connections to the database."""
        self._engine.dispose()

    def together(self) -> AbstractContextManager[None]:
        """Joins the operations of this thread in one transaction, as `tables.together` says."""
        return tables.together(self._engine)

    # --- the updater -----------------------------------------------------------------------------

    def require_clearing(self) -> None:
        """Refuses a role that could not destroy contributions after their release."""
        tables.require_clearing(self._engine)

    def lease(self, holder: str, seconds: float, now: float) -> bool:
        """Gets or extends the updater's lease; returns False if another holder has it.

        The lease keeps two updaters from doing the same work. What they must not do twice is
        refused by `begin` and `finish`, whatever the clocks say.
        """
        with writing(self._engine) as (connection, current):
            free = current.lease_until is None or current.lease_until <= now
            if not free and current.lease_holder != holder:
                return False
            change = sa.update(campaign).values(lease_holder=holder, lease_until=now + seconds)
            connection.execute(change)
        return True

    def close_due(self, now: float) -> Closed | None:
        """Ends places whose time is up, and closes the open release if it is due.

        A release is due when every slot is given for, or at its deadline. One that nobody gave for
        stays open, and its deadline starts again with the next place.

        Returns:
            The release that is closed and not made; None if there is none. `withdraw` can still
            delete contributions from it, until `begin`.
        """
        with writing(self._engine) as (connection, current):
            if current.release == self.rules.horizon:
                return None
            if current.stage == "open":
                here, running = places.c.release == current.release, places.c.state == "taken"
                ended = sa.update(places).where(here, running, places.c.expires <= now)
                connection.execute(ended.values(state="expired"))
                if number_of(connection, places, here, running):
                    return None
                given = number_of(connection, places, here, places.c.state == "given")
                is_late = current.deadline is not None and now >= current.deadline
                if given < self.rules.slots and not is_late:
                    return None
                stage = {"stage": "closed"} if given else {"deadline": None}
                connection.execute(sa.update(campaign).values(**stage))
                if not given:
                    return None
            return self._closed_release(connection, current.release)

    def drop(self, release: int, persons: Collection[int]) -> None:
        """Deletes contributions to a closed release whose people the ledger would refuse.

        Their places are refused, and count as taking part.

        Raises:
            StaleHolder: the release has begun, or is made.
        """
        with writing(self._engine) as (connection, current):
            self._check_release(release, current)
            if current.stage == "begun":
                raise _stale(release)
            for person in persons:
                mine = (places.c.release == release, places.c.person == person)
                drop(connection, "refused", *mine, places.c.state == "given")

    def not_charged(self, release: int, holder: str) -> list[int]:
        """Takes `begin` back for a release that the ledger has not charged.

        Contributions of people who withdrew since are deleted. Contributions can be deleted again
        until the next `begin`, and only the holder of that one can finish the release.

        Returns:
            The people who give to it.

        Raises:
            StaleHolder: the release is made, or another updater has the lease.
        """
        with writing(self._engine) as (connection, current):
            self._check_turn(release, holder, current)
            connection.execute(sa.update(campaign).values(stage="closed", holder=None))
            withdrew = sa.select(people.c.person).where(people.c.withdrew)
            here = (places.c.release == release, places.c.state == "given")
            drop(connection, "withdrawn", *here, places.c.person.in_(withdrew))
            return list(connection.execute(sa.select(places.c.person).where(*here)).scalars())

    def begin(self, release: int, holder: str) -> Closed | None:
        """Returns a closed release as it will be made; nothing can be deleted from it any more.

        Call it before the ledger is charged. A release can be begun again, by the holder of the
        lease; then only that holder can finish it. If nobody gives for it any more, it is opened
        again without a deadline, and the result is None.

        Raises:
            StaleHolder: the release is made, or another updater has the lease.
        """
        with writing(self._engine) as (connection, current):
            self._check_turn(release, holder, current)
            here = (places.c.release == release, places.c.state == "given")
            if not number_of(connection, places, *here):
                connection.execute(sa.update(campaign).values(stage="open", deadline=None))
                return None
            connection.execute(sa.update(campaign).values(stage="begun", holder=holder))
            return self._closed_release(connection, release)

    def finish(self, release: int, holder: str, policy: bytes, lost: bool = False) -> None:
        """Publishes the next version and destroys the contributions of a release and its key.

        Doing it again changes nothing.

        Args:
            release: a release that this holder has begun.
            holder: the updater.
            policy: version `release + 1` of the policy.
            lost: whether the release was charged and cannot be made.

        Raises:
            StaleHolder: another updater has begun the release after this one, or has made it.
        """
        with writing(self._engine) as (connection, current):
            query = sa.select(releases.c.holder).where(releases.c.release == release)
            if connection.scalar(query) == holder:
                return
            self._check_release(release, current)
            if (current.stage, current.holder) != ("begun", holder):
                raise _stale(release)
            tables.clear(connection, contributions)
            tables.clear(connection, keys)
            given = (places.c.release == release, places.c.state == "given")
            state = "lost" if lost else "released"
            connection.execute(sa.update(places).where(*given).values(state=state))
            row = {"release": release, "holder": holder, "lost": lost}
            connection.execute(sa.insert(releases).values(**row))
            following = release + 1
            connection.execute(sa.insert(policies).values(version=following, policy=policy))
            if following < self.rules.horizon:
                wrapped = self._new_key(following)
                connection.execute(sa.insert(keys).values(release=following, wrapped=wrapped))
            change = {"release": following, "stage": "open", "deadline": None, "holder": None}
            connection.execute(sa.update(campaign).values(**change))

    # --- policies and counts ---------------------------------------------------------------------

    def version(self) -> int:
        """Returns the version of the policy that is published: the number of past releases."""
        with reading(self._engine) as connection:
            version: int = connection.execute(sa.select(campaign.c.release)).scalar_one()
        return version

    def policy(self, version: int | None = None) -> tuple[int, bytes]:
        """Returns a version of the policy with its number, by default the published one.

        Raises:
            UnknownVersion: it is not published.
        """
        query = sa.select(policies.c.version, policies.c.policy).order_by(policies.c.version.desc())
        if version is not None:
            query = query.where(policies.c.version == version)
        with reading(self._engine) as connection:
            row = connection.execute(query.limit(1)).first()
        if row is None:
            raise UnknownVersion("this version of the policy is not published; ask for the latest")
        return row.version, bytes(row.policy)

    def counts(self) -> Counts:
        """Returns how many people, places and releases there are."""
        with reading(self._engine) as connection:
            current = connection.execute(sa.select(campaign)).one()
            here = places.c.release == current.release
            query = sa.select(places.c.state, sa.func.count()).where(here).group_by(places.c.state)
            states: dict[str, int] = dict(connection.execute(query).all())
            used = places.c.state == "released"
            took_part = sa.select(sa.func.count(places.c.person.distinct())).where(used)
            made = number_of(connection, releases, ~releases.c.lost)
            return Counts(
                enrolled=number_of(connection, people),
                withdrew=number_of(connection, people, people.c.withdrew),
                took_part=connection.execute(took_part).scalar_one(),
                release=current.release,
                deadline=current.deadline,
                taken=states.get("taken", 0),
                given=states.get("given", 0),
                expired=states.get("expired", 0),
                withdrawn=states.get("withdrawn", 0),
                made=made,
                lost=current.release - made,
                empty_slots=made * self.rules.slots - number_of(connection, places, used),
                updater_until=current.lease_until,
            )

    # --- keys and rows ---------------------------------------------------------------------------

    def _new_key(self, release: int) -> bytes:
        """Returns a new key of a release, encrypted."""
        return self._master.wrap(ReleaseKey.new(), self.campaign_id, release)

    def _key(self, connection: sa.Connection, release: int) -> ReleaseKey:
        """Returns the key of the release that is not made."""
        wrapped = connection.scalar(sa.select(keys.c.wrapped).where(keys.c.release == release))
        if wrapped is None:  # it was made since this transaction read the place
            raise closed()
        return self._master.unwrap(bytes(wrapped), self.campaign_id, release)

    def _name(self, place: sa.Row[tuple[object, ...]]) -> bytes:
        """Returns the name of a place under which its contribution is sealed."""
        return place_name(self.campaign_id, place.release, place.slot, place.place)

    def _check_release(self, release: int, current: Campaign) -> None:
        if release != current.release or release == self.rules.horizon:
            raise _stale(release)

    def _check_turn(self, release: int, holder: str, current: Campaign) -> None:
        """Refuses an updater without the lease, and a release that is not closed."""
        self._check_release(release, current)
        if current.lease_holder not in (None, holder):
            raise _stale(release)
        if current.stage == "open":
            raise ValueError(f"release {release} is open; wait until `close_due` returns it")

    def _closed_release(self, connection: sa.Connection, release: int) -> Closed:
        key = self._key(connection, release)
        persons = np.full(self.rules.slots, -1, np.int64)
        given: list[bytes | None] = [None] * self.rules.slots
        query = (
            sa.select(places, contributions.c.sealed)
            .outerjoin(contributions, places.c.place == contributions.c.place)
            .where(places.c.release == release, places.c.state == "given")
        )
        for row in connection.execute(query):
            if row.sealed is None:
                raise StoreUnavailable(
                    "the campaign's database lacks a contribution that was kept; restore it from "
                    "a backup"
                )
            persons[row.slot] = row.person
            given[row.slot] = key.open(bytes(row.sealed), self._name(row))
        return Closed(release, persons, given)


def number_of(connection: sa.Connection, table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
    """Returns the number of rows of a table that fulfil all conditions."""
    query = sa.select(sa.func.count()).select_from(table).where(*where)
    return connection.execute(query).scalar_one()


def drop(connection: sa.Connection, state: str, *where: sa.ColumnElement[bool]) -> None:
    """Deletes the contributions of these places, which have this state then."""
    chosen = sa.select(places.c.place).where(*where)
    connection.execute(sa.delete(contributions).where(contributions.c.place.in_(chosen)))
    connection.execute(sa.update(places).where(*where).values(state=state))


def closed() -> PlaceClosed:
    """Returns the error for a place whose contribution is taken no more."""
    return PlaceClosed(
        "this place is closed and takes nothing more; GET /v1/me says whether it was given for"
    )


def _stale(release: int) -> StaleHolder:
    return StaleHolder(
        f"another updater has release {release}, or has made it; read the store again"
    )
