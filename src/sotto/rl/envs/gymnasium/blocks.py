"""Blocks of environments, as tasks for other processes."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sotto.keys import key_of

BLOCK = 8
"""Users of one task of a cluster."""


class Block(NamedTuple):
    """Some of the users of a batch, as a task for another process, with a separate key.

    Attributes:
        key_data: the numbers of their key.
        seeds: one for each environment.
    """

    key_data: np.ndarray
    seeds: list[int]

    @property
    def key(self) -> PRNGKeyArray:
        """Key of their randomness."""
        return key_of(self.key_data)


def blocks_of(key: PRNGKeyArray, seeds: list[int], size: int) -> list[Block]:
    """Divides a batch into blocks of `size` environments, the last of which may be smaller."""
    parts = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    keys = np.asarray(jax.random.key_data(jax.random.split(key, len(parts))))
    return [Block(*one) for one in zip(keys, parts, strict=True)]
