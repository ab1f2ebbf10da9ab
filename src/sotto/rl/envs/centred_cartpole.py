"""CartPoleCentred-v0: CartPole with a reward of the state, for learners with private rewards.

CartPole-v1's reward is 1 whatever happens, which leaves nothing to protect. Here it tells how
upright the pole and how centred the cart is: (1 - |theta| / theta_max) (1 - |x| / x_max), of the
state that a step leads to, and 0 where the pole has fallen or the cart left the track.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sotto.rl.envs.cartpole import CartPole, CartPoleParams, CartPoleState


@dataclass(frozen=True, kw_only=True)
class CentredCartPole(CartPole):
    """Balance a pole on a cart in the middle of the track: push left (0) or right (1)."""

    id: str = "CartPoleCentred-v0"

    def step(
        self, state: CartPoleState, action: Int[Array, ""], params: CartPoleParams
    ) -> tuple[CartPoleState, Float[Array, ""], Bool[Array, ""]]:
        """One step of CartPole-v1, rewarded by where it leads."""
        following, _, terminated = super().step(state, action, params)
        upright = 1.0 - jnp.abs(following.theta) / params.theta_threshold
        centred = 1.0 - jnp.abs(following.x) / params.x_threshold
        return following, jnp.maximum(upright, 0.0) * jnp.maximum(centred, 0.0), terminated
