"""Factored parts at their limits: lengths that count as zero, clip norms, and margins."""

import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.privacy.release import factored
from sotto.privacy.release.factored import Factored

LONGEST, SHORTEST = 2.0**30, 2.0**-30


def clipped(part: Any, clip: float = 1.0) -> Any:
    """One person's part, as vectors that are as long as they were, or shorter."""
    bound = factored.bound_contribution({"u": part}, {"u": clip}, "separate")["u"]
    return jax.tree.map(lambda x: np.asarray(x, np.float64), bound)


def vector(*numbers: float) -> jax.Array:
    return jnp.array(numbers, jnp.float32)


@pytest.mark.parametrize(("longer", "kept"), [(1.0, True), (1 + 2**-22, False)])
def test_a_vector_of_length_two_to_the_thirty_counts_and_a_longer_one_does_not(
    longer: float, kept: bool
) -> None:
    for left, right in ((LONGEST * longer, 2.0**-29), (2.0**-29, LONGEST * longer)):
        outer = np.outer(*clipped(Factored(vector(left, 0.0), vector(0.0, right))))
        assert outer[0, 1] == pytest.approx(1.0 if kept else 0.0, rel=1e-5)
    found = clipped(vector(0.0, LONGEST * longer))
    assert found[1] == pytest.approx(1.0 if kept else 0.0, rel=1e-5)


@pytest.mark.parametrize(("shorter", "kept"), [(1.0, True), (1 - 2**-22, False)])
def test_a_factor_of_length_two_to_the_minus_thirty_counts_and_a_shorter_one_does_not(
    shorter: float, kept: bool
) -> None:
    for left, right in ((SHORTEST * shorter, 2.0**29), (2.0**29, SHORTEST * shorter)):
        outer = np.outer(*clipped(Factored(vector(left, 0.0), vector(0.0, right))))
        assert outer[0, 1] == pytest.approx(0.5 if kept else 0.0, rel=1e-5)
    found = clipped(vector(SHORTEST * shorter / 4, 0.0))  # the square of this one is not needed
    assert found[0] == pytest.approx(SHORTEST * shorter / 4, rel=1e-5)


def test_what_counts_as_zero_takes_no_room_from_the_rest() -> None:
    """Under a clip norm of 1/2 a leaf that still counted as 1 would shorten the others."""
    found = clipped({"a": Factored(vector(1e-12), vector(1.0)), "b": vector(0.3)}, clip=0.5)
    assert found["b"][0] == pytest.approx(0.6, rel=1e-5)  # in units of the clip norm
    assert not np.outer(*found["a"]).any()


@pytest.mark.parametrize(
    ("clips", "allowed"),
    [
        ({"u": SHORTEST, "v": LONGEST}, True),
        ({"u": SHORTEST * 0.99, "v": 1.0}, False),
        ({"u": 1.0, "v": LONGEST * 1.01}, False),
    ],
)
def test_clip_norms_outside_the_limits_are_refused(clips: dict[str, float], allowed: bool) -> None:
    parts = {name: Factored(vector(1.0), vector(1.0)) for name in clips}
    if allowed:
        factored.bound_contribution(parts, clips, "separate")
        return
    with pytest.raises(ValueError, match=r"between 2\^-30 and 2\^30"):
        factored.bound_contribution(parts, clips, "separate")


@pytest.mark.parametrize("whole", [0, 1])
def test_the_margin_counts_every_number_and_the_roundings_of_every_vector(whole: int) -> None:
    """8 for each vector and 16 more: beyond 2^23 - 32 float32 cannot bound the norm."""

    def contribution(size: int) -> Any:
        leaves: Any = [Factored(jnp.zeros(size), jnp.zeros(5))] + [jnp.zeros(7)] * whole
        return factored.bound_contribution({"u": leaves}, {"u": 1.0}, "joint")

    others = 5 + 7 * whole + 8 * (2 + whole) + 16
    largest = 2**23 - 32 - others
    jax.eval_shape(lambda: contribution(largest))
    with pytest.raises(ValueError, match="too long to clip in float32"):
        jax.eval_shape(lambda: contribution(largest + 1))


@pytest.mark.parametrize("batch", [1, 50, 400])
def test_the_bound_on_rounded_sums_is_that_of_its_proof(batch: int) -> None:
    """2 b times b u / (1 - b u) for the product, and half a spacing in each of two worlds."""
    unit = Fraction(1, 2**24)
    product = 2 * batch * (batch * unit / (1 - batch * unit))
    grid = math.sqrt(9 * (2.0**-13 / 0.5) ** 2 + 16 * (2.0**-12 / 2.0) ** 2)
    found = factored.sum_rounding(
        [batch], {"a": 9, "b": 16}, {"a": 2.0**-13, "b": 2.0**-12}, {"a": 0.5, "b": 2.0}
    )
    assert found == pytest.approx(1.001 * (float(product) + grid), rel=1e-12)


@pytest.mark.parametrize("batch", [2**23, 2**24, 2**24 + 1, 2**30])
def test_a_batch_beyond_all_bounds_is_refused_in_words(batch: int) -> None:
    with pytest.raises(ValueError, match="use a microbatch of at most 457"):
        factored.sum_rounding([batch], {"u": 1}, {"u": 1e-9}, {"u": 1.0})


@pytest.mark.parametrize(("left", "right"), [((2, 3), (3,)), ((2,), (3, 4)), ((), (3,))])
def test_a_factor_that_is_no_vector_is_refused(left: Any, right: Any) -> None:
    with pytest.raises(ValueError, match="must be vectors"):
        factored.released_shapes({"u": Factored(jnp.zeros(left), jnp.zeros(right))})


def test_shapes_of_a_release_are_those_of_matrices() -> None:
    part = {"weights": Factored(jnp.zeros(4), jnp.zeros(3)), "bias": jnp.zeros(3, jnp.int32)}
    shapes = factored.released_shapes({"u": part})["u"]
    assert (shapes["weights"].shape, shapes["weights"].dtype) == ((4, 3), jnp.float32)
    assert (shapes["bias"].shape, shapes["bias"].dtype) == ((3,), jnp.float32)
    assert factored.has_factored({"u": part})
    assert not factored.has_factored({"u": part["bias"]})
