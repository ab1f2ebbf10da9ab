"""The noise sampler: its law, its tails, its keys."""

import itertools
import math
import os
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from sotto.privacy.noise import (
    MAGNITUDE,
    RADIUS,
    SAMPLER_SHARE,
    GeneratorSource,
    box_muller,
    calibrate_with_sampler,
    sampler_delta,
    standard_normal,
)

TAIL = 5.5
"""Further out than float32 `jax.random.normal` ever gets."""


def draws(count: int, seed: int = 0) -> np.ndarray:
    return standard_normal(GeneratorSource(seed).next(), (count,))


def random_bits(pairs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, (4, pairs), dtype=np.uint64)


# --- the law -------------------------------------------------------------------------------------


def test_the_law_is_normal_and_a_scale_wrong_by_a_hundredth_is_noticed() -> None:
    sample = draws(4_000_000)
    assert stats.kstest(sample, "norm").pvalue > 1e-3
    assert stats.kstest(1.01 * sample, "norm").pvalue < 1e-6


def test_moments() -> None:
    sample = draws(1_000_000, seed=1)
    for power, expected, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        error = 5 * math.sqrt(variance / sample.size)
        assert abs(np.mean(sample**power) - expected) < error


def test_the_two_halves_of_a_pair_are_independent() -> None:
    cosine, sine = draws(2_000_000, seed=2).reshape(-1, 2).T
    for one, other in [(cosine, sine), (cosine**2, sine**2), (abs(cosine), sine)]:
        assert abs(np.corrcoef(one, other)[0, 1]) < 5e-3


def test_a_pair_never_straddles_two_releases() -> None:
    """Each row of odd length drops half a pair; rows then share no radius and no angle."""
    rows = standard_normal(GeneratorSource(3).next(), (200_000, 3))
    radius = rows[:, 0] ** 2 + rows[:, 1] ** 2  # the first pair of a row
    assert stats.kstest(radius / 2, "expon").pvalue > 1e-3
    for shift in (1, 2):
        across = np.corrcoef(rows[shift:, 0] ** 2, rows[:-shift, 2] ** 2)[0, 1]
        assert abs(across) < 0.015


def test_shapes_and_precision_whatever_the_default_precision() -> None:
    generator = GeneratorSource(0).next()
    for shape in [(), (1,), (3,), (2, 3, 5), (0,), (3, 20_000)]:
        result = standard_normal(generator, shape)
        assert result.shape == shape
        assert result.dtype == np.float64


# --- the tails -----------------------------------------------------------------------------------


def test_the_radius_is_exact_for_every_number_of_leading_zeros() -> None:
    rng = random.Random(0)  # what follows the first one is ignored
    words = [(1 << (127 - k)) + rng.getrandbits(127 - k) for k in range(128)] + [0]
    bits = random_bits(129)
    bits[0] = np.array([word >> 64 for word in words], dtype=np.uint64)
    bits[1] = np.array([word % 2**64 for word in words], dtype=np.uint64)
    cosine, sine = box_muller(bits).T
    uniform = [(int(m) >> 12) / 2**53 + 0.5 + 2.0**-54 for m in bits[2]]
    expected = [math.sqrt(2 * (k * math.log(2) - math.log(u))) for k, u in enumerate(uniform)]
    np.testing.assert_allclose(np.hypot(cosine, sine), expected, rtol=1e-14)


def test_every_angle_is_the_angle_of_its_bits() -> None:
    bits = random_bits(100_000, seed=4)
    bits[3, :4096] = np.arange(4096, dtype=np.uint64) << np.uint64(52)  # the table's own points
    bits[3, 4096:8192] = bits[3, :4096] - np.uint64(1)
    cosine, sine = box_muller(bits).T
    angle = (bits[3] >> np.uint64(11)).astype(np.float64) * (2.0**-53 * 2 * math.pi)
    radius = np.hypot(cosine, sine)
    np.testing.assert_allclose(cosine / radius, np.cos(angle), atol=1e-15)
    np.testing.assert_allclose(sine / radius, np.sin(angle), atol=1e-15)


def test_the_range_ends_where_it_is_said_to() -> None:
    bits = np.zeros((4, 2), dtype=np.uint64)
    bits[2, 1] = 2**64 - 1
    cosine, sine = box_muller(bits).T
    longest, shortest = np.hypot(cosine, sine)
    assert longest == pytest.approx(MAGNITUDE, rel=1e-12)
    assert longest <= MAGNITUDE
    assert shortest == pytest.approx(RADIUS, rel=1e-12)
    assert RADIUS > 13.3
    extremes = box_muller(np.full((4, 1), 2**64 - 1, dtype=np.uint64))
    assert np.all(np.isfinite(extremes))


