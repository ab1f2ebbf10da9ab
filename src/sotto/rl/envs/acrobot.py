"""Acrobot-v1, equal to Gymnasium 1.3 in every step.

The task of Sutton (1996) with the "book" dynamics, as in
`gymnasium/envs/classic_control/acrobot.py`: one Runge-Kutta step of 0.2 s, reward -1 until the tip
swings above the line, and at most 500 steps. Gymnasium's cos(angle - pi/2) is written sin(angle).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sotto.rl.envs.base import ActionSpace, Discrete, Environment, Scalar


class AcrobotParams(eqx.Module):
    """Physics in SI units, with Gymnasium's name in brackets; every field may be traced.

    As in Gymnasium, the centres of mass are separate parameters: scaling a link's length does not
    move them. The second link's length is absent, since it enters no equation of motion.
    """

    gravity: Scalar = 9.8
    """Acceleration by gravity (`g` in `_dsdt`)."""
    link_length_1: Scalar = 1.0
    """Length of link 1 (`LINK_LENGTH_1`)."""
    link_mass_1: Scalar = 1.0
    """Mass of link 1 (`LINK_MASS_1`)."""
    link_mass_2: Scalar = 1.0
    """Mass of link 2 (`LINK_MASS_2`)."""
    link_com_1: Scalar = 0.5
    """Position of the centre of mass of link 1 (`LINK_COM_POS_1`)."""
    link_com_2: Scalar = 0.5
    """Position of the centre of mass of link 2 (`LINK_COM_POS_2`)."""
    link_moi: Scalar = 1.0
    """Moment of inertia of each link (`LINK_MOI`)."""
    torque: Scalar = 1.0
    """Torque of an action, which applies -torque, 0 or +torque (`AVAIL_TORQUE`)."""
    max_velocity_1: Scalar = 4 * math.pi
    """Largest angular velocity of joint 1 (`MAX_VEL_1`)."""
    max_velocity_2: Scalar = 9 * math.pi
    """Largest angular velocity of joint 2 (`MAX_VEL_2`)."""
    dt: Scalar = 0.2
    """Time between two states (`dt`)."""
    reset_bound: Scalar = 0.1
    """Bound b; each coordinate of the first state is uniform in [-b, b]."""


class AcrobotState(NamedTuple):
    """Two joint angles (rad, the second relative to the first) and their velocities (rad/s)."""

    theta_1: Float[Array, ""]
    theta_2: Float[Array, ""]
    velocity_1: Float[Array, ""]
    velocity_2: Float[Array, ""]


_ACTIONS = Discrete(3)
_PARAMS = AcrobotParams()


@dataclass(frozen=True, kw_only=True)
class Acrobot(Environment[AcrobotState, AcrobotParams]):
    """Swing the tip of a two-link pendulum above the line: torque -1 (0), 0 (1), +1 (2)."""

    id: str = "Acrobot-v1"
    observation_size: int = 6
    action: ActionSpace = _ACTIONS
    default_params: AcrobotParams = _PARAMS
    reset_size: int = 4
    max_episode_steps: int = 500
    observation_scale: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1 / 3, 1 / 6)
    reward_per_step: float = -1.0

    def reset(self, uniforms: Float[Array, "4"], params: AcrobotParams) -> AcrobotState:
        """Returns a state whose coordinates are uniform in [-reset_bound, reset_bound]."""
        first = params.reset_bound * (2.0 * uniforms - 1.0)
        return AcrobotState(first[0], first[1], first[2], first[3])

    def step(
        self, state: AcrobotState, action: Int[Array, ""], params: AcrobotParams
    ) -> tuple[AcrobotState, Float[Array, ""], Bool[Array, ""]]:
        """Takes one Runge-Kutta step of `dt` seconds; angles wrap and velocities are clipped."""
        torque = params.torque * (action.astype(jnp.float32) - 1.0)
        angle_1, angle_2, velocity_1, velocity_2 = _runge_kutta(state, torque, params)
        following = AcrobotState(
            _wrap(angle_1),
            _wrap(angle_2),
            jnp.clip(velocity_1, -params.max_velocity_1, params.max_velocity_1),
            jnp.clip(velocity_2, -params.max_velocity_2, params.max_velocity_2),
        )
        height = -jnp.cos(following.theta_1) - jnp.cos(following.theta_1 + following.theta_2)
        terminated = height > 1.0
        reward = terminated.astype(jnp.float32) - 1.0
        return following, reward, terminated

    def observe(self, state: AcrobotState, params: AcrobotParams) -> Float[Array, "6"]:
        """Returns cosine and sine of both angles, and both velocities."""
        del params
        one, two, velocity_1, velocity_2 = state
        return jnp.stack(
            [jnp.cos(one), jnp.sin(one), jnp.cos(two), jnp.sin(two), velocity_1, velocity_2]
        )


def _wrap(angle: Float[Array, ""]) -> Float[Array, ""]:
    return angle - 2 * math.pi * jnp.floor((angle + math.pi) / (2 * math.pi))


def _derivative(
    state: AcrobotState, torque: Float[Array, ""], params: AcrobotParams
) -> AcrobotState:
    """Returns the time derivative of the state (Sutton and Barto's book; Gymnasium's `_dsdt`)."""
    theta_1, theta_2, dtheta_1, dtheta_2 = state
    m1, m2, l1 = params.link_mass_1, params.link_mass_2, params.link_length_1
    lc1, lc2, moi, g = params.link_com_1, params.link_com_2, params.link_moi, params.gravity
    cos_2, sin_2 = jnp.cos(theta_2), jnp.sin(theta_2)

    d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos_2) + 2 * moi
    d2 = m2 * (lc2**2 + l1 * lc2 * cos_2) + moi
    phi2 = m2 * lc2 * g * jnp.sin(theta_1 + theta_2)
    phi1 = (
        -m2 * l1 * lc2 * dtheta_2**2 * sin_2
        - 2 * m2 * l1 * lc2 * dtheta_2 * dtheta_1 * sin_2
        + (m1 * lc1 + m2 * l1) * g * jnp.sin(theta_1)
        + phi2
    )
    ddtheta_2 = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * dtheta_1**2 * sin_2 - phi2) / (
        m2 * lc2**2 + moi - d2**2 / d1
    )
    ddtheta_1 = -(d2 * ddtheta_2 + phi1) / d1
    return AcrobotState(dtheta_1, dtheta_2, ddtheta_1, ddtheta_2)


def _runge_kutta(
    state: AcrobotState, torque: Float[Array, ""], params: AcrobotParams
) -> AcrobotState:
    """Takes one classical fourth-order step with constant torque."""

    def ahead(slope: AcrobotState, time: Scalar) -> AcrobotState:
        return AcrobotState(*(s + time * d for s, d in zip(state, slope, strict=True)))

    k1 = _derivative(state, torque, params)
    k2 = _derivative(ahead(k1, params.dt / 2), torque, params)
    k3 = _derivative(ahead(k2, params.dt / 2), torque, params)
    k4 = _derivative(ahead(k3, params.dt), torque, params)
    mean = [(a + 2 * b + 2 * c + d) / 6 for a, b, c, d in zip(k1, k2, k3, k4, strict=True)]
    return ahead(AcrobotState(*mean), params.dt)
