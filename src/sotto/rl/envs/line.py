"""Line-v0, the task of Wang and Hegde (2019, section 4): walk on the interval [0, 1].

The first state is uniform on [0, 1]. Action 0 goes right and action 1 left, each by a distance
uniform on [0, 1/4], and the ends are walls. The reward 1/2 - |s' - 1/2| is of the state that a step
leads to; an episode has 50 steps. Going to the centre returns 20.71, uniform actions 10.94.

`sotto.rl.envs.gymnasium_line` is the same for Gymnasium.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sotto.rl.envs.base import ActionSpace, Discrete, Environment
from sotto.rl.envs.coins import Coins, flip, toss

Scalar = float | Float[Array, "*variants"]


class LineParams(eqx.Module):
    """What may be varied; every field may be traced."""

    longest_step: Scalar = 0.25
    """Steps are uniform on [0, longest_step]."""
    goal: Scalar = 0.5
    """Where the reward is largest."""


class LineState(NamedTuple):
    """Where on the line, and the coins of the steps to come."""

    position: Float[Array, ""]
    coins: Coins


_ACTIONS = Discrete(2)
_PARAMS = LineParams()


@dataclass(frozen=True, kw_only=True)
class Line(Environment[LineState, LineParams]):
    """Find the middle of a line: right (0) or left (1)."""

    id: str = "Line-v0"
    observation_size: int = 1
    action: ActionSpace = _ACTIONS
    default_params: LineParams = _PARAMS
    reset_size: int = 2
    max_episode_steps: int = 50
    observation_scale: tuple[float, ...] = (1.0,)
    reward_per_step: float = 0.5

    def reset(self, uniforms: Float[Array, "2"], params: LineParams) -> LineState:
        """Uniform on [0, 1], with fresh coins."""
        del params
        return LineState(uniforms[0], toss(uniforms[1]))

    def step(
        self, state: LineState, action: Int[Array, ""], params: LineParams
    ) -> tuple[LineState, Float[Array, ""], Bool[Array, ""]]:
        """One step; the line never ends an episode."""
        coins, uniform = flip(state.coins)
        direction = 1.0 - 2.0 * action.astype(jnp.float32)
        moved = state.position + direction * params.longest_step * uniform
        position = jnp.clip(moved, 0.0, 1.0)
        reward = 0.5 - jnp.abs(position - params.goal)
        return LineState(position, coins), reward, jnp.zeros((), bool)

    def observe(self, state: LineState, params: LineParams) -> Float[Array, "1"]:
        """The position."""
        del params
        return state.position[None]
