"""RiverSwim, a chain of six states that is hard to explore (Strehl and Littman 2008).

The swimmer starts at the left bank (state 0). Left (action 0) always carries them one state down
the current, and pays 0.005 at the left bank. Right (action 1) is against it: from states 1 to 4
they get one state further with probability 0.35, stay with 0.6 and fall back with 0.05; from state
0 they set off with 0.6. At the right bank (state 5) right pays 1, whatever follows, and they stay
there with probability `stay`, else fall back by one. An episode has 20 steps.

Constants as in Chowdhury and Zhou 2021 (their code, after iosband/TabulaRL) and Rio et al. 2025,
whose p in {0.6, 0.9} is taken to be `stay`: RiverSwim-v0 has 0.6 (V* = 3.3973), RiverSwim90-v0 has
0.9 (V* = 5.1951).

`sotto.rl.envs.gymnasium_river_swim` is the same for Gymnasium.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from sotto.rl.envs.base import ActionSpace, Discrete
from sotto.rl.envs.coins import Coins, flip, toss
from sotto.rl.tabular import FiniteMDP, TabularEnvironment

Scalar = float | Float[Array, "*variants"]

STATES, LEFT, RIGHT = 6, 0, 1
_LAST = STATES - 1


class RiverSwimParams(eqx.Module):
    """What may be varied; every field may be traced."""

    stay: Scalar = 0.6
    """Probability of staying at the right bank (p)."""
    set_off: Scalar = 0.6
    """Probability of getting from state 0 to state 1 by going right."""
    advance: Scalar = 0.35
    """Probability of getting further by going right, in between."""
    fall_back: Scalar = 0.05
    """Probability of falling back in spite of going right, in between."""
    left_reward: Scalar = 0.005
    """Reward of going left at the left bank."""
    right_reward: Scalar = 1.0
    """Reward of going right at the right bank."""


class RiverSwimState(NamedTuple):
    """Where the swimmer is, and the coins of the steps to come."""

    position: Int[Array, ""]
    coins: Coins


_ACTIONS = Discrete(2)
_PARAMS = RiverSwimParams()


@dataclass(frozen=True, kw_only=True)
class RiverSwim(TabularEnvironment[RiverSwimState, RiverSwimParams]):
    """Swim left (0) or right (1)."""

    id: str = "RiverSwim-v0"
    observation_size: int = STATES
    action: ActionSpace = _ACTIONS
    default_params: RiverSwimParams = _PARAMS
    reset_size: int = 1
    max_episode_steps: int = 20
    observation_scale: tuple[float, ...] = (1.0,) * STATES
    reward_per_step: float = 0.0

    def reset(self, uniforms: Float[Array, "1"], params: RiverSwimParams) -> RiverSwimState:
        """The left bank, with fresh coins."""
        del params
        return RiverSwimState(jnp.zeros((), jnp.int32), toss(uniforms[0]))

    def step(
        self, state: RiverSwimState, action: Int[Array, ""], params: RiverSwimParams
    ) -> tuple[RiverSwimState, Float[Array, ""], Bool[Array, ""]]:
        """One step; the river never ends an episode."""
        coins, uniform = flip(state.coins)
        first, last = state.position == 0, state.position == _LAST
        right = action == RIGHT
        # At the right bank to stay is to be stopped by the bank, as walking on would be.
        up = jnp.where(first, params.set_off, jnp.where(last, params.stay, params.advance))
        down = jnp.where(first, 0.0, jnp.where(last, 1.0 - params.stay, params.fall_back))
        against = jnp.where(uniform < up, 1, jnp.where(uniform >= 1.0 - down, -1, 0))
        moved = state.position + jnp.where(right, against, -1)
        reward = jnp.where(
            right,
            jnp.where(last, params.right_reward, 0.0),
            jnp.where(first, params.left_reward, 0.0),
        )
        position = jnp.clip(moved, 0, _LAST).astype(jnp.int32)
        return RiverSwimState(position, coins), reward.astype(jnp.float32), jnp.zeros((), bool)

    def observe(self, state: RiverSwimState, params: RiverSwimParams) -> Float[Array, "6"]:
        """The position, one-hot."""
        del params
        return (jnp.arange(STATES) == state.position).astype(jnp.float32)

    def state_index(self, state: RiverSwimState) -> Int[Array, ""]:
        """The position."""
        return state.position

    def mdp(self, params: RiverSwimParams) -> FiniteMDP:
        """The tables of these parameters."""
        transitions, rewards = np.zeros((STATES, 2, STATES)), np.zeros((STATES, 2))
        for position in range(STATES):
            transitions[position, LEFT, max(position - 1, 0)] = 1
        transitions[0, RIGHT, :2] = 1 - float(params.set_off), float(params.set_off)
        for position in range(1, _LAST):
            back, further = float(params.fall_back), float(params.advance)
            transitions[position, RIGHT, position - 1 : position + 2] = (
                back,
                1 - back - further,
                further,
            )
        transitions[_LAST, RIGHT, _LAST - 1 :] = 1 - float(params.stay), float(params.stay)
        rewards[0, LEFT], rewards[_LAST, RIGHT] = params.left_reward, params.right_reward
        return FiniteMDP(transitions, rewards, self.max_episode_steps)
