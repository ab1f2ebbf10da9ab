"""Parts that are outer products: exact per-person clipping without storing anybody's matrix.

The gradient of a dense layer for one example is the outer product of what goes into the layer and
of what comes back out of it. A leaf of a contribution may therefore be `Factored(left, right)`,
which stands for the matrix left[i] right[j]. Its norm is |left| |right|, so contributions are
clipped by their factors, and the sum over people is one matrix product. This holds for any two
vectors that `local` returns, gradient or not.

Guarantee:
    Norms are computed in float32 with the margin of `mechanisms.gaussian.norm_margin`, so one
    person's clipped matrices and other leaves are together no longer than the clip norm. The sum
    over a batch is a float32 matrix product, which is not exact: `sum_rounding` bounds, for every
    order of summation and all data, how much further than the clip norm two neighbouring sums can
    be apart, and the noise is that much larger. Everything after the batch is exact in integers.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, PyTree

from sotto.privacy.mechanisms import gaussian

_LONGEST = 2.0**60
"""Squared norm of a factor above which its part counts as not finite."""

_SHORTEST = 2.0**-60
"""Squared norm of a factor below which its leaf counts as zero, since squares would underflow."""

_ROUNDOFF = 2.0**-24

LARGEST_ROUNDING = 0.05
"""Largest relative growth of the sensitivity; smaller batches need less noise."""


class Factored(NamedTuple):
    """A matrix of rank one, left[i] right[j]; released as a matrix.

    Attributes:
        left: shape [..., rows]; leading axes are people.
        right: shape [..., columns].
    """

    left: Float[Array, "..."]
    right: Float[Array, "..."]


def is_factored(leaf: Any) -> bool:
    """Whether this is a `Factored`, for `jax.tree` functions."""
    return isinstance(leaf, Factored)


def plain(part: PyTree[Any]) -> tuple[Any, ...]:
    """Returns the arrays and factored matrices of a part, without the part's own classes."""
    leaves = jax.tree.leaves(part, is_leaf=is_factored)
    return tuple(Factored(*leaf) if is_factored(leaf) else leaf for leaf in leaves)


def has_factored(parts: PyTree[Any]) -> bool:
    """Whether any leaf is `Factored`."""
    return any(map(is_factored, jax.tree.leaves(parts, is_leaf=is_factored)))


def released_shapes(parts: PyTree[Any]) -> PyTree[jax.ShapeDtypeStruct]:
    """Returns the shapes, in float32, of a release of contributions of these shapes.

    Raises:
        ValueError: a factor is not a vector.
    """

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        if not is_factored(leaf):
            return jax.ShapeDtypeStruct(leaf.shape, jnp.float32)
        if leaf.left.ndim != 1 or leaf.right.ndim != 1:
            raise ValueError(
                f"the factors of a part must be vectors, not of shapes {leaf.left.shape} and "
                f"{leaf.right.shape}; one person contributes one outer product"
            )
        return jax.ShapeDtypeStruct((leaf.left.size, leaf.right.size), jnp.float32)

    return jax.tree.map(shape, parts, is_leaf=is_factored)


def sum_rounding(
    batches: Sequence[int],
    dimensions: dict[str, int],
    spacings: dict[str, float],
    clip_norms: dict[str, float],
) -> float:
    """Returns the relative growth of the sensitivity by rounding in float32 sums.

    Let u = 2^-24. An entry of the product over b people differs from the exact one by at most
    b u / (1 - b u) times the sum of the absolute values of its terms. This holds in any order, with
    or without fused operations (Higham 2002, section 3.1). The error of the matrix is at most the
    same factor times b, the sum of the b people's norms. Rounding to the grid moves each entry by
    half a spacing in each world. A person is in one batch, and the others are the same in both
    worlds. Where people are drawn, all batches may differ: whether a person is drawn moves those
    behind to other places. The factor 1.001 covers underflow and products of these small numbers.

    Args:
        batches: most people in each matrix product whose value a person may change.
        dimensions: how many numbers each part releases.
        spacings, clip_norms: of each part and its grid.

    Raises:
        ValueError: the bound is above 5 per cent.
    """
    product = sum(2 * b * b * _ROUNDOFF / (1 - min(0.5, b * _ROUNDOFF)) for b in batches)
    grid = len(batches) * math.sqrt(
        sum(d * (spacings[n] / clip_norms[n]) ** 2 for n, d in dimensions.items())
    )
    bound = 1.001 * (product + grid)
    if bound > LARGEST_ROUNDING:
        room = LARGEST_ROUNDING / 4 / _ROUNDOFF  # of the product, for half of the bound
        most = math.isqrt(int(room)) if len(batches) == 1 else max(1, int(room / sum(batches)))
        mend = f"use a microbatch of at most {most} people (and fewer slots if that is not enough)"
        if grid > product:
            mend = f"{len(batches)} batches are each rounded to the grid; use a larger microbatch"
        raise ValueError(
            f"rounding in float32 sums over {sum(batches)} people needs {100 * bound:.0f}% more "
            f"noise; {mend}"
        )
    return bound


