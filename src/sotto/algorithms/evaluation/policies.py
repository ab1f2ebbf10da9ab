"""Target policies: public maps from observations to probabilities of actions that are categories.

`densities` has those for real actions.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sotto.algorithms.evaluation.arrays import read_arrays
from sotto.algorithms.evaluation.densities import Density
from sotto.errors import RunError, did_you_mean
from sotto.rl.distributions import Categorical

_LARGEST_FILE = 2**24

Probabilities = Callable[[Float[Array, "steps obs"]], Float[Array, "steps actions"]]
"""Type of a policy that returns the probability of every action at each observation."""
Target = Probabilities | Density


class Constant(eqx.Module):
    """A policy with the same probabilities at every observation."""

    probabilities: Float[Array, " actions"]

    def __call__(self, observations: Float[Array, "steps obs"]) -> Float[Array, "steps actions"]:
        """Returns the probabilities for each step."""
        return jnp.broadcast_to(
            self.probabilities, (len(observations), self.probabilities.shape[0])
        )


class Linear(eqx.Module):
    """A policy that takes the action with the largest linear score, the first of several."""

    weights: Float[Array, "actions obs"]
    bias: Float[Array, " actions"]

    @classmethod
    def zeros(cls, actions: int, observations: int) -> "Linear":
        """Returns the policy whose scores are all zero."""
        return cls(jnp.zeros((actions, observations)), jnp.zeros(actions))

    def __call__(self, observations: Float[Array, "steps obs"]) -> Float[Array, "steps actions"]:
        """Returns 1 for the chosen action and 0 for the others."""
        return _only_the_best(self.scores(observations))

    def scores(self, observations: Float[Array, "steps obs"]) -> Float[Array, "steps actions"]:
        """Returns the score of each action."""
        return observations @ self.weights.T + self.bias


class Released(eqx.Module):
    """A policy of a run, by its most likely action or by its probabilities."""

    policy: Any
    greedy: bool = eqx.field(static=True)

    def __call__(self, observations: Float[Array, "steps obs"]) -> Float[Array, "steps actions"]:
        """Returns the probabilities for each step."""
        logits = self.policy(observations).logits
        return _only_the_best(logits) if self.greedy else jax.nn.softmax(logits)


def _only_the_best(scores: Float[Array, "steps actions"]) -> Float[Array, "steps actions"]:
    best = jnp.argmax(scores, axis=-1).astype(jnp.int32)
    return (best[..., None] == jax.lax.iota(jnp.int32, scores.shape[-1])).astype(jnp.float32)


def named(word: str, actions: int, observations: int) -> Constant | Linear:
    """Returns a policy from a word: always:K, uniform, or the name of a JSON file.

    The file holds a linear policy: {"weights": [[..] for each action], "bias": [one per action]}.

    Args:
        word: the word.
        actions: number of actions.
        observations: length of an observation.

    Raises:
        RunError: the word or the file is no such policy.
    """
    if word == "uniform":
        return Constant(jnp.full(actions, 1 / actions, jnp.float32))
    if word.startswith("always:"):
        number = word.removeprefix("always:")
        if not (number.isascii() and number.isdigit() and int(number) < actions):
            raise RunError(
                f"{word} names no action; actions have the numbers 0 to {actions - 1}, in the "
                "order of their declaration"
            )
        return Constant(jnp.eye(actions, dtype=jnp.float32)[int(number)])
    if not word.endswith(".json"):
        known = ["uniform", *(f"always:{number}" for number in range(actions))]
        raise RunError(
            f"{word!r} is no policy{did_you_mean(word, known)}; give uniform, always:K with K from "
            f"0 to {actions - 1}, or a file .json of a linear policy"
        )
    return read_linear(Path(word), actions, observations)


def read_linear(path: Path, actions: int, observations: int) -> Linear:
    """Reads a linear policy from a JSON file.

    Raises:
        RunError: it cannot be read, or has other shapes.
    """
    form = '{"weights": [[..] for each action], "bias": [..]}'
    with np.errstate(over="ignore"):  # what float32 does not hold is refused below
        weights, bias = (
            one.astype(np.float32)
            for one in read_arrays(path, _LARGEST_FILE, form, "weights", "bias")
        )
    if weights.shape != (actions, observations) or bias.shape != (actions,):
        raise RunError(
            f"{path} has weights of shape {weights.shape} and a bias of shape {bias.shape}; this "
            f"log needs ({actions}, {observations}) and ({actions},)"
        )
    if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
        raise RunError(f"{path} has numbers that are not finite")
    return Linear(jnp.asarray(weights), jnp.asarray(bias))


def as_json(linear: Linear) -> dict[str, Any]:
    """Returns the contents of the file that `read_linear` reads."""
    return {
        "weights": np.asarray(linear.weights).tolist(),
        "bias": np.asarray(linear.bias).tolist(),
    }


def released(policy: Any, actions: int, observations: int, greedy: bool) -> Released:
    """Returns a run's policy as a target.

    Raises:
        RunError: it does not fit the log.
    """
    seen = jax.ShapeDtypeStruct((1, observations), jnp.float32)
    try:
        found = jax.eval_shape(policy, seen)
    except (TypeError, ValueError):
        found = None
    if not isinstance(found, Categorical) or found.logits.shape != (1, actions):
        raise RunError(
            f"the run's policy does not fit the log, which has {observations} numbers in an "
            f"observation and {actions} actions; import the log in the way the policy was trained"
        )
    return Released(policy, greedy)


def largest_probabilities(target: Target, actions: int) -> tuple[float, ...]:
    """Returns the largest probability that a policy gives to each action, anywhere.

    Real actions count as one action, of any density.
    """
    if isinstance(target, Density):
        return (math.inf,)
    if isinstance(target, Constant):
        return tuple(np.asarray(target.probabilities, np.float64).tolist())
    return (1.0,) * actions


def deterministic(target: Target) -> bool:
    """Returns whether a policy takes one action at every observation, without chance."""
    if isinstance(target, Constant):
        return float(jnp.max(target.probabilities)) == 1
    return isinstance(target, Linear) or (isinstance(target, Released) and target.greedy)
