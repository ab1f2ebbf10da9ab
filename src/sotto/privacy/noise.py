"""Gaussian noise whose tails a certificate can rely on.

`jax.random.normal` in float32 never leaves [-5.42, 5.22]: an output outside the range that a
neighbouring input can reach is a certain give-away, and costs delta 1.2e-5 at noise multiplier 1
whatever the epsilon. The sampler here is Box-Muller in float64 on 256 random bits per pair. The
squared radius is an exponential variate put together from a geometric number of leading zero bits
(128 of them) and a 52-bit mantissa, so its law is the exponential law up to radius 13.3.

It is written in numpy: numpy lets go of Python's lock while it computes, so a stream draws the
noise of its next releases while the present ones are being made.
"""

import math
import os
from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float64, UInt64

_ZERO_BITS = 128
RADIUS = math.sqrt(2 * _ZERO_BITS * math.log(2))
"""Pairs of draws follow the Gaussian law exactly (to float64 rounding) inside this radius."""

MAGNITUDE = math.sqrt(2 * (_ZERO_BITS + 1) * math.log(2))
"""No draw is ever larger than this in absolute value."""

SAMPLER_SHARE = 100
"""The sampler may cost at most one part in so many of delta."""

_BLOCK = 2**13
"""Pairs computed at once: what is in flight stays in a processor's cache."""

_TURN_BITS = 12
_TURN = np.exp(2j * np.pi * np.arange(2**_TURN_BITS) / 2**_TURN_BITS)
"""The unit circle, 4096 points."""


class GeneratorSource:
    """numpy generators for noise: each is used for one draw, or batch of answers, and forgotten.

    By default every generator has a key of 128 bits, made of 256 fresh ones of the operating
    system's entropy, and nothing that could reproduce the noise outlives it. With a seed the
    generators are reproducible, for tests and audits, and whatever uses them has no privacy (the
    certificate's status is `none`).

    The bit generator is Philox 4x64-10: a keyed bijection of a counter, built like a cipher, with
    no known way back from its outputs. numpy's default PCG64 has one (Bouillaguet, Martinez and
    Sauvage 2020), and the state of the faster SFC64 takes few steps to undo. None of numpy's is a
    cryptographic generator.
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
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(words, pool_size=8)))


def standard_normal(
    generator: np.random.Generator, shape: tuple[int, ...]
) -> Float64[np.ndarray, "..."]:
    """Independent standard normal draws in float64, with exact tails up to `RADIUS`.

    A Box-Muller pair never straddles two rows (of the last axis): one row is the noise of one
    release, and a contribution must not depend on half of a pair that protects it.

    Args:
        generator: an unused generator from a `GeneratorSource`.
        shape: shape of the result; rows of odd length waste half a pair each.
    """
    *rows, length = shape or (1,)
    each = (length + 1) // 2
    pairs = math.prod(rows) * each
    draws = np.empty((pairs, 2))
    for start in range(0, pairs, _BLOCK):
        block = draws[start : start + _BLOCK]
        words = generator.bit_generator.random_raw(4 * len(block))
        block[:] = box_muller(words.reshape(4, -1))
    whole: np.ndarray = draws.reshape(math.prod(rows), 2 * each)[:, :length].reshape(shape)
    return whole


def box_muller(bits: UInt64[np.ndarray, "4 pairs"]) -> Float64[np.ndarray, "pairs 2"]:
    """Pairs of independent standard normal numbers from uniform bits.

    Args:
        bits: rows 0 and 1 are coin tosses, whose leading zeros are counted; row 2 is the mantissa
            of the exponential variate and row 3 the angle.
    """
    high, low, mantissa, turn = bits
    # Uniform on [1/2, 1), every value exact in float64.
    half = (mantissa >> np.uint64(12)).astype(np.float64) * 2.0**-53 + 0.5
    radius = np.sqrt(-2 * np.log(half * _geometric(high, low)))
    # The angle is a point of the table plus the rest, below 2 pi / 4096, of which the series
    # leaves out less than 2^-62.
    coarse = _TURN.take((turn >> np.uint64(64 - _TURN_BITS)).astype(np.intp))
    rest = (turn >> np.uint64(11)) & np.uint64(2 ** (53 - _TURN_BITS) - 1)
    angle = rest.astype(np.float64) * (2.0**-53 * 2 * math.pi)
    square = angle * angle
    cosine = 1 - square * (1 / 2 - square / 24)
    sine = angle * (1 - square * (1 / 6 - square / 120))
    pairs = np.empty((len(high), 2))
    pairs[:, 0] = radius * (coarse.real * cosine - coarse.imag * sine)
    pairs[:, 1] = radius * (coarse.imag * cosine + coarse.real * sine)
    return pairs


def _geometric(
    high: UInt64[np.ndarray, " pairs"], low: UInt64[np.ndarray, " pairs"]
) -> Float64[np.ndarray, " pairs"]:
    """2^-k, where k is the number of leading zeros of the 128 bits."""
    # The exponent of the upper 53 bits, which are exact in float64, tells where the first one is.
    upper = (high >> np.uint64(11)).astype(np.float64)
    exponent = upper.view(np.int64) & np.int64(0x7FF0000000000000)
    powers: np.ndarray = exponent.view(np.float64) * 2.0**-52
    for rare in np.flatnonzero(upper == 0.0):
        word = (int(high[rare]) << 64) | int(low[rare])
        powers[rare] = 2.0 ** (word.bit_length() - 128)
    return powers


def sampler_delta(noise_multiplier: float, draws: int) -> float:
    """Delta that the finite range of the sampler adds, for one person over a whole stream.

    Let w be the draws in pairs, A the event that every pair lies within `RADIUS` = R, and D the
    shift of w that one person causes, of total norm at most 1/z on every path; the shift of a
    pair is fixed before the pair is drawn, since pairs lie within one release. On A, and where
    w + D is in A, the sampled law is the Gaussian one, which the accountant covers. What remains is
    P(w + D not in A) <= sum_j exp(-(R - |D_j|)^2 / 2), plus the mass outside A, 2^-128 a pair.
    As a function of t = |D_j|^2 the summand is below e^1.2 2^-128 for t <= (1.2/R)^2 and convex
    from there to (R - 1.1)^2, so the sum is largest with the whole shift on one pair.

    Returns:
        The bound; 1.0 where the shift reaches the edge of the range (noise_multiplier < ~0.082).
    """
    shift = 1.0 / noise_multiplier
    if shift >= RADIUS - 1.1:
        return 1.0
    small_shifts = (2 * draws + (shift * RADIUS) ** 2) * math.exp(1.2) * 2.0**-_ZERO_BITS
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
