"""Wrappers of environments in JAX; they are functions of public constants alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sotto.rl.envs.base import Environment, Params, State


class Repeats(NamedTuple):
    """Parameters of an environment with repeated actions."""

    base: Any
    """Parameters of the environment that is wrapped."""
    repeat: int | Int[Array, ""]
    """Number of times that each action is applied: a positive divisor of the time limit."""


@dataclass(frozen=True, kw_only=True)
class ActionRepeat(Environment[State, Repeats], Generic[State]):
    """Applies each action several times and adds the rewards until the episode terminates.

    A step of this environment is one decision, and `max_episode_steps` and `reward_per_step` count
    decisions. Build it with `ActionRepeat.of(env, repeat)`. Parameters with another number of
    repeats, which may be computed in a compiled program, change steps and time limit.
    """

    base: Environment[State, Any]

    @classmethod
    def of(cls, base: Environment[State, Any], repeat: int) -> Self:
        """Returns the wrapped environment.

        Raises:
            ValueError: `repeat` is not a positive divisor of the time limit, so the limit would
                fall inside a decision.
        """
        if repeat < 1 or base.max_episode_steps % repeat:
            raise ValueError(
                f"action_repeat must be a positive divisor of {base.id}'s time limit of "
                f"{base.max_episode_steps} steps; choose one instead of {repeat}."
            )
        return cls(
            base=base,
            **_facts(base)
            | {
                "default_params": Repeats(base.default_params, repeat),
                "max_episode_steps": base.max_episode_steps // repeat,
                "reward_per_step": base.reward_per_step * repeat,
            },
        )

    def reset(self, uniforms: Float[Array, " reset_size"], params: Repeats) -> State:
        """Returns the base environment's first state."""
        return self.base.reset(uniforms, params.base)

    def observe(self, state: State, params: Repeats) -> Float[Array, " obs"]:
        """Returns the base environment's observation."""
        return self.base.observe(state, params.base)

    def time_limit(self, params: Repeats) -> int | Int[Array, ""]:
        """Returns the time limit in decisions."""
        return self.base.time_limit(params.base) // params.repeat

    def step(
        self, state: State, action: Array, params: Repeats
    ) -> tuple[State, Float[Array, ""], Bool[Array, ""]]:
        """Takes `repeat` steps of the base environment, or fewer if it terminates."""

        def again(_: Any, before: tuple[State, Array, Array]) -> tuple[State, Array, Array]:
            state, reward, terminated = before
            following, more, ended = self.base.step(state, action, params.base)
            state = jax.tree.map(lambda old, new: jnp.where(terminated, old, new), state, following)
            return state, reward + jnp.where(terminated, 0.0, more), terminated | ended

        after = self.base.step(state, action, params.base)
        if isinstance(params.repeat, int):  # a loop of known length would cost more
            for _ in range(params.repeat - 1):
                after = again(None, after)
            return after
        repeated: tuple[State, Array, Array] = jax.lax.fori_loop(1, params.repeat, again, after)
        return repeated


def require_divisors(env: Environment[Any, Any], repeats: Sequence[int]) -> None:
    """Refuses halved numbers of repeats that do not divide the time limit of `env`.

    Raises:
        ValueError: one of them does not.
    """
    for repeat in repeats:
        if env.max_episode_steps % repeat:
            raise ValueError(
                f"action_repeat {repeats[0]} is halved to {repeat}, which does not divide the time "
                f"limit of {env.id}, {env.max_episode_steps} steps; choose another action_repeat"
            )


@dataclass(frozen=True, kw_only=True)
class LogReward(Environment[State, Params], Generic[State, Params]):
    """Replaces each reward r by sign(r) log(1 + |r| / scale), for rewards of very different sizes.

    Rewards far below `scale` stay linear. Build it with `LogReward.of(env, scale)`.
    """

    base: Environment[State, Params]
    scale: float

    @classmethod
    def of(cls, base: Environment[State, Params], scale: float) -> Self:
        """Returns the wrapped environment.

        Raises:
            ValueError: `scale` is not positive.
        """
        if not 0 < scale < math.inf:
            raise ValueError(f"the scale of logarithmic rewards must be positive, got {scale:g}.")
        ordinary = base.reward_per_step
        reward = math.copysign(math.log1p(abs(ordinary) / scale), ordinary)
        return cls(base=base, scale=scale, **_facts(base) | {"reward_per_step": reward})

    def reset(self, uniforms: Float[Array, " reset_size"], params: Params) -> State:
        """Returns the base environment's first state."""
        return self.base.reset(uniforms, params)

    def observe(self, state: State, params: Params) -> Float[Array, " obs"]:
        """Returns the base environment's observation."""
        return self.base.observe(state, params)

    def step(
        self, state: State, action: Array, params: Params
    ) -> tuple[State, Float[Array, ""], Bool[Array, ""]]:
        """Takes a step of the base environment and transforms its reward."""
        state, reward, terminated = self.base.step(state, action, params)
        return state, jnp.sign(reward) * jnp.log1p(jnp.abs(reward) / self.scale), terminated


def _facts(env: Environment[State, Params]) -> dict[str, Any]:
    """Returns the public facts about an environment, by name."""
    return {field.name: getattr(env, field.name) for field in fields(Environment)}
