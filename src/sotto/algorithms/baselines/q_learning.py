"""Deep Q-learning on logged transitions: a network of action values, and its gradient steps.

It is Q-learning (Watkins and Dayan 1992) with a target network (Mnih et al. 2015), and optionally
with double Q-learning (van Hasselt et al. 2016) and Huber's loss. No environment is used here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.settings import Count, Discount, Positive, Settings
from sotto.data.trajectories import Transitions as Transitions
from sotto.rl.distributions import Categorical
from sotto.rl.envs.base import AnyEnvironment, Discrete
from sotto.rl.networks import MLP, scaled
from sotto.trees import at

Values = Callable[[Float[Array, "*batch obs"]], Float[Array, "*batch actions"]]


class QNetwork(eqx.Module):
    """Network of action values: scale * network(observation * observation_scale)."""

    network: MLP
    observation_scale: tuple[float, ...] = eqx.field(static=True)
    scale: float = eqx.field(static=True)

    def __init__(
        self,
        env: AnyEnvironment,
        hidden: tuple[int, ...],
        key: PRNGKeyArray,
        scale: float,
    ):
        """Draws the network; `scale` is a public constant in units of return.

        Raises:
            ValueError: the environment's actions are not discrete.
        """
        if not isinstance(env.action, Discrete):
            raise ValueError(f"Q-learning needs discrete actions, and those of {env.id} are not")
        self.network = MLP(env.observation_size, env.action.n, hidden, key)
        self.observation_scale = env.observation_scale
        self.scale = scale

    def __call__(self, observation: Float[Array, "*batch obs"]) -> Float[Array, "*batch actions"]:
        """Returns the value of each action."""
        return self.scale * self.network(scaled(observation, self.observation_scale))


class EpsilonGreedy(eqx.Module):
    """Policy that takes a uniform action with probability epsilon, and the best one otherwise."""

    values: Values
    epsilon: Float[Array, ""] | float = 0.0

    def __call__(self, observation: Float[Array, "*batch obs"]) -> Categorical:
        """Returns the distribution of the action at each observation."""
        values = self.values(observation)
        actions = values.shape[-1]
        best = jnp.argmax(values, axis=-1)[..., None] == jax.lax.iota(jnp.int32, actions)
        return Categorical(jnp.log(self.epsilon / actions + (1 - self.epsilon) * best))

    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape 1"]:
        """Draws uniform numbers, which `Categorical.sample` turns into `shape` actions."""
        return jax.random.uniform(key, (*shape, 1), jnp.float32)


def greedy_runs(values: Any) -> EpsilonGreedy:
    """Returns the greedy policy of each run's action values, leaves of shape [runs, ...]."""
    runs = jax.tree.leaves(values)[0].shape[0]
    return EpsilonGreedy(values, jnp.zeros((runs,), jnp.float32))


@dataclass(frozen=True)
class LearnerSettings(Settings):
    """Settings of the gradient steps.

    Attributes:
        learning_rate: Adam's learning rate. With annealing, it is the first one.
        anneal_steps: number of gradient steps over which the learning rate falls linearly to zero.
            None: it is constant.
        minibatch: number of transitions per gradient step, drawn with replacement.
        discount: discount factor (gamma).
        target_period: number of gradient steps from one copy to the target network to the next.
        double: whether the network chooses the action that the target network values.
        huber: whether the loss is Huber's, which is linear beyond an error of `QNetwork.scale`.
            Otherwise it is the square.
        max_grad_norm: largest norm of a gradient. Longer ones are scaled down to it.
    """

    learning_rate: Positive
    anneal_steps: Count | None
    minibatch: Count
    discount: Discount
    target_period: Count
    double: bool
    huber: bool
    max_grad_norm: Positive

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam, after the norm of the gradient is limited."""
        rate: Any = self.learning_rate
        if self.anneal_steps is not None:
            rate = optax.linear_schedule(self.learning_rate, 0.0, self.anneal_steps)
        return optax.chain(
            optax.clip_by_global_norm(self.max_grad_norm), optax.adam(rate, eps=1e-5)
        )


class QLearner(NamedTuple):
    """State after a gradient step."""

    values: QNetwork
    target: QNetwork
    optimizer_state: optax.OptState
    steps: Int[Array, ""]
    """Number of gradient steps so far."""


def start_learner(optimizer: optax.GradientTransformation, values: QNetwork) -> QLearner:
    """Returns a learner before the first step. Its target network is its network."""
    return QLearner(values, values, optimizer.init(values), jnp.zeros((), jnp.int32))


def stepped(
    optimizer: optax.GradientTransformation, target_period: int, learner: QLearner, gradient: Any
) -> QLearner:
    """Makes one gradient step, after which the target network may become the network.

    Args:
        optimizer: optimizer with which the learner was started.
        target_period: number of gradient steps from one copy to the target network to the next.
        learner: the learner before.
        gradient: gradient of the loss, with the structure of the network.
    """
    updates, optimizer_state = optimizer.update(gradient, learner.optimizer_state)
    values = eqx.apply_updates(learner.values, updates)
    made = learner.steps + 1
    copied = made % target_period == 0
    target = jax.tree.map(lambda new, old: jnp.where(copied, new, old), values, learner.target)
    return QLearner(values, target, optimizer_state, made)


def learn(
    settings: LearnerSettings,
    learner: QLearner,
    transitions: Transitions,
    filled: Int[Array, ""] | int,
    key: PRNGKeyArray,
    steps: int,
) -> tuple[QLearner, Float[Array, ""]]:
    """Makes `steps` gradient steps on minibatches of the first `filled` transitions.

    Returns:
        The learner afterwards, and the mean loss in units of the squared value scale.
    """
    optimizer = settings.optimizer
    shape = (steps, settings.minibatch)
    chosen = jax.random.randint(key, shape, 0, filled)
    gradient = eqx.filter_value_and_grad(temporal_difference_loss)

    def step(learner: QLearner, rows: Int[Array, " m"]) -> tuple[QLearner, Float[Array, ""]]:
        batch = at(transitions, rows)
        loss, gradients = gradient(learner.values, learner.target, settings, batch)
        return stepped(optimizer, settings.target_period, learner, gradients), loss

    learner, losses = jax.lax.scan(step, learner, chosen)
    return learner, jnp.mean(losses)


def temporal_difference_loss(
    values: QNetwork, target: QNetwork, settings: LearnerSettings, batch: Transitions
) -> Float[Array, ""]:
    """Returns the mean loss of a minibatch, in units of the squared value scale."""
    following = target(batch.next_observations)
    chooser = values(batch.next_observations) if settings.double else following
    best = _at(following, jnp.argmax(jax.lax.stop_gradient(chooser), axis=-1))
    goal = batch.rewards + settings.discount * jnp.where(batch.terminated, 0.0, best)
    error = _at(values(batch.observations), batch.actions) - jax.lax.stop_gradient(goal)
    error = error / values.scale
    loss = optax.losses.huber_loss(error) if settings.huber else 0.5 * jnp.square(error)
    return jnp.mean(loss)


def _at(values: Float[Array, "n actions"], actions: Int[Array, " n"]) -> Float[Array, " n"]:
    # A mask is faster on CPU than a gather for few actions, and so is its gradient.
    chosen = actions[:, None] == jax.lax.iota(jnp.int32, values.shape[-1])
    return jnp.sum(jnp.where(chosen, values, 0.0), axis=-1)
