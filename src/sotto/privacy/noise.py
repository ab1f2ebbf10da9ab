"""Gaussian noise whose tails a certificate can rely on.

`jax.random.normal` in float32 never leaves [-5.42, 5.22]: an output outside the range that a
neighbouring input can reach is a certain give-away, and costs delta 1.2e-5 at noise multiplier 1
whatever the epsilon. The sampler here is the ziggurat of Marsaglia and Tsang in float64: a throw
into one of 1,024 layers under the bell curve decides all but one draw in 230 with 64 random bits;
the rest is settled exactly, and what lies beyond the last layer by exponential variates with tails
of 128 coin tosses, so that the law is the Gaussian one up to 17.3 standard deviations.

It is written in numpy: numpy lets go of Python's lock while it computes, so a stream draws the
noise of its next releases while the present ones are being made.

Source: Marsaglia and Tsang 2000, "The Ziggurat Method for Generating Random Variables"; for the
tail, Marsaglia 1964, "Generating a Variable from the Tail of the Normal Distribution".
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt64
from randomgen.aes import AESCounter

_LAYER_BITS = 10
_LAST_EDGE = 4.0388498461095045
"""Where the tail begins: with it, 1,024 layers of equal area end at the top of the curve."""

_COINS = 128
_REACH = math.sqrt(2 * _COINS * math.log(2))
"""How far beyond the last edge the tail follows its law."""

RADIUS = _LAST_EDGE + _REACH
"""Draws follow the Gaussian law exactly (to float64 rounding) inside this radius."""

MAGNITUDE = _LAST_EDGE + math.sqrt(2 * (_COINS + 1) * math.log(2))
"""No draw is ever larger than this in absolute value."""

SAMPLER_SHARE = 100
"""The sampler may cost at most one part in so many of delta."""

_BLOCK = 2**14
"""Draws computed at once: what is in flight stays in a processor's cache."""


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


class Layers(NamedTuple):
    """Layers of equal area under f(x) = exp(-x^2 / 2), x >= 0, from the lowest to the top.

    Layer 0 is the rectangle up to the last edge with the whole tail beside it; its width is that of
    a rectangle of the same area and height. Layer i > 0 is a rectangle of width `widths[i]` between
    the heights i and i + 1, of which the part left of `widths[i + 1]` lies under the curve.
    """

    widths: Float64[np.ndarray, " m"]
    """The last one is 0."""

    heights: Float64[np.ndarray, " m"]
    """f at the edges: `heights[0]` is 0 and the last one is 1."""


def _layers() -> Layers:
    height = math.exp(-(_LAST_EDGE**2) / 2)
    area = _LAST_EDGE * height + math.sqrt(math.pi / 2) * math.erfc(_LAST_EDGE / math.sqrt(2))
    widths, heights = [area / height, _LAST_EDGE], [0.0, height]
    for _ in range(2, 2**_LAYER_BITS):
        heights.append(heights[-1] + area / widths[-1])
        widths.append(math.sqrt(-2 * math.log(heights[-1])))
    return Layers(np.array([*widths, 0.0]), np.array([*heights, 1.0]))


LAYERS = _layers()
_STEPS = LAYERS.widths[:-1] * 2.0**-52
_NEXT_WIDTHS = LAYERS.widths[1:].copy()


def standard_normal(
    generator: np.random.Generator, shape: tuple[int, ...]
) -> Float64[np.ndarray, "..."]:
    """Independent standard normal draws in float64, with exact tails up to `RADIUS`.

    Args:
        generator: an unused generator from a `GeneratorSource`.
        shape: shape of the result.
    """
    draws = np.empty(math.prod(shape))
    undecided, layers = [], []
    for start in range(0, draws.size, _BLOCK):
        block = draws[start : start + _BLOCK]
        thrown = throw(generator.bit_generator.random_raw(len(block)))
        block[:] = thrown.values
        undecided.append(start + thrown.undecided)
        layers.append(thrown.layers)
    if undecided:
        settle(generator, draws, np.concatenate(undecided), np.concatenate(layers))
    return draws.reshape(shape)


