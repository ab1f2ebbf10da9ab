"""Interface and time limits of Gymnasium's environments that are stepped at once.

Much of the time of a step of Gymnasium's environments is Python code. `mujoco_bodies` and `landers`
move each environment, and compute observations, rewards and ends for all of them together. Their
numbers are Gymnasium's bit for bit.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

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


class AtOnce(Protocol):
    """Environments of one kind, with the same settings. The caller resets them."""

    def step(self, rows: Int[np.ndarray, " rows"], actions: np.ndarray) -> Taken:
        """Steps the environments of these numbers, with one action each."""


class TimeLimits:
    """The time limits of environments, which count steps."""

    def __init__(self, envs: Sequence[gym.Env[Any, Any]]) -> None:
        self._limits = [
            [one for one in _wrappers(env) if isinstance(one, TimeLimit)] for env in envs
        ]

    def count(self, rows: Sequence[int]) -> Bool[np.ndarray, " rows"]:
        """Counts a step of these environments; returns whether each reached a limit."""
        return np.array([self._late(row) for row in rows])

    def _late(self, row: int) -> bool:
        for limit in self._limits[row]:
            limit._elapsed_steps += 1
        return any(limit._elapsed_steps >= limit._max_episode_steps for limit in self._limits[row])


def made_by(envs: Sequence[gym.Env[Any, Any]]) -> str | None:
    """Returns Gymnasium's entry point of environments that may be stepped at once, or None.

    All of them must have been made alike, so only the first one is looked at. Its specification
    names one of Gymnasium's own classes by a string, its wrappers only count steps, and it does not
    draw to a screen. Fewer than four environments are faster one by one.
    """
    if len(envs) < _FEWEST:
        return None
    inner: Any = envs[0].unwrapped
    entry = None if inner.spec is None else inner.spec.entry_point
    plain = all(type(one) in (TimeLimit, OrderEnforcing) for one in _wrappers(envs[0]))
    if not isinstance(entry, str) or not plain or inner.render_mode == "human":
        return None
    return entry


def _wrappers(env: gym.Env[Any, Any]) -> list[gym.Env[Any, Any]]:
    """Returns the wrappers of an environment, the outermost first."""
    found = []
    while isinstance(env, gym.Wrapper):
        found.append(env)
        env = env.env
    return found
