"""The durable store of a campaign: its people, their places and contributions, and the policies.

Release r has a number of slots. It is *open* while people take places in them, *closed* when all
are given for or time is up, and *begun* when the updater has read it for the last time. `finish`
publishes version r + 1 of the policy and opens release r + 1. Every operation is one transaction
(`tables`), or a savepoint in one. So a process may be killed at any moment, and any number of
processes may share a store.

Guarantee:
    A contribution is kept when `give` returns, and is in one release at most. A person gives to no
    more releases than the rules allow, at the stated distance. When `finish` returns, the database
    holds neither the contributions of the release nor its key, except as `tables` says.

Times are seconds, which the caller provides. They only decide when places and releases end, and
which updater works.
"""

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import sqlalchemy as sa

from sotto.people.database import tables
from sotto.people.database.records import History, Place, Receipt, Rules
from sotto.people.database.releases import Releases, closed, drop
from sotto.people.database.sealing import MasterKey, ReleaseKey
from sotto.people.database.tables import (
    Campaign,
    campaign,
    contributions,
    people,
    places,
    reading,
    writing,
)
from sotto.people.database.tokens import WITHDREW, Tokens, has_withdrawn
from sotto.people.database.withdrawals import Withdrawals
from sotto.people.errors import (
    ContributionConflict,
    Finished,
    MasterKeyLost,
    NoPlace,
    TookPart,
    UnknownPlace,
    Withdrawn,
)

_PLACE_BYTES = 16
_USED = ("given", "released", "lost")  # states of places that have been, or may be, charged
_GAVE = (*_USED, "refused")  # states of places that count as taking part

_PlaceRow = sa.Row[tuple[object, ...]]

# Statements of every contribution; making them anew takes longer than executing them.
_PLACES_OF = sa.select(places).where(places.c.person == sa.bindparam("who"))
_PLACE = sa.select(places).where(
    places.c.place == sa.bindparam("which"), places.c.person == sa.bindparam("who")
)
_NEW_PLACE = sa.insert(places).returning(*places.c)
_IN_RELEASE = (places.c.release == sa.bindparam("release"), places.c.slot.is_not(None))
_SLOTS_TAKEN = sa.select(sa.func.count()).select_from(places).where(*_IN_RELEASE)
_IS_OVER = sa.and_(places.c.state == "taken", places.c.expires <= sa.bindparam("now"))
_FREE_PLACE = (
    sa.select(places)
    .where(*_IN_RELEASE, sa.or_(places.c.state.not_in(("taken", "given")), _IS_OVER))
    .order_by(places.c.slot)
    .limit(1)
)
_NEW_CONTRIBUTION = sa.insert(contributions)
_GIVEN = (
    sa.update(places)
    .where(places.c.place == sa.bindparam("which"))
    .values(state="given", gave=True)
)


