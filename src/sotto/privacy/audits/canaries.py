"""Audit of one person: many runs with the person and many without.

The bound presumes nothing about the noise. See `audit` for its guarantee.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from sotto.privacy.audits.audit import AuditResult, audit, choose_event
from sotto.privacy.audits.auditable import Auditable
from sotto.privacy.audits.features import flat, statistics

_REPEATS = 8
"""Runs that are repeated without the person, to see what the person changes."""
_LEAST_VARIANCE = 1e-12
"""Least standard deviation of a direction, relative to the largest."""


@dataclass(frozen=True)
class Canary:
    """The person who changes the output most, and the change."""

    person: int
    direction: Float[np.ndarray, " d"]


def find(auditable: Auditable, seed: int, most: int = 16) -> Canary:
    """Returns whom to leave out: of the first people the one who changes the output most.

    Raises:
        ValueError: two runs with the same seed differ, or the output is not [runs, ...].
    """
    tried = min(auditable.size, most)
    everybody = np.ones((tried * _REPEATS, auditable.size), bool)
    without = everybody.copy()
    for person in range(tried):
        without[person * _REPEATS : (person + 1) * _REPEATS, person] = False
    given, again, left_out = (
        flat(auditable.train(auditable.people, rows, seed))
        for rows in (everybody, everybody, without)
    )
    if len(given) != len(everybody):
        raise ValueError(
            f"train returned {len(given)} runs, but `present` has {len(everybody)} rows; every "
            "array must begin with the runs"
        )
    if not np.array_equal(given, again):
        raise ValueError(
            "two calls of train with the same seed differ; draw all random numbers from the seed"
        )
    spread = given.std(axis=0)
    scale = np.where(spread > 0, spread, max(float(spread.max()), 1.0) * 1e-6)
    changes = (given - left_out).reshape(tried, _REPEATS, -1).mean(axis=1)
    person = int(np.argmax(np.linalg.norm(changes / scale, axis=1)))
    return Canary(person, changes[person] / np.square(scale))


def bound(
    auditable: Auditable, canary: Canary, samples: int, seed: int, confidence: float
) -> AuditResult:
    """Returns a lower bound on epsilon from runs with and without the person.

    Args:
        auditable: code under audit.
        canary: person who is left out.
        samples: number of runs with the person, and without.
        seed: seed of the audit.
        confidence: confidence of the bound.
    """
    seeds = [int(one) for one in np.random.SeedSequence(seed).generate_state(2)]
    here = np.ones((samples, auditable.size), bool)
    gone = here.copy()
    gone[:, canary.person] = False
    present, absent = (
        statistics(auditable.train(auditable.people, rows, one & 0x7FFFFFFF), canary.direction)
        for rows, one in zip((here, gone), seeds, strict=True)
    )
    half = samples // 2
    best = (-math.inf, present[:, 0], absent[:, 0])
    for with_it, without in _scores(present, absent, half):
        found, _, _ = choose_event(with_it[:half], without[:half], auditable.delta, 1 - confidence)
        if found > best[0]:
            best = (found, with_it, without)
    return audit(
        best[1],
        best[2],
        auditable.delta,
        confidence=confidence,
        certified_epsilon=auditable.epsilon,
    )


def reach(samples: int, delta: float, confidence: float) -> float:
    """Returns the largest bound that as many runs with a person, and without, can give."""
    apart = np.ones(samples), np.zeros(samples)
    return audit(*apart, delta, confidence=confidence).epsilon_lower


def _scores(
    present: Float[np.ndarray, "n k"], absent: Float[np.ndarray, "n k"], half: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields scores that the first halves chose: each statistic, and the best linear one."""
    varied = np.flatnonzero(np.ptp(np.concatenate([present, absent]), axis=0) > 0)
    for column in varied:
        yield present[:, column], absent[:, column]
    if varied.size:
        direction = discriminant(present[:half, varied], absent[:half, varied])
        yield present[:, varied] @ direction, absent[:, varied] @ direction


def discriminant(
    present: Float[np.ndarray, "n k"], absent: Float[np.ndarray, "n k"]
) -> Float[np.ndarray, " k"]:
    """Returns Fisher's discriminant, from a singular value decomposition.

    A covariance matrix would lose directions with a millionth of the largest deviation, and these
    tell most.
    """
    centred = np.concatenate([present - present.mean(0), absent - absent.mean(0)])
    scale = centred.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    _, singular, rows = np.linalg.svd(centred / scale, full_matrices=False)
    largest = float(singular.max(initial=0.0)) or 1.0
    singular = np.maximum(singular, _LEAST_VARIANCE * largest)
    moved = (present.mean(0) - absent.mean(0)) / scale
    return np.asarray((rows.T @ ((rows @ moved) / np.square(singular / largest))) / scale)
