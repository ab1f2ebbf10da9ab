"""RiverSwim, a chain of six states that is hard to explore (Strehl and Littman 2008).

The swimmer starts at the left bank (state 0). Left (action 0) always leads one state down the
current, and pays 0.005 at the left bank. Right (action 1) is against the current. From states 1 to
4 it leads one state further with probability 0.35, stays with 0.6 and falls back with 0.05. From
state 0 it leads to state 1 with probability 0.6. At the right bank (state 5) right always pays 1;
the swimmer stays there with probability `stay` and falls back by one otherwise. An episode has 20
steps.

The constants are those of Chowdhury and Zhou 2021 (their code, after iosband/TabulaRL) and of Rio
et al. 2025, whose p in {0.6, 0.9} is taken to be `stay`. RiverSwim-v0 has 0.6 (V* = 3.3973), and
RiverSwim90-v0 has 0.9 (V* = 5.1951).

In RiverSwim the best action is the same in every state, which a policy that leans to one action
finds by accident. In RiverSwimExchanged-v0 and RiverSwimExchanged90-v0 the actions of half of the
states have each other's numbers; all else is equal.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from sotto.rl.envs.base import ActionSpace, Coins, Discrete, Scalar, flip, toss
from sotto.rl.tabular import FiniteMDP, TabularEnvironment

STATES, LEFT, RIGHT = 6, 0, 1
_LAST = STATES - 1
EXCHANGED = (2, 3, 5)
"""States of RiverSwimExchanged-v0 where action 0 swims right, once drawn with a public seed."""


class RiverSwimParams(eqx.Module):
    """Probabilities and rewards; every field may be traced."""

    stay: Scalar = 0.6
    """Probability of staying at the right bank (p)."""
    set_off: Scalar = 0.6
    """Probability that right leads from state 0 to state 1."""
    advance: Scalar = 0.35
    """Probability that right leads one state further from states 1 to 4."""
    fall_back: Scalar = 0.05
    """Probability that right falls back by one state from states 1 to 4."""
    left_reward: Scalar = 0.005
    """Reward of left at the left bank."""
    right_reward: Scalar = 1.0
    """Reward of right at the right bank."""


class RiverSwimState(NamedTuple):
    """Position of the swimmer, and the random numbers of the next steps."""

    position: Int[Array, ""]
    coins: Coins


_ACTIONS = Discrete(2)
_PARAMS = RiverSwimParams()


@dataclass(frozen=True, kw_only=True)
class RiverSwim(TabularEnvironment[RiverSwimState, RiverSwimParams]):
    """Swim left (0) or right (1); in the exchanged states, right (0) or left (1)."""

    id: str = "RiverSwim-v0"
    observation_size: int = STATES
    action: ActionSpace = _ACTIONS
    default_params: RiverSwimParams = _PARAMS
    reset_size: int = 1
    max_episode_steps: int = 20
    observation_scale: tuple[float, ...] = (1.0,) * STATES
    reward_per_step: float = 0.0
    exchanged: tuple[int, ...] = ()

    def reset(self, uniforms: Float[Array, "1"], params: RiverSwimParams) -> RiverSwimState:
        """Returns the left bank, with fresh coins."""
        del params
        return RiverSwimState(jnp.zeros((), jnp.int32), toss(uniforms[0]))

    def step(
        self, state: RiverSwimState, action: Int[Array, ""], params: RiverSwimParams
    ) -> tuple[RiverSwimState, Float[Array, ""], Bool[Array, ""]]:
        """Takes one step; no state ends an episode."""
        coins, uniform = flip(state.coins)
        first, last = state.position == 0, state.position == _LAST
        right = action == RIGHT
        for one in self.exchanged:
            right = right ^ (state.position == one)
        # At the right bank, "up" is cut off by the bank, so the swimmer stays there.
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
        """Returns the position, one-hot."""
        del params
        return (jnp.arange(STATES) == state.position).astype(jnp.float32)

    def state_index(self, state: RiverSwimState) -> Int[Array, ""]:
        """Returns the position."""
        return state.position

    def mdp(self, params: RiverSwimParams) -> FiniteMDP:
        """Returns the transitions and rewards under these parameters."""
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
        there = list(self.exchanged)
        transitions[there], rewards[there] = transitions[there, ::-1], rewards[there, ::-1]
        return FiniteMDP(transitions, rewards, self.max_episode_steps)
