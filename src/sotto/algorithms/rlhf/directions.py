"""Public directions of people's updates: leading eigenvectors of the base model's own scores.

A gradient in all parameters of an adapter has far more noise than signal at a useful epsilon. A few
directions that were chosen without private data keep most of the signal.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.rlhf.config import RLHFConfig
from sotto.algorithms.rlhf.people import People, complete, in_batches
from sotto.keys import new_key
from sotto.rl.language import Adapter, Completions, Decoder, log_probabilities, lora, steering
from sotto.rl.language.architecture import Architecture

_PAIRS = 256
_AT_ONCE = 16
_LEAST = 1e-9
"""Least eigenvalue, relative to the largest, whose direction is not rounding."""


def first_adapter(config: RLHFConfig, architecture: Architecture) -> Adapter:
    """Returns the adapter before the first update, which changes nothing.

    Raises:
        ValueError: the model has no such block or linear map.
    """
    if config.adapter == "steering":
        return steering(architecture, config.blocks or (architecture.blocks // 2,))
    return lora(
        architecture,
        new_key(config.seed),
        rank=config.rank,
        alpha=2.0 * config.rank,
        targets=config.targets,
        blocks=config.blocks or None,
    )


def public_directions(
    config: RLHFConfig, people: People, adapter: Adapter, key: PRNGKeyArray
) -> Float[Array, "directions parameters"]:
    """Returns orthonormal directions in the adapter's parameters.

    They are the leading eigenvectors of the covariance of differences of two scores, the gradients
    of the log-probabilities of two completions of one public prompt by the base model.

    Raises:
        ValueError: there are fewer parameters or public prompts than directions, or their scores
            do not span so many.
    """
    flat, unravel = ravel_pytree(adapter)
    count = min(_PAIRS, len(people.public_prompts)) // _AT_ONCE * _AT_ONCE
    if config.directions > min(count, flat.size):
        raise ValueError(
            f"{config.directions} directions need as many parameters and public prompts; there are "
            f"{flat.size} and {count}; use fewer"
        )
    prompts = np.repeat(people.public_prompts[:count], 2, axis=0)
    mask = np.repeat(people.public_mask[:count], 2, axis=0)
    tokens, real = complete(people.language, adapter, prompts, mask, config.new_tokens, key)
    sign = jnp.array([1.0, -1.0])

    def difference(base: Decoder, *pair: Array) -> Float[Array, " parameters"]:
        given, given_mask, said, said_mask = pair
        gradient: Array = jax.grad(
            lambda moved: (
                sign
                @ log_probabilities(
                    base, given, given_mask, Completions(said, said_mask), unravel(moved)
                ).sum(axis=1)
            )
        )(flat)
        return gradient

    scores = jax.jit(jax.vmap(difference, in_axes=(None, 0, 0, 0, 0)))
    rows = [x.reshape(count, 2, -1) for x in (prompts, mask, tokens, real)]
    found = in_batches(partial(scores, people.language.decoder), _AT_ONCE, *rows)
    found = found.astype(np.float64)
    values, vectors = np.linalg.eigh(found @ found.T)  # of the smaller matrix, [count, count]
    if values[-config.directions] <= _LEAST * values[-1]:
        raise ValueError(
            f"the scores of the public prompts do not span {config.directions} directions; use "
            "fewer directions, or more different prompts"
        )
    leading = vectors[:, : -config.directions - 1 : -1].T @ found
    return jnp.asarray(leading / np.linalg.norm(leading, axis=1, keepdims=True), jnp.float32)
