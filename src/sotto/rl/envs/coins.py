"""Randomness of steps: `Environment.step` takes no key, so a state carries a word of coins."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

Coins = UInt32[Array, ""]
_BITS = 24


def toss(uniform: Float[Array, ""]) -> Coins:
    """Coins from a uniform in [0, 1) of the reset."""
    return _mixed((uniform * jnp.float32(2**_BITS)).astype(jnp.uint32))


def flip(coins: Coins) -> tuple[Coins, Float[Array, ""]]:
    """The coins afterwards, and a uniform in [0, 1) with 24 bits."""
    coins = _mixed(coins + jnp.uint32(0x9E3779B9))
    return coins, (coins >> (32 - _BITS)).astype(jnp.float32) * jnp.float32(2.0**-_BITS)


def _mixed(word: Coins) -> Coins:
    """A bijection of 32-bit words that scatters them (Wellons' lowbias32)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    mixed: Coins = jax.lax.bitwise_xor(word, word >> 16)
    return mixed
