"""The invariants of a campaign, checked from outside while it runs.

The ledger, the database, the published policies and the certificate are compared with each other
and with what people were told.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import sqlalchemy as sa

from faulty.crowd import Told
from sotto.people.campaign import Campaign
from sotto.people.database import tables
from sotto.people.database.store import CampaignDatabase
from sotto.people.plan import CampaignPlan, Published
from sotto.privacy.certificates.derive import verify
from sotto.privacy.certificates.model import Certificate
from sotto.privacy.ledger import entries
from sotto.privacy.ledger.databases import database, reading
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.records import blocks_of

_WRONG = 0.6  # a contribution counts 1 in a sum, and the noise has a standard deviation of 0.1
_USED = ("released", "lost")
_TRIES = 200


@dataclass(frozen=True)
class State:
    """The state of a campaign at one moment.

    Attributes:
        campaign: row of the campaign.
        places: rows of all places.
        given: contribution of each place of the open release, opened.
        lost: whether each release was lost, by its number.
        withdrew: people who have withdrawn.
        versions: versions of the policy.
        keys: releases with a key.
        ledger: the ledger.
        charges: people who were charged for each release, in order.
    """

    campaign: Any
    places: list[Any]
    given: dict[str, bytes]
    lost: dict[int, bool]
    withdrew: set[int]
    versions: list[int]
    keys: list[int]
    ledger: Ledger
    charges: list[set[int]]


class Inspector:
    """Checks a campaign.

    Args:
        campaign: the campaign.
        store: its database, which must not be used for writing.
    """

    def __init__(self, campaign: Campaign, store: CampaignDatabase) -> None:
        self._campaign, self._store, self._plan = campaign, store, CampaignPlan(campaign)
        self._ledger_engine = database(campaign.ledger_place)
        self._summed = 0  # releases whose sum was compared with the contributions

    def close(self) -> None:
        """Closes the connections to the ledger."""
        self._ledger_engine.dispose()

    def check(self, told: Told) -> list[str]:
        """Returns a sentence for each violation.

        Args:
            told: what people were told, which may go on changing.
        """
        for _ in range(_TRIES):
            kept, receipts = dict(told.kept), dict(told.receipts)
            state = self._state()
            sent, withdrawing = dict(told.sent), set(told.withdrawing)
            certificates = self._certificates(state)
            if self._campaign.open_ledger().head_hash == state.ledger.head_hash:
                break
        return [
            *self._counts(state),
            *self._charges(state),
            *self._contributions(state, kept, sent, withdrawing, dict(told.owner)),
            *self._withdrawals(state, receipts),
            *self._sums(state, kept, sent),
            *certificates,
        ]

    def _state(self) -> State:
        """Reads ledger and database at a moment at which no release is begun or finished."""
        for _ in range(_TRIES):
            before = self._store.counts()
            ledger = self._campaign.open_ledger()
            charges = self._read_charges()
            with tables.reading(self._store._engine) as connection:
                current = connection.execute(sa.select(tables.campaign)).one()
                places = list(connection.execute(sa.select(tables.places)))
                given = {}
                if current.release < current.horizon:
                    closed = self._store._closed_release(connection, current.release)
                    names = {one.slot: one.place for one in places
                             if one.release == current.release}  # fmt: skip
                    given = {names[slot]: one for slot, one in enumerate(closed.contributions)
                             if one is not None}  # fmt: skip
                rows = connection.execute(sa.select(tables.releases)).all()
                left = sa.select(tables.people.c.person).where(tables.people.c.withdrew)
                state = State(
                    current,
                    places,
                    given,
                    {one.release: one.lost for one in rows},
                    set(connection.scalars(left)),
                    sorted(connection.scalars(sa.select(tables.policies.c.version))),
                    list(connection.scalars(sa.select(tables.keys.c.release))),
                    ledger,
                    charges,
                )
            same = (before.release, len(charges)) == (current.release, len(self._read_charges()))
            if same:
                return state
        raise RuntimeError("ledger and database never stood still")

    def _read_charges(self) -> list[set[int]]:
        found = []
        with reading(self._ledger_engine) as connection:
            run_id = self._campaign.settings.campaign_id
            for entry in entries.follow(connection, run_id, 0, entries.GENESIS):
                if entry.kind == "charge":
                    found += [
                        {person for block in blocks for person in range(block.start, block.stop)}
                        for blocks in blocks_of(json.loads(entry.payload)["persons"]) or ()
                    ]
        return found

    def _counts(self, state: State) -> list[str]:
        """Compares the numbers of releases, versions and charges."""
        version = state.campaign.release
        said = []
        if sorted(state.lost) != [*range(version)] or state.versions != [*range(version + 1)]:
            said.append(f"version {version}, releases {state.lost}, policies {state.versions}")
        if state.keys != ([version] if version < state.campaign.horizon else []):
            said.append(f"keys {state.keys} at version {version}")
        ahead = len(state.charges) - version
        if ahead not in (0, 1) or (ahead and state.campaign.stage != "begun"):
            said.append(f"{len(state.charges)} charges at version {version}")
        spent = state.ledger.spent().epsilon
        if spent > state.ledger.budget.epsilon:
            said.append(f"epsilon {spent} is spent of {state.ledger.budget.epsilon}")
        return said

    def _charges(self, state: State) -> list[str]:
        """Compares who was charged with whose contributions were used, and with the rules."""
        said = []
        for release, charged in enumerate(state.charges):
            made = release < state.campaign.release
            wanted = "given" if not made else "lost" if state.lost.get(release) else "released"
            used = {one.person for one in state.places
                    if one.release == release and one.state == wanted}  # fmt: skip
            if used != charged:
                said.append(f"release {release} is {wanted} for {used} and charged to {charged}")
        everybody = set().union(*state.charges)
        for person in everybody:
            releases = [r for r, charged in enumerate(state.charges) if person in charged]
            gaps = np.diff(releases)
            if len(releases) > state.campaign.participations or (
                gaps.size and gaps.min() < (state.campaign.min_separation or 1)
            ):
                said.append(f"person {person} was charged for {releases}")
        return said

    def _contributions(
        self,
        state: State,
        kept: dict[str, bytes],
        sent: dict[str, list[bytes]],
        withdrawing: set[int],
        owner: dict[str, tuple[int, int]],
    ) -> list[str]:
        """Looks for contributions that were lost, changed or invented."""
        said = []
        rows = {one.place: one for one in state.places}
        for place, contribution in state.given.items():
            if contribution not in sent.get(place, ()) or kept.get(place) not in (
                None,
                contribution,
            ):
                said.append(f"the contribution for {rows[place]} is not what was sent or kept")
        for place in kept:
            row = rows.get(place)
            if row is None or (row.person, row.release) != owner[place]:
                said.append(f"the place of an acknowledged contribution is {row}")
            elif row.state == "given":
                if place not in state.given:
                    said.append(f"an acknowledged contribution is not stored: {row}")
            elif row.state == "withdrawn":
                if row.person not in withdrawing:
                    said.append(f"{row} was withdrawn, and nobody asked for it")
            elif row.state not in _USED:
                said.append(f"an acknowledged contribution is lost: {row}")
        stored = {one.place for one in state.places if one.state == "given"}
        if stored != set(state.given):
            said.append(f"places {stored} have contributions {set(state.given)}")
        said += [
            f"{row} was used, and nobody gave for it"
            for row in state.places
            if row.state in _USED and row.place not in sent
        ]
        if not state.withdrew <= withdrawing:
            said.append(f"{state.withdrew - withdrawing} withdrew, and did not ask for it")
        return said

    def _withdrawals(self, state: State, receipts: dict[int, dict[str, Any]]) -> list[str]:
        """Compares receipts of withdrawals with later charges."""
        said = []
        for person, receipt in receipts.items():
            charged = {r for r, people in enumerate(state.charges) if person in people}
            lost = {r for r, lost in state.lost.items() if lost}
            of = set(receipt["part_of_releases"])
            made = {r for r in of if r < state.campaign.release}
            if person not in state.withdrew or not made <= charged or not charged - lost <= of:
                said.append(f"person {person} is in {charged}, with the receipt {receipt}")
        return said

    def _sums(
        self, state: State, kept: dict[str, bytes], sent: dict[str, list[bytes]]
    ) -> list[str]:
        """Compares released sums with contributions, where the noise is small enough.

        Each contribution has a random code. What is left of a released sum without the codes that
        belong in it has no correlation with any code.
        """
        said: list[str] = []
        version = state.campaign.release
        if self._plan.gives != "update":
            return said
        for release in range(self._summed, version):
            if state.lost[release]:
                continue
            published = Published.from_bytes(self._store.policy(release + 1)[1])
            leaves = jax.tree.leaves(self._plan.state(published).previous)
            flat = np.concatenate([np.ravel(leaf) for leaf in leaves])
            total = flat * state.campaign.slots
            here = {one.place for one in state.places
                    if one.release == release and one.state == "released"}  # fmt: skip
            left = total.copy()  # without the contributions that belong in the sum
            for place in here:
                given = [kept[place]] if place in kept else sent.get(place, [])
                left -= _code(max(given, key=lambda one: _correlation(total, _code(one))))
            for place, given in sent.items():
                counts = [_correlation(left, _code(one)) for one in given]
                if np.abs(counts).max() > _WRONG:
                    said.append(f"release {release} has {counts} too much of place {place}")
        self._summed = version
        return said

    def _certificates(self, state: State) -> list[str]:
        """Verifies the published certificate, and the one in the file if there is one."""
        said = []
        facts = Published.from_bytes(self._store.policy(state.campaign.release)[1]).facts
        published = Certificate.model_validate(facts["certificate"])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "certificate.json"
            published.write(path)
            said += _verified(path, "the published certificate", state.ledger)
        covered = sum(one.releases for one in published.streams)
        if covered != state.campaign.release:
            said.append(f"version {state.campaign.release} is certified for {covered} releases")
        if published.epsilon > state.ledger.budget.epsilon:
            said.append(f"the certificate says {published.epsilon}")
        if self._campaign.certificate.exists():
            said += _verified(self._campaign.certificate, "certificate.json", state.ledger)
        return said


def _verified(path: Path, what: str, ledger: Ledger) -> list[str]:
    """Verifies a certificate. It is stale while the updater makes the next release."""
    found = verify(path, ledger)
    return [f"{what} is false: {found.mismatches}"] if found.status == "false" else []


def _code(contribution: bytes) -> np.ndarray:
    return np.frombuffer(contribution, np.float32).astype(float)


def _correlation(total: np.ndarray, code: np.ndarray) -> float:
    return float(total @ code / (code @ code))
