"""Keys of random numbers, of the one kind that the door lets through.

Under `vmap` the other kinds of JAX draw for a whole batch at once: with `rbg` and `unsafe_rbg` one
person's numbers depend on how many people there are and on the others' keys. `threefry2x32` draws
for each key alone. Which kind is JAX's default is a setting of the environment
(`JAX_DEFAULT_PRNG_IMPL`), so that no key is made without naming its kind: all are made here.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray


def new_key(seed: Any) -> PRNGKeyArray:
    """The key of a seed, an integer or an array of shape []."""
    return jax.random.key(seed, impl="threefry2x32")


KEY = jax.eval_shape(new_key, jax.ShapeDtypeStruct((), jnp.uint32))
"""Shape and type of one key."""


def keys_of(seeds: Sequence[int], purpose: int) -> PRNGKeyArray:
    """One key for each seed, and for each purpose another one."""
    keys = jax.vmap(new_key)(jnp.asarray(seeds, jnp.uint32))
    return jax.vmap(lambda key: jax.random.fold_in(key, purpose))(keys)


def seed_range(first: int, count: int = 1) -> range:
    """So many seeds from the first on.

    Raises:
        ValueError: there are none, or some that compiled programs cannot hold.
    """
    if count < 1:
        raise ValueError(f"--seeds must be at least 1, got {count}")
    if not 0 <= first <= first + count - 1 < 2**31:  # they are int32 in compiled programs
        raise ValueError(f"seeds go from 0 to {2**31 - 1}; those from {first} do not")
    return range(first, first + count)
