"""Adaptive clipping with a bit that says whether a person's update is within the clip norm."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.audits.audit import AuditResult, ReleaseTrials
from sotto.privacy.audits.leaks.leak import (
    DELTA,
    USERS,
    Leak,
    against,
    against_certificate,
    enrolled,
    updates,
)

_NOISE = 1.0
"""Standard deviation of the noise of the sum of bits (sigma_b of Andrew et al. 2021)."""
_RUNS = 8
"""Factor on the number of runs: a doubled sensitivity shows only far in the tails."""


def _inputs(present: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns people whose updates are all within the clip norm; the first may be absent."""
    return enrolled(present), np.ones((1, USERS), bool)


def _trials(centred: bool) -> ReleaseTrials:
    bound = 0.5 if centred else 1.0

    def bit(_state: Any, within: Array, _key: Array) -> Array:
        return jnp.where(within, 1.0, 0.0) - (0.5 if centred else 0.0)

    return updates(_inputs, bit, clip_norm=bound, noise_multiplier=_NOISE / bound)


_CLAIMED = gaussian_epsilon(2 * _NOISE, DELTA)


def _uncentred(samples: int, seed: int, confidence: float) -> AuditResult:
    return against(_CLAIMED, _trials(centred=False))(_RUNS * samples, seed, confidence)


def _centred(samples: int, seed: int, confidence: float) -> AuditResult:
    return against_certificate(_trials(centred=True))(_RUNS * samples, seed, confidence)


UNCENTRED_BIT = Leak(
    name="uncentred-clipping-bit",
    claim="Whether an update is within the clip norm is a bit of sensitivity 1/2.",
    why="Only a centred bit has that sensitivity. A bit of 0 or 1 moves the sum by 1.",
    remedy="each person contributes bit - 1/2, and an absent person contributes 0",
    claimed_epsilon=_CLAIMED,
    leaky=_uncentred,
    sound=_centred,
    runs=_RUNS,
)
