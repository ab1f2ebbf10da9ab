"""The noise sampler: its law, its tails, its keys."""

import itertools
import math
import os
import random
from collections import deque
from collections.abc import Iterable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from randomgen.aes import AESCounter
from scipy import integrate, stats

from sotto.algorithms.calibration import calibrate_with_sampler, gaussian_multiplier
from sotto.privacy.mechanisms import noise
from sotto.privacy.mechanisms.noise import (
    ERROR,
    LARGEST_RATIO,
    LAYERS,
    MAGNITUDE,
    RADIUS,
    SAMPLER_SHARE,
    GeneratorSource,
    Singles,
    beyond_last_edge,
    exponential,
    rounded_normal,
    sampler_delta,
    settle,
    settle_exactly,
    throw,
)

TAIL = 5.5
"""Distance that float32 `jax.random.normal` never reaches."""

UNIT = 2**160
WIDTHS, HEIGHTS = (np.array([x / UNIT for x in row]) for row in LAYERS)
LAST_EDGE = float(WIDTHS[1])
FINE = 2.0**40
"""Steps of the grid in a standard deviation, for tests of the law itself."""


def draws(count: int, seed: int = 0, ratio: float = FINE) -> np.ndarray:
    """Returns draws in standard deviations."""
    return rounded_normal(GeneratorSource(seed).next(), (count,), ratio) / ratio


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


def test_ratios_out_of_range_are_refused_and_singles_have_the_law() -> None:
    generator = GeneratorSource(0).next()
    for wrong in (0.0, -1.0, math.nan, math.inf, 1.01 * LARGEST_RATIO):
        for ask in (
            lambda r: rounded_normal(generator, (2,), r),
            lambda r: rounded_normal(generator, (2,), np.array([1.0, r])),
            lambda r: Singles(generator).draw(r),
        ):
            with pytest.raises(ValueError, match="coarser grid"):
                ask(wrong)
    singles = Singles(generator)
    ratios = np.geomspace(2.0**10, 2.0**40, 100_000)
    sample = np.array([singles.draw(ratio) for ratio in ratios.tolist()]) / ratios
    assert stats.kstest(sample, "norm").pvalue > 1e-3
    each = rounded_normal(generator, (100_000,), ratios) / ratios
    assert stats.kstest(each, "norm").pvalue > 1e-3


def test_every_draw_is_independent_of_its_neighbours() -> None:
    sample = draws(2_000_000, seed=2)
    for lag in (1, 2, 3):
        one, other = sample[:-lag], sample[lag:]
        for a, b in [(one, other), (one**2, other**2), (abs(one), other), (one, abs(other))]:
            assert abs(np.corrcoef(a, b)[0, 1]) < 5e-3


def test_shapes_and_precision_whatever_the_default_precision() -> None:
    generator = GeneratorSource(0).next()
    for shape in [(), (1,), (3,), (2, 3, 5), (0,), (3, 20_000)]:
        for ratio in (3.0, np.full(shape[-1:], 3.0)):
            result = rounded_normal(generator, shape, ratio)
            assert result.shape == shape
            assert result.dtype == np.int64


# --- the layers ----------------------------------------------------------------------------------


def test_layers_have_one_area_and_fill_the_curve() -> None:
    """It computes with the integers that the sampler uses, in 80 digits."""
    with localcontext() as context:
        context.prec = 80
        widths, heights = ([Decimal(x) / UNIT for x in row] for row in LAYERS)
        rises = [after - before for before, after in itertools.pairwise(heights)]
        areas = [width * rise for width, rise in zip(widths, rises, strict=False)]
        mean = sum(areas) / len(areas)
        off = [abs(area / mean - 1) for area in areas]
        edges = zip(widths[1:], heights[1:], strict=True)
        curve = [abs((-width * width / 2).exp() - height) for width, height in edges]
    assert len(areas) == 1024
    assert max(off) < Decimal(2) ** -140
    assert max(curve) < Decimal(2) ** -155  # edges lie on the curve
    assert heights[-1] == 1


