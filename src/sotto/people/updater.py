"""The updater: it makes the noisy releases of a campaign, and publishes policies.

One process at a time has the lease. Safety does not depend on the lease: a release is charged to
the ledger before any noise is drawn, and the database publishes one policy for each release.

Guarantee:
    The releases are those of `sotto.algorithms.dppg.release`, through the door, with the
    contributions that the database holds as unit data. A person's slot in a release is the person's
    place. Someone who gave nothing, withdrew in time or let the place expire is an empty slot. A
    release that was charged and lost with its process is never made again: its people's data are
    deleted, and the policy stays as it was. Nothing is released if the ledger is older than the
    database, the database older than the ledger, or the settings are not those of the start.
"""

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sotto.algorithms.dppg import noise
from sotto.algorithms.dppg import release as dppg
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.parts import extra_parts
from sotto.algorithms.dppg.release import DPPGState
from sotto.keys import new_key
from sotto.people.campaign import Campaign
from sotto.people.errors import CampaignError, CampaignMismatch, StaleHolder
from sotto.people.records import Closed
from sotto.people.sealing import MasterKey
from sotto.people.store import Store
from sotto.people.units import empty_trajectory, packed, unpacked
from sotto.privacy.certificates.derive import derive
from sotto.privacy.claims import people as claims
from sotto.privacy.errors import LedgerOlder, LedgerUnavailable
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms import correlated
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.rl.networks import Policy

LEASE_SECONDS = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """Contents of one version of the database: facts for everybody, and the public state.

    Attributes:
        facts: certificate, returns and fingerprint of the settings, as JSON values.
        state: packed state of the training.
    """

    facts: dict[str, Any]
    state: bytes

    def to_bytes(self) -> bytes:
        """Returns one line of JSON, and then the state."""
        return json.dumps(self.facts).encode() + b"\n" + self.state

    @classmethod
    def from_bytes(cls, data: bytes) -> "Published":
        """Reads what `to_bytes` wrote."""
        line, _, state = data.partition(b"\n")
        return cls(json.loads(line), state)


class Plan:
    """Everything about a campaign's releases that follows from its settings."""

    def __init__(self, campaign: Campaign) -> None:
        settings = campaign.settings
        self.config: DPPGConfig = campaign.config
        self.gives = settings.terms.gives
        self.env = settings.spaces.environment(settings.name, self.config.steps_per_user)
        self.first: DPPGState = dppg.initial_state(
            self.config, self.env, jnp.int32(self.config.seed)
        )

    @cached_property
    def total(self) -> float:
        """Noise multiplier of a whole release."""
        size = sum(leaf.size for leaf in jax.tree.leaves(self.first.policy))
        size += sum(part.size for part in extra_parts(self.config, self.env))
        if self.config.critic == "private":
            size += sum(leaf.size for leaf in jax.tree.leaves(self.first.critic))
        return noise.total_noise_multiplier(self.config, size)

    @property
    def unit(self) -> Any:
        """Contribution of an empty slot: a trajectory without a step, or the update zero."""
        if self.gives == "trajectory":
            return empty_trajectory(self.env, self.config.steps_per_user)
        return jax.tree.map(lambda x: np.zeros(x.shape, np.float32), self.first.policy)

    def state(self, published: Published) -> DPPGState:
        """Returns the public state of a version."""
        found: DPPGState = unpacked(published.state, self.first)
        return found

    @property
    def return_error(self) -> float:
        """Standard deviation of the noise in a released mean return."""
        assert self.config.private_return is not None
        low, high = self.config.private_return
        multiplier = noise.part_multipliers(self.config, self.total)["return"]
        over_time = dppg.correlation(self.config)
        spread = correlated.sensitivity(
            over_time, self.config.participation, self.config.num_updates
        ) * float(
            np.linalg.norm(correlated.noising_coefficients(over_time, self.config.num_updates))
        )
        return (high - low) / 2 * multiplier * spread / self.config.users_per_update

    def release(self, horizon: int) -> Release:
        """Returns the release of one update, with the sentences of a campaign.

        Args:
            horizon: number of releases that remain.
        """
        config = self.config
        made = dppg.make_release(
            config,
            self.env,
            multipliers=noise.part_multipliers(config, self.total),
            clip_norm=config.clip_norm,
            horizon=horizon,
            collected=True,
        )
        seen = claims.SEES_TRAJECTORIES if self.gives == "trajectory" else claims.SEES_UPDATES
        return replace(
            made,
            local=made.local if self.gives == "trajectory" else _given_update,
            protects=(claims.JOINT(), *made.protects),
            does_not_protect=(*made.does_not_protect[:1], seen(), claims.PARTICIPATION()),
            assumptions=(claims.OWN_WORLD.assumption(), claims.ONE_TOKEN.assumption()),
        )


def _given_update(_state: DPPGState, unit: Policy, _key: Array) -> tuple[dict[str, Any], Any]:
    """Returns the update that a device computed. The door clips it."""
    return {"policy": unit}, {}


