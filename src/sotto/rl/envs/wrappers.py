"""Wrappers of environments in JAX; they are functions of public constants alone."""

import math
from dataclasses import dataclass, fields
from typing import Any, Generic, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sotto.rl.envs.base import Environment, Params, State


@dataclass(frozen=True, kw_only=True)
class _Wrapper(Environment[State, Params], Generic[State, Params]):
    """An environment with the states and observations of another one."""

    base: Environment[State, Params]

    def reset(self, uniforms: Float[Array, " reset_size"], params: Params) -> State:
        """Returns the base environment's first state."""
        return self.base.reset(uniforms, params)

    def observe(self, state: State, params: Params) -> Float[Array, " obs"]:
        """Returns the base environment's observation."""
        return self.base.observe(state, params)


@dataclass(frozen=True, kw_only=True)
class ActionRepeat(_Wrapper[State, Params], Generic[State, Params]):
    """Applies each action `repeat` times and adds the rewards until the episode terminates.

    A step of this environment is one decision, and `max_episode_steps` and `reward_per_step` count
    decisions. Build it with `ActionRepeat.of(env, repeat)`.
    """

    repeat: int

    @classmethod
    def of(cls, base: Environment[State, Params], repeat: int) -> Self:
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
            repeat=repeat,
            **_facts(base)
            | {
                "max_episode_steps": base.max_episode_steps // repeat,
                "reward_per_step": base.reward_per_step * repeat,
            },
        )

    def step(
        self, state: State, action: Array, params: Params
    ) -> tuple[State, Float[Array, ""], Bool[Array, ""]]:
        """Takes `repeat` steps of the base environment, or fewer if it terminates."""
        state, reward, terminated = self.base.step(state, action, params)
        for _ in range(self.repeat - 1):
            following, more, ended = self.base.step(state, action, params)
            state = jax.tree.map(
                lambda old, new, stop=terminated: jnp.where(stop, old, new), state, following
            )
            reward = reward + jnp.where(terminated, 0.0, more)
            terminated = terminated | ended
        return state, reward, terminated


@dataclass(frozen=True, kw_only=True)
class LogReward(_Wrapper[State, Params], Generic[State, Params]):
    """Replaces each reward r by sign(r) log(1 + |r| / scale), for rewards of very different sizes.

    Rewards far below `scale` stay linear. Build it with `LogReward.of(env, scale)`.
    """

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

    def step(
        self, state: State, action: Array, params: Params
    ) -> tuple[State, Float[Array, ""], Bool[Array, ""]]:
        """Takes a step of the base environment and transforms its reward."""
        state, reward, terminated = self.base.step(state, action, params)
        return state, jnp.sign(reward) * jnp.log1p(jnp.abs(reward) / self.scale), terminated


def _facts(env: Environment[State, Params]) -> dict[str, Any]:
    """Returns the public facts about an environment, by name."""
    return {field.name: getattr(env, field.name) for field in fields(Environment)}