class CampaignDatabase(Tokens, Releases):
    """An open database of a campaign, from `CampaignDatabase.create` or `.open`.

    Threads may share it. Other processes open a store each; do not use it after a fork. Every
    method raises `StoreUnavailable` if the database cannot be used.
    """

    def __init__(
        self,
        engine: sa.Engine,
        campaign_id: str,
        rules: Rules,
        master: MasterKey,
        noted: Withdrawals | None = None,
    ):
        Tokens.__init__(self, engine)
        Releases.__init__(self, engine, campaign_id, rules, master)
        self._noted = noted

    @staticmethod
    def create(
        where: Path | str,
        campaign_id: str,
        *,
        slots: int,
        horizon: int,
        participations: int,
        min_separation: int | None,
        place_seconds: float,
        release_seconds: float,
        contribution_bytes: int,
        master: MasterKey,
        first_policy: bytes,
        fixed_times: bool = False,
    ) -> "CampaignDatabase":
        """Creates the store of a new campaign, without people and with release 0 open.

        Args:
            where: path of an SQLite file, or URL of an SQLite or PostgreSQL database; it may hold
                other tables, but no other campaign.
            campaign_id: name of the campaign, of 1 to 64 printable characters.
            slots, horizon, participations, min_separation: see `Rules`.
            place_seconds, release_seconds, contribution_bytes: see `Rules`.
            master: key of the campaign.
            first_policy: version 0 of the policy.
            fixed_times: see `Rules`.

        Raises:
            CampaignMismatch: the database holds a campaign already.
            ValueError: the name or the rules are not valid.
        """
        if not 1 <= len(campaign_id) <= 64 or not campaign_id.isprintable():
            raise ValueError("a campaign's name has 1 to 64 printable characters")
        rules = Rules(
            *(slots, horizon, participations, min_separation),
            *(place_seconds, release_seconds, contribution_bytes, fixed_times),
        )
        store = CampaignDatabase(tables.engine(where), campaign_id, rules, master)
        names = {"campaign_id": campaign_id, "key_name": master.name(campaign_id)}
        row = {**names, **asdict(rules), "release": 0, "stage": "open"}
        tables.create(store._engine, row, first_policy, store._new_key(0))
        return store

    @staticmethod
    def open(
        where: Path | str, campaign_id: str, master: MasterKey, noted: Withdrawals | None = None
    ) -> "CampaignDatabase":
        """Opens the store of a campaign.

        Args:
            where: as in `create`.
            campaign_id: name of the campaign.
            master: key of the campaign.
            noted: the file in which withdrawals are noted before the database has them; without
                it, a restored database forgets those since its backup.

        Raises:
            CampaignMismatch: the database holds another campaign.
            MasterKeyLost: it was created with another master key.
        """
        engine = tables.engine(where)
        found = tables.find(engine, campaign_id)
        if found.key_name != master.name(campaign_id):
            raise MasterKeyLost(
                f"campaign {campaign_id!r} was created with another master key; restore that key "
                "from a backup"
            )
        rules = Rules(**{name: getattr(found, name) for name in Rules.__dataclass_fields__})
        return CampaignDatabase(engine, campaign_id, rules, master, noted)

    # --- people ----------------------------------------------------------------------------------

    def take_place(self, person: int, now: float) -> Place:
        """Returns a place in the open release: the person's own if it still runs, or a new one.

        A person gets one place in a release. Only places with a contribution count as taking part.
        The slot of a place that expired or was withdrawn is given to the next person.

        Raises:
            NoPlace: no place is free now; the next release may have one.
            TookPart: the rules let the person take part in this release no more.
            Withdrawn: the person has withdrawn.
            Finished: all releases are made.
            UnknownPerson: there is no such person.
        """
        with writing(self._engine) as (connection, current):
            if has_withdrawn(connection, person):
                raise Withdrawn("this person has withdrawn and takes part no more")
            if current.release == self.rules.horizon:
                raise Finished("the campaign has made all its releases and takes no more people")
            mine = connection.execute(_PLACES_OF, {"who": person}).all()
            here = next((one for one in mine if one.release == current.release), None)
            if here is not None and here.state == "taken" and now < here.expires:
                return self._place(here, self._key(connection, here.release))
            gave = [one.release for one in mine if one.state in _GAVE]
            self._check_participation(gave, current.release)
            deadline = current.deadline
            if deadline is None:  # this would be the first place
                deadline = self.rules.deadline(now)
            is_open = here is None and current.stage == "open" and now < deadline
            slot = self._free_slot(connection, current.release, now) if is_open else None
            if slot is None:
                raise NoPlace("this release has no place for you; ask again in the next one")
            row = {
                "place": secrets.token_urlsafe(_PLACE_BYTES),
                "person": person,
                "release": current.release,
                "slot": slot,
                "state": "taken",
                "gave": False,
                "expires": min(now + self.rules.place_seconds, deadline),
            }
            made = connection.execute(_NEW_PLACE, row).one()
            if current.deadline is None:
                connection.execute(sa.update(campaign).values(deadline=deadline))
            return self._place(made, self._key(connection, current.release))

    def _free_slot(self, connection: sa.Connection, release: int, now: float) -> int | None:
        """Returns a slot of the open release for a new place; None if it has none.

        A slot that was never taken comes first. Otherwise it is one whose place expired or was
        withdrawn, and that place has no slot any more.
        """
        here = {"release": release}
        slot: int = connection.execute(_SLOTS_TAKEN, here).scalar_one()
        if slot < self.rules.slots:
            return slot
        free = connection.execute(_FREE_PLACE, here | {"now": now}).first()
        if free is None:
            return None
        state = "expired" if free.state == "taken" else free.state
        change = sa.update(places).where(places.c.place == free.place)
        connection.execute(change.values(slot=None, state=state))
        found: int = free.slot
        return found

    def place(self, place_id: str, person: int) -> Place:
        """Returns a place of this person whose contribution can be given, or given again.

        It does not look at the time; compare `expires`.

        Raises:
            UnknownPlace: the person has no such place.
            PlaceClosed: it expired, was withdrawn, or its release is made.
        """
        with reading(self._engine) as connection:
            found = _find(connection, place_id, person)
            key = self._key(connection, found.release)
        return self._place(found, key)

    def give(self, place_id: str, person: int, contribution: bytes, now: float) -> bool:
        """Keeps the contribution for a place; when it returns, the contribution is on disk.

        Args:
            place_id: name of the place.
            person: who has it.
            contribution: exactly `contribution_bytes` bytes.
            now: the time.

        Returns:
            True if it was kept now, False if the same contribution had been kept before.

        Raises:
            ContributionConflict: another contribution was kept.
            PlaceClosed: the place expired, was withdrawn, or its release is made.
            UnknownPlace: the person has no such place.
        """
        if len(contribution) != self.rules.contribution_bytes:
            raise ValueError(
                f"a contribution has {self.rules.contribution_bytes} bytes, not {len(contribution)}"
            )
        with writing(self._engine) as (connection, _):
            found = _find(connection, place_id, person)
            key, name = self._key(connection, found.release), self._name(found)
            digest = key.digest(contribution, name)
            here = contributions.c.place == place_id
            if found.state == "given":
                kept = connection.scalar(sa.select(contributions.c.digest).where(here))
                if kept is None or not hmac.compare_digest(kept, digest):
                    raise ContributionConflict(
                        "another contribution was given for this place, and stays; take the next "
                        "place for a new one"
                    )
                return False
            if now >= found.expires:
                raise closed()
            row = {"place": place_id, "sealed": key.seal(contribution, name), "digest": digest}
            connection.execute(_NEW_CONTRIBUTION, row)
            connection.execute(_GIVEN, {"which": place_id})
        return True

    def withdraw(self, person: int) -> Receipt:
        """Gives the person no further place, and deletes their contribution if that can be done.

        It can until the updater begins with the release. If the updater ends before the charge, its
        next attempt deletes the contribution. Withdrawing again changes nothing. The withdrawal is
        noted in the file of withdrawals before the database has it.

        Raises:
            UnknownPerson: there is no such person.
        """
        mine = places.c.person == person
        with writing(self._engine) as (connection, current):
            withdrew = has_withdrawn(connection, person)
            if self._noted is not None:
                self._noted.note(person)
            if not withdrew:  # the database is not written for those who ask again
                _withdraw(connection, current, person)
            query = sa.select(places).where(mine, places.c.gave).order_by(places.c.release)
            gave = connection.execute(query).all()
        return Receipt(
            person,
            dropped=tuple(one.release for one in gave if one.state == "withdrawn"),
            in_releases=tuple(one.release for one in gave if one.state in _USED),
        )

    def withdraw_again(self) -> int:
        """Withdraws those who are noted, and who did so before the database was restored.

        Returns:
            Number of people who had not withdrawn, as the database knew it.
        """
        if self._noted is None:
            return 0
        persons = self._noted.persons()
        staying = sa.select(people.c.person).where(~people.c.withdrew)
        with writing(self._engine) as (connection, current):
            missing = persons & set(connection.execute(staying).scalars())
            for person in sorted(missing):
                _withdraw(connection, current, person)
        return len(missing)

    def history(self, person: int) -> History:
        """Returns the course of one person's participation; empty for an unknown person."""
        query = sa.select(places.c.release, places.c.state).where(places.c.person == person)
        with reading(self._engine) as connection:
            withdrew = connection.scalar(WITHDREW, {"who": person})
            rows = connection.execute(query.order_by(places.c.release)).all()
        return History(withdrew is not None, bool(withdrew), tuple((r, state) for r, state in rows))

    # --- rows ------------------------------------------------------------------------------------

    def _place(self, row: _PlaceRow, key: ReleaseKey) -> Place:
        secret = key.place_secret(self._name(row))
        return Place(row.place, row.release, row.slot, secret, row.expires)

    def _check_participation(self, gave: Sequence[int], release: int) -> None:
        """Refuses a person who gave to these releases and may not give to this one."""
        if len(gave) >= self.rules.participations:
            raise TookPart(
                "this person has taken part as often as the campaign allows, and is done"
            )
        free_from = max(gave) + (self.rules.min_separation or 1) if gave else 0
        if release < free_from:
            raise TookPart(f"this person may take part again from release {free_from} on")


def _withdraw(connection: sa.Connection, current: Campaign, person: int) -> None:
    """Lets a person take no further part, and drops their contribution if it has not begun."""
    connection.execute(sa.update(people).where(people.c.person == person).values(withdrew=True))
    if current.stage != "begun":
        running = places.c.state.in_(("taken", "given"))
        drop(connection, "withdrawn", places.c.person == person, running)


def _find(connection: sa.Connection, place_id: str, person: int) -> _PlaceRow:
    """Returns a place of this person that is taken or given."""
    found = connection.execute(_PLACE, {"which": place_id, "who": person}).one_or_none()
    if found is None:
        raise UnknownPlace("this person has no such place; take a place first")
    if found.state not in ("taken", "given"):
        raise closed()
    return found
