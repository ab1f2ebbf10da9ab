"""Noise over time: the factorization, its sensitivity, and the rows that it makes."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from references import variance_p_value
from scipy import linalg

from sotto.privacy.mechanisms.correlated import (
    NoiseSequence,
    noising_coefficients,
    require_memory,
    rounding,
    sensitivity,
    strategy_coefficients,
)
from sotto.privacy.mechanisms.noise import MAGNITUDE, GeneratorSource, rounded_normal
from sotto.privacy.statements import Correlation, Once, Poisson, Returning

INDEPENDENT = Correlation()
PREFIX = Correlation(kind="prefix-sum")
DECAYED = Correlation(kind="prefix-sum", workload_decay=0.9)
TREE = Correlation(kind="binary-tree")


def toeplitz(column: np.ndarray, n: int) -> np.ndarray:
    column = np.pad(column, (0, n - column.size))
    return np.asarray(linalg.toeplitz(column, np.zeros(n)))


def strategy(correlation: Correlation, n: int) -> np.ndarray:
    """Returns C as the square root of the workload, without the library's coefficients."""
    if correlation.kind == "independent":
        return np.eye(n)
    workload = toeplitz(correlation.workload_decay ** np.arange(n), n)
    return np.asarray(linalg.sqrtm(workload)).real


@pytest.mark.parametrize("correlation", [PREFIX, DECAYED], ids=["prefix", "decayed"])
@pytest.mark.parametrize("n", [1, 2, 60])
def test_c_is_the_square_root_of_the_workload(correlation: Correlation, n: int) -> None:
    c = toeplitz(strategy_coefficients(correlation, n), n)
    workload = toeplitz(correlation.workload_decay ** np.arange(n), n)
    np.testing.assert_allclose(c @ c, workload, atol=1e-12)
    inverse = toeplitz(noising_coefficients(correlation, n), n)
    np.testing.assert_allclose(inverse @ c, np.eye(n), atol=1e-12)


# --- sensitivity ---------------------------------------------------------------------------------


def worst_pattern(c: np.ndarray, participations: int, separation: int) -> float:
    """Returns the largest norm of a sum of columns, over every allowed pattern."""
    n = len(c)
    return max(
        float(np.linalg.norm(c[:, list(pattern)].sum(axis=1)))
        for size in range(1, participations + 1)
        for pattern in itertools.combinations(range(n), size)
        if all(later - earlier >= separation for earlier, later in itertools.pairwise(pattern))
    )


@pytest.mark.parametrize("correlation", [INDEPENDENT, PREFIX, DECAYED])
@pytest.mark.parametrize("participations", [1, 2, 3, 9])
@pytest.mark.parametrize("separation", [1, 2, 3, 7, 50])
def test_sensitivity_is_the_worst_over_all_patterns(
    correlation: Correlation, participations: int, separation: int
) -> None:
    rule = Returning(max_participations=participations, min_separation=separation)
    expected = worst_pattern(strategy(correlation, 7), min(participations, 7), separation)
    assert sensitivity(correlation, rule, 7) == pytest.approx(expected, rel=1e-6)


def test_once_costs_one_column_and_poisson_one() -> None:
    c = strategy(PREFIX, 40)
    expected = np.linalg.norm(c, axis=0).max()
    assert sensitivity(PREFIX, Once(), 40) == pytest.approx(expected, rel=1e-6)
    assert sensitivity(INDEPENDENT, Once(), 40) == 1.0
    assert sensitivity(INDEPENDENT, Poisson(sampling_rate=0.1, population=9), 40) == 1.0


def test_independent_participations_add_up_in_squares() -> None:
    rule = Returning(max_participations=4, min_separation=250)
    assert sensitivity(INDEPENDENT, rule, 1000) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("rule", "correlated", "independent"),
    [
        (Once(), 3.10, 22.4),
        (Returning(max_participations=4, min_separation=250), 7.53, 44.7),
    ],
)
def test_error_of_a_thousand_releases(
    rule: Once | Returning, correlated: float, independent: float
) -> None:
    n = 1000
    prefix = np.tril(np.ones((n, n)))
    for correlation, expected in [(PREFIX, correlated), (INDEPENDENT, independent)]:
        inverse = toeplitz(noising_coefficients(correlation, n), n)
        rows = np.square(prefix @ inverse).sum(axis=1)
        error = math.sqrt(rows.mean()) * sensitivity(correlation, rule, n)
        assert error == pytest.approx(expected, rel=2e-3)


# --- rows of noise -------------------------------------------------------------------------------

SCALE = 2.0**36
"""Standard deviation of the draws of these tests, in steps of their grid."""


def rows_of(noise: NoiseSequence, draws: np.ndarray) -> np.ndarray:
    """Returns the next rows for these draws, in standard deviations."""
    rows = noise.next_rows(np.rint(draws * SCALE).astype(np.int64))
    return np.asarray(rows * (noise.refinement / SCALE))


@pytest.mark.parametrize("chunks", [(12,), (1,) * 12, (5, 1, 4, 2)], ids=str)
@pytest.mark.parametrize("correlation", [INDEPENDENT, PREFIX, DECAYED])
def test_rows_are_exactly_c_inverse_w_in_any_chunks(
    correlation: Correlation, chunks: tuple[int, ...]
) -> None:
    noise = NoiseSequence(correlation, 12)
    unit_draws = np.eye(12)[None]  # the j-th coordinate's draws are the j-th unit vector
    edges = np.cumsum((0, *chunks))
    rows = [rows_of(noise, unit_draws[:, a:b]) for a, b in itertools.pairwise(edges)]
    linear_map = np.concatenate(rows, axis=1)[0]
    np.testing.assert_allclose(strategy(correlation, 12) @ linear_map, np.eye(12), atol=1e-6)


