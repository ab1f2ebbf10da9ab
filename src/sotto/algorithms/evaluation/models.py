"""Public models of returns, which the doubly-robust estimator takes.

A model says which return to expect from step t on, after the observation s and the action a:
Q_t(s, a) = theta_{t,a} . phi(s), where phi are the monomials of the scaled observation. It may be
wrong: then values are less precise and still right, as long as no weight is clipped.
"""

import itertools
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sotto.algorithms.evaluation.arrays import read_arrays
from sotto.algorithms.offline_people.moments import monomials
from sotto.data.imports.declaration import LARGEST
from sotto.errors import RunError

_LARGEST_FILE = 2**26


class ReturnModel(eqx.Module):
    """A model of returns that is linear in the monomials of an observation."""

    weights: Float[Array, "steps actions features"]
    """For each step and action, in units of rewards."""
    centre: Float[Array, " obs"]
    scale: Float[Array, " obs"]
    degree: int = eqx.field(static=True, default=1)
    """Largest degree of a monomial."""

    def __call__(self, observations: Float[Array, "steps obs"]) -> Float[Array, "steps actions"]:
        """Returns the expected return of each action, from each step on."""
        features = self.features(observations)
        return jnp.einsum("taf,tf->ta", self.weights, features)

    def features(self, observations: Float[Array, "*batch obs"]) -> Float[Array, "*batch f"]:
        """Returns the monomials of observations: first 1, then the entries, then products."""
        return monomials(
            (observations - self.centre) * self.scale, factors(len(self.centre), self.degree)
        )


def factors(variables: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """Returns which variables each monomial of at most this degree multiplies."""
    return tuple(
        chosen
        for one in range(degree + 1)
        for chosen in itertools.combinations_with_replacement(range(variables), one)
    )


def read_return_model(path: Path, steps: int, actions: int, observations: int) -> ReturnModel:
    """Reads a linear model from a JSON file.

    The file holds {"weights": W, "bias": B}. For a log with one step, W has a list of numbers for
    each action, as the file of a linear policy. For several steps, W and B have such lists for each
    step: the return that is expected from this step on, with the discount of the evaluation.

    Raises:
        RunError: it cannot be read, or has other shapes.
    """
    form = '{"weights": [..], "bias": [..]}'
    weights, bias = read_arrays(path, _LARGEST_FILE, form, "weights", "bias")
    if steps == 1 and weights.ndim == 2:
        weights, bias = weights[None], bias[None]
    if weights.shape != (steps, actions, observations) or bias.shape != (steps, actions):
        raise RunError(
            f"{path} has weights of shape {weights.shape} and a bias of shape {bias.shape}; this "
            f"log needs ({steps}, {actions}, {observations}) and ({steps}, {actions})"
        )
    together = np.concatenate([bias[..., None], weights], axis=-1)
    if not (np.abs(together) < LARGEST).all():
        raise RunError(f"{path} has numbers that are too large or not finite")
    return ReturnModel(
        jnp.asarray(together, jnp.float32),
        jnp.zeros(observations),
        jnp.ones(observations),
    )
