"""The updater: it makes the noisy releases of a campaign, and publishes policies.

One process at a time has the lease. Safety does not depend on the lease: a release is charged to
the ledger before any noise is drawn, and the database publishes one policy for each release.

Guarantee:
    The releases are those of `sotto.algorithms.dppg.release`, through the door, with the
    contributions that the database holds as unit data. A person's slot in a release is the person's
    place. Someone who gave nothing, let the place expire, or withdrew before the release began is
    in no slot, nor is anyone who withdrew after a release that began and was not charged. A
    release that was charged and lost with its process is never made again: its people's data are
    deleted, and the policy stays as it was. A release that nobody gave for is not made. Whoever
    withdrew on this machine is in no later release, also if the database is an older copy. Nothing
    is released if the ledger is older than the database, the database is older than the ledger by
    more than one release, or the settings are not those of the start.
"""

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sotto.keys import new_key
from sotto.people.campaign import Campaign
from sotto.people.database.records import Closed
from sotto.people.errors import CampaignError, CampaignMismatch, StaleHolder
from sotto.people.plan import CampaignPlan, Published, require_as_started
from sotto.people.units import packed, unpacked
from sotto.privacy.certificates.derive import derive
from sotto.privacy.certificates.model import Certificate
from sotto.privacy.errors import LedgerCorrupt, LedgerMismatch, LedgerOlder, LedgerUnavailable
from sotto.privacy.ledger.entries import json_values
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.stream import Stream
from sotto.runs import marks
from sotto.trees import single

LEASE_SECONDS = 30.0
_LAST_SECONDS = 15.0  # for which a charged release is still published after the updater was stopped
_log = logging.getLogger(__name__)


