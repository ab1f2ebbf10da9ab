"""Settings of PPO and A2C for environments for which the defaults are unsuitable."""

from typing import Any

from sotto.algorithms.baselines.a2c import A2CConfig
from sotto.algorithms.baselines.ppo import PPOConfig

# Batches, passes and rates of Huang et al. 2022 ("The 37 implementation details of PPO") for
# MuJoCo, with more parallel environments. Public scales replace running normalisation.
_MUJOCO: dict[str, Any] = {
    "total_steps": 1_000_000,
    "num_envs": 16,
    "num_steps": 128,
    "learning_rate": 3e-4,
    "num_epochs": 10,
    "num_minibatches": 32,
}
_MUJOCO_A2C: dict[str, Any] = {
    "total_steps": 1_000_000,
    "num_steps": 8,
    "learning_rate": 2e-3,
    "gae_lambda": 0.95,
    "normalise_advantages": True,
}
_MUJOCO_IDS = ("HalfCheetah-v4", "HalfCheetah-v5", "Hopper-v4", "Hopper-v5")

_PPO = dict.fromkeys(_MUJOCO_IDS, _MUJOCO)
_A2C = dict.fromkeys(_MUJOCO_IDS, _MUJOCO_A2C)


def ppo_preset(env_id: str, **changes: Any) -> PPOConfig:
    """Returns PPO's settings for an environment.

    Args:
        env_id: the environment.
        changes: settings that differ.
    """
    return PPOConfig(**({"env_id": env_id} | _PPO.get(env_id, {}) | changes))


def a2c_preset(env_id: str, **changes: Any) -> A2CConfig:
    """Returns A2C's settings for an environment. The arguments are those of `ppo_preset`."""
    return A2CConfig(**({"env_id": env_id} | _A2C.get(env_id, {}) | changes))
