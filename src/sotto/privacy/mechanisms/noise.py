"""Gaussian noise on a grid: the only place that draws normally distributed noise.

`rounded_normal` draws integers with the law of round(ratio Z). Z is standard normal, and `ratio` is
the standard deviation of the noise in units of the grid on which it is released. Rounding a scaled
float64 normal draw does not have that law: its 53 bits hit some integers more often than others,
in a pattern that shows where the grid is fine. And `jax.random.normal` in float32 never leaves
[-5.42, 5.22], which costs delta 1.2e-5 at noise multiplier 1 whatever the epsilon.

The sampler is the ziggurat of Marsaglia and Tsang: it throws a point into one of 1,024 layers under
the bell curve. 64 random bits say in which interval the point lies. If all points of the interval
are under the curve and round to the same integer, that integer is the draw; float64 can tell this
with a bound on its errors. Otherwise 192 more bits are drawn and the point is settled in integers.
Points beyond the last layer are made of exponential variates with tails of 128 coin tosses.

Guarantee:
    Up to `RADIUS` standard deviations, each integer has the probability of round(ratio Z) up to a
    factor between 1 - `ERROR` and 1 + `ERROR`, for every ratio up to `LARGEST_RATIO`. The proof is
    Theorem S of docs/privacy.md, section 7. `sampler_delta` is the delta that this error and the
    finite range cost a person, under the adjacency of the stream.

It is written in numpy, which releases Python's lock while it computes. So a stream can draw the
noise of its next releases while it makes the present ones.

Source: Marsaglia and Tsang 2000, "The Ziggurat Method for Generating Random Variables"; for the
tail, Marsaglia 1964, "Generating a Variable from the Tail of the Normal Distribution".
"""

import math
import os
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal, localcontext
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64, UInt64
from randomgen.aes import AESCounter

_LAYER_BITS = 10
_EXACT_LAST_EDGE = Decimal("4.0388498461095045227144234053359312047009919558945647303951182048")
_AREA = Decimal("0.00122632464635308807288537092773712706189270688493575487670894350338")
"""Area of a layer. The tail begins at the last edge, and 1,024 layers end at the curve's top."""

_LAST_EDGE = float(_EXACT_LAST_EDGE)

_COINS = 128
_REACH = math.sqrt(2 * _COINS * math.log(2))
"""Distance beyond the last edge up to which the tail follows its law."""

RADIUS = _LAST_EDGE + _REACH
"""Radius inside which draws follow the Gaussian law."""

MAGNITUDE = _LAST_EDGE + math.sqrt(2 * (_COINS + 1) * math.log(2))
"""Bound on every draw, in standard deviations, before it is rounded."""

ERROR = 2.0**-128
"""Bound on the relative error of each integer's probability inside RADIUS."""

LARGEST_RATIO = 2.0**44
"""Largest standard deviation in units of the grid."""

SAMPLER_SHARE = 100
"""Largest share of delta that the sampler may cost, as one part in this many."""

_BLOCK = 2**14
"""Number of draws computed at once, few enough for a processor's cache."""

_PRECISION = Context(prec=64)
_TABLE_BITS = 160  # bits of exact widths and heights
_MORE_BITS = 192  # bits drawn where 64 do not decide
_PLACE_BITS = 52  # bits of a word for the place, without its sign
_PLACE_ERROR = 2.0**-48  # between a thrown value in float64 and any point of its interval
_CURVE_ERROR = 2.0**-46  # error of the curve at a thrown value, less a height
_TAIL_ERROR = 2.0**-44  # error of a draw beyond the last edge
_LEVEL_ERROR = 2.0**-38  # error of the variates that decide whether it is kept


class GeneratorSource:
    """A source of numpy generators for noise, each used once: for one draw or batch of answers.

    By default every generator has a fresh 128-bit key, made of 256 bits of the operating system's
    entropy. Nothing that could reproduce the noise outlives the generator. With a seed the
    generators are reproducible, for tests and audits. Noise from a seed gives no privacy, and the
    certificate's status is then `none`.

    The bits are those of AES-128 in counter mode. Telling them from coin tosses, or predicting one
    generator from the others, takes breaking the cipher or numpy's SeedSequence, which makes keys
    of entropy and is not a cryptographic hash. Numpy's own bit generators promise less: for the
    default one a way from outputs back to its state is published (Bouillaguet, Martinez and
    Sauvage 2020).
    """

    __slots__ = ("_seed", "_used")  # so that no object has another method `next`

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._used = 0

    @property
    def entropy(self) -> Literal["operating-system", "fixed-seed"]:
        """Origin of the generators, as the statement of a stream or teacher records it."""
        return "operating-system" if self._seed is None else "fixed-seed"

    def next(self) -> np.random.Generator:
        """Returns a generator that was never given out before."""
        words = [int.from_bytes(os.urandom(32))] if self._seed is None else [self._seed, self._used]
        self._used += 1
        return np.random.Generator(AESCounter(np.random.SeedSequence(words, pool_size=8)))


