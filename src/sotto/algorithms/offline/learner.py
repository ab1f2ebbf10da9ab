"""Offline learning from logged transitions: what learners share, with and without privacy.

A learner's loss on a transition is a function of the network's outputs at the transition's
observation, and of a goal through which no gradient flows. So the gradient of each dense layer is
the outer product of the layer's input and of what comes back to its output: `factored_gradient`
returns one transition's gradient in that form, and nobody's gradient is ever a matrix in memory.

Networks are `sotto.rl.networks.Policy`: the most probable action of a network of action values is
its greedy one.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sotto.algorithms.settings import AtLeastTwo, Count, Positive, Settings
from sotto.data.trajectories import Transitions
from sotto.privacy.release.factored import Factored
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy, scaled


class OfflineLearner(Protocol):
    """A loss on transitions. Implementations are frozen dataclasses, hashable."""

    @property
    def target_rate(self) -> float:
        """Share of the network that goes into the target network at each step; 0: no target."""

    def goal(self, network: Policy, target: Policy, transition: Transitions) -> Float[Array, ""]:
        """What outputs are compared with, for one transition; it is not differentiated."""

    def loss(
        self, outputs: Float[Array, " actions"], goal: Float[Array, ""], transition: Transitions
    ) -> Float[Array, ""]:
        """The loss of one transition, given the network's outputs at its observation."""


@dataclass(frozen=True)
class OfflineConfig(Settings):
    """The network and its optimiser.

    Attributes:
        observation_size: numbers in an observation.
        actions: how many there are.
        observation_scale: public factors that bring observations to order one.
        hidden: hidden layers.
        learning_rate: Adam's.
        minibatch: transitions in each step without noise, drawn with replacement.
    """

    observation_size: Count
    actions: AtLeastTwo
    observation_scale: tuple[Positive, ...]
    hidden: tuple[Count, ...] = (256, 256)
    learning_rate: Positive = 1e-3
    minibatch: Count = 256


class OfflineState(NamedTuple):
    """Everything that one gradient step hands to the next."""

    network: Policy
    target: Policy
    optimizer_state: optax.OptState
    steps: Int[Array, ""]
    """Gradient steps made."""


def initial_state(config: OfflineConfig, key: PRNGKeyArray) -> OfflineState:
    """A fresh network, which is its own target."""
    network = Policy(
        config.observation_size,
        Discrete(config.actions),
        config.hidden,
        key,
        observation_scale=config.observation_scale,
    )
    return OfflineState(
        network, network, _optimizer(config).init(network), jnp.zeros((), jnp.int32)
    )


def apply_gradient(
    config: OfflineConfig, learner: OfflineLearner, state: OfflineState, gradient: Policy
) -> OfflineState:
    """One step of Adam, and one of the target network towards the network."""
    updates, optimizer_state = _optimizer(config).update(gradient, state.optimizer_state)
    network = eqx.apply_updates(state.network, updates)
    rate, target = learner.target_rate, state.target
    if rate > 0:
        target = jax.tree.map(lambda old, new: old + rate * (new - old), target, network)
    return OfflineState(network, target, optimizer_state, state.steps + 1)


def batch_loss(
    learner: OfflineLearner, network: Policy, target: Policy, batch: Transitions
) -> Float[Array, ""]:
    """The mean loss of a minibatch."""
    goals = jax.vmap(learner.goal, in_axes=(None, None, 0))(network, target, batch)
    outputs = network.network(scaled(batch.observations, network.observation_scale))
    return jnp.mean(jax.vmap(learner.loss)(outputs, jax.lax.stop_gradient(goals), batch))


def factored_gradient(
    learner: OfflineLearner,
    network: Policy,
    target: Policy,
    transition: Transitions,
    there: Bool[Array, ""] | bool = True,
) -> Policy:
    """The gradient of one transition's loss: biases' as vectors, weights' as `Factored`.

    It is zero where the transition is not `there`.
    """
    layers = network.network
    inputs = [scaled(transition.observations, network.observation_scale)]
    *hidden, last = zip(layers.weights, layers.biases, strict=True)
    for weight, bias in hidden:
        inputs.append(jnp.tanh(inputs[-1] @ weight + bias))
    outputs = inputs[-1] @ last[0] + last[1]
    goal = learner.goal(network, target, transition)
    # What comes back from the outputs is a factor of everything.
    backprops = [jnp.where(there, jax.grad(learner.loss)(outputs, goal, transition), 0.0)]
    for weight, output in zip(reversed(layers.weights[1:]), reversed(inputs[1:]), strict=True):
        backprops.append((backprops[-1] @ weight.T) * (1 - jnp.square(output)))
    backprops.reverse()
    gradient: Policy = eqx.tree_at(
        lambda policy: (policy.network.weights, policy.network.biases),
        network,
        (tuple(itertools.starmap(Factored, zip(inputs, backprops, strict=True))), tuple(backprops)),
    )
    return gradient


def gradient_step(
    config: OfflineConfig, learner: OfflineLearner, state: OfflineState, batch: Transitions
) -> tuple[OfflineState, Float[Array, ""]]:
    """One step without noise on a minibatch, and its loss."""
    loss, gradient = jax.value_and_grad(functools.partial(batch_loss, learner))(
        state.network, state.target, batch
    )
    return apply_gradient(config, learner, state, gradient), loss


AVERAGE_DECAY = 0.999
"""Of the moving average of networks."""


def averaged(
    average: Policy, network: Policy, made: Int[Array, ""], decay: float = AVERAGE_DECAY
) -> Policy:
    """The moving average after one more network; early on it decays faster and forgets the start.

    Args:
        average: so far.
        network: the new one.
        made: networks before it.
        decay: in the long run.
    """
    kept = jnp.minimum(decay, (1 + made) / (10 + made))
    moved: Policy = jax.tree.map(lambda a, n: a + (1 - kept) * (n - a), average, network)
    return moved


@functools.partial(jax.jit, static_argnames=("config", "learner", "steps"))
def train_chunk(
    config: OfflineConfig,
    learner: OfflineLearner,
    state: OfflineState,
    average: Policy,
    transitions: Transitions,
    key: PRNGKeyArray,
    steps: int,
) -> tuple[OfflineState, Policy, Float[Array, ""]]:
    """`steps` gradient steps on minibatches, the moving average of networks, and the mean loss.

    Each step's minibatch is derived from `key` and the number of steps made before it, so the
    result does not depend on how a training is cut into chunks; `vmap` it over states and keys for
    seeds side by side. Large logs should be JAX arrays, which are not copied from call to call.
    """

    def step(
        carry: tuple[OfflineState, Policy], _: None
    ) -> tuple[tuple[OfflineState, Policy], Float[Array, ""]]:
        state, average = carry
        batch = minibatch(config, transitions, jax.random.fold_in(key, state.steps))
        after, loss = gradient_step(config, learner, state, batch)
        return (after, averaged(average, after.network, state.steps)), loss

    (state, average), losses = jax.lax.scan(step, (state, average), None, length=steps)
    return state, average, jnp.mean(losses)


def minibatch(config: OfflineConfig, transitions: Transitions, key: PRNGKeyArray) -> Transitions:
    """Some of the transitions, drawn with replacement."""
    rows = jax.random.randint(key, (config.minibatch,), 0, len(transitions.actions))
    chosen: Transitions = jax.tree.map(lambda x: x[rows], transitions)
    return chosen


def _optimizer(config: OfflineConfig) -> optax.GradientTransformation:
    return optax.adam(config.learning_rate)
