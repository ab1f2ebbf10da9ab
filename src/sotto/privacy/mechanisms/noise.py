"""Gaussian noise on a grid: the one place where noise of the normal law is drawn.

`rounded_normal` draws integers with the law of round(ratio Z): Z is standard normal, and `ratio` is
the standard deviation of the noise in units of the grid on which it is released. Drawing a float64
normal, scaling and rounding it is not that: its 53 bits hit some integers more often than others,
in a pattern that shows where the grid is fine; and `jax.random.normal` in float32 never leaves
[-5.42, 5.22], which costs delta 1.2e-5 at noise multiplier 1 whatever the epsilon.

The sampler is the ziggurat of Marsaglia and Tsang: a throw into one of 1,024 layers under the bell
curve. 64 random bits say in which interval the point lies. Where all points of the interval are
under the curve and round to the same integer, as float64 with a bound on its errors can tell, that
is the draw; otherwise 192 more bits are drawn and the point is settled in integers. What lies
beyond the last layer is made of exponential variates with tails of 128 coin tosses.

Guarantee:
    Up to `RADIUS` standard deviations, each integer has the probability of round(ratio Z) up to a
    factor between 1 - `ERROR` and 1 + `ERROR`, for every ratio up to `LARGEST_RATIO`
    (docs/privacy.md, section 7). `sampler_delta` is what that and the finite range cost.

It is written in numpy: numpy lets go of Python's lock while it computes, so a stream draws the
noise of its next releases while the present ones are being made.

Source: Marsaglia and Tsang 2000, "The Ziggurat Method for Generating Random Variables"; for the
tail, Marsaglia 1964, "Generating a Variable from the Tail of the Normal Distribution".
"""

import math
import os
from collections.abc import Callable, Sequence
from decimal import ROUND_FLOOR, Context, Decimal, localcontext
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64, UInt64
from randomgen.aes import AESCounter

_LAYER_BITS = 10
_EXACT_LAST_EDGE = Decimal("4.0388498461095045227144234053359312047009919558945647303951182048")
_AREA = Decimal("0.00122632464635308807288537092773712706189270688493575487670894350338")
"""Where the tail begins, and the area of a layer: 1,024 of them end at the top of the curve."""

_LAST_EDGE = float(_EXACT_LAST_EDGE)

_COINS = 128
_REACH = math.sqrt(2 * _COINS * math.log(2))
"""How far beyond the last edge the tail follows its law."""

RADIUS = _LAST_EDGE + _REACH
"""Draws follow the Gaussian law inside this radius."""

MAGNITUDE = _LAST_EDGE + math.sqrt(2 * (_COINS + 1) * math.log(2))
"""No draw is ever larger than this, in standard deviations, before it is rounded."""

ERROR = 2.0**-128
"""Bound on the relative error of each integer's probability inside RADIUS."""

LARGEST_RATIO = 2.0**44
"""Of a standard deviation to the spacing of the grid."""

SAMPLER_SHARE = 100
"""The sampler may cost at most one part in so many of delta."""

_BLOCK = 2**14
"""Draws computed at once: what is in flight stays in a processor's cache."""

_PRECISION = Context(prec=64)
_TABLE_BITS = 160  # of exact widths and heights
_MORE_BITS = 192  # drawn where 64 do not decide
_PLACE_BITS = 52  # of a word, without its sign
_PLACE_ERROR = 2.0**-48  # between a thrown value in float64 and any point of its interval
_CURVE_ERROR = 2.0**-46  # of the curve at a thrown value less a height
_TAIL_ERROR = 2.0**-44  # of a draw beyond the last edge
_LEVEL_ERROR = 2.0**-38  # of the variates that decide whether it is kept


class GeneratorSource:
    """numpy generators for noise: each is used for one draw, or batch of answers, and forgotten.

    By default every generator has a key of 128 bits, made of 256 fresh ones of the operating
    system's entropy, and nothing that could reproduce the noise outlives it. With a seed the
    generators are reproducible, for tests and audits, and whatever uses them has no privacy (the
    certificate's status is `none`).

    The bits are those of AES-128 in counter mode: who could tell them from coin tosses, or foretell
    one from the others, would have broken the cipher, or the mixing by which numpy's SeedSequence
    makes keys of entropy, which is no cryptographic hash. Numpy's own bit generators promise less,
    and for the default one a way back from outputs to state is published (Bouillaguet, Martinez and
    Sauvage 2020).
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._used = 0

    @property
    def entropy(self) -> Literal["operating-system", "fixed-seed"]:
        """Where the generators come from, as the statement of a stream or teacher records it."""
        return "operating-system" if self._seed is None else "fixed-seed"

    def next(self) -> np.random.Generator:
        """A generator that was never given out before."""
        words = [int.from_bytes(os.urandom(32))] if self._seed is None else [self._seed, self._used]
        self._used += 1
        return np.random.Generator(AESCounter(np.random.SeedSequence(words, pool_size=8)))


# --- layers --------------------------------------------------------------------------------------


class Layers(NamedTuple):
    """Layers of equal area under f(x) = exp(-x^2 / 2), x >= 0, from the lowest to the top.

    Layer 0 is the rectangle up to the last edge with the whole tail beside it; its width is that of
    a rectangle of the same area and height. Layer i > 0 is a rectangle of width `widths[i]` between
    the heights i and i + 1, of which the part left of `widths[i + 1]` lies under the curve.
    All numbers are integers, in units of 2^-160.
    """

    widths: tuple[int, ...]
    """The last one is 0."""

    heights: tuple[int, ...]
    """f at the edges: `heights[0]` is 0 and the last one is 1."""


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
"""A value below it is surely left of the next layer's edge, and so under the curve."""


