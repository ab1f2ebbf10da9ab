"""Blocks of environments, as tasks for other processes."""

from collections.abc import Sequence
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
        persons: enrolment number of the user of each environment; empty if there are none.
    """

    key_data: np.ndarray
    seeds: list[int]
    persons: list[int]

    @property
    def key(self) -> PRNGKeyArray:
        """Key of their randomness."""
        return key_of(self.key_data)


def blocks_of(
    key: PRNGKeyArray, seeds: list[int], size: int, persons: Sequence[int] = ()
) -> list[Block]:
    """Divides a batch into blocks of `size` environments, the last of which may be smaller."""
    starts = range(0, len(seeds), size)
    keys = np.asarray(jax.random.key_data(jax.random.split(key, len(starts))))
    return [
        Block(one, seeds[start : start + size], list(persons[start : start + size]))
        for one, start in zip(keys, starts, strict=True)
    ]