def test_the_first_layer_has_the_tail_beside_it() -> None:
    """A throw beyond the last edge is as probable as the tail, by the tail's power series."""
    with localcontext() as context:
        context.prec = 80
        x = Decimal(LAYERS.widths[1]) / UNIT
        term = series = x  # of the integral of exp(-t^2 / 2) from 0 to x, times exp(x^2 / 2)
        for k in range(1, 200):
            term *= x * x / (2 * k + 1)
            series += term
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640629")
        tail = (pi / 2).sqrt() - series * (-x * x / 2).exp()
        beyond = (Decimal(LAYERS.widths[0]) / UNIT - x) * Decimal(LAYERS.heights[1]) / UNIT
    assert abs(beyond / tail - 1) < Decimal(2) ** -130


def test_the_density_is_the_bell_curve_at_every_place() -> None:
    """The law follows from the tables, layer by layer, wedges included."""
    widths, heights = WIDTHS[:-1], HEIGHTS
    places = np.concatenate([np.linspace(0, LAST_EDGE, 5_000)[:-1], WIDTHS[2:-1] * 1.000001])
    top = np.exp(-(places**2) / 2)[:, None]
    under = np.clip((top - heights[:-1]) / np.diff(heights), 0, 1) / widths  # of each layer
    sampled = under.sum(axis=1) / 1024 * (1024 * widths[1] * np.diff(heights)[1])
    np.testing.assert_allclose(sampled, top[:, 0], rtol=1e-9)


def test_a_throw_is_in_the_middle_of_what_its_bits_say() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**64, 50_000, dtype=np.uint64)
    words[:4] = [0, 2**64 - 1, 2**63, 2**63 - 1]
    values, layers = throw(words)
    for word, value in zip(words[:2000].tolist(), values[:2000].tolist(), strict=True):
        signed = (word >> 11) - (2**53 if word >> 63 else 0)
        ends = [Fraction(LAYERS.widths[word & 1023] * (signed + i), UNIT << 52) for i in (0, 1)]
        assert max(abs(Fraction(value) - end) for end in ends) < Fraction(1, 2**48)
    np.testing.assert_array_equal(layers, (words & np.uint64(1023)).astype(int))
    assert np.all(np.abs(values) <= WIDTHS[layers])


class Words:
    """A fake generator that returns these words, and then zeros."""

    def __init__(self, words: Iterable[int]) -> None:
        self.bit_generator, self.words = self, deque(words)

    def random_raw(self, shape: int | tuple[int, ...]) -> np.ndarray:
        count = math.prod(shape) if isinstance(shape, tuple) else shape
        given = [self.words.popleft() if self.words else 0 for _ in range(count)]
        return np.array(given, dtype=np.uint64).reshape(shape)


@pytest.mark.unchecked_types
def test_what_is_decided_at_once_is_what_all_bits_decide() -> None:
    """With the same word the fast path and the exact one agree, whatever bits follow."""
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**64, 3000, dtype=np.uint64)
    for ratio in (0.3, 2.0**20 / 3, 2.0**38 * 1.7):
        fast = rounded_normal(Words(words.tolist()), (3000,), ratio)  # type: ignore[arg-type]
        values, layers = throw(words)
        inside = np.flatnonzero(np.abs(values) < WIDTHS[layers + 1] * (1 - 1e-12))
        agreed = 0
        for i in inside.tolist():
            ends = [
                settle_exactly(Words([more] * 3), int(words[i]), 0, ratio)  # type: ignore[arg-type]
                for more in (0, 2**64 - 1)
            ]
            if ends[0] == ends[1]:
                assert fast[i] == ends[0]
                agreed += 1
        assert agreed > 0.9 * len(inside)