# --- layers --------------------------------------------------------------------------------------


class Layers(NamedTuple):
    """Layers of equal area under f(x) = exp(-x^2 / 2), x >= 0, from the lowest to the top.

    Layer 0 is the rectangle up to the last edge with the whole tail beside it. Its width is that of
    a rectangle with the same area and height. Layer i > 0 is a rectangle of width `widths[i]`
    between the heights i and i + 1. The part of it left of `widths[i + 1]` lies under the curve.
    All numbers are integers, in units of 2^-160.
    """

    widths: tuple[int, ...]
    """Widths from the lowest layer up; the last one is 0."""

    heights: tuple[int, ...]
    """Values of f at the edges: `heights[0]` is 0 and the last one is 1."""


def _layers() -> Layers:
    unit = Decimal(2**_TABLE_BITS)
    with localcontext(_PRECISION):
        edge, height = _EXACT_LAST_EDGE, (-(_EXACT_LAST_EDGE**2) / 2).exp()
        widths, heights = [_AREA / height, edge], [Decimal(0), height]
        for _ in range(2, 2**_LAYER_BITS):
            heights.append(heights[-1] + _AREA / widths[-1])
            widths.append((-2 * heights[-1].ln()).sqrt())
        exact = ([*widths, Decimal(0)], [*heights, Decimal(1)])
        return Layers(*(tuple(int((x * unit).to_integral_value()) for x in row) for row in exact))


LAYERS = _layers()
_WIDTHS, _HEIGHTS = (np.array([x / 2**_TABLE_BITS for x in row]) for row in LAYERS)
_STEPS = _WIDTHS[:-1] * 2.0**-_PLACE_BITS
_INNER = _WIDTHS[1:] - 2 * _PLACE_ERROR
"""Values below these are left of the next layer's edge, and so under the curve."""


class Throw(NamedTuple):
    """Points thrown into the layers, one for each word.

    A word stands for an interval of points; `values` are within `_PLACE_ERROR` of all of them.
    """

    values: Float64[np.ndarray, " n"]
    """Values of the points, with their sign."""

    layers: Int64[np.ndarray, " n"]


def throw(words: UInt64[np.ndarray, " n"]) -> Throw:
    """Returns uniform layers by ten bits of each word, and uniform signed places in them by 53."""
    layer = (words & np.uint64(2**_LAYER_BITS - 1)).view(np.int64)
    # The middle of the interval is an odd multiple of one half: symmetric, and exact in float64.
    place = (words.view(np.int64) >> 11).astype(np.float64)
    place += 0.5
    return Throw(place * _STEPS.take(layer), layer)


# --- draws ---------------------------------------------------------------------------------------


def rounded_normal(
    generator: np.random.Generator,
    shape: tuple[int, ...],
    ratio: float | Float[np.ndarray, "..."],
) -> Int64[np.ndarray, "..."]:
    """Draws independent integers with the law of round(ratio Z), Z standard normal, up to `RADIUS`.

    Args:
        generator: an unused generator from a `GeneratorSource`.
        shape: shape of the result.
        ratio: standard deviation in units of the grid; an array of them is broadcast to `shape`.

    Raises:
        ValueError: a ratio is not above 0, or above `LARGEST_RATIO`.
    """
    ratios = np.asarray(ratio, dtype=np.float64)
    _require_ratios(bool(np.all((ratios > 0) & (ratios <= LARGEST_RATIO))))
    draws = np.empty(math.prod(shape), np.int64)
    each = ratios if ratios.ndim == 0 else np.broadcast_to(ratios, shape).ravel()
    places, left = [], []
    for start in range(0, draws.size, _BLOCK):
        block = draws[start : start + _BLOCK]
        here = each if each.ndim == 0 else each[start : start + _BLOCK]
        words = generator.bit_generator.random_raw(len(block))
        values, layers = throw(words)
        unsure = np.abs(values) >= _INNER.take(layers)
        values *= here
        nearest = np.rint(values)
        block[:] = nearest
        values -= nearest
        unsure |= np.abs(values, out=values) >= 0.5 - here * _PLACE_ERROR
        found = np.flatnonzero(unsure)
        places.append(start + found)
        left.append(words[found])
    if places:
        at = np.concatenate(places)
        settle(generator, draws, at, np.concatenate(left), np.broadcast_to(each, draws.size)[at])
    return draws.reshape(shape)


