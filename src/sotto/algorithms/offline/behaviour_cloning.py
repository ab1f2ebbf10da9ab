"""Behaviour cloning: the network's outputs are logits, fitted to the logged actions.

Source: Pomerleau 1991, "Efficient Training of Artificial Neural Networks for Autonomous
Navigation"; cross-entropy for discrete actions.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sotto.data.trajectories import Transitions
from sotto.rl.networks import Policy


@dataclass(frozen=True)
class BehaviourCloning:
    """The learner; it reads observations and actions, and neither rewards nor a target network."""

    @property
    def target_rate(self) -> float:
        """No target network."""
        return 0.0

    def goal(self, network: Policy, target: Policy, transition: Transitions) -> Float[Array, ""]:
        """Nothing: the logged action says it all."""
        del network, target, transition
        return jnp.zeros(())

    def loss(
        self, outputs: Float[Array, " actions"], goal: Float[Array, ""], transition: Transitions
    ) -> Float[Array, ""]:
        """Cross-entropy to the logged action."""
        del goal
        chosen = jax.lax.iota(jnp.int32, outputs.size) == transition.actions
        return -jnp.sum(jnp.where(chosen, jax.nn.log_softmax(outputs), 0.0))