@pytest.mark.unchecked_types
def test_what_float64_cannot_decide_is_settled_by_more_bits() -> None:
    """One point is on a rounding boundary of the grid to 53 bits, and one is on the curve."""
    word = ((3 << 40) << 11) | 7
    edge = Fraction(LAYERS.widths[7] * (3 << 40), UNIT << 52)
    ratio = float(Fraction(1, 2) / edge)  # the point's interval begins almost at 1/2
    begin = edge * Fraction(ratio)
    width = Fraction(LAYERS.widths[7], UNIT << 52) * Fraction(ratio)
    at = math.floor((Fraction(1, 2) - begin) / width * 2**192) if begin < Fraction(1, 2) else 0
    assert 0 <= at < 2**192
    for more, expected in ((0, 0 if at else 1), (2**192 - 1, 1)):
        halves = [more >> 128, more >> 64 & 2**64 - 1, more & 2**64 - 1]
        assert settle_exactly(Words(halves), word, 0, ratio) == expected  # type: ignore[arg-type]
    # Layer 1023 is under the curve only for some heights.
    top = (2**51 << 11) | 1023
    x = 2.0**-1 * WIDTHS[1023]
    share = (math.exp(-(x**2) / 2) - HEIGHTS[1023]) / (1 - HEIGHTS[1023])
    for height, kept in ((share - 1e-12, True), (share + 1e-12, False)):
        drawn = settle_exactly(Words([]), top, int(height * 2**64), 100.0)  # type: ignore[arg-type]
        assert (drawn == round(100 * x)) if kept else drawn is None


@pytest.mark.parametrize("layer", [1, 300, 1000, 1023])
def test_what_is_undecided_is_settled_under_the_curve(layer: int) -> None:
    """Throws into one layer are kept under the curve, and above it become ordinary draws."""
    generator = GeneratorSource(layer).next()
    words = generator.bit_generator.random_raw(1_000_000) | np.uint64(1023)
    words ^= np.uint64(1023 - layer)
    thrown = throw(words).values
    integers = np.empty(words.size, np.int64)
    ratios = np.full(words.size, 2.0**30)
    settle(generator, integers, np.arange(words.size), words, ratios)
    settled = integers / 2.0**30

    width, low, high = WIDTHS[layer], *HEIGHTS[layer : layer + 2]
    places = np.linspace(0, width, 20_001)
    under = np.clip((np.exp(-(places**2) / 2) - low) / (high - low), 0, 1) / width
    kept = integrate.cumulative_trapezoid(under, places, initial=0)

    def law(x: np.ndarray) -> np.ndarray:
        return np.interp(x, places, kept) + (1 - kept[-1]) * (2 * stats.norm.cdf(x) - 1)

    assert stats.kstest(np.abs(settled), law).pvalue > 1e-3
    # At a low layer 0.2 per cent are undecided, and the part that is cut off is too small to see.
    if layer >= 1000:
        assert stats.kstest(np.abs(thrown), law).pvalue < 1e-6
    assert abs(np.mean(settled > 0) - 0.5) < 2.5e-3


def test_draws_beyond_the_last_edge_are_as_many_as_they_should_be() -> None:
    edges = np.array([3.9, LAST_EDGE, 4.1, 4.3, np.inf])
    settled = np.abs(draws(20_000_000, seed=6, ratio=2.0**24))
    kept = throw(GeneratorSource(5).next().bit_generator.random_raw(settled.size)).values
    expected = np.diff(stats.norm.cdf(edges)) * 2 * settled.size
    for sample, right in [(settled, True), (np.abs(kept), False)]:
        counts = np.histogram(sample, edges)[0]
        distance = np.sum((counts - expected) ** 2 / expected)
        assert (stats.chi2.sf(distance, len(counts)) > 1e-3) == right


# --- the tails -----------------------------------------------------------------------------------


def test_exponentials_are_exact_for_every_number_of_leading_zeros() -> None:
    rng = random.Random(0)  # bits after the first 1 are ignored
    words = [(1 << (127 - k)) + rng.getrandbits(127 - k) for k in range(128)] + [0]
    for zeros, word in enumerate(words):
        mantissa = rng.getrandbits(64)
        half = Decimal(2 * mantissa + 1) / Decimal(2**66) + Decimal("0.5")
        expected = float(zeros * Decimal(2).ln() - half.ln())
        drawn = exponential([word >> 64, word % 2**64, mantissa])
        assert drawn == pytest.approx(expected, rel=1e-14)


