"""Experts: samplers, pools and votes that do not match their accounting.

Where the probabilities of an event that tells two neighbours apart have a formula, they are
computed and not sampled. Such a lower bound is exact (confidence 1).
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy import special

from sotto.privacy.accounting.composition import (
    ApproximateDP,
    Gaussian,
    SampledGaussian,
    compose,
    gaussian_epsilon,
)
from sotto.privacy.audits.audit import AuditResult, ReleaseTrials
from sotto.privacy.audits.leaks.leak import (
    DELTA,
    Audit,
    Leak,
    against,
    against_certificate,
    enrolled,
    updates,
)
from sotto.privacy.statements import Poisson, Returning
from sotto.privacy.units import EXPERT

Tail = Callable[[Float[np.ndarray, " n"]], Float[np.ndarray, " n"]]
"""Function that gives the probability that the output reaches each threshold."""


def _exactly(claimed: float, present: Tail, absent: Tail, thresholds: np.ndarray) -> Audit:
    """Returns an audit by the best of these events: P(E) <= e^epsilon Q(E) + delta."""

    def audited(_samples: int, _seed: int, _confidence: float) -> AuditResult:
        gain, missed = present(thresholds) - DELTA, absent(thresholds)
        with np.errstate(divide="ignore"):  # an event impossible without the expert is infinite
            shown = np.where(gain > 0, np.log(np.maximum(gain, 1e-300)) - np.log(missed), 0.0)
        best = int(np.argmax(shown))
        return AuditResult(
            epsilon_lower=max(0.0, float(shown[best])),
            certified_epsilon=claimed,
            delta=DELTA,
            confidence=1.0,
            threshold=float(thresholds[best]),
            orientation=1,
            samples=len(thresholds),
        )

    return audited


def _normal_tail(thresholds: np.ndarray, mean: float, deviation: float) -> np.ndarray:
    tail: np.ndarray = special.ndtr(-(thresholds - mean) / deviation)
    return tail


# --- votes with the noise of one query -----------------------------------------------------------

_VOTE_Z, _ROUNDS, _STATES, _VOTERS = 5.0, 4, 8, 8


def _ballots(present: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns votes: all experts except one vote for the second of two actions everywhere."""
    persons = np.tile(np.arange(_VOTERS), (_ROUNDS, 1))
    persons[:, 0] = 0 if present else -1
    ballots = np.tile(np.array([-0.5, 0.5], np.float32), (_ROUNDS, _VOTERS, _STATES, 1))
    ballots[:, 0] *= -1
    return persons, ballots


def _votes(noise_multiplier: float) -> ReleaseTrials:
    return updates(
        _ballots,
        people=_VOTERS,
        noise_multiplier=noise_multiplier,
        clip_norm=math.sqrt(_STATES / 2),
        state=np.zeros((_STATES, 2), np.float32),
        unit=EXPERT,
        horizon=_ROUNDS,
        participation=Returning(max_participations=_ROUNDS, min_separation=1),
    )


_VOTE_CLAIMED = gaussian_epsilon(_VOTE_Z, DELTA)

VOTES = Leak(
    name="noise-per-vote",
    claim="Every vote has Gaussian noise of the stated multiplier, and so do all votes together.",
    why="The same expert votes on every state of every round: K votes have sensitivity sqrt(K).",
    remedy="noise grows with the root of all queries that are ever asked",
    claimed_epsilon=_VOTE_CLAIMED,
    leaky=against(_VOTE_CLAIMED, _votes(_VOTE_Z / math.sqrt(_ROUNDS * _STATES))),
    sound=against_certificate(_votes(_VOTE_Z)),
)

# --- fixed-size batches --------------------------------------------------------------------------

_POPULATION, _RATE, _BATCH_Z = 10, 0.1, 1.0


def _sampled(noise_multiplier: float, rate: float) -> ReleaseTrials:
    """Returns trials with secret draws, in which the expert's update is +1 and others are -1."""

    def inputs(present: bool) -> tuple[None, np.ndarray]:
        updates = -np.ones(_POPULATION, np.float32)
        updates[0] = 1.0 if present else 0.0
        return None, updates

    return updates(
        inputs,
        people=_POPULATION,
        noise_multiplier=noise_multiplier,
        unit=EXPERT,
        participation=Poisson(sampling_rate=rate, population=_POPULATION),
    )


