"""The Gaussian mechanism in fixed point: no contribution is ever longer than the clip norm.

The checker is exact: it adds up squares of integers and compares fractions. Other tests show that
it catches wrong clipping.
"""

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jaxtyping import Array

from sotto.privacy.mechanisms import gaussian
from sotto.privacy.mechanisms.noise import MAGNITUDE

DIMENSIONS = [1, 2, 3, 16, 17, 1000, 5000]
CLIP_NORMS = [1.0, 0.1, 3e-5, 700.0]

Clip = Callable[[dict[str, Array], dict[str, float], str], dict[str, Array]]


def on_grid(
    vectors: dict[str, np.ndarray],
    clip_norms: dict[str, float],
    grids: dict[str, float],
    clipping: str = "separate",
    clip: Clip = gaussian.bound_contribution,
) -> dict[str, np.ndarray]:
    """Returns what a release makes of a batch of people: integers of shape [people, d]."""

    @jax.jit
    def program(batch: dict[str, Array]) -> dict[str, Array]:
        bounded = jax.vmap(lambda parts: clip(parts, clip_norms, clipping))(batch)
        return {
            name: gaussian.to_grid(bounded[name], clip_norms[name], grids[name]) for name in bounded
        }

    return {name: np.asarray(x) for name, x in program(vectors).items()}


def worst_excess(
    integers: dict[str, np.ndarray],
    clip_norms: dict[str, float],
    grids: dict[str, float],
    clipping: str = "separate",
) -> Fraction:
    """Returns the exact largest (norm / clip norm)^2 of all people."""
    people = len(next(iter(integers.values())))
    squares = {
        name: [
            sum(int(x) ** 2 for x in row)
            * (Fraction(grids[name]) / Fraction(clip_norms[name])) ** 2
            for row in rows
        ]
        for name, rows in integers.items()
    }
    if clipping == "joint":
        return max(sum(squares[name][i] for name in squares) for i in range(people))
    return max(max(rows) for rows in squares.values())


def finest_grid(clip_norm: float) -> float:
    """Returns the grid for one contributor and little noise, where rounding down helps least."""
    return gaussian.grid_size(clip_norm, 1, 0.0)


