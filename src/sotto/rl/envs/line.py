"""Line-v0, the task of Wang and Hegde (2019, section 4): a walk on the interval [0, 1].

The first state is uniform on [0, 1]. Action 0 goes right and action 1 goes left, each by a distance
that is uniform on [0, 1/4]; the walk stops at the ends. The reward is 1/2 - |s' - 1/2|, where s' is
the next state, and an episode has 50 steps. Always walking to the centre has an expected return of
20.71, and uniformly random actions have 10.94.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sotto.rl.envs.base import ActionSpace, Coins, Discrete, Environment, Scalar, flip, toss


class LineParams(eqx.Module):
    """Parameters of the walk; every field may be traced."""

    longest_step: Scalar = 0.25
    """Longest distance of a step; distances are uniform on [0, longest_step]."""
    goal: Scalar = 0.5
    """Position with the largest reward."""


class LineState(NamedTuple):
    """Position on the line, and the random numbers of the next steps."""

    position: Float[Array, ""]
    coins: Coins


_ACTIONS = Discrete(2)
_PARAMS = LineParams()


@dataclass(frozen=True, kw_only=True)
class Line(Environment[LineState, LineParams]):
    """Walk to the middle of a line: right (0) or left (1)."""

    id: str = "Line-v0"
    observation_size: int = 1
    action: ActionSpace = _ACTIONS
    default_params: LineParams = _PARAMS
    reset_size: int = 2
    max_episode_steps: int = 50
    observation_scale: tuple[float, ...] = (1.0,)
    reward_per_step: float = 0.5

    def reset(self, uniforms: Float[Array, "2"], params: LineParams) -> LineState:
        """Returns a position that is uniform on [0, 1], with fresh coins."""
        del params
        return LineState(uniforms[0], toss(uniforms[1]))

    def step(
        self, state: LineState, action: Int[Array, ""], params: LineParams
    ) -> tuple[LineState, Float[Array, ""], Bool[Array, ""]]:
        """Takes one step; no state ends an episode."""
        coins, uniform = flip(state.coins)
        direction = 1.0 - 2.0 * action.astype(jnp.float32)
        moved = state.position + direction * params.longest_step * uniform
        position = jnp.clip(moved, 0.0, 1.0)
        reward = 0.5 - jnp.abs(position - params.goal)
        return LineState(position, coins), reward, jnp.zeros((), bool)

    def observe(self, state: LineState, params: LineParams) -> Float[Array, "1"]:
        """Returns the position."""
        del params
        return state.position[None]
