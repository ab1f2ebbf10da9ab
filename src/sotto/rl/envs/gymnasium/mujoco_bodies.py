"""Steps of many HalfCheetahs or Hoppers at once, equal to Gymnasium's bit for bit.

Half of the time of a step of Gymnasium's MuJoCo environments is Python code. Here only MuJoCo's own
step is called for each environment. Contact forces and `info`, which nobody reads here, are not
computed.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from jaxtyping import Float, Int

from sotto.rl.envs.gymnasium.at_once import Taken, TimeLimits, made_by


class Moved(NamedTuple):
    """Motion of some bodies in one step; the first axis is the environment."""

    actions: Float[np.ndarray, "rows joints"]
    forward: Float[np.ndarray, " rows"]
    """Mean forward velocity."""
    positions: Float[np.ndarray, "rows positions"]
    velocities: Float[np.ndarray, "rows velocities"]


Rule = Callable[[Any, Moved], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Function of an environment's settings and of the motion that returns observed velocities,
rewards, and whether episodes terminate."""


class Bodies:
    """Environments of one kind, with the same settings. The caller resets them."""

    def __init__(self, envs: Sequence[gym.Env[Any, Any]], rule: Rule) -> None:
        import mujoco  # an extra, which the environments have loaded already

        self._rule, self._step = rule, mujoco.mj_step
        inner: list[Any] = [env.unwrapped for env in envs]
        self._first = inner[0]
        self._bodies = [(one.model, one.data, one.data.ctrl) for one in inner]
        self._positions = [one.data.qpos for one in inner]
        self._velocities = [one.data.qvel for one in inner]
        self._limits = TimeLimits(envs)

    def step(self, rows: Int[np.ndarray, " rows"], actions: Float[np.ndarray, "rows j"]) -> Taken:
        """Steps the environments of these numbers, with one action each."""
        env, step, numbers = self._first, self._step, rows.tolist()
        before = np.array([self._positions[row][0] for row in numbers])
        for row, action in zip(numbers, actions, strict=True):
            model, data, control = self._bodies[row]
            control[:] = action
            step(model, data, nstep=env.frame_skip)
        positions = np.array([self._positions[row] for row in numbers])
        velocities = np.array([self._velocities[row] for row in numbers])
        forward = (positions[:, 0] - before) / env.dt
        seen, rewards, terminated = self._rule(env, Moved(actions, forward, positions, velocities))
        first = int(env._exclude_current_positions_from_observation)
        observations = np.concatenate([positions[:, first:], seen], axis=1)
        return Taken(observations, rewards, terminated, self._limits.count(numbers))


def bodies_of(envs: Sequence[gym.Env[Any, Any]]) -> Bodies | None:
    """Returns the bodies of environments that were made alike, or None if others must step them."""
    rule = RULES.get(made_by(envs) or "")
    return None if rule is None else Bodies(envs, rule)


# --- Gymnasium's rules ---------------------------------------------------------------------------


def _half_cheetah(env: Any, moved: Moved) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rewards = env._forward_reward_weight * moved.forward - _cost(env, moved)
    return moved.velocities, rewards, np.zeros(len(rewards), bool)


def _hopper(env: Any, moved: Moved) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    height, angle = moved.positions[:, 1], moved.positions[:, 2]
    state = np.concatenate([moved.positions[:, 2:], moved.velocities], axis=1)
    healthy = (
        _within(state, env._healthy_state_range).all(axis=1)
        & _within(height, env._healthy_z_range)
        & _within(angle, env._healthy_angle_range)
    )
    rewards = env._forward_reward_weight * moved.forward + healthy * env._healthy_reward
    seen = np.clip(moved.velocities, -10, 10)
    return seen, rewards - _cost(env, moved), ~healthy & bool(env._terminate_when_unhealthy)


def _cost(env: Any, moved: Moved) -> np.ndarray:
    cost: np.ndarray = env._ctrl_cost_weight * np.sum(np.square(moved.actions), axis=1)
    return cost


def _within(values: np.ndarray, interval: tuple[float, float]) -> np.ndarray:
    least, most = interval
    return (least < values) & (values < most)


RULES: dict[str, Rule] = {
    "gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv": _half_cheetah,
    "gymnasium.envs.mujoco.hopper_v5:HopperEnv": _hopper,
}
"""Rules by the entry point of Gymnasium's environments."""
