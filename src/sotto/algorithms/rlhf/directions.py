"""Public directions of people's updates: leading eigenvectors of the base model's own scores.

A gradient in all parameters of an adapter has far more noise than signal at a useful epsilon. A few
directions that were chosen without private data keep most of the signal.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.rlhf.config import RLHFConfig
from sotto.algorithms.rlhf.people import People, complete
from sotto.keys import new_key
from sotto.rl.language import Adapter, Completions, Decoder, log_probabilities, lora, steering
from sotto.rl.language.architecture import Architecture
from sotto.rl.language.batches import in_batches

STEERED = (0.7, 5 / 6, 1.0)
"""Shares of the model's blocks after which steering vectors are added by default."""
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
        return late_steering(architecture, config.blocks)
    return lora(
        architecture,
        new_key(config.seed),
        rank=config.rank,
        alpha=2.0 * config.rank,
        targets=config.targets,
        blocks=config.blocks or None,
    )


def late_steering(architecture: Architecture, blocks: tuple[int, ...]) -> Adapter:
    """Returns zero steering vectors after these blocks; empty stands for those of `STEERED`."""
    late = {max(0, round(depth * architecture.blocks) - 1) for depth in STEERED}
    return steering(architecture, blocks or sorted(late))


def score(
    adapter: Adapter,
    base: Decoder,
    weights: Float[Array, " rows"],
    prompts: Int[Array, "rows tokens"],
    prompt_mask: Array,
    completions: Int[Array, "rows new"],
    completion_mask: Array,
) -> Float[Array, " parameters"]:
    """Returns the gradient of a weighted sum of completions' log-probabilities.

    It is with respect to all parameters of the adapter, in one vector.
    """
    flat, unravel = ravel_pytree(adapter)
    said = Completions(completions, completion_mask)

    def total(moved: Array) -> Array:
        found = log_probabilities(base, prompts, prompt_mask, said, unravel(moved))
        return weights @ found.sum(axis=1)

    gradient: Array = jax.grad(total)(flat)
    return gradient


@jax.jit
def _differences(
    adapter: Adapter, base: Decoder, *pairs: Array
) -> Float[Array, "pairs parameters"]:
    """Returns the score of the first completion of each pair, less that of the second one."""
    both = partial(score, adapter, base, jnp.array([1.0, -1.0]))
    found: Array = jax.vmap(both)(*pairs)
    return found


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
    size = ravel_pytree(adapter)[0].size
    count = min(_PAIRS, len(people.public_prompts)) // _AT_ONCE * _AT_ONCE
    if config.directions > min(count, size):
        raise ValueError(
            f"{config.directions} directions need as many parameters and public prompts; there are "
            f"{size} and {count}; use fewer"
        )
    prompts = np.repeat(people.public_prompts[:count], 2, axis=0)
    mask = np.repeat(people.public_mask[:count], 2, axis=0)
    tokens, real = complete(people.language, adapter, prompts, mask, config.new_tokens, key)
    rows = [x.reshape(count, 2, -1) for x in (prompts, mask, tokens, real)]
    base = people.language.decoder
    found = in_batches(partial(_differences, adapter, base), _AT_ONCE, *rows).astype(np.float64)
    values, vectors = np.linalg.eigh(found @ found.T)  # of the smaller matrix, [count, count]
    if values[-config.directions] <= _LEAST * values[-1]:
        raise ValueError(
            f"the scores of the public prompts do not span {config.directions} directions; use "
            "fewer directions, or more different prompts"
        )
    leading = vectors[:, : -config.directions - 1 : -1].T @ found
    return jnp.asarray(leading / np.linalg.norm(leading, axis=1, keepdims=True), jnp.float32)
