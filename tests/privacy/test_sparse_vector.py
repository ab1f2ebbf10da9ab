"""Sparse vector: its noise is exact, and its cost holds in both directions.

Costs are checked against transcripts computed by quadrature over the threshold's noise, with
densities that this file defines.
"""

import itertools
import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import integrate, stats

from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.mechanisms.sparse_vector import (
    GRID,
    UNIT,
    NoiseName,
    SparseVector,
    geometric,
    named,
)


def transcripts(noise: SparseVector, queries: Sequence[float]) -> np.ndarray:
    """Returns the probabilities of failing first at each query, and of passing all."""
    e1, e2 = noise.threshold_rate, noise.query_rate
    one_sided = noise.law == "exponential"
    t = np.linspace(-40 / e1, 0 if one_sided else 40 / e1, 40001)
    density = e1 * np.exp(-e1 * np.abs(t)) * (1 if one_sided else 0.5)
    passed = np.ones_like(t)
    found = []
    for query in queries:
        gap = t - query  # a query passes if its noise is at least this
        if one_sided:
            passes = np.where(gap <= 0, -np.expm1(e2 * np.minimum(gap, 0)), 0.0)
        else:
            tail = 0.5 * np.exp(-e2 * np.abs(gap))
            passes = np.where(gap <= 0, 1 - tail, tail)
        found.append(integrate.simpson(density * passed * (1 - passes), x=t))
        passed = passed * passes
    return np.array([*found, integrate.simpson(density * passed, x=t)])


def worst_log_ratios(noise: SparseVector, monotone: bool) -> tuple[float, float]:
    """Returns the largest log ratios found, of with over without the unit and the reverse."""
    rng = np.random.default_rng(3)
    removing = adding = 0.0
    # Many passes that move hold the threshold down. Then comes a failure far above it that does not
    # move, or moves the other way.
    rise = 0.0 if monotone else 1.0
    corners = [
        ([low] * many + [high], [low - 1] * many + [high + rise])
        for low in (-20.0, -5.0, 0.0)
        for many in (3, 40)
        for high in (10.0, 30.0)
    ]
    corners.append(([20.0], [19.0]))
    for _ in range(150):
        length = rng.integers(1, 8)
        # Scaled so that queries are near the threshold, where they tell most.
        queries = rng.uniform(-3, 8, length) * rng.choice([0.2, 1, 5])
        moved = rng.choice([0.0, 1.0, rng.random()], length)
        if not monotone:
            moved *= rng.choice([-1, 1], length)
        corners.append((list(queries), list(queries - moved)))
    for queries, less in corners:
        p, q = transcripts(noise, queries), transcripts(noise, less)
        seen = (p > 1e-11) & (q > 1e-11)
        removing = max(removing, float(np.log(p[seen] / q[seen]).max()))
        adding = max(adding, float(np.log(q[seen] / p[seen]).max()))
    return removing, adding


@pytest.mark.parametrize("name", get_args(NoiseName))
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_monotone_queries_cost_what_is_said_and_not_much_less(
    name: NoiseName, epsilon: float
) -> None:
    noise = named(name, epsilon, 0.6)
    assert noise.remove_cost == pytest.approx(epsilon, abs=1e-8)
    removing, adding = worst_log_ratios(noise, monotone=True)
    assert removing <= noise.remove_cost + 1e-4
    assert adding <= noise.query_rate + 1e-4
    assert removing > 0.9 * noise.remove_cost
    assert adding > 0.9 * noise.query_rate


@pytest.mark.parametrize("name", get_args(NoiseName))
def test_queries_that_rise_and_fall_cost_more(name: NoiseName) -> None:
    noise = named(name, 1.0, 0.6)
    found = max(worst_log_ratios(noise, monotone=False))
    assert noise.remove_cost + 0.1 < found <= noise.general_cost + 1e-4


def test_noise_that_is_too_small_is_caught() -> None:
    """The check above fails for a sampler that forgot a factor of two."""
    stated, drawn = named("exponential", 1.0), named("exponential", 2.0)
    assert worst_log_ratios(drawn, monotone=True)[0] > 1.5 * stated.remove_cost


