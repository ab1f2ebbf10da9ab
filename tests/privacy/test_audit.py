"""An audit's bound holds as often as it says, finds what is there, and catches a wrong door."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.audits.audit import ReleaseTrials, audit, audit_mechanism, linear_score
from sotto.privacy.mechanisms import noise
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Correlation, Once, Part, Participation, Poisson
from sotto.privacy.units import Adjacency, Unit


def normal(shift: float, samples: int, seed: int) -> np.ndarray:
    return shift + np.random.default_rng(seed).standard_normal(samples)


def exceeded(shift: float, delta: float, confidence: float, repeats: int) -> int:
    """How often the bound of a Gaussian mechanism lies above its true epsilon."""
    true = gaussian_epsilon(1 / shift, delta) if shift else 0.0
    return sum(
        audit(
            normal(shift, 600, 2 * i), normal(0, 600, 2 * i + 1), delta, confidence=confidence
        ).epsilon_lower
        > true
        for i in range(repeats)
    )


def test_identical_inputs_are_told_apart_no_more_often_than_stated() -> None:
    assert exceeded(0.0, 0.0, confidence=0.999, repeats=200) == 0
    assert exceeded(0.0, 0.0, confidence=0.8, repeats=200) <= stats.binom.ppf(0.9999, 200, 0.2)


def test_true_epsilon_is_exceeded_no_more_often_than_stated() -> None:
    assert exceeded(1.0, 0.05, confidence=0.8, repeats=200) <= stats.binom.ppf(0.9999, 200, 0.2)


def test_choosing_the_event_on_the_samples_that_bound_it_would_fail_that_test() -> None:
    """The test above has teeth: without a held-out half identical inputs look different."""
    wrong = 0
    for i in range(200):
        present, absent = normal(0, 600, 2 * i), normal(0, 600, 2 * i + 1)
        thresholds = np.concatenate([present, absent])
        hits = (present >= thresholds[:, None]).sum(1)
        alarms = (absent >= thresholds[:, None]).sum(1)
        low = stats.beta.ppf(0.1, np.maximum(hits, 1), 600 - hits + 1)
        high = stats.beta.ppf(0.9, alarms + 1, np.maximum(600 - alarms, 1e-9))
        wrong += bool(np.any(low > high))
    assert wrong > stats.binom.ppf(0.9999, 200, 0.2)


@pytest.mark.parametrize(("shift", "delta"), [(1.0, 0.05), (0.5, 0.05), (1.5, 0.1)])
def test_gaussian_bound_is_below_the_truth_and_near_it(shift: float, delta: float) -> None:
    found = audit(normal(shift, 200_000, 0), normal(0, 200_000, 1), delta).epsilon_lower
    true = gaussian_epsilon(1 / shift, delta)
    assert 0.85 * true < found <= true


def test_bound_is_the_one_computed_by_hand_on_the_second_half() -> None:
    present, absent = normal(1, 5000, 0), normal(0, 5000, 1)
    found = audit(present, absent, 0.01, confidence=0.99)
    alone = [
        stats.binomtest(int((scores[2500:] >= found.threshold).sum()), 2500).proportion_ci(0.99)
        for scores in (present, absent)
    ]
    by_hand = max(
        math.log((alone[0].low - 0.01) / alone[1].high),
        math.log((1 - alone[1].high - 0.01) / (1 - alone[0].low)),
    )
    assert found.orientation == 1
    assert found.samples == 2500
    assert found.epsilon_lower == pytest.approx(by_hand, rel=1e-9)


def test_sign_of_the_score_and_order_of_the_inputs_do_not_matter() -> None:
    present, absent = normal(1.5, 20_000, 0), normal(0, 20_000, 1)
    reference = audit(present, absent, 1e-5).epsilon_lower
    assert reference > 1.5
    assert audit(-present, -absent, 1e-5).epsilon_lower == pytest.approx(reference, rel=0.2)
    assert audit(absent, present, 1e-5).epsilon_lower == pytest.approx(reference, rel=0.2)


@pytest.mark.parametrize("swap", [False, True])
def test_output_that_only_one_input_has_is_found_either_way(swap: bool) -> None:
    never = np.zeros(20_000)
    sometimes = (np.random.default_rng(0).random(20_000) < 0.3).astype(float)
    pair = (sometimes, never) if swap else (never, sometimes)
    assert audit(*pair, 1e-5).epsilon_lower > 5.5


def test_randomised_response() -> None:
    """Ties: a score with two values. Epsilon is log 3 exactly."""
    rng = np.random.default_rng(0)
    truth = audit(
        (rng.random(100_000) < 0.75).astype(float), (rng.random(100_000) < 0.25).astype(float), 0.0
    ).epsilon_lower
    assert 0.95 * math.log(3) < truth <= math.log(3)


@pytest.mark.parametrize("scores", [np.array([1.0, np.nan, 0, 0]), np.ones(3)])
def test_scores_that_cannot_be_audited_are_refused(scores: np.ndarray) -> None:
    with pytest.raises(ValueError, match="finite numbers"):
        audit(scores, np.ones(4), 1e-5)


def test_linear_score_is_the_likelihood_ratio_of_shifted_gaussians() -> None:
    rng = np.random.default_rng(0)
    mix = np.array([[1.0, 0.0], [0.8, 0.3]])
    shift = np.array([0.2, -0.1])
    absent = rng.standard_normal((100_000, 2)) @ mix.T
    present = rng.standard_normal((100_000, 2)) @ mix.T + shift
    best = np.linalg.solve(mix @ mix.T, shift)
    direction = linear_score(present, absent)(np.eye(2))
    cosine = direction @ best / np.linalg.norm(direction) / np.linalg.norm(best)
    assert cosine > 0.999


def test_linear_score_finds_a_difference_without_noise() -> None:
    shared = normal(0, 1000, 0)
    absent = np.stack([shared, shared], axis=1)
    present = absent + np.array([0.0, 1e-3])
    score = linear_score(present, absent)
    assert score(present).min() > score(absent).max()


# --- the door ------------------------------------------------------------------------------------

USERS, RELEASES, SAMPLES, DELTA_TESTED = 3, 4, 40_000, 0.05
CLIP_NORM, RATE = 0.5, 0.5


def increments(log: np.ndarray) -> np.ndarray:
    return np.asarray(log).reshape(len(log), -1)


def log_likelihood_ratio(log: np.ndarray) -> np.ndarray:
    """Of a person who pushes by one clip norm in every release they are drawn for, at z = 1."""
    pushes = log.sum(axis=2) / math.sqrt(2) * USERS / CLIP_NORM
    return np.log1p(RATE * np.expm1(pushes - 0.5)).sum(axis=1, keepdims=True)


def door(participation: Participation, correlation: str, adjacency: Adjacency) -> ReleaseTrials:
    """The person in question is in slot 0 of the first release; others push the same way.

    Under Poisson sampling, in every release for which they are drawn, and others do not push.
    """
    sampled = isinstance(participation, Poisson)
    release = Release(
        name="update",
        local=lambda _state, unit, _key: ({"update": unit}, ()),
        server=lambda state, released: (state + released["update"], released["update"]),
        unit=Unit(kind="trajectory", adjacency=adjacency),
        parts={"update": Part(clip_norm=CLIP_NORM, noise_multiplier=1.0)},
        slots=USERS,
        divisor=USERS,
        horizon=RELEASES,
        population="simulated",
        participation=participation,
        correlation=Correlation(kind=correlation),
    )

    def inputs(present: bool) -> tuple[np.ndarray | None, np.ndarray]:
        shape = (USERS,) if sampled else (RELEASES, USERS)
        units = np.full((*shape, 2), 0.0 if sampled else 1.0, np.float32)
        person = (0,) * len(shape)
        if adjacency is Adjacency.REPLACE_ONE:
            units[person] = 1 if present else -1
        else:
            units[person] = float(present)
        return None if sampled else np.arange(RELEASES * USERS).reshape(shape), units

    observe = log_likelihood_ratio if sampled else increments
    return ReleaseTrials(release, jnp.zeros(2), inputs, observe)


DOORS = {
    "once": (Once(), "independent", Adjacency.ZERO_OUT),
    "replace-one": (Once(), "independent", Adjacency.REPLACE_ONE),
    "prefix-sum": (Once(), "prefix-sum", Adjacency.ZERO_OUT),
    "poisson": (
        Poisson(sampling_rate=RATE, population=USERS),
        "independent",
        Adjacency.ZERO_OUT,
    ),
}


@pytest.mark.parametrize("kind", DOORS)
def test_door_stands_and_noise_too_small_by_30_percent_is_caught(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = door(*DOORS[kind])
    certified = trials.certified_epsilon(DELTA_TESTED)

    def test() -> Any:
        return audit_mechanism(trials, SAMPLES, 0, DELTA_TESTED, certified_epsilon=certified)

    sound = test()
    assert not sound.refuted
    assert sound.epsilon_lower > 0.7 * certified, "the audit has no power here"

    right = noise.rounded_normal
    monkeypatch.setattr(
        noise, "rounded_normal", lambda source, shape, ratio: right(source, shape, 0.7 * ratio)
    )
    assert test().refuted


def test_certificate_of_the_door_is_the_analytic_one() -> None:
    once = door(*DOORS["once"]).certified_epsilon(DELTA_TESTED)
    assert once == pytest.approx(gaussian_epsilon(1.0, DELTA_TESTED), rel=1e-9)
    replaced = door(*DOORS["replace-one"]).certified_epsilon(DELTA_TESTED)
    assert replaced == pytest.approx(gaussian_epsilon(0.5, DELTA_TESTED), rel=1e-9)


def test_the_two_inputs_get_seeds_of_their_own() -> None:
    seeds: dict[bool, int] = {}

    def spy(present: bool, seed: int, samples: int) -> np.ndarray:
        seeds[present] = seed
        return normal(0, samples, seed)[:, None]

    audit_mechanism(spy, 100, 0, 0.1, certified_epsilon=math.inf)
    assert seeds[True] != seeds[False]


def test_trials_repeat_and_every_run_has_noise_of_its_own() -> None:
    trials = door(*DOORS["once"])
    first, again = (trials(True, seed=2**40 + 1, samples=50) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(first[:, 0])) > 45
