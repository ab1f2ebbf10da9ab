"""Wrong counts of people: one person counts as several, or the divisor counts who is present."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.audits.audit import ReleaseTrials
from sotto.privacy.audits.leaks.leak import (
    CLAIMED,
    DELTA,
    Leak,
    against,
    against_certificate,
    enrolled,
    updates,
)
from sotto.privacy.release.declaration import INDEPENDENT, ONCE
from sotto.privacy.statements import Correlation, Participation, Returning

# --- several segments of one person --------------------------------------------------------------

_SEGMENT_Z, _SEGMENTS, _SLOTS = 3.0, 8, 4


def _segment_inputs(
    present: bool, enrolled_as: Int[np.ndarray, " segments"]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns an episode of 500 steps in segments of 64, one in each release."""
    others = 100 + np.arange(_SEGMENTS * (_SLOTS - 1)).reshape(_SEGMENTS, _SLOTS - 1)
    person = enrolled_as if present else np.full(_SEGMENTS, -1)
    persons = np.column_stack([person, others])
    return persons, np.ones(persons.shape, np.float32)


def _segment_trials(
    participation: Participation,
    enrolled_as: Int[np.ndarray, " segments"],
    correlation: Correlation = INDEPENDENT,
) -> ReleaseTrials:
    return updates(
        functools.partial(_segment_inputs, enrolled_as=enrolled_as),
        people=_SLOTS,
        noise_multiplier=_SEGMENT_Z,
        horizon=_SEGMENTS,
        participation=participation,
        correlation=correlation,
    )


_SEGMENT_CLAIMED = gaussian_epsilon(_SEGMENT_Z, DELTA)
_RETURNS = Returning(max_participations=_SEGMENTS, min_separation=1)

SEGMENTS = Leak(
    name="segments-as-people",
    claim="Every segment of 64 steps counts as a user.",
    why="A person with an episode of 500 steps counts as 8 users, and is in 8 releases.",
    remedy="the person has one enrolment number, and the noise covers eight participations",
    claimed_epsilon=_SEGMENT_CLAIMED,
    leaky=against(_SEGMENT_CLAIMED, _segment_trials(ONCE, np.arange(_SEGMENTS))),
    sound=against_certificate(_segment_trials(_RETURNS, np.zeros(_SEGMENTS, np.int64))),
)

# --- several releases in a row, under noise that is correlated over time -------------------------

_OVER_TIME = Correlation(kind="prefix-sum")

RETURNS = Leak(
    name="returns-under-correlated-noise",
    claim="Noise correlated over time is always scaled by the norm of one column.",
    why="Consecutive columns point in nearly the same direction, so their norms add up and not "
    "their squares: eight participations cost several times as much as one.",
    remedy="the noise is scaled for the worst pattern that the ledger allows",
    claimed_epsilon=_SEGMENT_CLAIMED,
    leaky=against(_SEGMENT_CLAIMED, _segment_trials(ONCE, np.arange(_SEGMENTS), _OVER_TIME)),
    sound=against_certificate(_segment_trials(_RETURNS, np.zeros(_SEGMENTS, np.int64), _OVER_TIME)),
)

# --- several segments in one release -------------------------------------------------------------


def _together(_state: Any, segments: Float[Array, " segments"], _key: Array) -> Array:
    """Returns the sum of a slot's segments as one contribution."""
    return jnp.sum(segments)


def _as_people(present: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns slots of one segment each; the person has eight of them."""
    persons = np.arange(_SEGMENTS + _SLOTS)
    persons[:_SEGMENTS] = np.where(present, persons[:_SEGMENTS], -1)
    return persons[None], np.ones((1, persons.size, 1), np.float32)


def _as_one_person(present: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns one slot with all eight segments of the person, and one segment in each other."""
    segments = np.zeros((1, _SLOTS + 1, _SEGMENTS), np.float32)
    segments[:, :, 0] = 1.0
    segments[:, 0] = 1.0
    return enrolled(present, _SLOTS + 1), segments


def _crowd_trials(inputs: Callable[[bool], tuple[np.ndarray, np.ndarray]]) -> ReleaseTrials:
    slots = inputs(True)[0].size
    return updates(inputs, _together, people=slots, noise_multiplier=_SEGMENT_Z)


SEGMENTS_AT_ONCE = Leak(
    name="segments-in-one-release",
    claim="Every segment of 64 steps counts as a user, and one release may hold a whole episode.",
    why="Eight clipped contributions of one person move the sum by eight clip norms.",
    remedy="a person has one slot in a release, and all segments are clipped together",
    claimed_epsilon=_SEGMENT_CLAIMED,
    leaky=against(_SEGMENT_CLAIMED, _crowd_trials(_as_people)),
    sound=against_certificate(_crowd_trials(_as_one_person)),
)

# --- a divisor that counts -----------------------------------------------------------------------

_USERS, _DIMENSION = 4, 64


def _vector_inputs(present: bool) -> tuple[np.ndarray, np.ndarray]:
    return enrolled(present, _USERS), np.full((1, _USERS, _DIMENSION), _DIMENSION**-0.5, np.float32)


def _sum_and_size(log: Float[np.ndarray, "n 1 d"]) -> Float[np.ndarray, "n 2"]:
    """Returns the released vector's component along all contributions, and its squared length."""
    vectors = log[:, 0].astype(np.float64)
    return np.stack([vectors.sum(1), np.square(vectors).sum(1)], axis=1)


def _divisor_trials(observe: Any) -> ReleaseTrials:
    state = np.zeros(_DIMENSION, np.float32)
    return updates(_vector_inputs, people=_USERS, state=state, observe=observe)


def _divided_by_count(present: bool, seed: int, samples: int) -> Float[np.ndarray, "n 2"]:
    """Runs the same release, but divides by the number of people present."""
    count = _USERS if present else _USERS - 1

    def observe(log: Float[np.ndarray, "n 1 d"]) -> Float[np.ndarray, "n 2"]:
        return _sum_and_size(log * (_USERS / count))

    return _divisor_trials(observe)(present, seed, samples)


DIVISOR = Leak(
    name="counted-divisor",
    claim="The noisy sum may be divided by the number of people in the batch.",
    why="The divisor scales the noise, and the size of the noise reveals the number of people.",
    remedy="a public divisor",
    claimed_epsilon=CLAIMED,
    leaky=against(CLAIMED, _divided_by_count),
    sound=against_certificate(_divisor_trials(_sum_and_size)),
)
