"""The discrete Gaussian: its table, its draws, its sums, and its cost."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from references import gaussian_delta
from scipy import signal, stats

from sotto.privacy.mechanisms import discrete_gaussian
from sotto.privacy.mechanisms.discrete_gaussian import (
    ERROR,
    LARGEST_EPSILON,
    LEAST_VARIANCE,
    SMOOTHING,
    DiscreteGaussian,
    least_variance,
    noise_multiplier,
    shares_delta,
)
from sotto.privacy.mechanisms.noise import GeneratorSource

WHOLE = 2**640


def exact(variance: float, k: int) -> mpf:
    """Returns P(k) by theta functions of mpmath, which the table does not use."""
    q = mpmath.exp(-1 / (2 * mpf(variance)))
    return mpmath.exp(-(mpf(k) ** 2) / (2 * mpf(variance))) / mpmath.jtheta(3, 0, q)


class Words:
    """A generator whose words are given."""

    def __init__(self, *words: int) -> None:
        self.bit_generator, self._words = self, list(words)

    def random_raw(self, size: int) -> np.ndarray:
        taken, self._words = self._words[:size], self._words[size:]
        return np.array(taken, np.uint64)


# --- one share -----------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", [LEAST_VARIANCE, 123.456, 30_000.0])
def test_each_integer_of_the_table_has_its_probability(variance: float) -> None:
    made = DiscreteGaussian(variance)
    ends = [0, *made._ends, WHOLE]
    reach = made._reach
    with mpmath.workdps(120):
        for k in {0, 1, -1, reach // 3, -reach // 2, reach - 1, reach, -reach}:
            part = ends[k + reach + 1] - ends[k + reach]
            error = abs(mpf(part) / WHOLE / exact(variance, k) - 1)
            assert error < ERROR, (k, error)
    assert reach >= 24 * math.sqrt(variance)


def test_draws_follow_the_law_and_a_scale_wrong_by_a_hundredth_is_noticed() -> None:
    draws = DiscreteGaussian(900.0).draw(GeneratorSource(3).next(), 1_000_000)
    ends = np.arange(-100, 101, 4)
    found = np.histogram(draws, ends)[0]

    def p_value(variance: float) -> float:
        weights = np.exp(-(np.arange(-800, 800) ** 2) / (2 * variance))
        sums = np.histogram(np.arange(-800, 800), ends, weights=weights)[0]
        return float(stats.chisquare(found, sums / sums.sum() * found.sum()).pvalue)

    assert p_value(900.0) > 1e-4
    assert p_value(900.0 * 1.01**2) < 1e-8


@pytest.mark.unchecked_types
def test_a_word_that_does_not_decide_is_settled_by_all_its_bits() -> None:
    made = DiscreteGaussian(100.0)
    for place in (0, made._reach - 40, made._reach, made._reach + 3, len(made._ends) - 1):
        end = made._ends[place]
        for number, expected in ((end - 1, place), (end, place + 1)):
            words = [(number >> shift) & (2**64 - 1) for shift in range(576, -1, -64)]
            (draw,) = made.draw(Words(*words), 1)  # type: ignore[arg-type]
            assert draw == expected - made._reach


@pytest.mark.unchecked_types
def test_the_first_and_the_last_word_are_the_ends_of_the_table() -> None:
    made = DiscreteGaussian(100.0)
    ones = [2**64 - 1] * 10
    assert made.draw(Words(*[0] * 10), 1) == [-made._reach]  # type: ignore[arg-type]
    assert made.draw(Words(*ones), 1) == [made._reach]  # type: ignore[arg-type]


@pytest.mark.parametrize("variance", [15.9, 0.0, -1.0, math.nan, math.inf, 2.0**35])
def test_a_variance_without_a_proof_is_refused(variance: float) -> None:
    with pytest.raises(ValueError, match="a share of noise has a variance from 16"):
        DiscreteGaussian(variance)


# --- sums of shares (Theorem D1) -----------------------------------------------------------------


def test_sums_of_shares_have_the_law_of_one_draw() -> None:
    with mpmath.workdps(90):
        variance, n = mpf(LEAST_VARIANCE), 3
        reach = 110
        law = [exact(float(variance), k) for k in range(-reach, reach + 1)]
        total = law
        for _ in range(n - 1):
            total = [
                mpmath.fsum(
                    total[i] * law[j]
                    for i in range(len(total))
                    if 0 <= (j := k - i) < len(law) and abs(i - len(total) // 2) < 105
                )
                for k in range(len(total) + len(law) - 1)
                if abs(k - (len(total) + len(law) - 2) // 2) <= reach
            ]
        middle = len(total) // 2
        for k in (0, 1, 7, 20):
            error = abs(total[middle + k] / exact(float(n * variance), k) - 1)
            assert error < mpf(2) ** -219, (k, error)


def test_sums_of_narrow_shares_have_not() -> None:
    """Below the least variance the theorem does not hold; the bound is not empty."""
    variance, n = 0.1, 8
    support = np.arange(-60, 61)
    law = np.exp(-(support**2) / (2 * variance))
    law /= law.sum()
    total = law
    for _ in range(n - 1):
        total = signal.convolve(total, law, method="direct")
    middle = len(total) // 2
    one = np.exp(-(support**2) / (2 * variance * n))
    one /= one.sum()
    assert abs(total[middle] / one[60] - 1) > 0.01


# --- the cost (Theorem D2) -----------------------------------------------------------------------


def discrete_delta(variance: float, shift: int, epsilon: float) -> float:
    """Returns delta of one integer with discrete Gaussian noise, summed over all outcomes."""
    reach = int(14 * math.sqrt(variance))
    k = np.arange(-reach, reach + shift + 1)
    with np.errstate(under="ignore"):
        one, other = (np.exp(-((k - c) ** 2) / (2 * variance)) for c in (0, shift))
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum() / one.sum())


@pytest.mark.parametrize("shift", [1, 4, 12, 30])
@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0, 3.0])
def test_the_gaussian_covers_the_discrete_noise(shift: int, epsilon: float) -> None:
    n, variance = 4, 30.0
    multiplier = noise_multiplier(variance, n, shift)
    cost = discrete_delta(n * variance, shift, epsilon)
    assert cost <= gaussian_delta(1 / multiplier, epsilon) + 1e-13
    # Only the smoothing lies between the two.
    assert cost >= gaussian_delta(shift / math.sqrt(n * variance), epsilon) * 0.97 - 1e-13


def test_noise_of_fewer_shares_than_stated_is_noticed() -> None:
    n, variance, shift, epsilon = 4, 30.0, 12, 0.3
    stated = gaussian_delta(1 / noise_multiplier(variance, n, shift), epsilon)
    assert discrete_delta((n - 1) * variance, shift, epsilon) > 1.1 * stated


def test_the_least_variance_gives_the_multiplier_and_not_more() -> None:
    variance = least_variance(30.7, 300, 98.0)
    made = noise_multiplier(variance, 300, 98.0)
    assert 30.7 <= made < 30.7 * (1 + 1e-9)
    assert least_variance(1e-3, 300, 98.0) == LEAST_VARIANCE


def test_the_shares_cost_a_delta_that_is_small_and_grows_with_their_number() -> None:
    assert 0 < shares_delta(1000, 100_000) < 1e-25
    assert shares_delta(2000, 100_000) == pytest.approx(2 * shares_delta(1000, 100_000))
    with mpmath.workdps(80):
        theta = 2 * mpmath.nsum(
            lambda m: mpmath.exp(-2 * mpmath.pi**2 * SMOOTHING * m**2), [1, mpmath.inf]
        )
        assert 2 * mpmath.log((1 + theta) / (1 - theta)) < discrete_gaussian._CLOSENESS


def test_a_table_that_forgets_the_tails_is_noticed(monkeypatch: Any) -> None:
    monkeypatch.setattr(discrete_gaussian, "_RADIUS", 3.0)
    narrow = discrete_gaussian._table.__wrapped__(50.0)
    assert narrow[0] < 24 * math.sqrt(50.0)
    assert shares_delta(10, 100) > 1e-2


def test_a_draw_beyond_the_table_counts_with_e_to_the_epsilon(monkeypatch: Any) -> None:
    monkeypatch.setattr(discrete_gaussian, "_RADIUS", 16.0)
    with mpmath.workdps(40):
        beyond = mpmath.erfc(16 / mpmath.sqrt(2)) * (1 + mpmath.exp(LARGEST_EPSILON))
        assert beyond <= shares_delta(1, 1) <= 1000 * beyond
