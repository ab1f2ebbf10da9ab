"""People counted wrongly: one person as several, or a divisor that counts who is present."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.audits.audit import ReleaseTrials
from sotto.privacy.audits.leaks.leak import DELTA, PERSON, Leak, against, against_certificate
from sotto.privacy.release.declaration import INDEPENDENT, ONCE
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Correlation, Part, Participation, Returning


def _local(_state: Any, unit: Any, _key: Array) -> tuple[Any, Any]:
    return {"update": unit}, ()


def _server(state: Any, released: Any) -> tuple[Any, Any]:
    return state + released["update"], released["update"]


# --- several segments of one person --------------------------------------------------------------

_SEGMENT_Z, _SEGMENTS, _SLOTS = 3.0, 8, 4


def _segment_inputs(
    present: bool, enrolled_as: Int[np.ndarray, " segments"]
) -> tuple[np.ndarray, np.ndarray]:
    """An episode of 500 steps in segments of 64: one in every release, beside other people."""
    others = 100 + np.arange(_SEGMENTS * (_SLOTS - 1)).reshape(_SEGMENTS, _SLOTS - 1)
    person = enrolled_as if present else np.full(_SEGMENTS, -1)
    persons = np.column_stack([person, others])
    return persons, np.ones(persons.shape, np.float32)


def _segment_trials(
    participation: Participation,
    enrolled_as: Int[np.ndarray, " segments"],
    correlation: Correlation = INDEPENDENT,
) -> ReleaseTrials:
    release = Release(
        name="policy",
        local=_local,
        server=_server,
        unit=PERSON,
        parts={"update": Part(clip_norm=1.0, noise_multiplier=_SEGMENT_Z)},
        slots=_SLOTS,
        divisor=_SLOTS,
        horizon=_SEGMENTS,
        population="simulated",
        participation=participation,
        correlation=correlation,
    )
    inputs = functools.partial(_segment_inputs, enrolled_as=enrolled_as)
    return ReleaseTrials(release, jnp.float32(0.0), inputs, np.asarray)


_SEGMENT_CLAIMED = gaussian_epsilon(_SEGMENT_Z, DELTA)
_RETURNS = Returning(max_participations=_SEGMENTS, min_separation=1)

SEGMENTS = Leak(
    name="segments-as-people",
    claim="Every segment of 64 steps is a user.",
    why="A person whose episode lasts 500 steps is 8 of them, and is in 8 releases.",
    remedy="the person has one enrolment number, and the noise covers eight participations",
    theory="theory notes, section 5: 1.27 is 4.09 per person",
    claimed_epsilon=_SEGMENT_CLAIMED,
    leaky=against(_SEGMENT_CLAIMED, _segment_trials(ONCE, np.arange(_SEGMENTS))),
    sound=against_certificate(_segment_trials(_RETURNS, np.zeros(_SEGMENTS, np.int64))),
)

# --- several releases in a row, under noise that is correlated over time -------------------------

_OVER_TIME = Correlation(kind="prefix-sum")

RETURNS = Leak(
    name="returns-under-correlated-noise",
    claim="Noise correlated over time is scaled by the norm of one column, whoever takes part.",
    why="The columns of releases in a row nearly add up, instead of in squares: eight "
    "participations cost several times what one does.",
    remedy="noise is scaled by the worst pattern of participations, which the ledger enforces",
    theory="theory notes, section 5: 1.27 is 11.98 per person over 976 releases",
    claimed_epsilon=_SEGMENT_CLAIMED,
    leaky=against(_SEGMENT_CLAIMED, _segment_trials(ONCE, np.arange(_SEGMENTS), _OVER_TIME)),
    sound=against_certificate(_segment_trials(_RETURNS, np.zeros(_SEGMENTS, np.int64), _OVER_TIME)),
)

# --- several segments in one release -------------------------------------------------------------


def _crowd_local(_state: Any, segments: Float[Array, " segments"], _key: Array) -> tuple[Any, Any]:
    """All that a slot has brought, as one contribution."""
    return {"update": jnp.sum(segments)}, ()


def _as_people(present: bool) -> tuple[np.ndarray, np.ndarray]:
    """Eight slots of one segment each are the person's; the others are other people's."""
    persons = np.arange(_SEGMENTS + _SLOTS)
    persons[:_SEGMENTS] = np.where(present, persons[:_SEGMENTS], -1)
    return persons[None], np.ones((1, persons.size, 1), np.float32)


def _as_one_person(present: bool) -> tuple[np.ndarray, np.ndarray]:
    """One slot brings all eight segments of the person, the others one each."""
    persons = np.arange(_SLOTS + 1)
    persons[0] = 0 if present else -1
    segments = np.zeros((1, persons.size, _SEGMENTS), np.float32)
    segments[:, :, 0] = 1.0
    segments[:, 0] = 1.0
    return persons[None], segments


def _crowd_trials(inputs: Callable[[bool], tuple[np.ndarray, np.ndarray]]) -> ReleaseTrials:
    slots = inputs(True)[0].size
    release = Release(
        name="policy",
        local=_crowd_local,
        server=_server,
        unit=PERSON,
        parts={"update": Part(clip_norm=1.0, noise_multiplier=_SEGMENT_Z)},
        slots=slots,
        divisor=slots,
        horizon=1,
        population="simulated",
    )
    return ReleaseTrials(release, jnp.float32(0.0), inputs, np.asarray)


SEGMENTS_AT_ONCE = Leak(
    name="segments-in-one-release",
    claim="Every segment of 64 steps is a user, and all of an episode may be in one release.",
    why="Eight clipped contributions of one person move the sum by eight clip norms.",
    remedy="a person has one slot in a release, and all they bring is clipped together",
    theory="theory notes, section 5: z/k in one release (z = 3, k = 8: epsilon 14.3)",
    claimed_epsilon=_SEGMENT_CLAIMED,
    leaky=against(_SEGMENT_CLAIMED, _crowd_trials(_as_people)),
    sound=against_certificate(_crowd_trials(_as_one_person)),
)

# --- a divisor that counts -----------------------------------------------------------------------

_DIVISOR_Z, _USERS, _DIMENSION = 5.0, 4, 64


def _vector_inputs(present: bool) -> tuple[np.ndarray, np.ndarray]:
    persons = np.arange(_USERS)
    persons[0] = 0 if present else -1
    return persons[None], np.full((1, _USERS, _DIMENSION), _DIMENSION**-0.5, np.float32)


def _sum_and_size(log: Float[np.ndarray, "n 1 d"]) -> Float[np.ndarray, "n 2"]:
    """The released vector along everybody's direction, and its squared length."""
    vectors = log[:, 0].astype(np.float64)
    return np.stack([vectors.sum(1), np.square(vectors).sum(1)], axis=1)