def test_covariance_is_that_of_the_factorization_and_a_wrong_scale_is_noticed() -> None:
    n, dimension = 8, 20_000
    noise, source = NoiseSequence(PREFIX, n), GeneratorSource(0)
    rows = np.concatenate(
        [
            noise.next_rows(rounded_normal(source.next(), (1, size, dimension), SCALE))
            * (noise.refinement / SCALE)
            for size in (3, 3, 2)
        ],
        axis=1,
    )[0]
    white = strategy(PREFIX, n) @ rows

    assert variance_p_value(white) > 1e-3
    assert variance_p_value(1.05 * white) < 1e-6
    assert variance_p_value(0.95 * white) < 1e-6
    assert variance_p_value(rows) < 1e-6  # uncorrelated rows would have passed as white
    correlations = np.corrcoef(white) - np.eye(n)
    assert np.abs(correlations).max() < 5 / math.sqrt(dimension)


def test_runs_and_coordinates_keep_apart() -> None:
    noise = NoiseSequence(PREFIX, 3)
    draws = np.zeros((2, 3, 4))
    draws[1, :, 2] = 1.0
    rows = rows_of(noise, draws)
    assert np.all(rows[1, :, 2] != 0)
    rows[1, :, 2] = 0
    assert not rows.any()


def test_no_row_is_larger_than_said() -> None:
    noise = NoiseSequence(PREFIX, 20)
    signs = np.sign(noising_coefficients(PREFIX, 20))[::-1]
    worst = rows_of(NoiseSequence(PREFIX, 20), MAGNITUDE * signs[None, :, None])
    assert np.abs(worst).max() == pytest.approx(noise.largest)


@pytest.mark.parametrize("correlation", [PREFIX, DECAYED, TREE])
def test_a_row_is_its_own_draw_plus_what_earlier_ones_make(correlation: Correlation) -> None:
    """A change of a draw moves its row by just that change, whatever float64 does."""
    rng = np.random.default_rng(4)
    draws = rng.integers(-(2**37), 2**37, (1, 9, 3))
    whole = NoiseSequence(correlation, 9).next_rows(draws)
    for changed in range(9):
        other = draws.copy()
        other[:, changed] += 256 * 977
        rows = NoiseSequence(correlation, 9).next_rows(other)
        moved = 256 * 977 // NoiseSequence(correlation, 9).refinement
        assert np.all(rows[:, changed] - whole[:, changed] == moved)
        assert np.array_equal(rows[:, :changed], whole[:, :changed])


def test_rounding_moves_draws_no_further_than_is_paid_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The errors of float64 and rounding are carried over to the draws by C, in exact fractions."""
    n, d, ratio, z = 24, 5, 2.0**30, 2.0
    bound = rounding(PREFIX, n, {"u": d}, {"u": ratio}, z)
    assert rounding(TREE, n, {"u": d}, {"u": ratio}, z) == 0.0
    coefficients = [Fraction(b) for b in noising_coefficients(PREFIX, n)]
    c = strategy(PREFIX, n)
    furthest = 0.0
    for seed in range(4):
        draws = rounded_normal(GeneratorSource(seed).next(), (1, n, d), ratio)
        monkeypatch.setattr(NoiseSequence, "refinement", 1)  # gives rows on the finer grid
        rows = NoiseSequence(PREFIX, n).next_rows(draws)[0]
        off = np.zeros((n, d))
        for i in range(n):
            for j in range(d):
                exact = sum(coefficients[i - t] * int(draws[0, t, j]) for t in range(i + 1))
                off[i, j] = float(int(rows[i, j]) - exact)
        assert np.abs(off).max() <= 0.51
        signs = np.sign(np.random.default_rng(seed).standard_normal((n, d)))
        for moved in (2 * off, signs * 1.0, np.ones((n, d))):
            furthest = max(furthest, float(np.linalg.norm(c @ moved)) / ratio)
    assert z * furthest <= bound <= 10 * z * furthest


def test_coefficients_in_float64_are_as_close_as_rounding_says() -> None:
    """(1 - x)^(1/2) is exactly the sum of c_k x^k. `rounding` pays for n 2^-50 of each c_k."""
    n, exact = 400, Fraction(1)
    found = noising_coefficients(PREFIX, n)
    for k in range(1, n):
        exact *= Fraction(2 * k - 3, 2 * k)
        assert abs(Fraction(found[k]) / exact - 1) <= Fraction(n, 2**50)


def test_there_is_no_noise_beyond_the_horizon() -> None:
    for correlation in (INDEPENDENT, PREFIX):
        noise = NoiseSequence(correlation, 3)
        noise.next_rows(np.zeros((1, 2, 1), np.int64))
        with pytest.raises(ValueError, match="no more"):
            noise.next_rows(np.zeros((1, 2, 1), np.int64))


def test_more_draws_than_memory_are_refused() -> None:
    with pytest.raises(ValueError, match="independent noise"):
        require_memory(PREFIX, runs=1, horizon=100_000, dimension=100_000)
    require_memory(PREFIX, runs=1, horizon=100, dimension=100_000)
    require_memory(INDEPENDENT, runs=1, horizon=100_000, dimension=100_000)  # keeps none
