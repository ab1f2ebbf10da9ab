"""Gaussian noise whose tails a certificate can rely on.

`jax.random.normal` in float32 never leaves [-5.42, 5.22]: an output outside the range that a
neighbouring input can reach is a certain give-away, and costs delta 1.2e-5 at noise multiplier 1
whatever the epsilon. The sampler here is Box-Muller in float64 on 256 random bits per pair. The
squared radius is an exponential variate put together from a geometric number of leading zero bits
(128 of them) and a 53-bit mantissa, so its law is the exponential law up to radius 13.3.
"""

import functools
import math
import os
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, PRNGKeyArray, UInt64

_ZERO_BITS = 128
RADIUS = math.sqrt(2 * _ZERO_BITS * math.log(2))
"""Pairs of draws follow the Gaussian law exactly (to float64 rounding) inside this radius."""

MAGNITUDE = math.sqrt(2 * (_ZERO_BITS + 1) * math.log(2))
"""No draw is ever larger than this in absolute value."""


class KeySource:
    """Keys for noise: each is used for one draw and forgotten.

    By default every key is 128 fresh bits of the operating system's entropy, and nothing that
    could reproduce the noise is ever kept. With a seed the keys are reproducible, for tests and
    audits, and whatever uses them has no privacy (the certificate's status is `none`). JAX's
    generator (Philox here) is not a cryptographic one.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._used = 0

    @property
    def entropy(self) -> Literal["operating-system", "fixed-seed"]:
        """Where the keys come from, as the statement of a stream records it."""
        return "operating-system" if self._seed is None else "fixed-seed"

    def next(self) -> PRNGKeyArray:
        """A key that was never given out before."""
        if self._seed is None:
            words: np.ndarray = np.frombuffer(os.urandom(16), dtype=np.uint32)
        else:
            # Hashed: Philox starts counting at the key, so keys that count up give equal draws.
            words = np.random.SeedSequence([self._seed, self._used]).generate_state(4)
        self._used += 1
        key: PRNGKeyArray = jax.random.wrap_key_data(jnp.asarray(words), impl="rbg")
        return key


class GeneratorSource:
    """numpy generators for noise that numpy draws (`mechanisms.policies`): a fresh one per answer.

    By default every generator is seeded with 256 fresh bits of the operating system's entropy, and
    nothing that could reproduce the noise outlives it. With a seed the generators are
    reproducible, for tests and audits, and whatever uses them has no privacy.

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
        """Where the generators come from, as the statement of a teacher records it."""
        return "operating-system" if self._seed is None else "fixed-seed"

    def next(self) -> np.random.Generator:
        """A generator that was never given out before; use it for one batch of answers."""
        words = [int.from_bytes(os.urandom(32))] if self._seed is None else [self._seed, self._used]
        self._used += 1
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(words, pool_size=8)))


def standard_normal(key: PRNGKeyArray, shape: tuple[int, ...]) -> Float64[Array, "..."]:
    """Independent standard normal draws in float64, with exact tails up to `RADIUS`.

    A Box-Muller pair never straddles two rows (of the last axis): one row is the noise of one
    release, and a contribution must not depend on half of a pair that protects it.

    Args:
        key: an unused key from a `KeySource`.
        shape: shape of the result; rows of odd length waste half a pair each.

    Returns:
        A float64 array, whether or not JAX's 64-bit mode is on.
    """
    *rows, length = shape or (1,)
    with jax.enable_x64(True):
        draws: Array = _draw(key, math.prod(rows), (length + 1) // 2)
        return draws[:, :length].reshape(shape)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _draw(key: PRNGKeyArray, rows: int, pairs: int) -> Float64[Array, "rows draws"]:
    return box_muller(jax.random.bits(key, (4, rows, pairs), dtype=jnp.uint64))


def box_muller(bits: UInt64[Array, "4 *rows pairs"]) -> Float64[Array, "*rows draws"]:
    """Pairs of independent standard normal numbers from uniform bits; needs 64-bit mode.

    Args:
        bits: rows 0 and 1 are coin tosses, whose leading zeros are counted; row 2 is the mantissa
            of the exponential variate and row 3 the angle.

    Returns:
        The cosine half of every row's pairs, then the sine half.
    """
    high, low, mantissa, turn = bits
    zeros = jnp.where(high == 0, 64 + jax.lax.clz(low), jax.lax.clz(high))
    # Uniform on [1/2, 1) and on [0, 1), every value exact in float64.
    half = (mantissa >> 12).astype(jnp.float64) * 2.0**-53 + 0.5
    angle = (turn >> 11).astype(jnp.float64) * (2.0**-53 * 2 * math.pi)
    radius = jnp.sqrt(2 * (zeros.astype(jnp.float64) * math.log(2) - jnp.log(half)))
    return jnp.concatenate([radius * jnp.cos(angle), radius * jnp.sin(angle)], axis=-1)


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