def bound_contribution(
    parts: dict[str, PyTree[Array | Factored]], clip_norms: dict[str, float], clipping: str
) -> dict[str, PyTree[Array | Factored]]:
    """Clips one person's parts; the result is in units of the clip norm of each part.

    A part with anything not finite in it becomes zero, and so does one with a factor of norm above
    2^30 or another leaf that long; a leaf with a factor of norm below 2^-30 becomes zero.

    Args:
        parts: named pytrees of one person's contribution.
        clip_norms: the clip norm of each part.
        clipping: "separate" or "joint", as for parts without factors.

    Returns:
        The same structure; the clip is in the left factor.
    """
    if not all(_SHORTEST <= clip**2 <= _LONGEST for clip in clip_norms.values()):
        raise ValueError("clip norms of factored parts must be between 2^-30 and 2^30")
    measured = {name: _measured(parts[name]) for name in clip_norms}
    squared = {name: measured[name].squared / clip**2 for name, clip in clip_norms.items()}
    vectors = [vector for name in clip_norms for vector in jax.tree.leaves(parts[name])]
    # A leaf's product and its place in the sum add a few roundings to those of its squares.
    margin = gaussian.norm_margin(sum(vector.size for vector in vectors) + 8 * len(vectors) + 16)
    together = sum(squared.values(), jnp.float32(0.0))
    return {
        name: measured[name].scaled_by(
            gaussian.clip_scale(together if clipping == "joint" else squared[name], margin) / clip
        )
        for name, clip in clip_norms.items()
    }


def sum_batch(
    bounded: PyTree[Array | Factored],
    clip_norm: float,
    spacing: float,
    present: Bool[Array, " people"],
) -> PyTree[Int32[Array, "1 ..."]]:
    """Returns the sum over a batch, as a word of integers on the grid; who is absent adds zero.

    Args:
        bounded: one part of `bound_contribution`, leaves with a leading axis of people.
        clip_norm: of the part.
        spacing: of the part's grid.
        present: who is there.
    """

    def total(leaf: Any) -> Int32[Array, "1 ..."]:
        if not is_factored(leaf):
            flat = leaf.reshape(present.size, -1)
            whole = gaussian.masked_sum(gaussian.to_grid(flat, clip_norm, spacing), present)
            return whole.reshape(1, *leaf.shape[1:])
        left = jnp.where(present[:, None], leaf.left * (clip_norm / spacing), 0.0)
        product = jax.lax.dot_general(
            left, leaf.right, (((0,), (0,)), ((), ())), precision=jax.lax.Precision.HIGHEST
        )
        return jnp.rint(product).astype(jnp.int32)[None]

    return jax.tree.map(total, bounded, is_leaf=is_factored)


class _Measured(NamedTuple):
    """Returns a part, with zeros for everything that counts as zero, and its squared norm."""

    part: PyTree[Array | Factored]
    squared: Float[Array, ""]

    def scaled_by(self, factor: Float[Array, ""]) -> PyTree[Array | Factored]:
        def one(leaf: Any) -> Any:
            if is_factored(leaf):
                return Factored(leaf.left * factor, leaf.right)
            return leaf * factor

        return jax.tree.map(one, self.part, is_leaf=is_factored)


def _measured(part: PyTree[Array | Factored]) -> _Measured:
    leaves, structure = jax.tree.flatten(part, is_leaf=is_factored)
    vectors = [
        tuple(v.astype(jnp.float32) for v in (leaf if is_factored(leaf) else (leaf,)))
        for leaf in leaves
    ]
    squares = [tuple(map(_square, some)) for some in vectors]
    # NaN compares as false, and so becomes zero; an infinity is too long.
    usable = jnp.all(jnp.stack([one <= _LONGEST for some in squares for one in some]))
    kept: list[Any] = []
    total = jnp.float32(0.0)
    for some, square in zip(vectors, squares, strict=True):
        here, length = usable, square[0]
        if len(some) == 2:
            here = usable & (square[0] >= _SHORTEST) & (square[1] >= _SHORTEST)
            length = square[0] * square[1]
        whole = [jnp.where(here, vector, 0.0) for vector in some]
        total += jnp.where(here, length, 0.0)
        kept.append(Factored(*whole) if len(some) == 2 else whole[0])
    return _Measured(jax.tree.unflatten(structure, kept), total)


def _square(vector: Float[Array, "..."]) -> Float[Array, ""]:
    return jnp.sum(jnp.square(vector))
