"""The paper's continuing segments: environments that go on from one release to the next.

They have no proof: one person's data reach several releases, so the certificate only states the
paper's claim.
"""

from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.privacy.statements import Gap
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.rollout import EpisodeState, Trajectory, continue_rollout, start_all

GAP = Gap(
    name="continuing segments",
    why="a segment starts where the previous one ended, so a person spans several segments and "
    "their state reaches later releases",
)


def begin(config: DPPGConfig, env: AnyEnvironment, key: PRNGKeyArray) -> EpisodeState:
    """Starts the paper's K parallel environments, which continue from one release to the next."""
    return start_all(env, env.default_params, key, config.users_per_update)


def following(
    config: DPPGConfig,
    env: AnyEnvironment,
    state: Any,
    begun: EpisodeState,
    key: PRNGKeyArray,
) -> tuple[EpisodeState, Trajectory]:
    """Plays the next segments: the paper's users, who are not independent of one another."""

    def one(lane: EpisodeState, key: PRNGKeyArray) -> tuple[Trajectory, EpisodeState]:
        return continue_rollout(
            env, env.default_params, state.policy, key, lane, config.steps_per_user
        )

    keys = jax.random.split(key, config.users_per_update)
    trajectories, after = jax.vmap(one)(begun, keys)
    return after, trajectories
