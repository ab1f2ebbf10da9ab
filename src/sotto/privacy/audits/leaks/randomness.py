"""Random numbers that are drawn for a whole batch of people at once."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from sotto.privacy.audits.audit import ReleaseTrials
from sotto.privacy.audits.leaks.leak import (
    CLAIMED,
    Leak,
    against,
    against_certificate,
    enrolled,
    updates,
)

_SEED = 30


@functools.cache
def batch_sides(kind: Literal["rbg", "threefry2x32"], present: bool) -> Float32[np.ndarray, " k"]:
    """Returns each person's random sign, as `vmap` draws it for a batch.

    A person's key is folded from the training's key by enrolment number. The first person is
    present, or the slot is empty and folds -1.
    """
    training = jax.random.key(_SEED, impl=kind)
    keys = jax.vmap(functools.partial(jax.random.fold_in, training))(enrolled(present)[0])
    return np.asarray(jax.vmap(lambda key: jnp.sign(jax.random.normal(key)))(keys))


def _trials(kind: Literal["rbg", "threefry2x32"]) -> ReleaseTrials:
    return updates(lambda present: (enrolled(present), batch_sides(kind, present)[None]))


BATCH_RANDOMNESS = Leak(
    name="batch-randomness",
    claim="Each person has a separate random key, so nobody moves another person's numbers.",
    why="With keys of the kind rbg, the first key of a batch decides all random numbers of the "
    "batch. So the presence of the first person moves everybody's numbers.",
    remedy="all keys are of the kind threefry2x32; the door refuses all others",
    claimed_epsilon=CLAIMED,
    leaky=against(CLAIMED, _trials("rbg")),
    sound=against_certificate(_trials("threefry2x32")),
)
