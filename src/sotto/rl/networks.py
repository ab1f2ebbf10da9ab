"""Policies and value functions: small tanh networks with orthogonal initialisation."""

import itertools
import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.rl.distributions import Categorical, DiagonalGaussian, Distribution
from sotto.rl.envs.base import ActionSpace, Discrete


class MLP(eqx.Module):
    """A tanh network on any leading dimensions; without hidden layers it is a linear map."""

    weights: tuple[Float[Array, "_ _"], ...]
    biases: tuple[Float[Array, " _"], ...]

    def __init__(
        self,
        in_size: int,
        out_size: int,
        hidden: tuple[int, ...],
        key: PRNGKeyArray,
        *,
        last_gain: float = 1.0,
    ):
        """Draws orthogonal weights of gain sqrt(2), `last_gain` in the last layer; biases are 0."""
        sizes = (in_size, *hidden, out_size)
        gains = [math.sqrt(2)] * len(hidden) + [last_gain]
        keys = jax.random.split(key, len(gains))
        self.weights = tuple(
            _orthogonal(g, k, shape)
            for g, k, shape in zip(gains, keys, itertools.pairwise(sizes), strict=True)
        )
        self.biases = tuple(jnp.zeros((size,), jnp.float32) for size in sizes[1:])

    def __call__(self, inputs: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        """Returns the network's outputs.

        Raises:
            ValueError: the inputs have another length.
        """
        require_length(inputs, self.weights[0].shape[0])
        *hidden, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in hidden:
            inputs = jnp.tanh(inputs @ weight + bias)
        weight, bias = last
        return inputs @ weight + bias


@partial(jax.jit, static_argnums=(0, 2))
def _orthogonal(gain: float, key: PRNGKeyArray, shape: tuple[int, int]) -> Float[Array, "_ _"]:
    """Draws orthogonal weights; under `vmap`, one matrix after the other.

    It is compiled once for each shape, since a loop that is called outside of a compiled program
    is compiled anew each time.

    Batched QR factorisations can deadlock: each occupies one of XLA's threads while it waits for
    parts that need such a thread, so two at once on two cores wait for ever (jaxlib 0.10).
    """

    def draw(key: PRNGKeyArray) -> Float[Array, "_ _"]:
        return jax.nn.initializers.orthogonal(gain)(key, shape, jnp.float32)

    weights: Float[Array, "_ _"] = jax.custom_batching.sequential_vmap(draw)(key)
    return weights


def require_length(observation: Float[Any, "*batch obs"], length: int) -> None:
    """Refuses observations of another length.

    JAX would read the last number in place of a missing one, and would ignore numbers that are too
    many. Shapes are known before a program is compiled, so that the check takes no time in it.

    Raises:
        ValueError: the last axis has another length.
    """
    if observation.shape[-1] != length:
        numbers = "1 number" if length == 1 else f"{length} numbers"
        raise ValueError(f"an observation must have {numbers}, got {observation.shape[-1]}")


def scaled(
    observation: Float[Array, "*batch obs"],
    scale: tuple[float, ...],
    centre: tuple[float, ...] | None = None,
) -> Float[Array, "*batch obs"]:
    """Returns (observation - centre) * scale, public constants, without an array constant.

    Raises:
        ValueError: the observation has another length than the scale.
    """
    require_length(observation, len(scale))
    if centre is None:
        if all(factor == 1.0 for factor in scale):
            return observation
        centre = (0.0,) * len(scale)
    columns = zip(centre, scale, strict=True)
    return jnp.stack([(observation[..., i] - c) * s for i, (c, s) in enumerate(columns)], axis=-1)


def shifted(values: Float[Array, "*batch n"], by: tuple[float, ...]) -> Float[Array, "*batch n"]:
    """Returns values + public constants, without an array constant."""
    return jnp.stack([values[..., i] + constant for i, constant in enumerate(by)], axis=-1)


class Policy(eqx.Module):
    """A map from observations to distributions over actions.

    For discrete actions it returns a Categorical over the network's outputs. For a box it returns a
    DiagonalGaussian in the action's own units. Its mean is the box's centre + scale * the network's
    output, and its standard deviation is scale * exp(log_std). The log_std does not depend on the
    observation.
    """

    network: MLP
    log_std: Float[Array, " a"] | None
    observation_scale: tuple[float, ...] = eqx.field(static=True)
    observation_centre: tuple[float, ...] | None = eqx.field(static=True)
    action_scale: tuple[float, ...] | None = eqx.field(static=True)
    action_centre: tuple[float, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        observation_size: int,
        action: ActionSpace,
        hidden: tuple[int, ...],
        key: PRNGKeyArray,
        *,
        observation_scale: tuple[float, ...] | None = None,
        observation_centre: tuple[float, ...] | None = None,
        last_gain: float = 0.01,
        initial_log_std: float = 0.0,
    ):
        """Draws the weights; a small `last_gain` makes the first policy nearly uniform."""
        discrete = isinstance(action, Discrete)
        size = action.n if isinstance(action, Discrete) else action.shape[0]
        self.network = MLP(observation_size, size, hidden, key, last_gain=last_gain)
        self.log_std = None if discrete else jnp.full((size,), initial_log_std, jnp.float32)
        self.observation_scale = _checked_scale(observation_scale, observation_size)
        self.observation_centre = _checked_centre(observation_centre, observation_size)
        self.action_scale = None if isinstance(action, Discrete) else action.scale
        self.action_centre = None if isinstance(action, Discrete) else action.centre

    def __call__(self, observation: Float[Array, "*batch obs"]) -> Distribution:
        """Returns the distribution of the action at each observation."""
        inputs = scaled(observation, self.observation_scale, self.observation_centre)
        outputs = self.network(inputs)
        if self.log_std is None:
            return Categorical(outputs)
        log_std = jnp.broadcast_to(self.log_std, outputs.shape)
        if self.action_scale is not None:
            outputs = scaled(outputs, self.action_scale)
            log_std = shifted(log_std, tuple(math.log(s) for s in self.action_scale))
        if self.action_centre is not None:
            outputs = shifted(outputs, self.action_centre)
        return DiagonalGaussian(outputs, log_std)

    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        """Draws noise for `shape` actions: uniforms (discrete) or standard normals (box)."""
        if self.log_std is None:
            return jax.random.uniform(key, (*shape, 1), jnp.float32)
        return jax.random.normal(key, (*shape, self.log_std.shape[-1]), jnp.float32)


class Value(eqx.Module):
    """A map from observations to expected returns: offset + scale * network(observation)."""

    network: MLP
    observation_scale: tuple[float, ...] = eqx.field(static=True)
    observation_centre: tuple[float, ...] | None = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    offset: float = eqx.field(static=True)

    def __init__(
        self,
        observation_size: int,
        hidden: tuple[int, ...],
        key: PRNGKeyArray,
        *,
        observation_scale: tuple[float, ...] | None = None,
        observation_centre: tuple[float, ...] | None = None,
        last_gain: float = 1.0,
        scale: float = 1.0,
        offset: float = 0.0,
    ):
        """Draws the weights; `scale` and `offset` are public constants in units of return."""
        self.network = MLP(observation_size, 1, hidden, key, last_gain=last_gain)
        self.observation_scale = _checked_scale(observation_scale, observation_size)
        self.observation_centre = _checked_centre(observation_centre, observation_size)
        self.scale, self.offset = scale, offset

    def __call__(self, observation: Float[Array, "*batch obs"]) -> Float[Array, "*batch"]:
        """Returns the value of each observation."""
        inputs = scaled(observation, self.observation_scale, self.observation_centre)
        return self.offset + self.scale * self.network(inputs)[..., 0]


def _checked_centre(centre: tuple[float, ...] | None, size: int) -> tuple[float, ...] | None:
    if centre is not None and len(centre) != size:
        raise ValueError(
            f"observation_centre has {len(centre)} values for {size} observations; give one each."
        )
    return centre


def _checked_scale(scale: tuple[float, ...] | None, size: int) -> tuple[float, ...]:
    scale = (1.0,) * size if scale is None else tuple(float(factor) for factor in scale)
    if len(scale) != size:
        raise ValueError(
            f"observation_scale has {len(scale)} factors for {size} observations; give one each."
        )
    return scale
