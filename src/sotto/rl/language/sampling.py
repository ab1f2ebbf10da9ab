"""Draws from distributions over a vocabulary of tens of thousands of tokens.

`jax.random.categorical` draws one random number for each token of the vocabulary, which takes most
of a decoding step on a CPU. Inverting the distribution function in two levels needs two numbers for
each row. The first chooses a run of tokens, and the second chooses a token in it.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Real


def sample(
    logits: Float[Array, "batch vocabulary"], uniforms: Float[Array, "batch 2"]
) -> Int[Array, " batch"]:
    """Returns tokens with probabilities softmax(logits), from uniform numbers in [0, 1).

    The probabilities are exact up to float32: a uniform number has 23 bits, so each level resolves
    steps of 2^-23.
    """
    vocabulary = logits.shape[-1]
    run = math.isqrt(vocabulary - 1) + 1
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    weights = jnp.pad(weights, ((0, 0), (0, -vocabulary % run)))
    weights = weights.reshape(len(logits), -1, run)
    chosen = _inverse(weights.sum(-1), uniforms[:, 0])
    within = jnp.take_along_axis(weights, chosen[:, None, None], axis=1)[:, 0]
    token = chosen * run + _inverse(within, uniforms[:, 1])
    return jnp.minimum(token, vocabulary - 1)


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


def most_likely(logits: Float[Array, "batch vocabulary"]) -> Int[Array, " batch"]:
    """Returns the token with the largest logit; the first one, if several are equal.

    On CPUs two reductions are much faster than `argmax`, which XLA does not vectorise.
    """
    best = logits == logits.max(-1, keepdims=True)
    tokens = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    return jnp.where(best, tokens, logits.shape[-1] - 1).min(-1)