def create(campaign: Campaign) -> None:
    """Makes the ledger and the database of a new campaign, with policy version 0."""
    plan, config, terms = Plan(campaign), campaign.config, campaign.settings.terms
    budget = Budget(epsilon=noise.budget_epsilon(config), delta=config.delta)
    ledger = Ledger.create(
        campaign.ledger_place,
        campaign.settings.campaign_id,
        unit=config.privacy_unit,
        budget=budget,
    )
    # The stream is opened here, so that a budget that does not cover it is refused at once.
    _open(plan, ledger, plan.first)
    facts = {
        "certificate": json.loads(derive(ledger).model_dump_json()),
        "returns": [],
        "settings": campaign.settings.fingerprint,
    }
    Store.create(
        campaign.people_place,
        campaign.settings.campaign_id,
        slots=config.users_per_update,
        horizon=config.num_updates,
        participations=config.participations,
        min_separation=config.separation if config.participations > 1 else None,
        place_seconds=60 * terms.place_minutes,
        release_seconds=60 * terms.release_minutes,
        contribution_bytes=len(packed(plan.unit)),
        master=MasterKey.create(campaign.key),
        first_policy=Published(facts, packed(plan.first)).to_bytes(),
    )


def require_as_started(campaign: Campaign, store: Store) -> None:
    """Checks that campaign.json says what it said when the campaign began.

    Raises:
        CampaignMismatch: it was changed.
    """
    facts = Published.from_bytes(store.policy()[1]).facts
    if facts["settings"] != campaign.settings.fingerprint:
        raise CampaignMismatch(
            f"the settings in {campaign.path} were changed after the campaign began, and its "
            "certificate is about the old ones; restore campaign.json, or start a new campaign"
        )


def _open(plan: Plan, ledger: Ledger, state: DPPGState) -> Stream:
    """Opens the stream of the releases that are left.

    Correlated noise starts again in a new stream, and independent noise goes on in the old one.
    """
    config = plan.config
    charged = sum(one.releases for one in ledger.streams)
    continues = bool(ledger.streams) and (charged == 0 or not config.correlated_noise)
    horizon = config.num_updates if continues else config.num_updates - charged
    units = jax.tree.map(
        lambda leaf: np.zeros((config.users_per_update, *leaf.shape), leaf.dtype), plan.unit
    )
    return plan.release(horizon).open([ledger], _one(state), units, chunk=1, resume=continues)


def _one(state: DPPGState) -> DPPGState:
    """Returns the state with an axis of one run."""
    found: DPPGState = jax.tree.map(lambda x: jnp.asarray(x)[None], state)
    return found


class Updater:
    """Makes the releases of a campaign, one after the other.

    Args:
        campaign: the campaign.
        clock: returns the time in seconds; the database compares times of one clock.
    """

    def __init__(self, campaign: Campaign, clock: Callable[[], float] = time.time) -> None:
        self._campaign, self._clock = campaign, clock
        self._plan = Plan(campaign)
        self._store = Store.open(
            campaign.people_place,
            campaign.settings.campaign_id,
            MasterKey.open(campaign.key),
        )
        require_as_started(campaign, self._store)
        self._holder = secrets.token_hex(8)
        self._ledger: Ledger | None = None
        self._stream: Stream | None = None

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
        closed = self._store.close_due(self._clock())
        if closed is None:
            return False
        if self._ledger is None:
            self._ledger = self._campaign.open_ledger()
        charged = sum(one.releases for one in self._ledger.streams)
        before = Published.from_bytes(self._store.policy()[1])
        if not self._ledger.holds(before.facts["certificate"]["head_hash"]):
            made, version = closed.release, f"version {closed.release} of the policy"
            raise LedgerOlder("the campaign's ledger", version, made, charged)
        if charged > closed.release + 1:  # one more is lost with a process
            raise CampaignMismatch(
                f"the campaign's database is older than its ledger: it knows {closed.release} of "
                f"{charged} releases, and no later withdrawal; restore it from a newer backup"
            )
        final = self._store.begin(closed.release, self._holder)
        if charged > closed.release:
            _log.warning("release %d was charged and lost with its process", closed.release)
            self._publish(closed.release, before.facts, before.state, lost=True)
        else:
            with self._keeping_the_lease():
                self._release(final, before)
        return True

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
        assert self._ledger is not None
        state = self._plan.state(before)
        if self._stream is None:
            self._stream = _open(self._plan, self._ledger, state)
        units = [
            self._plan.unit if one is None else unpacked(one, self._plan.unit)
            for one in closed.contributions
        ]
        stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves))[None, None], *units)
        key = jax.random.fold_in(new_key(self._plan.config.seed), closed.release)[None]
        after, log, _ = self._stream.run(
            _one(state), key, closed.persons.reshape(1, 1, -1), stacked
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
        certificate = derive(self._ledger)
        found = json.loads(certificate.model_dump_json())
        facts = facts | {"certificate": found, "made": self._clock()}
        data = Published(facts, state).to_bytes()
        self._store.finish(release, self._holder, data, lost=lost)
        certificate.write(self._campaign.certificate, mode=0o600)


def run(campaign: Campaign, stop: Callable[[], bool], pause: float = 0.5) -> None:
    """Makes releases until `stop` says so. It tries again while a database cannot be used."""
    updater = Updater(campaign)
    while not stop():
        try:
            changed = updater.step()
        except (LedgerUnavailable, StaleHolder) as error:  # also StoreUnavailable
            _log.error("%s: %s", type(error).__name__, error)
            changed = False
        if not changed:
            time.sleep(pause)