def _sampled_claim(noise_multiplier: float, rate: float) -> float:
    event = SampledGaussian(noise_multiplier=noise_multiplier, sampling_rate=rate, count=1)
    return compose([event]).epsilon(DELTA)


def _fixed_batch(thresholds: np.ndarray, update: float) -> np.ndarray:
    """Returns tail probabilities of a batch of one: the drawn update plus 1, plus noise."""
    drawn = _normal_tail(thresholds, update + 1.0, _BATCH_Z)
    return (1 - _RATE) * _normal_tail(thresholds, 0.0, _BATCH_Z) + _RATE * drawn


_BATCH_CLAIMED = _sampled_claim(_BATCH_Z, _RATE)

FIXED_BATCHES = Leak(
    name="fixed-size-batches",
    claim="A batch of B experts out of m costs what Poisson sampling at rate B/m costs.",
    why="A drawn expert takes another expert's place in the batch. This moves the sum by up to two "
    "clip norms, where Poisson sampling moves it by one (computed).",
    remedy="every expert is drawn independently at a public rate, and the divisor is public",
    claimed_epsilon=_BATCH_CLAIMED,
    leaky=_exactly(
        _BATCH_CLAIMED,
        functools.partial(_fixed_batch, update=1.0),
        functools.partial(_fixed_batch, update=0.0),
        np.linspace(0.0, 8.0, 801),
    ),
    sound=against_certificate(_sampled(_BATCH_Z, _RATE)),
    runs=0,
)

# --- noiseless steps between noisy ones ----------------------------------------------------------

_SHARE, _STEP_RATE = 0.1, 0.5


def _noisy_step(thresholds: np.ndarray, shift: float) -> np.ndarray:
    """Returns the probability that a step is noisy and its sum reaches a threshold."""
    drawn = _STEP_RATE * _normal_tail(thresholds, shift, _BATCH_Z)
    return _SHARE * ((1 - _STEP_RATE) * _normal_tail(thresholds, 0.0, _BATCH_Z) + drawn)


_COIN_CLAIMED = _sampled_claim(_BATCH_Z, _SHARE * _STEP_RATE)

VISIBLE_COIN = Leak(
    name="visible-coin",
    claim="If a step is private with probability p and draws experts at rate q, it draws them at "
    "rate p q.",
    why="The other steps have no noise, so an observer sees which steps are private. Each of these "
    "draws at rate q (computed).",
    remedy="each private step is charged at its own rate, or has noise and a rate of p q",
    claimed_epsilon=_COIN_CLAIMED,
    leaky=_exactly(
        _COIN_CLAIMED,
        functools.partial(_noisy_step, shift=1.0),
        functools.partial(_noisy_step, shift=0.0),
        np.linspace(0.0, 8.0, 801),
    ),
    sound=against_certificate(_sampled(_BATCH_Z, _SHARE * _STEP_RATE)),
    runs=0,
)

# --- stable prefixes -----------------------------------------------------------------------------
# One prefix at the paper's threshold (docs/privacy.md, section 14): the drawn expert's first action
# and the next state are released if enough experts would have taken it. All agree, up to a floor.

_EXPERTS, _FLOOR, _PREFIX_EPSILON, _PREFIX_DELTA = 3000, 0.01, 0.5, 1e-6
_PREFIX_CLAIMED = 2 * _PREFIX_EPSILON
_THRESHOLD = 1 / (_FLOOR * -math.expm1(-_PREFIX_EPSILON)) + 4 / _PREFIX_EPSILON * math.log(
    2 / (3 * _PREFIX_DELTA)
)


def _released_at_least() -> float:
    """Returns a lower bound on the probability of releasing a drawn expert's first action.

    The action is the common one with probability 1 - floor. The query fails only if one of the
    two Laplace draws, of scale 2 / e' and 4 / e', takes half of the way to the threshold.
    """
    half = ((_EXPERTS - 1) * (1 - _FLOOR) - _THRESHOLD) / 2
    fails = math.exp(-half * _PREFIX_EPSILON / 2) + math.exp(-half * _PREFIX_EPSILON / 4)
    return (1 - _FLOOR) * (1 - fails / 2)


