"""Behaviour cloning: fits the network's outputs, which are logits, to the logged actions.

Source: Pomerleau 1991, "Efficient Training of Artificial Neural Networks for Autonomous
Navigation"; cross-entropy for discrete actions.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sotto.data.trajectories import Transitions
from sotto.rl.networks import Policy


@dataclass(frozen=True)
class BehaviourCloning:
    """The loss of behaviour cloning. It reads neither rewards nor a target network."""

    target_rate: ClassVar[float] = 0.0  # there is no target network

    def goal(self, network: Policy, target: Policy, transition: Transitions) -> Float[Array, ""]:
        """Returns zero, since the loss needs the logged action only."""
        del network, target, transition
        return jnp.zeros(())

    def loss(
        self, outputs: Float[Array, " actions"], goal: Float[Array, ""], transition: Transitions
    ) -> Float[Array, ""]:
        """Returns the cross-entropy to the logged action."""
        del goal
        chosen = jax.lax.iota(jnp.int32, outputs.size) == transition.actions
        return -jnp.sum(jnp.where(chosen, jax.nn.log_softmax(outputs), 0.0))
