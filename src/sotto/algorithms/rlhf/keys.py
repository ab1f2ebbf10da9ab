"""Keys of random numbers, one for each use. Noise never comes from them."""

from enum import IntEnum

import jax
from jaxtyping import PRNGKeyArray

from sotto.keys import new_key


class Use(IntEnum):
    """Uses of keys. Each use has its own number, so that no two share random numbers."""

    PEOPLE = 0
    COMPLETIONS = 1
    KL = 2
    EVALUATION = 3
    DIRECTIONS = 4
    CANDIDATES = 5


def key_for(seed: int, use: Use) -> PRNGKeyArray:
    """Returns the key of a training's seed for one use."""
    return jax.random.fold_in(new_key(seed), use)
