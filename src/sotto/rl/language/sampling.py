"""Draws from distributions over a vocabulary of tens of thousands of tokens.

`jax.random.categorical` draws one random number for each token of the vocabulary, which takes most
of a decoding step on a CPU. Inverting the distribution function in two levels needs two numbers for
each row. The first chooses a run of tokens, and the second chooses a token in it. Only sums or
maxima of whole runs are stored, and not another number for each token.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Real

_RUN = 256
"""Tokens in a run, about the square root of a vocabulary's size."""


def sample(
    logits: Float[Array, "batch vocabulary"], uniforms: Float[Array, "batch 2"]
) -> Int[Array, " batch"]:
    """Returns tokens with probabilities softmax(logits), from uniform numbers in [0, 1).

    The probabilities are exact up to float32: a uniform number has 23 bits, so each level resolves
    steps of 2^-23.
    """
    runs, largest = _in_runs(logits), logits.max(-1, keepdims=True)
    chosen = _inverse(jnp.exp(runs - largest[..., None]).sum(-1), uniforms[:, 0])
    within = _inverse(jnp.exp(_run(runs, chosen) - largest), uniforms[:, 1])
    return jnp.minimum(chosen * _RUN + within, logits.shape[-1] - 1)


def most_likely(logits: Float[Array, "batch vocabulary"]) -> Int[Array, " batch"]:
    """Returns the token with the largest logit; the first one, if several are equal."""
    runs = _in_runs(logits)
    chosen = jnp.argmax(runs.max(-1), axis=-1)
    return chosen * _RUN + jnp.argmax(_run(runs, chosen), axis=-1)


def _in_runs(logits: Float[Array, "batch vocabulary"]) -> Float[Array, "batch runs run"]:
    padding = -logits.shape[-1] % _RUN
    padded = jnp.pad(logits, ((0, 0), (0, padding)), constant_values=-jnp.inf)
    return padded.reshape(len(logits), -1, _RUN)


def _run(
    runs: Float[Array, "batch runs run"], chosen: Int[Array, " batch"]
) -> Float[Array, "batch run"]:
    return jnp.take_along_axis(runs, chosen[:, None, None], axis=1)[:, 0]


def _inverse(
    weights: Float[Array, "batch n"], uniform: Float[Array, " batch"]
) -> Int[Array, " batch"]:
    """Returns the first index at which the running sum exceeds uniform times the whole sum."""
    sums = jnp.cumsum(weights, axis=-1)
    return jnp.argmax(sums > uniform[:, None] * sums[:, -1:], axis=-1)


def best_of(rewards: Real[ArrayLike, " rows"], count: int) -> Int[np.ndarray, " answers"]:
    """Returns the row with the largest reward among each `count` rows; the first one, if equal."""
    groups = np.asarray(rewards).reshape(-1, count)
    chosen: np.ndarray = np.arange(len(groups)) * count + groups.argmax(axis=1)
    return chosen
