"""The interface of environments in JAX: pure functions of a state and of physics parameters.

An `Environment` is a frozen, hashable dataclass of public facts (sizes, time limit, scales) with
three pure functions, `reset`, `step` and `observe`. Physics parameters are an argument and may be
traced, so that thousands of variants run under one `vmap`. Two conventions matter elsewhere:

- `reset` takes uniforms instead of a key. A rollout then draws all of its randomness in one call
  before its loop, which is several times faster than one `jax.random` call per step.
- No function creates or captures an array constant, and every float is float32, also under
  `jax.enable_x64`. Code that refuses captured arrays can then trace a rollout.

`step` does not apply the time limit: reaching it truncates an episode and does not terminate it.
`sotto.rl.rollout` applies it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

State = TypeVar("State")
Params = TypeVar("Params")


@dataclass(frozen=True)
class Discrete:
    """Actions 0, 1, ..., n - 1."""

    n: int

    def clip(self, action: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
        """Returns the action itself, since a sampled index is always valid."""
        return action


@dataclass(frozen=True)
class Box:
    """Actions in a box with one lower and one upper bound per dimension (possibly infinite)."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    centre: tuple[float, ...] | None = None
    """Action at which a policy's outputs are zero, a public constant; None is zero."""
    scale: tuple[float, ...] | None = None
    """Units of a policy's outputs and standard deviations, a public constant; None is one."""

    @property
    def shape(self) -> tuple[int]:
        """Shape of one action."""
        return (len(self.low),)

    def clip(self, action: Float[Array, "*batch a"]) -> Float[Array, "*batch a"]:
        """Returns the nearest action in the box."""
        clipped = [
            jnp.clip(action[..., i], low, high)
            for i, (low, high) in enumerate(zip(self.low, self.high, strict=True))
        ]
        return jnp.stack(clipped, axis=-1)


ActionSpace = Discrete | Box


@dataclass(frozen=True, kw_only=True)
class Environment(ABC, Generic[State, Params]):
    """Public facts about an environment, and its three pure functions."""

    id: str = ""
    """Name of the environment. Of a user's it is MODULE:CLASS, by which it was asked for."""
    observation_size: int
    action: ActionSpace
    default_params: Params = ()  # type: ignore[assignment]
    """Physics, as a pytree of Python floats; pass it (or a variant) to every function."""
    reset_size: int
    """Number of uniforms in [0, 1) that one reset consumes."""
    max_episode_steps: int
    """Time limit in steps, at which an episode is truncated."""
    observation_centre: tuple[float, ...] | None = None
    """Public typical observation, which policies subtract first; None is zero."""
    observation_scale: tuple[float, ...] = ()
    """Public factors that bring each observation to order one, which policies multiply by. None
    given: they are 1."""
    reward_per_step: float = 0.0
    """Public reward of an ordinary step, for constant baselines: reward / (1 - discount)."""

    def __post_init__(self) -> None:
        if not self.observation_scale:
            object.__setattr__(self, "observation_scale", (1.0,) * self.observation_size)

    @abstractmethod
    def reset(self, uniforms: Float[Array, " reset_size"], params: Params) -> State:
        """Returns the first state of an episode, a function of `uniforms`."""

    def time_limit(self, params: Params) -> int | Int[Array, ""]:
        """Returns the time limit in steps, which is max_episode_steps unless `params` change it."""
        del params
        return self.max_episode_steps

    @abstractmethod
    def step(
        self, state: State, action: Array, params: Params
    ) -> tuple[State, Float[Array, ""], Bool[Array, ""]]:
        """Returns the next state, its reward, and whether the episode terminated there."""

    @abstractmethod
    def observe(self, state: State, params: Params) -> Float[Array, " obs"]:
        """Returns the observation of a state, not scaled."""


AnyEnvironment = Environment[Any, Any]


Scalar = float | Float[Array, "*variants"]
"""A parameter of physics, or one for each variant."""

Coins = UInt32[Array, ""]
"""State of a small random number generator. `Environment.step` takes no key, so an environment
whose steps are random carries this word in its state."""

_BITS = 24


def toss(uniform: Float[Array, ""]) -> Coins:
    """Returns the first coins of an episode, from a uniform in [0, 1) of the reset."""
    return _mixed((uniform * jnp.float32(2**_BITS)).astype(jnp.uint32))


def flip(coins: Coins) -> tuple[Coins, Float[Array, ""]]:
    """Returns the next coins, and a uniform in [0, 1) with 24 bits."""
    coins = _mixed(coins + jnp.uint32(0x9E3779B9))
    return coins, (coins >> (32 - _BITS)).astype(jnp.float32) * jnp.float32(2.0**-_BITS)


def _mixed(word: Coins) -> Coins:
    """Applies a bijection of 32-bit words that scatters them (Wellons' lowbias32)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    mixed: Coins = jax.lax.bitwise_xor(word, word >> 16)
    return mixed
