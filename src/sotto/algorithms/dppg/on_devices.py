"""DPPG's release for people's own devices, which add the noise in shares."""

from typing import Any

import jax

from sotto.algorithms.dppg import gymnasium_users, noise
from sotto.algorithms.dppg import release as dppg
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.training import chosen_clip_norm, initial_states, training_environment
from sotto.privacy.release.release import Release
from sotto.rl.envs.registry import is_native


def on_devices(config: DPPGConfig, horizon: int) -> tuple[Release, Any]:
    """Returns the release of one update, and one user's data.

    Args:
        config: settings, with independent noise.
        horizon: number of releases.

    Returns:
        The release, and a trajectory of the right shapes; () where users are simulated in JAX.
    """
    env, native = training_environment(config), is_native(config.env_id)
    first = jax.tree.map(lambda x: x[0], initial_states(config, [config.seed]))
    multiplier = noise.total_noise_multiplier(config, dppg.dimension(config, env, first))
    multipliers = noise.part_multipliers(config, multiplier)
    release = dppg.make_release(
        config,
        env,
        multipliers=multipliers,
        clip_norm=chosen_clip_norm(config, env, first.policy, multipliers["policy"]),
        horizon=horizon,
        collected=not native,
    )
    if native:
        return release, ()
    collected = gymnasium_users.nothing_collected(config, env, first.policy)
    return release, jax.tree.map(lambda x: x[0], collected)