def test_the_law_of_exponentials_holds_far_out_too() -> None:
    words = GeneratorSource(7).next().bit_generator.random_raw((100_000, 3)).tolist()
    assert stats.kstest([exponential(row) for row in words], "expon").pvalue > 1e-3
    # Beyond 64 zeros the law starts again, 64 ln 2 further out.
    beyond = [exponential([0, *row[1:]]) - 64 * math.log(2) for row in words]
    assert stats.kstest(beyond, "expon").pvalue > 1e-3


def test_beyond_the_last_edge_the_law_is_the_tail() -> None:
    generator = GeneratorSource(8).next()
    sample = np.array([beyond_last_edge(generator, 2.0**24) for _ in range(200_000)]) / 2.0**24
    assert sample.min() >= LAST_EDGE - 2.0**-24
    share = stats.norm.sf(sample) / stats.norm.sf(LAST_EDGE)  # uniform, if the law is the tail
    assert stats.kstest(share, "uniform").pvalue > 1e-3
    # The second exponential makes a normal tail of an exponential one. Without it:
    wrong = LAST_EDGE + np.random.default_rng(0).exponential(1 / LAST_EDGE, 200_000)
    assert stats.kstest(stats.norm.sf(wrong) / stats.norm.sf(LAST_EDGE), "uniform").pvalue < 1e-6


@pytest.mark.unchecked_types
def test_the_range_ends_where_it_is_said_to() -> None:
    full, largest = 2**64 - 1, [0, 0, 0]
    assert exponential(largest) == pytest.approx(129 * math.log(2), rel=1e-12)
    reach = LAST_EDGE * math.sqrt(2 * 128 * math.log(2)) / math.log(2)  # zeros of such an excess
    zeros, rest = int(reach), reach - int(reach)
    mantissa = int((2.0 ** (1 - rest) - 1) * 2**52) << 12

    def excess(k: int) -> list[int]:
        word = 1 << (127 - k)
        return [word >> 64, word % 2**64, mantissa]

    def first(*rows: list[int]) -> float:
        return beyond_last_edge(Words(itertools.chain(*rows)), FINE) / FINE  # type: ignore[arg-type]

    # At the end of the Gaussian range all tosses decide. One more leaves it.
    kept = first(excess(zeros), largest)
    assert kept == pytest.approx(RADIUS, rel=1e-6)
    assert kept <= MAGNITUDE
    again = first(excess(zeros + 1), largest, [2**63, 0, full], [2**63, 0, 0])
    assert again < LAST_EDGE + 0.01
    assert pytest.approx(LAST_EDGE + math.sqrt(256 * math.log(2))) == RADIUS
    assert pytest.approx(LAST_EDGE + math.sqrt(258 * math.log(2))) == MAGNITUDE
    assert RADIUS > 17.3


@pytest.mark.unchecked_types
def test_a_tail_that_float64_cannot_decide_is_settled_by_more_bits() -> None:
    """It tests a rounding boundary, and a deciding variate that equals the other's square."""
    one, kept, bits = [2**62, 5, 12345], [0, 3, 7], [2**63, 0, 0]
    place = LAST_EDGE + exponential(one) / LAST_EDGE
    ratio = 100.5 / place  # within float64 of the boundary between 100 and 101
    drawn = {
        beyond_last_edge(Words([*one, *kept, *more, *bits]), ratio)  # type: ignore[arg-type]
        for more in ([0, 0, 0], [2**64 - 1] * 3)
    }
    assert drawn <= {100, 101}
    # 2 E_2 = excess^2 in float64, so later bits decide. A refused draw is drawn again.
    target = (exponential(one) / LAST_EDGE) ** 2 / 2
    h = math.exp(-target)
    other = [2**63, 0, int((2 * h - 1) * 2**64)]
    assert 2 * exponential(other) == pytest.approx(2 * target, abs=1e-12)
    scale = 2.0**10
    for shift, right in ((-(2**20), True), (2**20, False)):  # a smaller h is a larger variate
        near = [2**63, 0, other[2] + shift]
        found = beyond_last_edge(Words([*one, *near, *[1] * 6, *one, *kept]), scale)  # type: ignore[arg-type]
        rest = Words([*one, *near, *[1] * 6, *one, *kept])
        beyond_last_edge(rest, scale)  # type: ignore[arg-type]
        assert found == round(scale * place)
        assert (len(rest.words) > 0) == right


