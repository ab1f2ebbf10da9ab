"""Steps of many HalfCheetahs or Hoppers at once, equal to Gymnasium's bit for bit.

Half of the time of a step of Gymnasium's MuJoCo environments is Python code. Here only MuJoCo's own
step is called for each environment. Observations, rewards and ends are computed for all of them
together. Contact forces and `info`, which nobody reads here, are not computed.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from jaxtyping import Bool, Float, Int

_FEWEST = 4
"""Number of environments from which on stepping them at once is faster."""


class Taken(NamedTuple):
    """Results of one step of some environments; the first axis is the environment."""

    observations: Float[np.ndarray, "rows obs"]
    rewards: Float[np.ndarray, " rows"]
    terminated: Bool[np.ndarray, " rows"]
    truncated: Bool[np.ndarray, " rows"]
    """Whether a time limit was reached, also if the episode terminated."""


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
    """Environments of one kind, with the same settings. They are reset by themselves."""

    def __init__(self, envs: Sequence[gym.Env[Any, Any]], rule: Rule) -> None:
        import mujoco  # an extra, which the environments have loaded already

        self._rule, self._step = rule, mujoco.mj_step
        inner: list[Any] = [env.unwrapped for env in envs]
        self._first = inner[0]
        self._bodies = [(one.model, one.data, one.data.ctrl) for one in inner]
        self._positions = [one.data.qpos for one in inner]
        self._velocities = [one.data.qvel for one in inner]
        self._limits = [
            [one for one in _wrappers(env) if isinstance(one, TimeLimit)] for env in envs
        ]

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
        late = np.array([self._count(row) for row in numbers])
        return Taken(observations, rewards, terminated, late)

    def _count(self, row: int) -> bool:
        """Counts a step, as the environment's time limits do; returns whether one is reached."""
        for limit in self._limits[row]:
            limit._elapsed_steps += 1
        return any(limit._elapsed_steps >= limit._max_episode_steps for limit in self._limits[row])


def bodies_of(envs: Sequence[gym.Env[Any, Any]]) -> Bodies | None:
    """Returns the bodies of environments that were made alike, or None if others must step them.

    Gymnasium has made them from its own class, which the specification names by a string. No
    wrapper changes a step. A few environments are faster one by one.
    """
    if len(envs) < _FEWEST:
        return None
    inner: Any = envs[0].unwrapped
    made_by = None if inner.spec is None else inner.spec.entry_point
    rule = RULES.get(made_by) if isinstance(made_by, str) else None
    plain = all(type(one) in (TimeLimit, OrderEnforcing) for one in _wrappers(envs[0]))
    if rule is None or not plain or inner.render_mode == "human":
        return None
    return Bodies(envs, rule)


def _wrappers(env: gym.Env[Any, Any]) -> list[gym.Env[Any, Any]]:
    """Returns the wrappers of an environment, the outermost first."""
    found = []
    while isinstance(env, gym.Wrapper):
        found.append(env)
        env = env.env
    return found


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