def test_ours_has_the_tail_that_float32_does_not_reach() -> None:
    mantissas = jnp.arange(2**23, dtype=jnp.uint32) | jnp.uint32(0x3F800000)
    unit = jax.lax.bitcast_convert_type(mantissas, jnp.float32) - 1.0  # all of [0, 1) there is
    lowest = np.nextafter(np.float32(-1), np.float32(0))
    every_output = np.sqrt(2) * np.asarray(jax.lax.erf_inv(unit * (1.0 - lowest) + lowest))
    sample = np.asarray(jax.random.normal(jax.random.key(0), (1_000_000,)))
    assert np.all(np.abs(sample) <= np.abs(every_output).max() * (1 + 1e-6))
    assert np.abs(every_output).max() < TAIL

    # Ours, given 18 leading zeros, which is given a radius of at least 5.0.
    bits = random_bits(1_000_000)
    bits[0] >>= np.uint64(18)
    sample = box_muller(bits)
    expected = 2 * stats.norm.sf(TAIL) * 2.0**18
    sigma = math.sqrt(expected / sample.size)
    assert abs(np.mean(np.abs(sample) > TAIL) - expected) < 5 * sigma


def test_the_law_holds_far_out_too() -> None:
    bits = random_bits(1_000_000)
    bits[0] = 0  # beyond 64 zeros the squared radius starts again, 64 ln 2 further out
    cosine, sine = box_muller(bits).T
    beyond = (cosine**2 + sine**2) / 2 - 64 * math.log(2)
    assert stats.kstest(beyond, "expon").pvalue > 1e-3


# --- what the sampler costs ----------------------------------------------------------------------


def leaves_the_range(shift: float, pairs: int) -> float:
    """P(a pair shifted by `shift` / sqrt(pairs) is outside RADIUS), summed over pairs."""
    each = shift / math.sqrt(pairs)
    value, _ = integrate.quad(
        lambda r: r * math.exp(-((r - each) ** 2) / 2) * special.ive(0, r * each),
        RADIUS,
        RADIUS + 12,
        epsabs=0,
        epsrel=1e-9,
    )
    return pairs * value


@pytest.mark.parametrize("noise_multiplier", [0.085, 0.1, 0.15, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("pairs", [1, 2, 10, 10_000])
def test_sampler_delta_bounds_the_mass_that_leaves_the_range(
    noise_multiplier: float, pairs: int
) -> None:
    bound = sampler_delta(noise_multiplier, 2 * pairs)
    assert leaves_the_range(1 / noise_multiplier, pairs) + pairs * 2.0**-128 <= bound
    if pairs == 1:
        assert bound <= 30 * leaves_the_range(1 / noise_multiplier, 1)


def test_sampler_delta_is_monotone_and_one_where_nothing_is_left() -> None:
    multipliers = np.geomspace(0.01, 100, 200)
    deltas = [sampler_delta(z, 1000) for z in multipliers]
    assert all(a >= b for a, b in itertools.pairwise(deltas))
    assert deltas[0] == 1.0
    assert sampler_delta(1.0, 10**9) > sampler_delta(1.0, 10)
    assert sampler_delta(1.0, 10**9) < 1e-20


# --- keys ----------------------------------------------------------------------------------------


def test_draws_of_successive_generators_do_not_overlap() -> None:
    for source in (GeneratorSource(7), GeneratorSource()):
        blocks = [standard_normal(source.next(), (1000,)) for _ in range(5)]
        assert np.unique(np.concatenate(blocks)).size == 5000


def first_draws(source: GeneratorSource, count: int) -> set[int]:
    return {int(source.next().integers(2**63)) for _ in range(count)}


def test_generators_never_repeat_and_neither_do_those_spawned_of_them() -> None:
    one, other = first_draws(GeneratorSource(), 300), first_draws(GeneratorSource(), 300)
    assert len(one) == len(other) == 300
    assert not one & other
    spawned = [int(g.integers(2**63)) for g in GeneratorSource().next().spawn(300)]
    assert len(set(spawned)) == 300


def test_a_generator_is_seeded_with_256_bits_of_the_operating_system(monkeypatch) -> None:
    asked = []
    urandom = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: (asked.append(size), urandom(size))[1])
    GeneratorSource().next()
    assert asked == [32]
    GeneratorSource(seed=1).next()
    assert asked == [32]


def test_a_seeded_generator_repeats_and_says_so() -> None:
    assert GeneratorSource().entropy == "operating-system"
    assert GeneratorSource(3).entropy == "fixed-seed"
    assert first_draws(GeneratorSource(3), 50) == first_draws(GeneratorSource(3), 50)
    assert not first_draws(GeneratorSource(3), 50) & first_draws(GeneratorSource(4), 50)


def test_what_the_sampler_costs_is_taken_off_delta_before_noise_is_calibrated() -> None:
    def gaussian(delta: float) -> float:  # a multiplier that falls with delta, as all do
        return math.sqrt(-math.log(delta))

    def cost(multiplier: float) -> float:
        return 1e-7 / multiplier

    delta = 1e-5
    multiplier = calibrate_with_sampler(gaussian, cost, delta)
    spent = math.exp(-(multiplier**2)) + cost(multiplier)  # the target's delta, and the sampler's
    assert delta * (1 - 1e-4) < spent <= delta
    without = gaussian(delta)
    assert math.exp(-(without**2)) + cost(without) > delta


def test_a_sampler_that_shows_is_refused() -> None:
    share = 1e-5 / SAMPLER_SHARE
    assert calibrate_with_sampler(lambda _: 1.0, lambda _: share, 1e-5) == 1.0
    with pytest.raises(ValueError, match="finite tails"):
        calibrate_with_sampler(lambda _: 1.0, lambda _: 1.01 * share, 1e-5)