def test_ours_has_the_tail_that_float32_does_not_reach() -> None:
    mantissas = jnp.arange(2**23, dtype=jnp.uint32) | jnp.uint32(0x3F800000)
    unit = jax.lax.bitcast_convert_type(mantissas, jnp.float32) - 1.0  # all of [0, 1) there is
    lowest = np.nextafter(np.float32(-1), np.float32(0))
    every_output = np.sqrt(2) * np.asarray(jax.lax.erf_inv(unit * (1.0 - lowest) + lowest))
    sample = np.asarray(jax.random.normal(jax.random.key(0), (1_000_000,)))
    assert np.all(np.abs(sample) <= np.abs(every_output).max() * (1 + 1e-6))
    assert np.abs(every_output).max() < TAIL

    generator = GeneratorSource(9).next()
    far = np.mean([beyond_last_edge(generator, 1e6) > TAIL * 1e6 for _ in range(200_000)])
    expected = stats.norm.sf(TAIL) / stats.norm.sf(LAST_EDGE)
    assert far == pytest.approx(expected, abs=5 * math.sqrt(expected / 200_000))


# --- what the sampler costs ----------------------------------------------------------------------


def leaves_the_range(shift: float, draws: int) -> float:
    """Returns P(a draw shifted by `shift` / sqrt(draws) is outside RADIUS), summed over draws."""
    each = shift / math.sqrt(draws)
    return draws * float(stats.norm.sf(RADIUS - each) + stats.norm.sf(RADIUS + each))