class Throw(NamedTuple):
    """Points thrown into the layers, one for each word.

    A word stands for an interval of points; `values` are within `_PLACE_ERROR` of all of them.
    """

    values: Float64[np.ndarray, " n"]
    """With their sign."""

    layers: Int64[np.ndarray, " n"]


def throw(words: UInt64[np.ndarray, " n"]) -> Throw:
    """A uniform layer by ten bits of each word, and a uniform place in it, with sign, by 53."""
    layer = (words & np.uint64(2**_LAYER_BITS - 1)).view(np.int64)
    # The middle of the interval, an odd multiple of one half: symmetric, and exact in float64.
    place = (words.view(np.int64) >> 11).astype(np.float64)
    place += 0.5
    return Throw(place * _STEPS.take(layer), layer)


# --- draws ---------------------------------------------------------------------------------------


def rounded_normal(
    generator: np.random.Generator,
    shape: tuple[int, ...],
    ratio: float | Float[np.ndarray, "..."],
) -> Int64[np.ndarray, "..."]:
    """Independent integers with the law of round(ratio Z), Z standard normal, up to `RADIUS`.

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
    """The same, one at a time, each with a ratio of its own; words are thrown ahead."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._thrown: list[tuple[float, bool, int]] = []

    def draw(self, ratio: float) -> int:
        """One draw of round(ratio Z); see `rounded_normal`."""
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
    """Makes draws of what 53 bits of place do not decide: their words, and ratios, are given.

    Above the curve a point is thrown anew. A height of 53 bits decides nearly always which it is.
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
    """The draw of a word and a height of 64 bits each, of which 192 more are drawn.

    Returns:
        The integer; None where the point is above the curve.
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
    """round(ratio Z), given that Z is beyond the last edge."""
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
    """An exponential variate of mean 1 from three words of 64 random bits.

    It is k ln 2 - ln h: k is the number of leading zeros of the first two words, h is uniform on
    (1/2, 1) by the third. The law is exact up to 128 ln 2, and all variates are below 129 ln 2.
    """
    return _zeros(words) * math.log(2) - math.log(0.5 + (words[2] + 0.5) * 2.0**-65)


def _exact_exponential(words: Sequence[int], more: int) -> Decimal:
    """The same of the words and more bits of h."""
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
    """Delta that the sampler adds, for one person over a whole stream, whatever the epsilon.

    Inside `RADIUS` the probabilities of m draws are off by factors between (1 - `ERROR`)^m and
    (1 + `ERROR`)^m, which costs at most 4 m `ERROR` (docs/privacy.md, section 7). The rest is the
    finite range. Let w be the draws, R = `RADIUS`, A the event that |w_j| <= R for all j, and D the
    shift of w that one person causes, of total norm at most 1/z on every path; the shift of a draw
    is fixed before it is drawn. On A, and where w + D is in A, the law is the Gaussian one up to
    these factors, which the accountant covers. What remains is P(w + D not in A) <= sum_j
    exp(-(R - |D_j|)^2 / 2), plus the mass outside A, in either law at most q = exp(-R^2 / 2) a
    draw. As a function of t = |D_j|^2 the summand is below e^1.2 q for t <= (1.2/R)^2 and convex
    from there to (R - 1.1)^2, so the sum is largest with the whole shift on one draw.

    Returns:
        The bound; 1.0 where the shift reaches the edge of the range (noise_multiplier < ~0.062).
    """
    shift = 1.0 / noise_multiplier
    if shift >= RADIUS - 1.1:
        return 1.0
    outside = math.exp(-(RADIUS**2) / 2)
    small_shifts = (2 * draws + (shift * RADIUS) ** 2) * math.exp(1.2) * outside
    return math.exp(-((RADIUS - shift) ** 2) / 2) + small_shifts + 4 * draws * ERROR


def calibrate_with_sampler(
    least: Callable[[float], float], cost: Callable[[float], float], delta: float
) -> float:
    """The least noise multiplier that meets a target at delta, the sampler's own delta included.

    The sampler's delta falls as the noise grows, so one correction is on the safe side.

    Args:
        least: the multiplier that meets the target at a delta, without the sampler's.
        cost: delta of the sampler over the whole stream, at a multiplier.
        delta: of the guarantee.

    Raises:
        ValueError: the sampler would cost more than a ledger allows.
    """
    first = least(delta)
    tail = cost(first)
    if tail > delta / SAMPLER_SHARE:
        raise ValueError(
            f"the target needs so little noise (multiplier {first:.3g}) that the finite tails of "
            "any sampler would show; choose a smaller epsilon"
        )
    return least(delta - tail)
