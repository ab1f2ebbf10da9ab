"""An environment in JAX as users write it, and many that are wrong in one way each."""

import random
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import sotto

KEPT = []


@dataclass(frozen=True, kw_only=True)
class Hall(sotto.Environment):
    """A walk whose steps are random."""

    observation_size: int = 1
    action: sotto.Discrete = sotto.Discrete(2)  # noqa: RUF009
    reset_size: int = 1
    max_episode_steps: int = 8

    def reset(self, uniforms, params):
        return jnp.zeros(()), sotto.toss(uniforms[0])

    def step(self, state, action, params):
        place, coins = state
        coins, uniform = sotto.flip(coins)
        place = jnp.clip(place + jnp.where(action == 1, 0.2, -0.2) * uniform, -1, 1)
        return (place, coins), place, False

    def observe(self, state, params):
        return state[0][None]


@dataclass(frozen=True, kw_only=True)
class Pushed(Hall):
    """Actions are real numbers, and episodes end."""

    action: sotto.Box = sotto.Box((-1.0,), (1.0,))  # noqa: RUF009
    default_params: tuple[float, ...] = (0.5,)

    def step(self, state, action, params):
        place = state[0] + action[0] * params[0]
        return (place, state[1]), 1.0, place > 1


class Branches(Hall):
    def step(self, state, action, params):
        return (state, 1.0, False) if state[0] > 0 else (state, 0.0, False)


class InNumpy(Hall):
    def observe(self, state, params):
        return np.clip(state[0], 0, 1)[None]


class Misspelt(Hall):
    def step(self, state, action, params):
        return state, rewrad, False  # noqa: F821


class Random(Hall):
    def step(self, state, action, params):
        return state, state[0] + random.random(), False


class Remembers(Hall):
    def step(self, state, action, params):
        KEPT.append(state[0])
        return state, state[0] + len(KEPT), False


class ChangesItself(Hall):
    def step(self, state, action, params):
        object.__setattr__(self, "place", state[0])
        return state, 1.0, False


class Prints(Hall):
    def step(self, state, action, params):
        jax.debug.print("{}", state[0])
        return state, 1.0, False


class HoldsArray(Hall):
    def observe(self, state, params):
        return jnp.array([[0.5, 2.0]]) @ jnp.stack([state[0], state[0]])


class TwoRewards(Hall):
    def step(self, state, action, params):
        return state, jnp.stack([state[0], state[0]]), False


class WholeReward(Hall):
    def step(self, state, action, params):
        return state, 1, False


class OtherState(Hall):
    def step(self, state, action, params):
        return state[0], 1.0, False


class WiderState(Hall):
    def step(self, state, action, params):
        return (state[0][None], state[1]), 1.0, False


class OtherType(Hall):
    def step(self, state, action, params):
        return (state[0], state[1].astype(jnp.int32)), 1.0, False


class ScalarSeen(Hall):
    def observe(self, state, params):
        return state[0]


class LongSeen(Hall):
    def observe(self, state, params):
        return jnp.stack(state[:1] * 2)


class FiveResults(Hall):
    def step(self, state, action, params):
        return state, 1.0, False, False, {}


class NoObserve(sotto.Environment):
    reset = step = Hall.step


class Undecorated(sotto.Environment):
    observation_size = 1
    reset, step, observe = Hall.reset, Hall.step, Hall.observe


@dataclass(frozen=True, kw_only=True)
class NoSize(Hall):
    observation_size: int = 0


@dataclass(frozen=True, kw_only=True)
class WrongAction(Hall):
    action: int = 2


@dataclass(frozen=True, kw_only=True)
class ArrayParams(Hall):
    default_params: object = (np.zeros(3),)


@dataclass(frozen=True, kw_only=True)
class TwoScales(Hall):
    observation_scale: tuple[float, ...] = (1.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class Listed(Hall):
    observation_centre: object = None

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "observation_centre", [0.0])


class Decomposes(Hall):
    """Traceable, but the door has not reviewed singular values."""

    def observe(self, state, params):
        return jnp.linalg.svd(state[0][None, None])[1]


class Clinic:
    """No environment."""
