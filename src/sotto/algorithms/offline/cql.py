"""Conservative Q-learning for discrete actions (Kumar et al. 2020, CQL(H) on deep Q-learning).

The loss of a transition is the Huber loss of the temporal difference, plus alpha times
logsumexp Q(s, .) - Q(s, a) (their equation 4, for the logged action a). The second term lowers the
values of actions that were not logged. The target of a truncated episode's last step includes the
value of the next state; that of a terminated episode does not.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from sotto.algorithms.settings import Discount, NotNegative, Positive, Settings, Share
from sotto.data.trajectories import Transitions
from sotto.rl.networks import Policy, scaled


@dataclass(frozen=True)
class CQL(Settings):
    """The loss and the settings of CQL.

    The defaults suit CartPole. Acrobot needs alpha 0.1 and reward_scale 1.

    Attributes:
        alpha: weight of the conservative term; 0 gives deep Q-learning.
        discount: discount factor gamma.
        reward_scale: public factor of rewards, which brings values to order one.
        target_rate: share of the network that moves into the target network at each step.
        double: whether the network chooses the action whose value the target network gives.
    """

    alpha: NotNegative = 1.0
    discount: Discount = 0.99
    reward_scale: Positive = 0.01
    target_rate: Share = 0.005
    double: bool = True

    def goal(self, network: Policy, target: Policy, transition: Transitions) -> Float[Array, ""]:
        """Returns the scaled reward plus the discounted value of the next state."""
        following = _values(target, transition.next_observations)
        chooser = _values(network, transition.next_observations) if self.double else following
        best = _at(following, jnp.argmax(chooser))
        later = jnp.where(transition.terminated, 0.0, best)
        goal: Array = self.reward_scale * transition.rewards + self.discount * later
        return goal

    def loss(
        self, outputs: Float[Array, " actions"], goal: Float[Array, ""], transition: Transitions
    ) -> Float[Array, ""]:
        """Returns the Huber loss of the temporal difference plus the conservative term."""
        value = _at(outputs, transition.actions)
        conservative = jax.nn.logsumexp(outputs) - value
        loss: Array = optax.losses.huber_loss(value, goal) + self.alpha * conservative
        return loss


def _values(network: Policy, observation: Float[Array, " obs"]) -> Float[Array, " actions"]:
    scale, centre = network.observation_scale, network.observation_centre
    return network.network(scaled(observation, scale, centre))


def _at(values: Float[Array, " actions"], action: Array) -> Float[Array, ""]:
    # A mask is faster than a gather on CPU for few actions, and so is its gradient.
    return jnp.sum(jnp.where(jax.lax.iota(jnp.int32, values.size) == action, values, 0.0))