class Updater:
    """Makes the releases of a campaign, one after the other.

    Args:
        campaign: the campaign.
        clock: returns the time in seconds; the database compares times of one clock.
    """

    def __init__(self, campaign: Campaign, clock: Callable[[], float] = time.time) -> None:
        self._campaign, self._clock = campaign, clock
        self._plan = CampaignPlan(campaign)
        self._store = campaign.open_store()
        self._store.require_clearing()
        require_as_started(campaign, self._store)
        self._holder = secrets.token_hex(8)
        self._ledger: Ledger | None = None
        self._stream: Stream | None = None
        self._certified = 0  # version whose certificate this process has written
        # The release that is charged and not published, its next policy, and whether it is lost.
        self._made: tuple[int, bytes, bool] | None = None

    @property
    def owes(self) -> bool:
        """Whether a release is charged and waits for the database to be published."""
        return self._made is not None

    def step(self) -> bool:
        """Makes the next release if it is due; returns whether the database changed.

        Raises:
            PrivacyError: the ledger refuses, or cannot be written.
            CampaignError: the database cannot be used, or another updater has the release.
        """
        try:
            return self._step()
        except BaseException:
            self._ledger = self._stream = None  # they may differ from what was written
            raise

    def _step(self) -> bool:
        if not self._store.lease(self._holder, LEASE_SECONDS, self._clock()):
            self._ledger = self._stream = None  # another process may write to the ledger
            return False
        if self._made is not None:
            self._finish()
            return True
        self._keep_certificate()
        closed = self._store.close_due(self._clock())
        if closed is None:
            return False
        ledger = self._ledger_as_it_is()
        charged = sum(one.releases for one in ledger.streams)
        before = Published.from_bytes(self._store.policy()[1])
        if not ledger.holds(before.facts["certificate"]["head_hash"]):
            made, version = closed.release, f"version {closed.release} of the policy"
            raise LedgerOlder("the campaign's ledger", version, made, charged)
        if charged > closed.release + 1:  # one more is lost with a process
            raise CampaignMismatch(
                f"the campaign's database is older than its ledger: it knows {closed.release} of "
                f"{charged} releases, and no later withdrawal; restore it from a newer backup"
            )
        with self._keeping_the_lease():
            try:
                self._make(closed, before, lost=charged > closed.release)
            except LedgerMismatch as mismatch:  # this process had read the ledger just before
                raise StaleHolder(
                    "another process has written to the ledger, so it is read again"
                ) from mismatch
        return True

    def _ledger_as_it_is(self) -> Ledger:
        """Returns the ledger, read again if another process has written to it."""
        if self._ledger is not None:
            with suppress(LedgerCorrupt, LedgerMismatch):  # the ledger is opened and checked again
                self._ledger.verify()
                return self._ledger
        self._ledger, self._stream = self._campaign.ledger_to_charge(), None
        return self._ledger

    def _make(self, closed: Closed, before: Published, lost: bool) -> None:
        """Makes a closed release without those who withdrew or cannot be charged, or loses it."""
        if lost:  # withdrawals that are made again delete nothing that was charged
            final = self._store.begin(closed.release, self._holder)
            self._withdraw_again()
        else:
            self._withdraw_again()
            gave = self._store.not_charged(closed.release, self._holder)
            self._drop_refused(closed.release, gave, self._opened(before))
            final = self._store.begin(closed.release, self._holder)
        if final is None:
            _log.warning("nobody gives for release %d any more; it is open again", closed.release)
        elif lost:
            _log.warning("release %d was charged and lost with its process", closed.release)
            self._publish(closed.release, before.facts, before.state, lost=True)
        else:
            self._release(final, before)

    def _withdraw_again(self) -> None:
        if missing := self._store.withdraw_again():
            _log.warning("%d withdrawals were missing in the database, and are made again", missing)

    def _opened(self, before: Published) -> Stream:
        """Returns the stream of releases, which goes on from this policy."""
        assert self._ledger is not None
        if self._stream is None:
            self._stream = self._plan.open(self._ledger, self._plan.state(before))
        return self._stream

    def _drop_refused(self, release: int, gave: list[int], stream: Stream) -> None:
        """Drops what people gave whom the ledger would refuse.

        There are such people if the database is an older copy, and has forgotten that they gave, or
        if they have spent the budget that the campaign shares with other products.
        """
        if refused := stream.hold(gave):
            self._store.drop(release, refused)
            copied = "the ledger has charged their people before, so the database is an older copy"
            shared = "their people have spent the shared budget, or were charged before"
            _log.warning(
                "%d contributions to release %d were dropped: %s",
                *(len(refused), release),
                copied if self._campaign.named_budget is None else shared,
            )

    @contextmanager
    def _keeping_the_lease(self) -> Iterator[None]:
        """Extends the lease while a release is made, for its compilation may take longer."""
        made = threading.Event()

        def extend() -> None:
            while not made.wait(LEASE_SECONDS / 3):
                with suppress(CampaignError):  # the next time may be in time
                    self._store.lease(self._holder, LEASE_SECONDS, self._clock())

        thread = threading.Thread(target=extend, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            made.set()
            thread.join()

    def _release(self, closed: Closed, before: Published) -> None:
        """Charges, makes and publishes one release."""
        if self._campaign.certificate.exists():
            marks.of_certificate(self._campaign.certificate)  # a damaged file costs no release
        state = self._plan.state(before)
        units = [
            self._plan.unit if one is None else unpacked(one, self._plan.unit)
            for one in closed.contributions
        ]
        stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves))[None, None], *units)
        key = jax.random.fold_in(new_key(self._plan.config.seed), closed.release)[None]
        after, log, _ = self._opened(before).run(
            single(state), key, closed.persons.reshape(1, 1, -1), stacked
        )
        returns = before.facts["returns"]
        if "private_return" in log:
            value = float(np.asarray(log["private_return"]).reshape(-1)[0])
            error = self._plan.return_error
            returns = [*returns, {"version": closed.release + 1, "return": value, "error": error}]
        new = packed(jax.tree.map(lambda x: np.asarray(x[0]), after))
        self._publish(closed.release, before.facts | {"returns": returns}, new)

    def _publish(
        self, release: int, facts: dict[str, Any], state: bytes, lost: bool = False
    ) -> None:
        """Publishes the next version, with the certificate as of now."""
        assert self._ledger is not None
        facts = facts | {"certificate": json_values(derive(self._ledger)), "made": self._clock()}
        self._made = release, Published(facts, state).to_bytes(), lost
        self._finish()

    def _finish(self) -> None:
        """Publishes what was made. It is tried again where the disk or database cannot be used.

        The certificate comes first, so that its file reveals a ledger that is an older copy than a
        published version, whenever this process dies.
        """
        assert self._made is not None
        release, data, lost = self._made
        self._write_certificate(Published.from_bytes(data))
        try:
            self._store.finish(release, self._holder, data, lost=lost)
        except StaleHolder:  # another updater has taken the release over
            self._made = None
            raise
        self._made = None
        self._certified = release + 1

    def _keep_certificate(self) -> None:
        """Writes the certificate of the published version where the file is missing or older.

        Another machine may have published the version.
        """
        version = self._store.version()
        if version in (0, self._certified):  # nothing is released at version 0
            return
        self._write_certificate(Published.from_bytes(self._store.policy(version)[1]))
        self._certified = version

    def _write_certificate(self, version: Published) -> None:
        """Writes the certificate of a version, unless the file certifies as much or more.

        Such a file stays: it reveals a ledger that is an older copy.
        """
        certificate = Certificate.model_validate(version.facts["certificate"])
        file, charges = self._campaign.certificate, sum(one.releases for one in certificate.streams)
        if not file.exists() or marks.of_certificate(file).charges < charges:
            certificate.write(file, mode=0o600)


def run(campaign: Campaign, stop: Callable[[], bool], pause: float = 0.5) -> None:
    """Makes releases until `stop` says so. It tries again while the disk or a database fails.

    If a release is charged by then and not published, it tries that for some seconds more.

    Raises:
        CampaignError: the database says that it must not go on, or
        PrivacyError: the ledger says so.
    """
    updater: Updater | None = None
    said, until = "", math.inf
    while True:
        if stop():
            until = min(until, time.monotonic() + _LAST_SECONDS)
            if updater is None or not updater.owes or time.monotonic() >= until:
                return
        try:
            updater = updater or Updater(campaign)
            changed, said = updater.step(), ""
        except (LedgerUnavailable, StaleHolder, OSError) as error:  # also StoreUnavailable
            if str(error) != said:
                _log.error("%s: %s; trying again until it works", type(error).__name__, error)
            changed, said = False, str(error)
        if not changed:
            time.sleep(pause)
