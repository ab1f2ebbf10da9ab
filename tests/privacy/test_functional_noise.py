"""Calibrations against tabulated figures, and Theorem 5 against its own equations."""

import math

import pytest

from sotto.privacy.accounting.gaussian import gaussian_epsilon
from sotto.privacy.mechanisms.functions.calibration import (
    PAPER_GAPS,
    averager_factor,
    impossibility,
    largest_success,
    multiplier_for,
    paper_noise,
)

EPSILON, DELTA = 0.9, 1e-4


@pytest.mark.parametrize(
    ("batch", "lipschitz", "sigma"),
    [(128, 0.1, 0.225), (128, 0.5, 2.32), (128, 1, 6.57), (128, 3, 36.0), (64, 1, 16.5)],
)
def test_theorem_5_as_printed(batch: int, lipschitz: float, sigma: float) -> None:
    found = paper_noise(5000, batch, lipschitz, 0.01, EPSILON, DELTA)
    assert found.sigma == pytest.approx(sigma, rel=5e-3)
    # The theorem's equations, with half of delta for the tail.
    half, v = DELTA / 2, 4 * 0.01 * (found.k + 1) / batch
    assert found.beta == pytest.approx(1 / v)
    scale = 2 * (5000 / batch) * math.log(math.e + EPSILON / half)
    assert (found.sigma * EPSILON) ** 2 == pytest.approx(scale * (v**2 + v) * lipschitz**2)
    gap = 2 * found.k - 8.68 * math.sqrt(found.beta) * found.sigma
    assert found.resets * math.exp(-(gap**2) / 2) == pytest.approx(half)


def test_theorem_5_rewards_reusing_a_path() -> None:
    fresh = paper_noise(5000, 128, 1.0, 0.01, EPSILON, DELTA)
    reused = paper_noise(5000, 128, 1.0, 0.01, EPSILON, DELTA, resets=1)
    assert reused.sigma < fresh.sigma
    assert fresh.resets == pytest.approx(39.06, abs=0.01)
    assert len(PAPER_GAPS) == 9


def test_theorem_5_at_half_the_epsilon() -> None:
    assert paper_noise(5000, 128, 1, 0.01, 0.45, DELTA).sigma == pytest.approx(18.0, rel=2e-3)
    with pytest.raises(ValueError, match="positive"):
        paper_noise(5000, 128, 0.0, 0.01, 0.9, DELTA)


def test_the_multiplier_is_the_exact_one() -> None:
    z = multiplier_for(EPSILON, DELTA)
    assert z == pytest.approx(3.497, abs=5e-4)
    assert gaussian_epsilon(z, DELTA) <= EPSILON < gaussian_epsilon(0.999 * z, DELTA)


def test_released_values_move_by_a_geometric_sum() -> None:
    assert averager_factor(0.9, 10) == pytest.approx(6.513, abs=5e-4)
    assert averager_factor(1.0, 7) == 7
    with pytest.raises(ValueError, match="discount"):
        averager_factor(1.1, 3)


def test_what_no_learner_can_do() -> None:
    assert largest_success(0.9, DELTA) == pytest.approx(0.711, abs=5e-4)
    assert largest_success(0.45, DELTA) == pytest.approx(0.611, abs=5e-4)
    said = impossibility(0.9, DELTA, radius=1.0, reward_range=0.5)
    assert said is not None
    assert "2 times the reward range" in said
    assert "neighbours" in said
    assert "0.711" in said
    halfway = impossibility(0.45, DELTA, radius=0.25, reward_range=0.5)
    assert halfway is not None
    assert "2 neighbours apart" in halfway
    assert largest_success(0.45, DELTA, 2) > largest_success(0.9, DELTA)
    assert impossibility(0.9, DELTA, radius=0.05, reward_range=0.5) is None
    assert largest_success(1000.0, DELTA, 5) == 1.0