def _divisor_trials(observe: Any) -> ReleaseTrials:
    release = Release(
        name="policy",
        local=_local,
        server=_server,
        unit=PERSON,
        parts={"update": Part(clip_norm=1.0, noise_multiplier=_DIVISOR_Z)},
        slots=_USERS,
        divisor=_USERS,
        horizon=1,
        population="simulated",
    )
    return ReleaseTrials(release, jnp.zeros(_DIMENSION), _vector_inputs, observe)


def _divided_by_count(present: bool, seed: int, samples: int) -> Float[np.ndarray, "n 2"]:
    """The same release, as an average over those who were there."""
    count = _USERS if present else _USERS - 1

    def observe(log: Float[np.ndarray, "n 1 d"]) -> Float[np.ndarray, "n 2"]:
        return _sum_and_size(log * (_USERS / count))

    return _divisor_trials(observe)(present, seed, samples)


_DIVISOR_CLAIMED = gaussian_epsilon(_DIVISOR_Z, DELTA)

DIVISOR = Leak(
    name="counted-divisor",
    claim="The noisy sum may be divided by the number of people in the batch.",
    why="The divisor scales the noise, whose size in many dimensions tells how many there were.",
    remedy="a public divisor",
    theory="theory notes, section 5 (data-dependent K)",
    claimed_epsilon=_DIVISOR_CLAIMED,
    leaky=against(_DIVISOR_CLAIMED, _divided_by_count),
    sound=against_certificate(_divisor_trials(_sum_and_size)),
)
