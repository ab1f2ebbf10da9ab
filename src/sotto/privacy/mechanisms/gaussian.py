"""The Gaussian mechanism on sums, in fixed point.

What one person contributes is clipped and rounded towards zero onto a public grid, so its norm
never exceeds the clip norm; sums over people are sums of integers, exact in any order; and the
noise is rounded to the same grid before it is added. The released numbers are therefore integers
on a grid that does not depend on data, and carry nothing in their low-order bits.

Guarantee:
    For integers x the sum x + round(noise) equals round(x + noise): post-processing of the
    Gaussian mechanism; `noise.rounded_normal` draws round(noise). The L2 sensitivity of the sum
    under zero-out adjacency is at most the clip norm: `norm_margin` covers every float32 rounding
    before the grid, and rounding towards zero never increases a norm.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, PyTree

_LIMIT = 2**30
"""Sum and noise each stay below this, so that int32 never overflows."""


def grid_size(clip_norm: float, contributors: int, largest_noise: float) -> float:
    """Spacing of the public grid: a power of two with room for the sum and the noise in int32.

    Args:
        clip_norm: bound on one contribution.
        contributors: most people who can take part in one release.
        largest_noise: bound on the absolute value of the noise.
    """
    return 2.0 ** math.ceil(math.log2(max(contributors * clip_norm, largest_noise) / _LIMIT))


def norm_margin(dimension: int) -> float:
    """Relative error bound on a clipped float32 vector of this size, for any order of summation.

    A sum of d squares is off by at most a factor 1 +- d u with u = 2^-24, whatever order the
    compiler chooses (Higham 2002, section 4.2), its root by half as much; the other roundings of
    clipping and scaling are within 16 u.

    Raises:
        ValueError: the vector is so long that float32 says too little about its norm.
    """
    margin = (dimension / 2 + 16) * 2.0**-24
    if margin > 0.25:
        raise ValueError(
            f"a contribution of {dimension} numbers is too long to clip in float32; release it in "
            "several parts"
        )
    return margin


def _flatten(part: PyTree[Float[Array, "..."]]) -> Float[Array, " d"]:
    leaves = [jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(part)]
    return jnp.concatenate(leaves)


def _finite_or_zero(vector: Float[Array, " d"]) -> Float[Array, " d"]:
    return jnp.where(jnp.all(jnp.isfinite(vector)), vector, 0.0)


def bound_contribution(
    parts: dict[str, PyTree[Float[Array, "..."]]],
    clip_norms: dict[str, float],
    clipping: str,
) -> dict[str, Float[Array, " _"]]:
    """Clips one person's parts; the result is in units of the clip norm of each part.

    A part with anything not finite in it becomes zero, and so does one of which the squared norm is
    too large for float32. With `clipping="joint"` the norm of all parts together is at most 1, with
    `"separate"` the norm of each.

    Args:
        parts: named pytrees of one person's contribution.
        clip_norms: the clip norm of each part.
        clipping: "separate" or "joint".

    Returns:
        The parts as flat float32 vectors of norm at most 1.
    """
    scaled = {
        name: _finite_or_zero(_finite_or_zero(_flatten(parts[name])) / clip_norms[name])
        for name in clip_norms
    }
    squared = {name: jnp.sum(jnp.square(vector)) for name, vector in scaled.items()}
    dimension = sum(vector.size for vector in scaled.values())
    together = sum(squared.values(), jnp.float32(0.0))
    return {
        name: vector
        * clip_scale(together if clipping == "joint" else squared[name], norm_margin(dimension))
        for name, vector in scaled.items()
    }


def clip_scale(squared: Float[Array, ""], margin: float) -> Float[Array, ""]:
    """Factor that brings a vector of this squared norm to norm at most 1, rounding included."""
    return (1.0 - margin) / jnp.sqrt(jnp.maximum(squared, 1.0))


def to_grid(
    scaled: Float[Array, "*batch d"], clip_norm: float, grid: float
) -> Int32[Array, "*batch d"]:
    """Rounds towards zero onto the grid: the norm never grows."""
    return jnp.trunc(scaled * (clip_norm / grid)).astype(jnp.int32)


def from_grid(total: Int32[Array, "..."], grid: float, divisor: float) -> Float[Array, "..."]:
    """The released average in float32: post-processing."""
    return total.astype(jnp.float32) * (grid / divisor)


def masked_sum(values: Int32[Array, "k d"], present: Bool[Array, " k"]) -> Int32[Array, " d"]:
    """Exact sum over the people who are present; an absent one keeps a zero slot."""
    return jnp.sum(jnp.where(present[:, None], values, 0), axis=0)
