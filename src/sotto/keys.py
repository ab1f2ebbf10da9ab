"""Keys of random numbers, all of the kind `threefry2x32`.

Under `vmap` the kinds `rbg` and `unsafe_rbg` draw for a whole batch at once. One person's numbers
then depend on the number of people and on the other keys. `threefry2x32` draws for each key alone.
JAX's default kind is a setting of the environment (`JAX_DEFAULT_PRNG_IMPL`), so all keys are made
here with an explicit kind.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray


def new_key(seed: Any) -> PRNGKeyArray:
    """Returns the key of a seed, which is an integer or an array of shape []."""
    return jax.random.key(seed, impl="threefry2x32")


KEY = jax.eval_shape(new_key, jax.ShapeDtypeStruct((), jnp.uint32))
"""Shape and type of one key."""


def key_of(key_data: Any) -> PRNGKeyArray:
    """Returns the key of numbers from `jax.random.key_data`."""
    key: PRNGKeyArray = jax.random.wrap_key_data(key_data, impl="threefry2x32")
    return key


def keys_of(seeds: Sequence[int], purpose: int) -> PRNGKeyArray:
    """Returns one key for each seed; other purposes give other keys."""
    keys = jax.vmap(new_key)(jnp.asarray(seeds, jnp.uint32))
    return jax.vmap(lambda key: jax.random.fold_in(key, purpose))(keys)


def seed_range(first: int, count: int = 1) -> range:
    """Returns `count` seeds that start with `first`.

    Raises:
        ValueError: the count is below 1, or a seed is not in [0, 2^31).
    """
    if count < 1:
        raise ValueError(f"--seeds must be at least 1, got {count}")
    if not 0 <= first <= first + count - 1 < 2**31:  # they are int32 in compiled programs
        raise ValueError(f"seeds go from 0 to {2**31 - 1}; those from {first} do not")
    return range(first, first + count)
