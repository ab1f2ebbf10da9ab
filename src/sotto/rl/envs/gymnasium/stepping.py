"""Steps of several Gymnasium environments in this process.

`OneByOne` steps any environments. `Mujoco` steps Gymnasium's HalfCheetah-v5 and Hopper-v5, where
half of the time of a step is Python code: here MuJoCo's own step is called for each environment,
and observations, rewards and ends of all environments are computed at once. The numbers are those
of Gymnasium, bit for bit.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from jaxtyping import Bool, Float, Int

AnyEnv: TypeAlias = gym.Env[Any, Any]


class Taken(NamedTuple):
    """Results of one step of some environments; the first axis is the environment."""

    observations: Float[np.ndarray, "rows obs"]
    rewards: Float[np.ndarray, " rows"]
    terminated: Bool[np.ndarray, " rows"]
    truncated: Bool[np.ndarray, " rows"]


class Stepper(Protocol):
    """Resets and steps environments by their numbers."""

    def reset(self, row: int, seed: int | None) -> np.ndarray:
        """Resets one environment and returns its observation; None continues its random stream."""

    def step(self, rows: Int[np.ndarray, " rows"], actions: np.ndarray) -> Taken:
        """Steps the environments of these numbers, with one action each."""


def stepper_of(envs: Sequence[AnyEnv]) -> Stepper:
    """Returns the fastest stepper of these environments, which are all of one kind."""
    inner: Any = envs[0].unwrapped
    rule = _RULES.get(f"{type(inner).__module__}.{type(inner).__qualname__}")
    plain = all(type(one) in (TimeLimit, OrderEnforcing) for one in _wrappers(envs[0]))
    if rule is None or not plain or inner.render_mode == "human":
        return OneByOne(envs)
    return Mujoco(envs, rule)


def _wrappers(env: AnyEnv) -> list[AnyEnv]:
    """Returns the wrappers of an environment, the outermost first."""
    found = []
    while isinstance(env, gym.Wrapper):
        found.append(env)
        env = env.env
    return found


class OneByOne:
    """Steps each environment with its own `step`."""

    def __init__(self, envs: Sequence[AnyEnv]) -> None:
        self._envs = envs

    def reset(self, row: int, seed: int | None) -> np.ndarray:
        """Resets as `Stepper.reset` says."""
        return np.ravel(self._envs[row].reset(seed=seed)[0])

    def step(self, rows: Int[np.ndarray, " rows"], actions: np.ndarray) -> Taken:
        """Steps as `Stepper.step` says."""
        found = [self._envs[row].step(action) for row, action in zip(rows, actions, strict=True)]
        return Taken(
            np.array([np.ravel(one[0]) for one in found]),
            np.array([float(one[1]) for one in found]),
            *(np.array([one[field] for one in found], bool) for field in (2, 3)),
        )


class Moved(NamedTuple):
    """Motion of some bodies in one step; the first axis is the environment."""

    actions: Float[np.ndarray, "rows joints"]
    forward: Float[np.ndarray, " rows"]
    """Mean forward velocity."""
    positions: Float[np.ndarray, "rows positions"]
    velocities: Float[np.ndarray, "rows velocities"]


Rule = Callable[[Any, Moved], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Function of an environment's settings and of the motion that returns observed velocities,
rewards, and whether episodes end."""


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
    return seen, rewards - _cost(env, moved), ~healthy & env._terminate_when_unhealthy


def _cost(env: Any, moved: Moved) -> np.ndarray:
    cost: np.ndarray = env._ctrl_cost_weight * np.sum(np.square(moved.actions), axis=1)
    return cost


def _within(values: np.ndarray, interval: tuple[float, float]) -> np.ndarray:
    least, most = interval
    return (least < values) & (values < most)


_RULES: dict[str, Rule] = {
    "gymnasium.envs.mujoco.half_cheetah_v5.HalfCheetahEnv": _half_cheetah,
    "gymnasium.envs.mujoco.hopper_v5.HopperEnv": _hopper,
}


class Mujoco:
    """Steps bodies with MuJoCo's own function. Resets are the environments' own."""

    def __init__(self, envs: Sequence[AnyEnv], rule: Rule) -> None:
        import mujoco  # an extra, which the environment has loaded already

        self._envs, self._rule, self._step = envs, rule, mujoco.mj_step
        inner: list[Any] = [env.unwrapped for env in envs]
        self._first = inner[0]
        self._bodies = [(one.model, one.data, one.data.ctrl) for one in inner]
        self._positions = [one.data.qpos for one in inner]
        self._velocities = [one.data.qvel for one in inner]
        spec = envs[0].spec
        self._limit = None if spec is None else spec.max_episode_steps
        self._elapsed = np.zeros(len(envs), int)

    def reset(self, row: int, seed: int | None) -> np.ndarray:
        """Resets as `Stepper.reset` says."""
        self._elapsed[row] = 0
        return np.ravel(self._envs[row].reset(seed=seed)[0])

    def step(self, rows: Int[np.ndarray, " rows"], actions: np.ndarray) -> Taken:
        """Steps as `Stepper.step` says."""
        env, step = self._first, self._step
        before = np.array([self._positions[row][0] for row in rows])
        for row, action in zip(rows, actions, strict=True):
            model, data, control = self._bodies[row]
            control[:] = action
            step(model, data, nstep=env.frame_skip)
        self._elapsed[rows] += 1

        positions = np.array([self._positions[row] for row in rows])
        velocities = np.array([self._velocities[row] for row in rows])
        forward = (positions[:, 0] - before) / env.dt
        seen, rewards, terminated = self._rule(env, Moved(actions, forward, positions, velocities))
        first = int(env._exclude_current_positions_from_observation)
        late = (
            np.zeros(len(rows), bool) if self._limit is None else self._elapsed[rows] >= self._limit
        )
        return Taken(
            np.concatenate([positions[:, first:], seen], axis=1), rewards, terminated, late
        )
