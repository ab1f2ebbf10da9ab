"""Target policies for real actions: public maps from observations to densities of actions.

A policy may draw actions outside of their bounds, which are then moved to the bounds. They have no
density there, so the weights of a log add up to less than 1. This is in the bias, as the weight
that is lost by clipping.
"""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sotto.algorithms.evaluation.arrays import read_arrays
from sotto.data.imports.declaration import LARGEST, Declaration
from sotto.errors import RunError, did_you_mean
from sotto.rl.distributions import DiagonalGaussian

_LARGEST_FILE = 2**24


class Density(eqx.Module):
    """A policy for real actions."""

    def log_density(
        self, observations: Float[Array, "steps obs"], actions: Float[Array, "steps a"]
    ) -> Float[Array, " steps"]:
        """Returns the logarithm of the density of each action, in units of the log."""
        raise NotImplementedError


class Even(Density):
    """The policy with the same density everywhere within the bounds of actions."""

    log_volume: float = eqx.field(static=True)

    def log_density(
        self, observations: Float[Array, "steps obs"], actions: Float[Array, "steps a"]
    ) -> Float[Array, " steps"]:
        """Returns -log of the volume of the bounds."""
        del actions
        return jnp.full(len(observations), -self.log_volume)


class LinearGaussian(Density):
    """A policy whose actions are independent normal numbers with linear means."""

    weights: Float[Array, "a obs"]
    bias: Float[Array, " a"]
    log_stddev: Float[Array, " a"]

    def log_density(
        self, observations: Float[Array, "steps obs"], actions: Float[Array, "steps a"]
    ) -> Float[Array, " steps"]:
        """Returns the logarithm of the normal density."""
        mean = observations @ self.weights.T + self.bias
        log_stddev = jnp.broadcast_to(self.log_stddev, mean.shape)
        return DiagonalGaussian(mean, log_stddev).log_prob(actions)


class Drawn(Density):
    """A policy of a run, which draws its actions."""

    policy: Any

    def log_density(
        self, observations: Float[Array, "steps obs"], actions: Float[Array, "steps a"]
    ) -> Float[Array, " steps"]:
        """Returns the logarithm of the policy's density."""
        found: Float[Array, " steps"] = self.policy(observations).log_prob(actions)
        return found


def named(word: str, declaration: Declaration) -> Density:
    """Returns a policy from a word: uniform, or the name of a JSON file of a normal policy.

    The file holds {"weights": [[..] for each action column], "bias": [..], "stddev": [..]}.

    Raises:
        RunError: the word or the file is no such policy.
    """
    if word == "uniform":
        box = declaration.action_space
        return Even(float(np.sum(np.log(np.float64(box.high) - np.float64(box.low)))))
    if not word.endswith(".json"):
        raise RunError(
            f"{word!r} is no policy for real actions, which need a density"
            f"{did_you_mean(word, ['uniform'])}; give uniform, or a file .json with weights, bias "
            "and stddev"
        )
    return _read(Path(word), len(declaration.action), declaration.observation_size)


def _read(path: Path, actions: int, observations: int) -> LinearGaussian:
    form = '{"weights": [[..] for each action column], "bias": [..], "stddev": [..]}'
    weights, bias, stddev = read_arrays(path, _LARGEST_FILE, form, "weights", "bias", "stddev")
    if (weights.shape, bias.shape, stddev.shape) != (
        (actions, observations),
        (actions,),
        (actions,),
    ):
        raise RunError(
            f"{path} has weights of shape {weights.shape}, a bias of shape {bias.shape} and a "
            f"stddev of shape {stddev.shape}; this log needs ({actions}, {observations}), "
            f"({actions},) and ({actions},)"
        )
    numbers = np.concatenate([weights.ravel(), bias, stddev])
    if not ((np.abs(numbers) < LARGEST).all() and (stddev > 1 / LARGEST).all()):
        raise RunError(f"{path} needs finite numbers, and a stddev above 0")
    return LinearGaussian(
        jnp.asarray(weights, jnp.float32),
        jnp.asarray(bias, jnp.float32),
        jnp.asarray(np.log(stddev), jnp.float32),
    )


def released(policy: Any, declaration: Declaration, greedy: bool) -> Drawn:
    """Returns a run's policy as a target.

    Raises:
        RunError: it does not fit the log, or takes one action without chance.
    """
    seen = jax.ShapeDtypeStruct((1, declaration.observation_size), jnp.float32)
    try:
        found = jax.eval_shape(policy, seen)
    except (TypeError, ValueError):
        found = None
    shape = (1, len(declaration.action))
    if not isinstance(found, DiagonalGaussian) or found.mean.shape != shape:
        raise RunError(
            f"the run's policy does not fit the log, which has {declaration.observation_size} "
            f"numbers in an observation and {shape[1]} real actions; import the log in the way the "
            "policy was trained"
        )
    if greedy:
        raise RunError(
            "a run's most likely real action has no density, since no log has exactly this action; "
            "add --sampled to evaluate the policy that draws its actions"
        )
    return Drawn(policy)
