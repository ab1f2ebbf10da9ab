"""Keys of random numbers, of the one kind that the door lets through.

Under `vmap` the other kinds of JAX draw for a whole batch at once: with `rbg` and `unsafe_rbg` one
person's numbers depend on how many people there are and on the others' keys. `threefry2x32` draws
for each key alone. Which kind is JAX's default is a setting of the environment
(`JAX_DEFAULT_PRNG_IMPL`), so that no key is made without naming its kind: all are made here.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray


def new_key(seed: Any) -> PRNGKeyArray:
    """The key of a seed, an integer or an array of shape []."""
    return jax.random.key(seed, impl="threefry2x32")


KEY = jax.eval_shape(new_key, jax.ShapeDtypeStruct((), jnp.uint32))
"""Shape and type of one key."""