@pytest.mark.parametrize("noise_multiplier", [0.062, 0.085, 0.1, 0.15, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("draws", [1, 2, 10, 10_000])
def test_sampler_delta_bounds_the_mass_that_leaves_the_range(
    noise_multiplier: float, draws: int
) -> None:
    bound = sampler_delta(noise_multiplier, draws)
    outside = 2 * draws * float(stats.norm.sf(RADIUS))
    assert leaves_the_range(1 / noise_multiplier, draws) + outside <= bound
    if draws == 1:
        assert bound - 4 * ERROR <= 110 * leaves_the_range(1 / noise_multiplier, 1)


def test_what_the_sampler_puts_outside_the_range_is_below_its_bound() -> None:
    """It is P(beyond the last edge) P(excess > reach and second variate larger) / P(kept)."""
    kept = (
        LAST_EDGE * math.exp(LAST_EDGE**2 / 2) * math.sqrt(2 * math.pi) * stats.norm.sf(LAST_EDGE)
    )
    far = math.exp(-LAST_EDGE * (RADIUS - LAST_EDGE)) * 2.0**-128
    outside = 2 * stats.norm.sf(LAST_EDGE) * far / kept
    assert outside < math.exp(-(RADIUS**2) / 2)
    assert 2 * stats.norm.sf(RADIUS) < math.exp(-(RADIUS**2) / 2)


def test_sampler_delta_is_monotone_and_one_where_nothing_is_left() -> None:
    multipliers = np.geomspace(0.01, 100, 200)
    deltas = [sampler_delta(z, 1000) for z in multipliers]
    assert all(a >= b for a, b in itertools.pairwise(deltas))
    assert deltas[0] == 1.0
    assert sampler_delta(1.0, 10**9) > sampler_delta(1.0, 10)
    assert sampler_delta(1.0, 10**9) < 1e-20
    # Each probability is off by a factor 1 + ERROR.
    assert sampler_delta(100.0, 2**60) - sampler_delta(100.0, 1) >= 2.0**60 * 3 * ERROR


# --- keys ----------------------------------------------------------------------------------------


def test_bits_are_those_of_aes() -> None:
    """The vector is FIPS 197, appendix B, with its block of text as the counter."""
    key, text = "2b7e151628aed2a6abf7158809cf4f3c", "3243f6a8885a308d313198a2e0370734"
    number = {
        name: int.from_bytes(bytes.fromhex(digits), "little")
        for name, digits in [("key", key), ("counter", text)]
    }
    block = AESCounter(**number).random_raw(2).astype("<u8").tobytes().hex()
    assert block == "3925841d02dc09fbdc118597196a0b32"
    assert isinstance(GeneratorSource().next().bit_generator, AESCounter)
    assert all(isinstance(g.bit_generator, AESCounter) for g in GeneratorSource().next().spawn(2))


def test_draws_of_successive_generators_do_not_overlap() -> None:
    for source in (GeneratorSource(7), GeneratorSource()):
        blocks = [rounded_normal(source.next(), (1000,), FINE) for _ in range(5)]
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
    spent = math.exp(-(multiplier**2)) + cost(multiplier)  # delta of the target and the sampler
    assert delta * (1 - 1e-4) < spent <= delta
    without = gaussian(delta)
    assert math.exp(-(without**2)) + cost(without) > delta


def test_a_sampler_that_shows_is_refused() -> None:
    share = 1e-5 / SAMPLER_SHARE
    assert calibrate_with_sampler(lambda _: 1.0, lambda z: share / z, 1e-5) == 1.0
    with pytest.raises(ValueError, match="finite tails"):
        calibrate_with_sampler(lambda _: 1.0, lambda z: 1.01 * share / z, 1e-5)


@pytest.mark.parametrize("target", [0.1, 1.0, 10.0])
def test_a_delta_below_what_any_sampler_can_keep_is_named(target: float) -> None:
    """A smaller epsilon would not help."""

    def least(epsilon: float, delta: float) -> float:
        return gaussian_multiplier(epsilon, delta, draws=600)

    for delta in (1e-300, 1e-34):
        with pytest.raises(ValueError, match=r"^delta 1e-\d+ is too small.* at least 1e-33$"):
            least(target, delta)
    assert least(target, 1e-33) > 1
    with pytest.raises(ValueError, match="choose a smaller epsilon"):
        least(1e4, 1e-5)


class Given:
    """A generator whose first words are given, and whose other bits are all alike."""

    def __init__(self, words: Sequence[int], bits: int) -> None:
        self.bit_generator, self._words, self._bits = self, list(words), bits

    def random_raw(self, size: int | tuple[int, ...]) -> np.ndarray:
        shape = size if isinstance(size, tuple) else (size,)
        count = math.prod(shape)
        taken, self._words = self._words[:count], self._words[count:]
        rest = [self._bits] * (count - len(taken))
        return np.array([*taken, *rest], np.uint64).reshape(shape)


@pytest.mark.unchecked_types
@pytest.mark.parametrize("alone", [False, True])
def test_a_word_whose_points_round_to_two_integers_is_settled_by_more_bits(alone: bool) -> None:
    """On a fine grid the 53 bits of a word would hit some integers more often than others."""
    words = np.random.default_rng(0).integers(2**64, size=100_000, dtype=np.uint64)
    values, layers = throw(words)
    scaled = values * LARGEST_RATIO
    gaps = 0.5 - np.abs(scaled - np.rint(scaled))  # where they are above 0, float64 would decide
    inside = np.abs(values) < 0.9 * noise._INNER[layers]
    fitting = np.flatnonzero(inside & (gaps > 0))
    word = int(words[fitting[np.argmin(gaps[fitting] / noise._STEPS[layers[fitting]])]])
    drawn = []
    for bits in (0, 2**64 - 1):  # the first and the last point of the word's interval
        given: Any = Given([word] * (noise._BLOCK if alone else 1), bits)
        if alone:
            drawn.append(Singles(given).draw(LARGEST_RATIO))
        else:
            drawn.append(int(rounded_normal(given, (1,), LARGEST_RATIO)[0]))
    assert drawn[1] == drawn[0] + 1


@pytest.mark.parametrize("sign", [1, -1])
def test_draws_beyond_the_last_edge_have_the_sign_of_their_word(sign: int) -> None:
    """With a tail on one side only, whoever is shifted to the other side shows."""
    word = (2**52 - 1) << 11 if sign > 0 else 1 << 63  # layer 0, the outermost place
    draw = settle_exactly(GeneratorSource(0).next(), word, 0, 1000.0)
    assert draw is not None
    assert sign * draw > 1000 * noise._LAST_EDGE - 1
