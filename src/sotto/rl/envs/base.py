"""What an environment is: pure functions of a state and of traced physics parameters.

An `Environment` is a frozen, hashable dataclass of public facts (sizes, time limit, scales) with
three pure functions, `reset`, `step` and `observe`. Physics parameters are an argument, so that
thousands of variants run under one `vmap`. Two conventions matter elsewhere:

- `reset` takes uniforms instead of a key: a rollout draws all of its randomness in one call before
  its loop, which is several times faster than one `jax.random` call per step.
- No function creates or captures an array constant, and every float is float32 also under
  `jax.enable_x64`: a rollout can then be traced by code that refuses captured arrays.

Time limits are not part of `step`: reaching one truncates an episode, it does not terminate it.
`sotto.rl.rollout` handles them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

State = TypeVar("State")
Params = TypeVar("Params")


@dataclass(frozen=True)
class Discrete:
    """Actions 0, 1, ..., n - 1."""

    n: int

    def clip(self, action: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
        """The action itself: a sampled index is always valid."""
        return action


@dataclass(frozen=True)
class Box:
    """Actions in a box with one lower and one upper bound per dimension (possibly infinite)."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    centre: tuple[float, ...] | None = None
    """Public: the action where a policy's outputs are zero; None is zero."""
    scale: tuple[float, ...] | None = None
    """Public: the units of a policy's outputs, and of its standard deviations; None is one."""

    @property
    def shape(self) -> tuple[int]:
        """The shape of one action."""
        return (len(self.low),)

    def clip(self, action: Float[Array, "*batch a"]) -> Float[Array, "*batch a"]:
        """The nearest action in the box."""
        clipped = [
            jnp.clip(action[..., i], low, high)
            for i, (low, high) in enumerate(zip(self.low, self.high, strict=True))
        ]
        return jnp.stack(clipped, axis=-1)


ActionSpace = Discrete | Box


@dataclass(frozen=True, kw_only=True)
class Environment(ABC, Generic[State, Params]):
    """Public facts about an environment, and its pure functions."""

    id: str
    observation_size: int
    action: ActionSpace
    default_params: Params
    """Physics, as a pytree of Python floats; pass it (or a variant) to every function."""
    reset_size: int
    """How many uniforms in [0, 1) one reset consumes."""
    max_episode_steps: int
    """The time limit, at which an episode is truncated."""
    observation_centre: tuple[float, ...] | None = None
    """Public ordinary values of the observations, which policies subtract first; None is zero."""
    observation_scale: tuple[float, ...]
    """Public factors that bring each observation to order one; policies multiply by them."""
    reward_per_step: float
    """The public reward of an ordinary step, for constant baselines: reward / (1 - discount)."""

    @abstractmethod
    def reset(self, uniforms: Float[Array, " reset_size"], params: Params) -> State:
        """The first state of an episode, drawn by means of `uniforms`."""

    @abstractmethod
    def step(
        self, state: State, action: Array, params: Params
    ) -> tuple[State, Float[Array, ""], Bool[Array, ""]]:
        """The next state, its reward, and whether the episode terminated there."""

    @abstractmethod
    def observe(self, state: State, params: Params) -> Float[Array, " obs"]:
        """What the agent sees of a state (not scaled)."""


AnyEnvironment = Environment[Any, Any]