def adversarial(dimension: int, clip_norm: float) -> np.ndarray:
    """Returns contributions that try to be longer than the clip norm, [people, dimension]."""
    rng = np.random.default_rng(dimension)
    direction = rng.standard_normal(dimension)
    direction /= np.linalg.norm(direction)
    one_hot = np.eye(1, dimension)[0]
    flat = np.full(dimension, 1 / math.sqrt(dimension))
    steps = np.geomspace(1.0, 1e-6, dimension)
    # A sum one after the other in float32 loses every square except the first.
    swallowed = np.where(np.arange(dimension) == 0, 1.0, 2.0**-12.5)
    rows = [
        scale * shape
        for shape in (direction, one_hot, flat, -flat, steps, swallowed)
        for scale in clip_norm
        * np.array([1.0, 1 - 6e-8, 1 + 1.2e-7, 1 - 3e-7, 2.0, 1e3, 0.5, 1e-30, 1e19, 1e25])
    ]
    rows += [np.full(dimension, x) for x in (0.0, -0.0, 1e38, -3.4e38, 1e-45, 1.2e-38, 1e19)]
    rows += list(clip_norm * rng.standard_normal((10, dimension)))
    # Just above the clip norm, where scaling would not hide an error of the norm.
    near = rng.standard_normal((30, dimension))
    rows += list(clip_norm * near / np.linalg.norm(near, axis=1, keepdims=True) * (1 + 1e-7))
    for poison in (np.nan, np.inf, -np.inf):
        rows += [np.where(np.arange(dimension) == dimension // 2, poison, flat)]
        rows += [np.where(np.arange(dimension) == dimension // 2, poison, 1e3 * clip_norm)]
        rows += [np.full(dimension, poison)]
    with np.errstate(over="ignore"):
        return np.asarray(rows, dtype=np.float32)


# --- nobody is longer than the clip norm ---------------------------------------------------------


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("clip_norm", CLIP_NORMS)
def test_nobody_exceeds_the_clip_norm(dimension: int, clip_norm: float) -> None:
    clip_norms, grids = {"u": clip_norm}, {"u": finest_grid(clip_norm)}
    integers = on_grid({"u": adversarial(dimension, clip_norm)}, clip_norms, grids)
    worst = worst_excess(integers, clip_norms, grids)
    assert worst <= 1
    assert worst > 0.999  # the clip is not far too tight either


@pytest.mark.parametrize("dimensions", [(1, 1), (3, 17), (1000, 1), (2000, 3000)])
def test_nobody_exceeds_a_joint_clip(dimensions: tuple[int, int]) -> None:
    clip_norms = {"policy": 0.1, "critic": 7.0}
    grids = {name: finest_grid(clip) for name, clip in clip_norms.items()}
    batch = {
        name: adversarial(dimension, clip_norms[name])
        for name, dimension in zip(clip_norms, dimensions, strict=True)
    }
    for shift in (0, 1, 29):  # combines different attacks on the two parts
        vectors = batch | {"critic": np.roll(batch["critic"], shift, axis=0)}
        integers = on_grid(vectors, clip_norms, grids, "joint")
        assert 0.999 < worst_excess(integers, clip_norms, grids, "joint") <= 1
    separate = on_grid(batch, clip_norms, grids, "separate")
    assert worst_excess(separate, clip_norms, grids, "joint") > 1.99


@functools.cache
def _compiled(dimension: int) -> Callable[[np.ndarray], np.ndarray]:
    return jax.jit(
        lambda v: gaussian.to_grid(
            gaussian.bound_contribution({"u": v}, {"u": 0.1}, "separate")["u"],
            0.1,
            finest_grid(0.1),
        )
    )


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_nothing_that_can_be_thought_of_exceeds_the_clip_norm(data: st.DataObject) -> None:
    dimension = data.draw(st.sampled_from([1, 2, 5, 17]))
    numbers = st.floats(width=32) | st.floats(-0.11, 0.11) | st.just(0.1)
    vector = data.draw(st.lists(numbers, min_size=dimension, max_size=dimension))
    integers = np.asarray(_compiled(dimension)(np.asarray(vector, dtype=np.float32)))
    assert worst_excess({"u": integers[None]}, {"u": 0.1}, {"u": finest_grid(0.1)}) <= 1
    if not np.all(np.isfinite(vector)):
        assert not integers.any()


def test_what_is_not_finite_counts_as_absent_and_what_is_short_is_kept() -> None:
    vectors = np.array([[np.nan, 0.3], [np.inf, 0.3], [0.3, -0.4], [0, 0]], dtype=np.float32)
    grid = finest_grid(1.0)
    integers = on_grid({"u": vectors}, {"u": 1.0}, {"u": grid})["u"]
    np.testing.assert_allclose(integers * grid, [[0, 0], [0, 0], [0.3, -0.4], [0, 0]], rtol=1e-5)


def test_a_part_that_is_not_finite_leaves_the_others_alone() -> None:
    vectors = {
        "policy": np.full((1, 3), np.nan, dtype=np.float32),
        "critic": np.full((1, 3), 0.1, dtype=np.float32),
    }
    for clipping in ("separate", "joint"):
        ones = dict.fromkeys(vectors, 1.0)
        grids = dict.fromkeys(vectors, finest_grid(1.0))
        integers = on_grid(vectors, ones, grids, clipping)
        assert not integers["policy"].any()
        np.testing.assert_allclose(integers["critic"] * grids["critic"], 0.1, rtol=1e-5)


# --- the checker catches a clip that is wrong ----------------------------------------------------


def elementwise(parts: dict[str, Array], clips: dict[str, float], _: str) -> dict[str, Array]:
    return {name: jnp.clip(parts[name] / clip, -1, 1) for name, clip in clips.items()}


def without_margin(parts: dict[str, Array], clips: dict[str, float], _: str) -> dict[str, Array]:
    scaled = {name: jnp.nan_to_num(parts[name] / clip) for name, clip in clips.items()}
    return {n: v / jnp.maximum(jnp.sqrt(jnp.sum(v * v)), 1.0) for n, v in scaled.items()}


def of_nan(parts: dict[str, Array], clips: dict[str, float], _: str) -> dict[str, Array]:
    scaled = {name: parts[name] / clip for name, clip in clips.items()}
    norms = {name: 1.001 * jnp.linalg.norm(vector) for name, vector in scaled.items()}
    return {n: jnp.where(norms[n] > 1, v / norms[n], v) for n, v in scaled.items()}


def a_hair_too_long(parts: dict[str, Array], clips: dict[str, float], _: str) -> dict[str, Array]:
    clipped = gaussian.bound_contribution(parts, clips, "separate")
    return {name: 1.0001 * vector for name, vector in clipped.items()}


@pytest.mark.parametrize("broken", [elementwise, without_margin, of_nan, a_hair_too_long])
def test_a_broken_clip_is_caught(broken: Clip) -> None:
    clip_norms, grids = {"u": 1.0}, {"u": finest_grid(1.0)}
    integers = on_grid({"u": adversarial(16, 1.0)}, clip_norms, grids, clip=broken)
    assert worst_excess(integers, clip_norms, grids) > 1


# --- neighbours ----------------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", ["separate", "joint"])
def test_neighbours_differ_by_at_most_the_clip_norm(clipping: str) -> None:
    clip_norms = {"u": 0.1}
    people = adversarial(17, 0.1)
    grids = {"u": gaussian.grid_size(0.1, len(people), 1.0)}
    integers = on_grid({"u": people}, clip_norms, grids, clipping)["u"]

    def total(present: np.ndarray) -> np.ndarray:
        return np.asarray(gaussian.masked_sum(jnp.asarray(integers), jnp.asarray(present)))

    numbers = np.arange(len(people))
    everybody = total(numbers >= 0)
    sums = np.stack([total(numbers != absent) for absent in numbers])
    assert 0.99 < worst_excess({"u": everybody - sums}, clip_norms, grids) <= 1
    replaced = integers[:, None] - integers[None]
    worst = worst_excess({"u": replaced.reshape(-1, 17)}, clip_norms, grids)
    assert 3.9 < worst <= 4  # opposite vectors are twice the clip norm apart


def test_an_absent_slot_counts_as_zero_whatever_is_in_it() -> None:
    values = jnp.array([[1, 2], [2**30, -(2**30)], [5, 6]], dtype=jnp.int32)
    total = gaussian.masked_sum(values, jnp.array([True, False, True]))
    np.testing.assert_array_equal(total, [6, 8])
    np.testing.assert_array_equal(gaussian.masked_sum(values, jnp.zeros(3, dtype=bool)), [0, 0])


def whole(words: np.ndarray, grid: gaussian.Grid) -> np.ndarray:
    """Returns the integers of these words."""
    assert len(words) == grid.words
    places = 2 ** (grid.bits * np.arange(grid.words - 1, -1, -1))
    return np.tensordot(places, words.astype(np.int64), 1)


@pytest.mark.parametrize("words", [1, 2, 3])
@pytest.mark.parametrize("clipping", ["separate", "joint"])
def test_people_are_added_up_exactly_one_by_one_and_all_at_once(
    clipping: str, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    parts = {
        "policy": {"w": rng.normal(size=(6, 5, 40)), "b": rng.normal(size=(6, 40))},
        "critic": rng.normal(size=(6, 7)),
    }
    parts = jax.tree.map(lambda x: x.astype(np.float32), parts)
    parts["policy"]["w"][1, 2, 3] = np.nan
    parts["critic"][4, 0] = np.inf
    clip_norms = {"policy": 2.0, "critic": 0.3}
    spacings = {name: gaussian.grid_size(clip, 6, 1.0) for name, clip in clip_norms.items()}
    grids = {name: gaussian.Grid(one, words, 7) for name, one in spacings.items()}
    monkeypatch.setattr(gaussian, "_TOGETHER", 4)
    present = np.array([True, True, False, True, True, True])

    def total() -> dict[str, np.ndarray]:
        program = jax.jit(lambda p, h: gaussian.sum_people(p, clip_norms, clipping, grids, h))

        def found(present: np.ndarray) -> dict[str, np.ndarray]:
            sums = program(parts, present)
            return {name: whole(np.asarray(x), grids[name]) for name, x in sums.items()}

        everybody = found(present)
        alone = [found(present & (np.arange(6) == person)) for person in range(6)]
        for name, x in everybody.items():  # one person moves the sum by their own integers alone
            own = np.stack([np.asarray(one[name]) for one in alone])
            np.testing.assert_array_equal(x, own.sum(axis=0))
            assert worst_excess({name: own}, clip_norms, spacings) <= 1
        return everybody

    together = total()
    monkeypatch.setattr(gaussian, "_LONG", 1)
    program = jax.make_jaxpr(lambda p, h: gaussian.sum_people(p, clip_norms, clipping, grids, h))
    cpu = jax.default_backend() == "cpu"  # only a CPU adds people up one after the other
    assert ("scan" in str(program(parts, present))) is cpu
    one_by_one = total()
    vectors = {
        "policy": np.concatenate([parts["policy"]["b"], parts["policy"]["w"].reshape(6, -1)], 1),
        "critic": parts["critic"],
    }
    rows = on_grid(vectors, clip_norms, spacings, clipping)
    for name, expected in rows.items():
        # Norms may be added up in another order, and so differ in their last bits.
        last_bits = 1e-6 * clip_norms[name] / spacings[name]
        for found in (together[name], one_by_one[name]):
            np.testing.assert_allclose(found, expected[present].sum(axis=0), atol=last_bits)


# --- the grid ------------------------------------------------------------------------------------


@pytest.mark.parametrize("contributors", [1, 3, 1000, 100_000])
@pytest.mark.parametrize("scale", [1e-6, 0.1, 1.0, 50.0])
def test_sum_and_noise_never_overflow_at_the_extremes(contributors: int, scale: float) -> None:
    clip_norm, largest = 0.1, MAGNITUDE * scale
    grid = gaussian.grid_size(clip_norm, contributors, largest)
    assert math.log2(grid).is_integer()
    one_hot = np.array([[1e6]], dtype=np.float32)
    one = int(on_grid({"u": one_hot}, {"u": clip_norm}, {"u": grid})["u"][0, 0])
    noise = np.rint(np.array([MAGNITUDE, -MAGNITUDE]) * (scale / grid)).astype(object)
    assert abs(noise[0]) * grid == pytest.approx(largest, abs=grid)
    assert contributors * one + int(noise[0]) < 2**31
    assert -contributors * one + int(noise[1]) >= -(2**31)
    # The grid is not coarser than that needs.
    assert max(contributors * one, int(noise[0])) > 2**28


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
@pytest.mark.parametrize("contributors", [2**14 + 1, 10**5, 2**17, 10**6, 10**7, 2**28])
def test_words_never_overflow_at_the_extremes(contributors: int, scale: float) -> None:
    clip_norm, largest = 0.1, MAGNITUDE * scale
    grid = gaussian.grid_of(clip_norm, contributors, largest)
    assert math.log2(grid.spacing).is_integer()
    one = 64 * math.floor(clip_norm / grid.spacing)  # the sum of as many people
    noise = math.ceil(largest / grid.spacing)
    assert 2**28 < max(one, noise) <= 2**30
    if grid.words == 1:  # the noise alone asks for so coarse a grid
        assert contributors * clip_norm <= grid.spacing * 2**30
        return
    size = 2**grid.bits
    for integer in (one, -one, -1):  # -1 has all its bits set
        high, *lower = (int(x) for x in gaussian.words_of(jnp.int32(integer), grid))
        assert whole(np.array([[high], *([x] for x in lower)]), grid) == integer
        assert all(0 <= word < size for word in lower)
        for carried in (noise, -noise):
            for word in reversed(lower):
                assert -(2**31) <= contributors * word + carried < 2**31
                carried = (contributors * word + carried) // size
            assert -(2**31) <= contributors * high + carried < 2**31


def test_sums_of_a_million_people_keep_what_each_of_them_adds() -> None:
    """In one word the grid has 1,024 steps in a clip norm, and 0.0004 of it counted as nothing."""
    people, mean = 2**20, np.array([4e-4, -4e-4, 0.3])
    grid = gaussian.grid_of(1.0, people, MAGNITUDE)
    assert (grid.words, grid.bits) == (4, 10)
    assert gaussian.grid_size(1.0, people, MAGNITUDE) == 2.0**-10
    one = gaussian.to_grid(jnp.asarray(mean, jnp.float32), 1.0, grid.spacing)
    total = gaussian.words_of(64 * one, grid) * (people // 64)
    found = gaussian.noisy(total, jnp.zeros(3, jnp.int32), grid, float(people))
    np.testing.assert_allclose(found, mean, atol=grid.spacing)
    assert grid.spacing == 2.0**-24


def test_a_release_depends_on_the_sum_with_its_noise_alone() -> None:
    """However the sum is divided between words and noise: otherwise low-order bits would tell."""
    grid, rng = gaussian.Grid(2.0**-20, 2, 9), np.random.default_rng(0)
    noisy = jax.jit(lambda words, noise: gaussian.noisy(words, noise, grid, 3.0))
    sums = rng.integers(-(2**37), 2**37, 1000)
    sums[:100] = -np.arange(1, 101)  # far below a word: their first words must be zero
    expected = sums * 2.0**-20 / 3
    released = []
    for _ in range(10):
        noise = rng.integers(-(2**29), 2**29, 1000)
        low = rng.integers(0, 2**20, 1000) * 512 + (sums - noise) % 512  # of many people
        high = (sums - noise - low) // 512
        assert np.array_equal(high * 512 + low + noise, sums)
        words = jnp.asarray(np.stack([high, low]), jnp.int32)
        released.append(np.asarray(noisy(words, jnp.asarray(noise, jnp.int32))))
        np.testing.assert_allclose(released[-1], expected, rtol=3e-7)
        np.testing.assert_array_equal(released[-1], released[0])


def test_the_margin_covers_the_worst_order_of_summation() -> None:
    """Summing one after the other in float32, which loses every small square, is the worst."""
    for dimension in (2, 7, 1000, 5000):
        vector = np.full(dimension, 2.0**-12.5, np.float32)
        vector[0] = 1.0
        total = np.float32(0.0)
        for square in np.square(vector):
            total = np.float32(total + square)
        exact = math.sqrt(np.sum(np.square(vector.astype(np.float64))))
        assert exact / math.sqrt(float(total)) * (1 - gaussian.norm_margin(dimension)) <= 1


@pytest.mark.parametrize("dimension", [1, 1000, 46_342, 10**6, 2**23 - 32])
def test_the_margin_covers_the_bound_on_a_rounded_norm(dimension: int) -> None:
    """(1 - margin)^2 <= 1 - (d + 1) u in exact numbers, with half of the 16 u to spare."""
    unit = Fraction(1, 2**24)
    margin = Fraction(gaussian.norm_margin(dimension))
    assert (1 - margin + 8 * unit) ** 2 <= 1 - (dimension + 1) * unit
    assert margin < Fraction(3, 10)


def test_a_contribution_too_long_for_float32_is_refused() -> None:
    with pytest.raises(ValueError, match="several parts"):
        gaussian.norm_margin(10**7)