class Throw(NamedTuple):
    """Points thrown into the layers, one for each word."""

    values: Float64[np.ndarray, " n"]
    """With their sign."""

    undecided: Int64[np.ndarray, " k"]
    """Which of them are not left of the next layer's edge, and so not surely under the curve."""

    layers: Int64[np.ndarray, " k"]
    """Of the undecided ones."""


def throw(words: UInt64[np.ndarray, " n"]) -> Throw:
    """A uniform layer by ten bits of each word, and a uniform place in it, with sign, by 53."""
    layer = (words & np.uint64(2**_LAYER_BITS - 1)).view(np.int64)
    # Odd multiples of one half: symmetric, never 0, and exact in float64.
    place = (words.view(np.int64) >> 11).astype(np.float64)
    place += 0.5
    values = place * _STEPS.take(layer)
    undecided = np.flatnonzero(np.abs(values) >= _NEXT_WIDTHS.take(layer))
    return Throw(values, undecided, layer[undecided])


def settle(
    generator: np.random.Generator,
    draws: Float64[np.ndarray, " n"],
    undecided: Int64[np.ndarray, " k"],
    layers: Int64[np.ndarray, " k"],
) -> None:
    """Makes draws of what is undecided: kept under the curve, thrown anew above, or in the tail."""
    low, high = LAYERS.heights[:-1], LAYERS.heights[1:]
    while undecided.size:
        for place in undecided[layers == 0]:
            draws[place] = math.copysign(beyond_last_edge(generator), draws[place])
        values = draws[undecided]
        heights = low[layers] + (high - low)[layers] * generator.random(len(values))
        under = (layers == 0) | (heights < np.exp(-(values**2) / 2))
        again = undecided[~under]
        thrown = throw(generator.bit_generator.random_raw(len(again)))
        draws[again] = thrown.values
        undecided, layers = again[thrown.undecided], thrown.layers


def beyond_last_edge(generator: np.random.Generator) -> float:
    """A standard normal draw, given that it is larger than the last edge."""
    while True:
        one, other = generator.bit_generator.random_raw((2, 3)).tolist()
        excess = exponential(one) / _LAST_EDGE
        if 2 * exponential(other) > excess**2:
            return _LAST_EDGE + excess


def exponential(words: Sequence[int]) -> float:
    """An exponential variate of mean 1 from three words of 64 random bits.

    It is k ln 2 - ln h: k is the number of leading zeros of the first two words, h is uniform on
    (1/2, 1) by 52 bits of the third. The law is exact up to 128 ln 2, and all variates are below
    129 ln 2.
    """
    first, second, third = words
    zeros = _COINS - ((first << 64) | second).bit_length()
    half = 0.5 + ((third >> 12) + 0.5) * 2.0**-53
    return zeros * math.log(2) - math.log(half)


def sampler_delta(noise_multiplier: float, draws: int) -> float:
    """Delta that the finite range of the sampler adds, for one person over a whole stream.

    Let w be the draws, R = `RADIUS`, A the event that |w_j| <= R for all j, and D the shift of w
    that one person causes, of total norm at most 1/z on every path; the shift of a draw is fixed
    before it is drawn. On A, and where w + D is in A, the sampled law is the Gaussian one, which
    the accountant covers. What remains is P(w + D not in A) <= sum_j exp(-(R - |D_j|)^2 / 2), plus
    the mass outside A, in either law at most q = exp(-R^2 / 2) a draw. As a function of t = |D_j|^2
    the summand is below e^1.2 q for t <= (1.2/R)^2 and convex from there to (R - 1.1)^2, so the sum
    is largest with the whole shift on one draw.

    Returns:
        The bound; 1.0 where the shift reaches the edge of the range (noise_multiplier < ~0.062).
    """
    shift = 1.0 / noise_multiplier
    if shift >= RADIUS - 1.1:
        return 1.0
    outside = math.exp(-(RADIUS**2) / 2)
    small_shifts = (2 * draws + (shift * RADIUS) ** 2) * math.exp(1.2) * outside
    return math.exp(-((RADIUS - shift) ** 2) / 2) + small_shifts


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
