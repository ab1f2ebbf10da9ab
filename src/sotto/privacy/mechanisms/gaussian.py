"""The Gaussian mechanism on sums, in fixed point.

One person's contribution is clipped and rounded towards zero onto a public grid, so its norm never
exceeds the clip norm. Sums over people are sums of integers, exact in any order. The noise is
rounded to the same grid before it is added. So the released numbers are integers on a grid that
does not depend on data, and their low-order bits tell nothing.

Guarantee:
    The unit is a person. Contributions are inputs of the compiled program, or pass `materialised`.
    The L2 sensitivity of the sum is at most the clip norm under zero-out adjacency, and twice that
    under replace-one. `norm_margin` covers every float32 rounding before the grid, and rounding
    towards zero never increases a norm. For integers x the sum x + round(noise) equals
    round(x + noise), which is post-processing of the Gaussian mechanism; `noise.rounded_normal`
    draws round(noise). The proof is Theorem 1 of docs/privacy.md, section 2.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int32, PyTree, Shaped

_LIMIT = 2**30
"""Bound on each word of a sum, and on the noise, so that int32 never overflows."""
_FEW = 2**14
"""Most people whose sum is one word: each has an integer of 15 bits or more."""
_TOGETHER = 2**6
"""People of many who are summed in one word: each has an integer of 23 bits or more."""
_LONGEST = 2**23 - 32
"""Most numbers of one contribution, so that float32 bounds its norm within a third."""
_LONG = 2**14
"""Numbers of one contribution from which a CPU adds people up one after the other."""


class Grid(NamedTuple):
    """The public grid of one part.

    With many people a sum that fits in one int32 needs a coarse grid, on which each contribution
    loses much. So few people are summed in one int32, and the bits of such sums are divided among
    several words that are summed apart.
    """

    spacing: float
    """Distance between neighbouring numbers, a power of two."""

    words: int = 1
    """Number of words of a sum, the highest first."""

    bits: int = 0
    """Number of bits in each word but the first, which has the rest and the sign."""


def grid_of(clip_norm: float, contributors: int, largest_noise: float) -> Grid:
    """Returns a part's public grid, on which sum and noise fit in int32.

    Sums over few people are at most 2^30, and are divided into k words of b bits, k b > 30. Of n
    people there are at most n such sums, and n 2^b <= 2^30. So in each word but the first they add
    up to less than 2^30. In the first each is at most 2^(b - 1), also rounded down, and they add up
    to at most 2^29.

    Args:
        clip_norm: bound on one contribution.
        contributors: largest number of people who can take part in one release.
        largest_noise: bound on the absolute value of the noise.
    """
    one_word = grid_size(clip_norm, contributors, largest_noise)
    bits = 30 - (contributors - 1).bit_length()
    if contributors <= _FEW or bits < 1:
        return Grid(one_word)
    spacing = grid_size(clip_norm, _TOGETHER, largest_noise)
    return Grid(spacing, math.ceil(31 / bits), bits) if spacing < one_word else Grid(one_word)


def grid_size(clip_norm: float, contributors: int, largest_noise: float) -> float:
    """Returns the spacing, a power of two, on which sum and noise fit in one int32 each.

    Args:
        clip_norm: bound on one contribution.
        contributors: largest number of people who can take part in one release.
        largest_noise: bound on the absolute value of the noise.
    """
    return 2.0 ** math.ceil(math.log2(max(contributors * clip_norm, largest_noise) / _LIMIT))


def norm_margin(dimension: int) -> float:
    """Returns a relative error bound on the norm of a clipped float32 vector of this size.

    It holds for any order of summation that the compiler chooses. A sum of d squares is at least
    1 - (d + 1) u of the exact one, with u = 2^-24 (Jeannerod and Rump 2013: d - 1 additions cost at
    most (d - 1) u in any order; the squares cost u more). The other roundings of clipping and
    scaling are within 16 u.

    Raises:
        ValueError: the vector is too long for float32 to bound its norm.
    """
    if dimension > _LONGEST:
        raise ValueError(
            f"a contribution of {dimension} numbers is too long to clip in float32; release it in "
            "several parts"
        )
    unit = 2.0**-24
    return 1 - math.sqrt(1 - (dimension + 1) * unit) + 16 * unit


def materialised(
    parts: PyTree[Shaped[Array, "people ..."]], present: Bool[Array, " people"]
) -> PyTree[Float[Array, "people ..."]]:
    """Returns contributions in float32, each number computed once and kept in memory.

    The bound on a norm holds for the numbers that are summed only if the norm is that of the same
    numbers. XLA may compute cheap operations anew for each of their uses, and a product that is
    added may be rounded once in one copy and twice in the other. Where a sum cancels, the two
    copies differ by any amount. A loop keeps in memory what it carries, so both uses read it there.
    XLA does not know that this loop makes no turn, and so cannot leave it out.

    Args:
        parts: contributions, leaves with a leading axis of people.
        present: who is there; an argument of the compiled program.
    """
    words = jax.tree.map(
        lambda x: jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32), parts
    )
    turns = jax.lax.div(jnp.sum(present, dtype=jnp.int32), jnp.int32(present.size + 1))

    def turn(carry: tuple[Array, Any]) -> tuple[Array, Any]:
        made, words = carry
        return made + 1, jax.tree.map(lambda x: x + 1, words)

    _, words = jax.lax.while_loop(lambda carry: carry[0] < turns, turn, (jnp.int32(0), words))
    return jax.tree.map(lambda x: jax.lax.bitcast_convert_type(x, jnp.float32), words)


def _flatten(part: PyTree[Float[Array, "..."]]) -> Float[Array, " d"]:
    leaves = [jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(part)]
    return jnp.concatenate(leaves)


def bound_contribution(
    parts: dict[str, PyTree[Float[Array, "..."]]],
    clip_norms: dict[str, float],
    clipping: str,
) -> dict[str, Float[Array, " _"]]:
    """Clips one person's parts; the result is in units of the clip norm of each part.

    A part with an entry that is not finite becomes zero, and so does a part whose squared norm is
    too large for float32. With `clipping="joint"` all parts together have norm at most 1. With
    `"separate"` each part has.

    Args:
        parts: named pytrees of one person's contribution.
        clip_norms: the clip norm of each part.
        clipping: "separate" or "joint".

    Returns:
        The parts as flat float32 vectors of norm at most 1.
    """
    scaled = {name: _flatten(parts[name]) / clip_norms[name] for name in clip_norms}
    squared = {name: jnp.sum(jnp.square(vector)) for name, vector in scaled.items()}
    # The sum of squares is finite only if every entry is.
    usable = {name: jnp.isfinite(square) for name, square in squared.items()}
    lengths = {name: jnp.where(usable[name], squared[name], 0.0) for name in squared}
    dimension = sum(vector.size for vector in scaled.values())
    together = sum(lengths.values(), jnp.float32(0.0))
    return {
        name: jnp.where(usable[name], vector, 0.0)
        * clip_scale(together if clipping == "joint" else lengths[name], norm_margin(dimension))
        for name, vector in scaled.items()
    }


def clip_scale(squared: Float[Array, ""], margin: float) -> Float[Array, ""]:
    """Returns the factor that brings a vector of this squared norm to norm at most 1 in float32."""
    return (1.0 - margin) / jnp.sqrt(jnp.maximum(squared, 1.0))


def to_grid(
    scaled: Float[Array, "*batch d"], clip_norm: float, spacing: float
) -> Int32[Array, "*batch d"]:
    """Rounds towards zero onto a grid, which never increases the norm."""
    return jnp.trunc(scaled * (clip_norm / spacing)).astype(jnp.int32)


def from_grid(total: Int32[Array, "..."], spacing: float, divisor: float) -> Float[Array, "..."]:
    """Returns the released average in float32, which is post-processing."""
    return total.astype(jnp.float32) * (spacing / divisor)


def words_of(whole: Int32[Array, "..."], grid: Grid) -> Int32[Array, "words ..."]:
    """Returns integers as words, the highest first, that can be summed one by one."""
    lower = [
        (whole >> place * grid.bits) & (2**grid.bits - 1) for place in range(grid.words - 2, -1, -1)
    ]
    return jnp.stack([whole >> (grid.words - 1) * grid.bits, *lower])


def noisy(
    total: Int32[Array, "words ..."], noises: Int32[Array, "..."], grid: Grid, divisor: float
) -> Float[Array, "..."]:
    """Adds noise to a sum, and returns the released average in float32.

    Noise is added to the lowest word, and what exceeds a word's bits is carried to the next. So all
    words depend on the sum with its noise alone, and all after this is post-processing.

    Args:
        total: words of the sum.
        noises: integers on the grid.
        grid: of the part.
        divisor: of the average.
    """
    spacing, carried = grid.spacing, noises
    released: Array = jnp.float32(0.0)
    for word in total[:0:-1]:
        with_carry = word + carried
        rest = with_carry & (2**grid.bits - 1)
        upper_half = rest >> grid.bits - 1  # becomes negative: no large numbers that cancel
        rest, carried = rest - (upper_half << grid.bits), (with_carry >> grid.bits) + upper_half
        released += from_grid(rest, spacing, divisor)
        spacing *= 2.0**grid.bits
    return released + from_grid(total[0] + carried, spacing, divisor)


def unrounded(
    released: Float[np.ndarray, "..."], grid: Grid, divisor: float
) -> tuple[Float64[np.ndarray, "..."], Float64[np.ndarray, "..."]]:
    """Returns the sums, with noise, behind released averages, and a bound on each one's error.

    Let x be a released number in units of the factor spacing / divisor, which is itself rounded and
    therefore divided out, and let u = 2^-24. One word is rounded twice: as an integer, and in its
    product with the factor. Several words are at most 2^23 + 2^14 + 1 each, so only their products
    and their partial sums are rounded. Let the highest word count U. The lower ones add up to at
    most U, and their partial sums to at most 2 U. So the error is at most u (2 |x| + 4 U), and a
    thousandth more for terms of second order.

    Args:
        released: what `noisy` returned.
        grid: of the part.
        divisor: of the average.
    """
    factor = float(np.float32(grid.spacing / divisor))
    whole = np.asarray(released, np.float64) / factor
    errors = 1.001 * 2.0**-24 * (2 * np.abs(whole) + 4 * 2.0 ** (grid.bits * (grid.words - 1)))
    return whole * grid.spacing, errors * grid.spacing


def masked_sum(values: Int32[Array, "k d"], present: Bool[Array, " k"]) -> Int32[Array, " d"]:
    """Returns the exact sum over the people who are present; an absent person counts as zero."""
    return jnp.sum(jnp.where(present[:, None], values, 0), axis=0)


def sum_people(
    parts: dict[str, PyTree[Float[Array, "people ..."]]],
    clip_norms: dict[str, float],
    clipping: str,
    grids: dict[str, Grid],
    present: Bool[Array, " people"],
) -> dict[str, Int32[Array, "words _"]]:
    """Returns the sums of everybody's clipped contributions, as words of integers on the grids.

    Of many people, 64 at a time are summed in one word, and only these sums are divided.

    Args:
        parts: named pytrees of contributions, leaves with a leading axis of people.
        clip_norms: the clip norm of each part.
        clipping: "separate" or "joint".
        grids: of each part.
        present: who is there; an absent person counts as zero.
    """
    spacings = {name: grid.spacing for name, grid in grids.items()}

    def sums(start: Any, size: int) -> dict[str, Array]:
        take = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=size)
        own, here = jax.tree.map(take, (parts, present))
        few = _sum_few(own, clip_norms, clipping, spacings, here)
        return {name: words_of(x, grids[name]) for name, x in few.items()}

    def add(block: Any, totals: dict[str, Array]) -> dict[str, Array]:
        more = sums(first + block * _TOGETHER, _TOGETHER)
        return {name: totals[name] + more[name] for name in totals}

    people = present.size
    if people <= _TOGETHER or all(grid.words == 1 for grid in grids.values()):
        return sums(0, people)
    first = people % _TOGETHER or _TOGETHER
    blocks = (people - first) // _TOGETHER
    totals: dict[str, Array] = jax.lax.fori_loop(0, blocks, add, sums(0, first))
    return totals


def _sum_few(
    parts: dict[str, PyTree[Float[Array, "people ..."]]],
    clip_norms: dict[str, float],
    clipping: str,
    spacings: dict[str, float],
    present: Bool[Array, " people"],
) -> dict[str, Int32[Array, " _"]]:
    """Returns the sums of people's clipped contributions where they fit in one word.

    A CPU takes long contributions one after the other, so that one person's stay in its cache. In
    one thread this was up to 19 times as fast as a sum over the first axis of a matrix. Norms may
    round differently in the two ways; `norm_margin` covers both, and both sums are exact.
    """

    def whole(one: dict[str, Any]) -> dict[str, Array]:
        bounded = bound_contribution(one, clip_norms, clipping)
        return {
            name: to_grid(bounded[name], clip, spacings[name]) for name, clip in clip_norms.items()
        }

    def add(totals: dict[str, Array], row: tuple[dict[str, Any], Array]) -> tuple[Any, None]:
        one, here = row
        return {n: totals[n] + jnp.where(here, x, 0) for n, x in whole(one).items()}, None

    sizes = {
        name: sum(leaf.size for leaf in jax.tree.leaves(parts[name])) // present.size
        for name in clip_norms
    }
    if jax.default_backend() == "cpu" and sum(sizes.values()) >= _LONG:
        start = {name: jnp.zeros(size, jnp.int32) for name, size in sizes.items()}
        return jax.lax.scan(add, start, (parts, present))[0]
    return {name: masked_sum(x, present) for name, x in jax.vmap(whole)(parts).items()}