def test_the_papers_pair_is_cheaper_than_it_is_taken_to_be() -> None:
    """Lap(2/e'), Lap(4/e') costs 0.75 e' and 0.25 e' on monotone queries (Lemma 1)."""
    noise = named("paper-laplace", 0.75)
    assert 1 / noise.threshold_rate == pytest.approx(2, abs=1e-6)
    assert 1 / noise.query_rate == pytest.approx(4, abs=1e-6)
    assert noise.query_rate == pytest.approx(0.25, abs=1e-8)
    assert noise.general_cost == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("name", get_args(NoiseName))
@pytest.mark.parametrize("failure", [0.2, 1e-3, 1e-9])
def test_the_margin_is_where_a_query_fails(name: NoiseName, failure: float) -> None:
    noise = named(name, 0.7, 0.6)
    margin = noise.margin(failure)
    e1, e2 = noise.threshold_rate, noise.query_rate
    # The threshold's noise lies below -s and the query's covers the rest, by quadrature over s.
    if noise.law == "exponential":

        def integrand(s: float) -> float:
            return e1 * math.exp(-e1 * s) * -math.expm1(-e2 * max(0.0, s - margin))

        found = integrate.quad(integrand, margin, margin + 60 / e1, epsabs=0)[0]
    else:

        def integrand(s: float) -> float:
            return e1 / 2 * math.exp(-e1 * abs(s)) * stats.laplace.sf(margin - s, scale=1 / e2)

        ends = [-60 / e1, 0.0, margin, margin + 60 / e1]
        found = sum(
            integrate.quad(integrand, a, b, epsabs=0)[0] for a, b in itertools.pairwise(ends)
        )
    assert found <= failure * (1 + 1e-9)
    assert found > 0.999 * failure


def test_no_margin_for_a_certain_failure() -> None:
    with pytest.raises(ValueError, match="probability of failure"):
        named("exponential", 1.0).margin(0.5)


def test_geometric_variates_have_their_law() -> None:
    """Frequencies in cells and far in the tail follow Pr[X >= k] = exp(-rate k GRID)."""
    draws, rate = 400_000, 3.0
    drawn = geometric(GeneratorSource(7).next(), rate, (draws // 4, 4)).ravel()
    assert drawn.min() >= 0
    edges = np.array([0.0, 0.01, 0.1, 0.5, 1, 2, 3])
    for edge in edges:
        true = math.exp(-rate * math.ceil(edge * UNIT) * GRID)
        slack = 5.5 * math.sqrt(true * (1 - true) / draws) + 1e-12
        assert abs(np.mean(drawn >= edge * UNIT) - true) <= slack
    # With a rate of 2^6 a step is 6e-5 wide, and the test sees every integer.
    coarse = geometric(GeneratorSource(8).next(), 64.0, (draws,))
    ratio = math.exp(-64 * GRID)
    assert abs(coarse.mean() - ratio / (1 - ratio)) < 6 * UNIT / 64 / math.sqrt(draws)
    assert abs(np.mean(coarse % 2 == 0) - 1 / (1 + ratio)) < 6 * 0.5 / math.sqrt(draws)


@pytest.mark.parametrize("name", get_args(NoiseName))
def test_noise_has_the_stated_scale(name: NoiseName) -> None:
    noise = named(name, 1.0, 0.6)
    generator = GeneratorSource(9).next()
    n = 200_000
    for drawn, rate in (
        (noise.threshold_noise(generator, (n,)), noise.threshold_rate),
        (noise.query_noise(generator, (n,)), noise.query_rate),
    ):
        values = drawn * GRID
        assert np.mean(np.abs(values)) == pytest.approx(1 / rate, rel=6 / math.sqrt(n))
        mean = -1 / rate if noise.law == "exponential" else 0.0
        assert np.mean(values) == pytest.approx(mean, abs=8 / rate / math.sqrt(n))


def test_fresh_noise_is_not_the_same_twice() -> None:
    source, noise = GeneratorSource(), named("exponential", 0.1)
    one, other = (noise.query_noise(source.next(), (50,)) for _ in range(2))
    assert not np.array_equal(one, other)


def test_rates_lie_on_their_grid() -> None:
    with pytest.raises(ValidationError, match="multiples of 2"):
        SparseVector(law="exponential", threshold_rate=1 / 3, query_rate=0.5)
    assert SparseVector.rounded("exponential", 1 / 3, 0.5).threshold_rate < 1 / 3
    with pytest.raises(ValidationError):
        SparseVector.rounded("laplace", 1e-12, 0.5)
