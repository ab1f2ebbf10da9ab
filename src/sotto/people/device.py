"""A device computes its update from its trajectory, which then never leaves the device.

The program is the one with which the service makes updates from trajectories. It needs JAX.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sotto.algorithms.dppg import release as dppg
from sotto.algorithms.dppg.algorithm import DPPG
from sotto.keys import new_key
from sotto.people.spaces import Spaces
from sotto.people.units import read_trajectory, unpacked, written_update
from sotto.privacy.mechanisms.gaussian import bound_contribution
from sotto.runs.registry import config_from_json


class Device:
    """The computation of updates for one campaign.

    Args:
        campaign: public facts of the campaign, from `GET /v1/campaign`.
    """

    def __init__(self, campaign: Mapping[str, Any]) -> None:
        config = config_from_json(DPPG(), campaign["learning"])
        self._steps = config.steps_per_user
        spaces = Spaces.model_validate(campaign["spaces"])
        self._env = spaces.environment(campaign["name"], self._steps)
        self._first = dppg.initial_state(config, self._env, jnp.int32(config.seed))
        local = dppg.make_release(
            config,
            self._env,
            multipliers={"policy": 1.0},  # a device adds no noise
            clip_norm=config.clip_norm,
            horizon=1,
            collected=True,
        ).local

        def computed(state: Any, trajectory: Any, key: Any) -> Any:
            return {"policy": local(state, trajectory, key)[0]["policy"]}

        def clipped(update: Any) -> Any:
            norms = {"policy": config.clip_norm}
            return bound_contribution(update, norms, "separate")["policy"] * config.clip_norm

        # Two programs, so that the norm is that of the update which is sent (see
        # `gaussian.materialised`).
        self._computed, self._clipped = jax.jit(computed), jax.jit(clipped)

    def update(self, state: bytes, given: Mapping[str, Any], seed: int) -> str:
        """Returns the clipped update of one trajectory, as `written_update` writes it.

        Args:
            state: public state of the version that the trajectory followed, from `GET /v1/state`.
            given: the trajectory, as `sotto.people.units.read_trajectory` takes it.
            seed: seed of the order of the steps in local Adam.

        Raises:
            BadContribution: the trajectory does not fit the campaign.
        """
        trajectory = read_trajectory(given, self._env, self._steps)
        public = jax.tree.map(jnp.asarray, unpacked(state, self._first))
        clipped = self._clipped(self._computed(public, trajectory, new_key(seed)))
        return written_update(np.asarray(clipped))
