"""CartPole-v1, equal to Gymnasium 1.3 in every step, and CartPoleCentred-v0 with another reward.

The task of Barto, Sutton and Anderson (1983), as in `gymnasium/envs/classic_control/cartpole.py`:
Euler integration, reward 1 at every step (also the last), and at most 500 steps.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sotto.rl.envs.base import ActionSpace, Discrete, Environment, Scalar


class CartPoleParams(eqx.Module):
    """Physics in SI units, under Gymnasium's names; every field may be traced.

    The total mass is recomputed and not stored.
    """

    gravity: Scalar = 9.8
    masscart: Scalar = 1.0
    masspole: Scalar = 0.1
    length: Scalar = 0.5
    """Half of the pole's length."""
    force_mag: Scalar = 10.0
    tau: Scalar = 0.02
    """Time between two states."""
    theta_threshold: Scalar = 12 * 2 * math.pi / 360
    """Angle beyond which the pole has fallen (`theta_threshold_radians`)."""
    x_threshold: Scalar = 2.4
    """Position beyond which the cart has left the track."""
    reset_bound: Scalar = 0.05
    """Bound b; each coordinate of the first state is uniform in [-b, b]."""


class CartPoleState(NamedTuple):
    """Position (m), velocity (m/s), pole angle (rad), angular velocity (rad/s)."""

    x: Float[Array, ""]
    x_dot: Float[Array, ""]
    theta: Float[Array, ""]
    theta_dot: Float[Array, ""]


_ACTIONS = Discrete(2)
_PARAMS = CartPoleParams()


@dataclass(frozen=True, kw_only=True)
class CartPole(Environment[CartPoleState, CartPoleParams]):
    """Balance a pole on a cart: push left (0) or right (1)."""

    id: str = "CartPole-v1"
    observation_size: int = 4
    action: ActionSpace = _ACTIONS
    default_params: CartPoleParams = _PARAMS
    reset_size: int = 4
    max_episode_steps: int = 500
    observation_scale: tuple[float, ...] = (1.0, 1.0, 10.0, 1.0)
    reward_per_step: float = 1.0

    def reset(self, uniforms: Float[Array, "4"], params: CartPoleParams) -> CartPoleState:
        """Returns a state whose coordinates are uniform in [-reset_bound, reset_bound]."""
        first = params.reset_bound * (2.0 * uniforms - 1.0)
        return CartPoleState(first[0], first[1], first[2], first[3])

    def step(
        self, state: CartPoleState, action: Int[Array, ""], params: CartPoleParams
    ) -> tuple[CartPoleState, Float[Array, ""], Bool[Array, ""]]:
        """Takes one Euler step of `tau` seconds."""
        x, x_dot, theta, theta_dot = state
        total_mass = params.masscart + params.masspole
        polemass_length = params.masspole * params.length

        force = params.force_mag * (2.0 * action.astype(jnp.float32) - 1.0)
        costheta, sintheta = jnp.cos(theta), jnp.sin(theta)
        temp = (force + polemass_length * jnp.square(theta_dot) * sintheta) / total_mass
        thetaacc = (params.gravity * sintheta - costheta * temp) / (
            params.length * (4.0 / 3.0 - params.masspole * jnp.square(costheta) / total_mass)
        )
        xacc = temp - polemass_length * thetaacc * costheta / total_mass

        following = CartPoleState(
            x + params.tau * x_dot,
            x_dot + params.tau * xacc,
            theta + params.tau * theta_dot,
            theta_dot + params.tau * thetaacc,
        )
        terminated = (jnp.abs(following.x) > params.x_threshold) | (
            jnp.abs(following.theta) > params.theta_threshold
        )
        return following, jnp.ones_like(x), terminated

    def observe(self, state: CartPoleState, params: CartPoleParams) -> Float[Array, "4"]:
        """Returns the state itself."""
        del params
        return jnp.stack(state)


@dataclass(frozen=True, kw_only=True)
class CentredCartPole(CartPole):
    """Balance a pole on a cart in the middle of the track: push left (0) or right (1).

    CartPole-v1's reward is always 1, so it contains nothing that a learner with private rewards
    could protect. Here the reward says how upright the pole and how centred the cart is in the next
    state: (1 - |theta| / theta_max) (1 - |x| / x_max), and 0 if the pole has fallen or the cart has
    left the track.
    """

    id: str = "CartPoleCentred-v0"

    def step(
        self, state: CartPoleState, action: Int[Array, ""], params: CartPoleParams
    ) -> tuple[CartPoleState, Float[Array, ""], Bool[Array, ""]]:
        """Takes one step of CartPole-v1 and rewards the next state."""
        following, _, terminated = super().step(state, action, params)
        upright = 1.0 - jnp.abs(following.theta) / params.theta_threshold
        centred = 1.0 - jnp.abs(following.x) / params.x_threshold
        return following, jnp.maximum(upright, 0.0) * jnp.maximum(centred, 0.0), terminated
