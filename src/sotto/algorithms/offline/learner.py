"""Offline learning from logged transitions, with and without privacy.

A learner's loss on a transition is a function of the network's outputs at the transition's
observation, and of a goal through which no gradient flows. So the gradient of a dense layer is the
outer product of the layer's input and the gradient at its output. `factored_gradient` returns a
transition's gradient in this form, so that no full gradient of one transition is stored.

Networks are `sotto.rl.networks.Policy`. The most probable action of a network of action values is
its greedy action.
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
from sotto.trees import at


class OfflineLearner(Protocol):
    """A loss on transitions. Implementations are frozen, hashable dataclasses."""

    @property
    def target_rate(self) -> float:
        """Share of the network that moves into the target network at each step; 0 if unused."""

    def goal(self, network: Policy, target: Policy, transition: Transitions) -> Float[Array, ""]:
        """Returns the target of one transition's loss, through which no gradient flows."""

    def loss(
        self, outputs: Float[Array, " actions"], goal: Float[Array, ""], transition: Transitions
    ) -> Float[Array, ""]:
        """Returns the loss of one transition, given the network's outputs at its observation."""


@dataclass(frozen=True)
class OfflineConfig(Settings):
    """Settings of the network and its optimiser.

    Attributes:
        observation_size: length of an observation.
        actions: number of actions.
        observation_scale: public factors that bring observations to order one.
        hidden: sizes of the hidden layers.
        learning_rate: learning rate of Adam.
        minibatch: transitions of a step without noise, drawn with replacement.
    """

    observation_size: Count
    actions: AtLeastTwo
    observation_scale: tuple[Positive, ...]
    hidden: tuple[Count, ...] = (256, 256)
    learning_rate: Positive = 1e-3
    minibatch: Count = 256


class OfflineState(NamedTuple):
    """The state between two gradient steps."""

    network: Policy
    target: Policy
    optimizer_state: optax.OptState
    steps: Int[Array, ""]
    """Number of gradient steps made."""


def initial_state(config: OfflineConfig, key: PRNGKeyArray) -> OfflineState:
    """Returns the state with a fresh network, which is also the target network."""
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
    """Makes one step of Adam, and moves the target network towards the network."""
    updates, optimizer_state = _optimizer(config).update(gradient, state.optimizer_state)
    network = eqx.apply_updates(state.network, updates)
    rate, target = learner.target_rate, state.target
    if rate > 0:
        target = jax.tree.map(lambda old, new: old + rate * (new - old), target, network)
    return OfflineState(network, target, optimizer_state, state.steps + 1)


def batch_loss(
    learner: OfflineLearner, network: Policy, target: Policy, batch: Transitions
) -> Float[Array, ""]:
    """Returns the mean loss of a minibatch."""
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
    """Returns the gradient of one transition's loss, with weight matrices as `Factored`.

    The gradient is zero where `there` is false.
    """
    layers = network.network
    inputs = [scaled(transition.observations, network.observation_scale)]
    *hidden, last = zip(layers.weights, layers.biases, strict=True)
    for weight, bias in hidden:
        inputs.append(jnp.tanh(inputs[-1] @ weight + bias))
    outputs = inputs[-1] @ last[0] + last[1]
    goal = learner.goal(network, target, transition)
    # The gradient at the outputs is a factor of every layer's gradient.
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
    """Makes one step without noise on a minibatch; returns the state and the loss."""
    loss, gradient = jax.value_and_grad(functools.partial(batch_loss, learner))(
        state.network, state.target, batch
    )
    return apply_gradient(config, learner, state, gradient), loss


AVERAGE_DECAY = 0.999
"""Decay of the moving average of networks."""


def averaged(
    average: Policy, network: Policy, made: Int[Array, ""], decay: float = AVERAGE_DECAY
) -> Policy:
    """Returns the moving average after one more network.

    The decay is faster for the first networks, so that the initial network loses its weight.

    Args:
        average: average before this network.
        network: new network.
        made: number of networks before this one.
        decay: decay in the long run.
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
    """Makes gradient steps; returns the state, the moving average of networks and the mean loss.

    A step's minibatch depends on `key` and on the number of steps before it, so the result does not
    depend on how a training is cut into chunks. `vmap` this over states and keys to train several
    seeds in parallel. Large logs should be JAX arrays, which calls do not copy.
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
    """Draws transitions with replacement."""
    rows = jax.random.randint(key, (config.minibatch,), 0, len(transitions.actions))
    return at(transitions, rows)


def _optimizer(config: OfflineConfig) -> optax.GradientTransformation:
    return optax.adam(config.learning_rate)