class Singles:
    """Draws like `rounded_normal`, one at a time with any ratio; it throws words in advance."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._thrown: list[tuple[float, bool, int]] = []

    def draw(self, ratio: float) -> int:
        """Draws round(ratio Z) once; see `rounded_normal`."""
        _require_ratios(0 < ratio <= LARGEST_RATIO)
        if not self._thrown:
            words = self._generator.bit_generator.random_raw(_BLOCK)
            values, layers = throw(words)
            inside = np.abs(values) < _INNER.take(layers)
            self._thrown = list(zip(values.tolist(), inside.tolist(), words.tolist(), strict=True))
        value, left, word = self._thrown.pop()
        nearest = round(value * ratio)
        if left and abs(value * ratio - nearest) < 0.5 - ratio * _PLACE_ERROR:
            return nearest
        draw, first = np.empty(1, np.int64), np.zeros(1, np.int64)
        settle(self._generator, draw, first, np.array([word], np.uint64), np.array([ratio]))
        return int(draw[0])


def _require_ratios(allowed: bool) -> None:
    if not allowed:
        raise ValueError(
            "noise is drawn on grids whose spacing is finite and at least 2^-44 of its standard "
            "deviation; release on a coarser grid"
        )


def settle(
    generator: np.random.Generator,
    draws: Int64[np.ndarray, " n"],
    at: Int64[np.ndarray, " k"],
    words: UInt64[np.ndarray, " k"],
    ratios: Float64[np.ndarray, " k"],
) -> None:
    """Completes the draws `at` whose words 53 bits of place do not decide.

    Points above the curve are thrown again. A height of 53 bits nearly always decides that.
    """
    while at.size:
        values, layers = throw(words)
        heights = generator.bit_generator.random_raw(at.size)
        low, high = _HEIGHTS[layers], _HEIGHTS[layers + 1]
        height = low + (high - low) * ((heights >> np.uint64(11)) * 2.0**-53)
        above = height - np.exp(-(values**2) / 2)
        inside = np.abs(values) < _INNER[layers]
        under = inside | ((layers > 0) & (above < -_CURVE_ERROR))
        again = ~inside & (layers > 0) & (above > _CURVE_ERROR)
        scaled = values * ratios
        nearest = np.rint(scaled)
        sure = under & (np.abs(scaled - nearest) < 0.5 - ratios * _PLACE_ERROR)
        draws[at[sure]] = nearest[sure]
        for i in np.flatnonzero(~sure & ~again).tolist():
            drawn = settle_exactly(generator, int(words[i]), int(heights[i]), float(ratios[i]))
            if drawn is None:
                again[i] = True
            else:
                draws[at[i]] = drawn
        at, ratios = at[again], ratios[again]
        words = generator.bit_generator.random_raw(at.size)


def settle_exactly(
    generator: np.random.Generator, word: int, height: int, ratio: float
) -> int | None:
    """Returns the draw of a word and a height of 64 bits each, for which it draws 192 more bits.

    Returns:
        The integer, or None where the point is above the curve.
    """
    layer, place = word % 2**_LAYER_BITS, (word >> 11) - ((word >> 63) << 53)
    unit = 2 ** (_TABLE_BITS + _PLACE_BITS + _MORE_BITS + 1)
    x = LAYERS.widths[layer] * (2 * ((place << _MORE_BITS) + _more(generator)) + 1)
    if abs(x) * 2**_TABLE_BITS >= LAYERS.widths[layer + 1] * unit:
        if layer == 0:
            drawn = beyond_last_edge(generator, ratio)
            return drawn if place >= 0 else -drawn
        low, high = LAYERS.heights[layer : layer + 2]
        parts = 2 ** (64 + _MORE_BITS + 1)
        lifted = low * parts + (high - low) * (2 * ((height << _MORE_BITS) + _more(generator)) + 1)
        with localcontext(_PRECISION):
            curve = (-((Decimal(x) / unit) ** 2) / 2).exp()
            if Decimal(lifted) / (parts * 2**_TABLE_BITS) >= curve:
                return None
    numerator, denominator = ratio.as_integer_ratio()
    unit *= denominator
    return int((2 * x * numerator + unit) // (2 * unit))


def beyond_last_edge(generator: np.random.Generator, ratio: float) -> int:
    """Draws round(ratio Z), given that Z is beyond the last edge."""
    while True:
        words: list[list[int]] = generator.bit_generator.random_raw((2, 3)).tolist()
        one, other = words
        excess, level = exponential(one) / _LAST_EDGE, 2 * exponential(other)
        scaled = ratio * (_LAST_EDGE + excess)
        nearest, margin = round(scaled), level - excess**2
        rounds_surely = abs(scaled - nearest) < 0.5 - ratio * _TAIL_ERROR
        if margin < -_LEVEL_ERROR:
            continue
        if margin > _LEVEL_ERROR and rounds_surely:
            return nearest
        with localcontext(_PRECISION):
            exact_excess = _exact_exponential(one, _more(generator)) / _EXACT_LAST_EDGE
            exact_level = 2 * _exact_exponential(other, _more(generator))
            if exact_level > exact_excess**2:
                exact = Decimal(ratio) * (_EXACT_LAST_EDGE + exact_excess) + Decimal("0.5")
                return int(exact.to_integral_value(ROUND_FLOOR))


def exponential(words: Sequence[int]) -> float:
    """Returns an exponential variate of mean 1 from three words of 64 random bits.

    It is k ln 2 - ln h. k is the number of leading zeros of the first two words, and h is uniform
    on (1/2, 1) by the third. The law is exact up to 128 ln 2, and all variates are below 129 ln 2.
    """
    return _zeros(words) * math.log(2) - math.log(0.5 + (words[2] + 0.5) * 2.0**-65)


def _exact_exponential(words: Sequence[int], more: int) -> Decimal:
    """Returns the variate of `exponential` with more bits of h."""
    half = Decimal(2**256 + ((words[2] << _MORE_BITS) + more)) / Decimal(2**257)
    return _zeros(words) * Decimal(2).ln() - half.ln()


def _zeros(words: Sequence[int]) -> int:
    return _COINS - ((words[0] << 64) | words[1]).bit_length()


def _more(generator: np.random.Generator) -> int:
    words: list[int] = generator.bit_generator.random_raw(3).tolist()
    first, second, third = words
    return (first << 128) | (second << 64) | third


# --- what the sampler costs ----------------------------------------------------------------------


def sampler_delta(noise_multiplier: float, draws: int) -> float:
    """Returns the delta that the sampler adds for one person over a whole stream, at any epsilon.

    Inside `RADIUS` the probabilities of m draws are off by factors between (1 - `ERROR`)^m and
    (1 + `ERROR`)^m, which costs at most 4 m `ERROR` (docs/privacy.md, section 7). The rest is the
    finite range. Let w be the draws, R = `RADIUS`, A the event that |w_j| <= R for all j, and D the
    shift of w that one person causes, of total norm at most 1/z on every path. The shift of a draw
    is fixed before it is drawn. On A, and where w + D is in A, the law is the Gaussian one up to
    these factors, which the accountant covers.

    The remaining cost is P(w + D not in A) <= sum_j exp(-(R - |D_j|)^2 / 2), plus the mass outside
    A, which is at most q = exp(-R^2 / 2) per draw in either law. As a function of t = |D_j|^2 the
    summand is below e^1.2 q for t <= (1.2/R)^2 and convex from there to (R - 1.1)^2. So the sum is
    largest with the whole shift on one draw.

    Returns:
        The bound; 1.0 where the shift reaches the edge of the range (noise_multiplier < ~0.062).
    """
    shift = 1.0 / noise_multiplier
    if shift >= RADIUS - 1.1:
        return 1.0
    outside = math.exp(-(RADIUS**2) / 2)
    small_shifts = (2 * draws + (shift * RADIUS) ** 2) * math.exp(1.2) * outside
    return math.exp(-((RADIUS - shift) ** 2) / 2) + small_shifts + 4 * draws * ERROR
