"""The plan of a campaign: everything about its releases that follows from its settings."""

import json
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
from sotto.algorithms.dppg.release import DPPGState
from sotto.people.campaign import Campaign
from sotto.people.database.store import CampaignDatabase
from sotto.people.errors import CampaignMismatch
from sotto.people.units import empty_trajectory, unpacked
from sotto.privacy.claims import people as claims
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.rl.networks import Policy
from sotto.trees import single


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


class CampaignPlan:
    """Everything about a campaign's releases that follows from its settings."""

    def __init__(self, campaign: Campaign) -> None:
        settings = campaign.settings
        self.config: DPPGConfig = campaign.config
        self.gives = settings.terms.gives
        self.acts = settings.terms.acts
        self.env = settings.spaces.environment(settings.name, self.config.steps_per_user)
        self.first: DPPGState = dppg.initial_state(
            self.config, self.env, jnp.int32(self.config.seed)
        )

    @cached_property
    def total(self) -> float:
        """Noise multiplier of a whole release."""
        dimension = dppg.dimension(self.config, self.env, self.first)
        return noise.total_noise_multiplier(self.config, dimension)

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
        spread = multiplier * noise.spread(self.config)
        return (high - low) / 2 * spread / self.config.users_per_update

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
        seen = [claims.SEES_TRAJECTORIES if self.gives == "trajectory" else claims.SEES_UPDATES]
        if self.acts == "server":
            seen.append(claims.SEES_OBSERVATIONS)
        return replace(
            made,
            local=made.local if self.gives == "trajectory" else _given_update,
            protects=(claims.JOINT(), *made.protects),
            does_not_protect=(
                *made.does_not_protect[:1],
                *(one() for one in seen),
                claims.PARTICIPATION(),
            ),
            assumptions=(claims.OWN_WORLD.assumption(), claims.ONE_TOKEN.assumption()),
        )

    def open(self, ledger: Ledger, state: DPPGState) -> Stream:
        """Opens the stream of the releases that are left, without an axis of runs in `state`.

        Correlated noise starts again in a new stream, and independent noise goes on in the old one.
        """
        config = self.config
        charged = sum(one.releases for one in ledger.streams)
        continues = bool(ledger.streams) and (charged == 0 or not config.correlated_noise)
        horizon = config.num_updates if continues else config.num_updates - charged
        units = jax.tree.map(
            lambda leaf: np.zeros((config.users_per_update, *leaf.shape), leaf.dtype), self.unit
        )
        return self.release(horizon).open([ledger], single(state), units, chunk=1, resume=continues)


def _given_update(_state: DPPGState, unit: Policy, _key: Array) -> tuple[dict[str, Any], Any]:
    """Returns the update that a device computed. The door clips it."""
    return {"policy": unit}, {}


def require_as_started(campaign: Campaign, store: CampaignDatabase) -> None:
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