def _prefixes(present: bool, seed: int, samples: int) -> Float[np.ndarray, "samples 2"]:
    """Simulates fresh rollouts in an environment whose states do not reveal who acts.

    The expert under test, if present, differs from the others as much as the floor allows. The
    output says whether a prefix was released, and whether it holds the common action.
    """
    rng = np.random.default_rng(seed)
    differs = present & (rng.random(samples) < 1 / _EXPERTS)
    common = rng.random(samples) < np.where(differs, _FLOOR, 1 - _FLOOR)
    others = _EXPERTS - 1
    mass = others * np.where(common, 1 - _FLOOR, _FLOOR)
    mass += present * np.where(common, _FLOOR, 1 - _FLOOR)
    threshold = _THRESHOLD + rng.laplace(0, 2 / _PREFIX_EPSILON, samples)
    released = mass + rng.laplace(0, 4 / _PREFIX_EPSILON, samples) >= threshold
    return np.column_stack([released, released & common]).astype(np.float64)


def _impossible_without(thresholds: np.ndarray) -> np.ndarray:
    return np.zeros_like(thresholds)


def _owner_released(thresholds: np.ndarray) -> np.ndarray:
    """Returns the probability that the expert is drawn and their unique state is released."""
    return np.full_like(thresholds, _released_at_least() / _EXPERTS)


FIXED_LOG = Leak(
    name="prefixes-of-a-fixed-log",
    claim="Stable prefixes may be taken from trajectories that were logged before.",
    why="States are real numbers, so a released prefix of a log identifies its owner. The owner is "
    "the expert with probability 1/m, which no epsilon covers (computed).",
    remedy="every prefix is a fresh rollout in an environment that all experts share",
    claimed_epsilon=_PREFIX_CLAIMED,
    leaky=_exactly(_PREFIX_CLAIMED, _owner_released, _impossible_without, np.zeros(1)),
    sound=against(_PREFIX_CLAIMED, _prefixes),
    runs=0,
)

# --- one pool for prefixes and for DP-SGD --------------------------------------------------------

_POOL_Z = 0.5
_POOL_CLAIMED = compose(
    [
        ApproximateDP(epsilon=_PREFIX_CLAIMED, delta=_PREFIX_DELTA),
        Gaussian(noise_multiplier=_POOL_Z),
    ]
).epsilon(DELTA)


def _tails_reused(thresholds: np.ndarray) -> np.ndarray:
    """Returns the probability that a prefix is released and the noisy sum reaches a threshold.

    Each expert has two trajectories, with updates +1 and -1, and contributes the first one that is
    left. The prefix uses up the drawn expert's first trajectory. Without the expert under test,
    one of the others is drawn and turns from +1 to -1: take this sum as the origin. The expert
    under test always contributes +1, so with them the sum is 1 higher. If they are drawn
    themselves, no other expert turns, and the sum is 3 higher.
    """
    drawn = _normal_tail(thresholds, 3.0, _POOL_Z) / _EXPERTS
    other = _normal_tail(thresholds, 1.0, _POOL_Z) * (1 - 1 / _EXPERTS)
    return _released_at_least() * (drawn + other)


_POOL = updates(
    lambda present: (enrolled(present, 2), np.ones((1, 2), np.float32)),
    people=2,
    noise_multiplier=_POOL_Z,
    unit=EXPERT,
)


def _disjoint(present: bool, seed: int, samples: int) -> Float[np.ndarray, "samples 3"]:
    """Returns prefixes of fresh rollouts, and an update from other trajectories."""
    prefixes = _prefixes(present, seed, samples)
    return np.concatenate([prefixes, _POOL(present, seed ^ 1, samples)], axis=1)


def _disjoint_claim() -> float:
    """Returns the composed epsilon of the prefix and of the update in the ledger."""
    update = Gaussian(noise_multiplier=_POOL.release.parts["update"].noise_multiplier)
    prefixes = ApproximateDP(epsilon=_PREFIX_CLAIMED, delta=_PREFIX_DELTA)
    return compose([prefixes, update]).epsilon(DELTA)


REUSED_POOL = Leak(
    name="reused-pool",
    claim="Prefixes, and DP-SGD on the trajectories that they leave over, cost the sum of both.",
    why="The remaining trajectories depend on the secret draw. If the expert was drawn, another "
    "expert's update changes too, and the sum moves by 3 clip norms (computed).",
    remedy="trajectories for prefixes are never used for updates: the pools are disjoint",
    claimed_epsilon=_POOL_CLAIMED,
    leaky=_exactly(
        _POOL_CLAIMED,
        _tails_reused,
        functools.partial(_normal_tail, mean=0.0, deviation=_POOL_Z),
        np.linspace(0.0, 6.0, 601),
    ),
    sound=against(_disjoint_claim, _disjoint),
    runs=0,
)
