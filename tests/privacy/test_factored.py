"""Factored parts: nobody is longer than the clip norm, and rounded sums stay within the bound."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from jaxtyping import Array
from small import GAP

from sotto.privacy.certificates.derive import derive
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.mechanisms import gaussian
from sotto.privacy.release import factored
from sotto.privacy.release.factored import Factored
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Correlation, Part, Poisson

MakeLedgers = Callable[..., list[Ledger]]
Bound = Callable[[Any, dict[str, float], str], Any]

ROWS, COLUMNS = 5, 3


def layer(left: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """A dense layer of people: weights in factors, biases as they are."""
    return {"weights": Factored(left, right), "bias": right}


def matrices(part: dict[str, Any]) -> np.ndarray:
    """The same in float64, one vector a person, by the definition."""
    left, right = (np.asarray(x, dtype=np.float64) for x in part["weights"])
    outer = np.einsum("ni,nj->nij", left, right).reshape(len(left), -1)
    return np.concatenate([outer, np.asarray(part["bias"], dtype=np.float64)], axis=1)


def bounded(
    parts: dict[str, Any],
    clips: dict[str, float],
    clipping: str = "separate",
    bound: Bound = factored.bound_contribution,
) -> dict[str, Any]:
    return jax.jit(jax.vmap(lambda p: bound(p, clips, clipping)))(parts)


def exact_square(part: dict[str, Any], person: int) -> Fraction:
    """Squared norm of one bounded person, in rational arithmetic."""

    def square(vector: np.ndarray) -> Fraction:
        return sum((Fraction(float(x)) ** 2 for x in np.asarray(vector)), Fraction(0))

    left, right = part["weights"]
    return square(left[person]) * square(right[person]) + square(part["bias"][person])


def adversaries(rows: int, columns: int, clip: float) -> dict[str, Any]:
    """People who try to be longer than the clip norm."""
    rng = np.random.default_rng(rows * columns)
    lefts, rights = [], []
    for scale in (1.0, 1 - 6e-8, 1 + 1.2e-7, 2.0, 1e3, 0.5, 1e-12, 1e7):
        for stretch in (1.0, 1e5, 1e-5, 2.0**29, 2.0**-29):
            left, right = rng.standard_normal(rows), rng.standard_normal(columns)
            swallowed = np.where(np.arange(rows) == 0, 1.0, 2.0**-12.5)
            for one in (left, np.eye(1, rows)[0], swallowed):
                length = np.linalg.norm(one) * np.linalg.norm(right)
                lefts.append(stretch * one)
                rights.append(scale * clip / length / stretch * right)
    for poison in (np.nan, np.inf, -np.inf, 1e38, 1e20, 2e9, 1e-20, 1e-45, 0.0):
        for place in ("left", "right", "both"):
            lefts.append(np.full(rows, poison if place != "right" else 1.0))
            rights.append(np.full(columns, poison if place != "left" else 1.0))
    with np.errstate(over="ignore", invalid="ignore"):
        return layer(np.asarray(lefts, np.float32), np.asarray(rights, np.float32))


# --- nobody is longer than the clip norm ---------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (5, 300), (257, 16)])
@pytest.mark.parametrize("clip", [1.0, 0.1, 3e-5, 700.0])
def test_nobody_exceeds_the_clip_norm(shape: tuple[int, int], clip: float) -> None:
    result = bounded({"u": adversaries(*shape, clip)}, {"u": clip})["u"]
    squares = [exact_square(result, i) for i in range(len(result["bias"]))]
    assert 0.999 < max(squares) <= 1


@pytest.mark.parametrize("shift", [0, 1, 17])
def test_nobody_exceeds_a_joint_clip(shift: int) -> None:
    clips = {"policy": 0.1, "critic": 7.0}
    parts = {name: adversaries(4, 6, clip) for name, clip in clips.items()}
    parts["critic"] = jax.tree.map(lambda x: np.roll(x, shift, axis=0), parts["critic"])
    result = bounded(parts, clips, "joint")
    people = range(len(parts["policy"]["bias"]))
    assert 0.999 < max(sum(exact_square(result[n], i) for n in clips) for i in people) <= 1
    separate = bounded(parts, clips)
    assert max(sum(exact_square(separate[n], i) for n in clips) for i in people) > 1.9


def without_bias(parts: Any, clips: dict[str, float], clipping: str) -> Any:
    """The usual mistake: the norm of the weights' gradient only."""
    scale = {
        n: gaussian.clip_scale(
            jnp.sum(p["weights"].left ** 2) * jnp.sum(p["weights"].right ** 2) / clips[n] ** 2, 0.0
        )
        for n, p in parts.items()
    }
    return {
        n: {
            "weights": Factored(p["weights"].left * scale[n] / clips[n], p["weights"].right),
            "bias": p["bias"] * scale[n] / clips[n],
        }
        for n, p in parts.items()
    }


def added_norms(parts: Any, clips: dict[str, float], clipping: str) -> Any:
    """Each factor clipped alone, as if norms of factors were norms of products."""
    return {
        n: {
            "weights": Factored(
                p["weights"].left / jnp.maximum(jnp.linalg.norm(p["weights"].left), 1.0),
                p["weights"].right / clips[n],
            ),
            "bias": p["bias"] / clips[n],
        }
        for n, p in parts.items()
    }


@pytest.mark.parametrize("broken", [without_bias, added_norms])
def test_a_broken_clip_is_caught(broken: Bound) -> None:
    rng = np.random.default_rng(0)
    part = layer(
        rng.standard_normal((9, ROWS)).astype(np.float32),
        rng.standard_normal((9, COLUMNS)).astype(np.float32),
    )
    assert max(exact_square(bounded({"u": part}, {"u": 1.0})["u"], i) for i in range(9)) <= 1
    result = bounded({"u": part}, {"u": 1.0}, bound=broken)["u"]
    assert max(exact_square(result, i) for i in range(9)) > 1.01


@pytest.mark.parametrize("clipping", ["separate", "joint"])
def test_clipped_factors_are_the_clipped_matrices(clipping: str) -> None:
    rng = np.random.default_rng(1)
    clips = {"a": 2.0, "b": 0.3}
    parts = {
        name: layer(
            rng.standard_normal((40, ROWS)).astype(np.float32),
            np.geomspace(1e-3, 1e3, 40)[:, None].astype(np.float32)
            * rng.standard_normal((40, COLUMNS)).astype(np.float32),
        )
        for name in clips
    }
    whole = {
        name: {
            "bias": part["bias"],
            "weights": np.einsum("ni,nj->nij", *part["weights"]),
        }
        for name, part in parts.items()
    }
    expected = bounded(whole, clips, clipping, bound=gaussian.bound_contribution)
    result = bounded(parts, clips, clipping)
    for name in clips:
        found = matrices(result[name])
        flat = np.asarray(expected[name])
        flat = np.concatenate([flat[:, COLUMNS:], flat[:, :COLUMNS]], axis=1)
        np.testing.assert_allclose(found, flat, rtol=2e-5, atol=1e-9)


def test_what_is_not_finite_or_too_long_is_zero_and_leaves_other_parts_alone() -> None:
    ones = np.ones((6, 2), np.float32)
    left, right = ones.copy(), 1e-3 * ones
    left[0, 0], left[1, 0], left[2, 0], right[3, 0], left[4, :] = (
        np.nan,
        np.inf,
        3e9,
        -np.inf,
        1e-12,
    )
    parts = {"u": layer(left, right), "v": layer(0.1 * ones, 0.1 * ones)}
    result = bounded(parts, dict.fromkeys(parts, 1.0))
    found = matrices(result["u"])
    assert not found[:4].any()
    np.testing.assert_allclose(found[4], [0, 0, 0, 0, 1e-3, 1e-3], rtol=1e-4)  # a short leaf alone
    np.testing.assert_allclose(found[5], 1e-3, rtol=1e-4)
    np.testing.assert_allclose(matrices(result["v"]), [[0.01] * 4 + [0.1] * 2] * 6, rtol=1e-4)


# --- sums are within the bound -------------------------------------------------------------------


def total(part: Any, clip: float, grid: float, present: np.ndarray) -> np.ndarray:
    """The integer sum of a batch, as the door makes it, as one vector."""
    sums = jax.jit(lambda p, here: factored.sum_batch(p, clip, grid, here))(part, present)
    (weights,), (bias,) = sums["weights"], sums["bias"]
    return np.concatenate([np.ravel(weights), np.ravel(bias)]).astype(np.float64)


def hostile_batch(people: int, rows: int, columns: int, seed: int) -> dict[str, Any]:
    """Parallel matrices of norm 1 with alternating signs: large terms, small sums."""
    rng = np.random.default_rng(seed)
    left = np.abs(rng.standard_normal(rows)) * np.where(np.arange(people) % 2, 1, -1)[:, None]
    left = left * rng.uniform(0.9, 1.1, (people, rows))
    right = np.broadcast_to(np.abs(rng.standard_normal(columns)), (people, columns))
    left /= np.linalg.norm(left, axis=1, keepdims=True)
    right = right / np.linalg.norm(right, axis=1, keepdims=True)
    return {
        "weights": Factored(left.astype(np.float32), right.astype(np.float32)),
        "bias": np.zeros((people, columns), np.float32),
    }


@pytest.mark.parametrize("people", [2, 64, 400])
def test_neighbouring_sums_are_no_further_apart_than_the_bound(people: int) -> None:
    clip, rows, columns = 1.0, 40, 30
    grid = gaussian.grid_size(clip, 3000, 1.0)
    bound = factored.sum_rounding(
        [people], {"u": rows * columns + columns}, {"u": grid}, {"u": clip}
    )
    for seed in range(3):
        part = bounded({"u": hostile_batch(people, rows, columns, seed)}, {"u": clip})["u"]
        everybody = total(part, clip, grid, np.ones(people, bool))
        for absent in (0, people // 2, people - 1):
            rest = total(part, clip, grid, np.arange(people) != absent)
            assert np.linalg.norm(everybody - rest) * grid <= clip * (1 + bound)
        exact = matrices(part).sum(axis=0) * clip
        error = np.linalg.norm(everybody * grid - exact)
        # In one world: half the product's bound and half the grid's.
        assert error <= clip * bound / 2


def test_the_bound_covers_adding_one_by_one_in_the_worst_order() -> None:
    """One large term first, then small ones that are all lost."""
    for people in (8, 128, 400):
        terms = np.full(people, 2.0**-24.5, np.float32)
        terms[0] = 1.0
        found = np.float32(0.0)
        for term in terms:
            found = np.float32(found + term)
        error = abs(float(found) - float(terms.astype(np.float64).sum()))
        assert error > 0
        # Entries of people whose norms are these: the bound is for norms of at most 1.
        bound = factored.sum_rounding([people], {"u": 1}, {"u": 2.0**-40}, {"u": 1.0})
        assert error <= bound / 2


def test_the_bound_grows_with_the_batch_and_too_large_a_batch_is_refused() -> None:
    arguments = ({"u": 70_000}, {"u": 2.0**-18}, {"u": 1.0})
    bounds = [factored.sum_rounding([b], *arguments) for b in (32, 128, 256)]
    assert bounds == sorted(bounds)
    assert bounds[-1] == pytest.approx(2 * 256**2 / 2**24 + math.sqrt(70_000) / 2**18, rel=2e-3)
    with pytest.raises(ValueError, match="use a microbatch of at most 457"):
        factored.sum_rounding([700], *arguments)


def test_the_advice_for_too_much_rounding_is_of_use_where_people_are_drawn() -> None:
    """The product is rounded less in smaller batches, and the grid more often."""
    arguments = ({"u": 70_000}, {"u": 2.0**-18}, {"u": 1.0})
    with pytest.raises(ValueError, match="use a microbatch of at most 52 people"):
        factored.sum_rounding([1000, 1000, 1000, 1000], *arguments)
    assert factored.sum_rounding([50] * 10, *arguments) < factored.sum_rounding([500], *arguments)
    with pytest.raises(ValueError, match="are each rounded to the grid; use a larger"):
        factored.sum_rounding([1] * 400, *arguments)
    assert factored.sum_rounding([20] * 20, *arguments) < 0.05


# --- through the door ----------------------------------------------------------------------------


def own_layer(state: Any, unit: Any, key: Array) -> Any:
    return {"u": layer(unit["left"], unit["right"])}, {}


def own_matrix(state: Any, unit: Any, key: Array) -> Any:
    return {"u": {"weights": jnp.outer(unit["left"], unit["right"]), "bias": unit["right"]}}, {}


def keep(state: Any, released: Any) -> Any:
    return state, released


release = partial(small.release, local=own_layer, server=keep, divisor=2.0, horizon=2)


def people(slots: int, leading: tuple[int, ...] = (), seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "left": rng.standard_normal((*leading, slots, ROWS)).astype(np.float32),
        "right": rng.standard_normal((*leading, slots, COLUMNS)).astype(np.float32),
    }


def run(made: Release, ledgers: list[Ledger], units: Any, seed: int | None = 0) -> Any:
    state, keys = jnp.zeros((1, 1)), jax.random.split(jax.random.key(0), 1)
    sampled = isinstance(made.participation, Poisson)
    example = jax.tree.map(lambda x: x[0] if sampled else x[0, 0], units)
    stream = made.open(ledgers, state, example, noise_seed=seed)
    persons = None
    if not sampled:
        persons = np.arange(made.horizon * made.slots, dtype=np.int32).reshape(1, made.horizon, -1)
        persons[0, 0, 1] = -1
    return stream, jax.tree.map(np.asarray, stream.run(state, keys, persons, units)[1])


@pytest.mark.parametrize("microbatch", [1, 2, 4, None])
def test_the_door_releases_what_it_releases_of_matrices(
    make_ledgers: MakeLedgers, microbatch: int | None
) -> None:
    units = people(4, (1, 2))
    _, log = run(release(microbatch=microbatch), make_ledgers(), units)
    _, expected = run(release(local=own_matrix), make_ledgers(), units)
    for name in ("weights", "bias"):
        np.testing.assert_allclose(log["u"][name], expected["u"][name], atol=2e-5)


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("microbatch", [None, 3])
def test_the_same_under_poisson_sampling(
    make_ledgers: MakeLedgers, rate: float, microbatch: int | None
) -> None:
    units = people(30, (1,))
    sampling = {
        "participation": Poisson(sampling_rate=rate, population=30),
        "gaps": (GAP,),
        "microbatch": microbatch,
    }
    _, log = run(release(slots=30, **sampling), make_ledgers(), units)
    _, expected = run(release(slots=30, local=own_matrix, **sampling), make_ledgers(), units)
    for name in ("weights", "bias"):
        np.testing.assert_allclose(log["u"][name], expected["u"][name], atol=2e-5)


@pytest.mark.parametrize("microbatch", [None, 2])
def test_sums_differ_by_no_more_than_the_bound_where_a_draw_moves_others(
    make_ledgers: MakeLedgers, microbatch: int | None
) -> None:
    """Person 0 is drawn, is drawn and contributes zero, or is not drawn, so that others move up."""
    slots, side = 40, 60
    made = release(
        1.0,
        slots=slots,
        local=lambda state, unit, key: ({"u": Factored(*unit)}, {}),
        participation=Poisson(sampling_rate=0.5, population=slots),
        microbatch=microbatch,
    )
    nobody = (np.zeros((slots, side), np.float32),) * 2
    stream = made.open(make_ledgers(), jnp.zeros((1, 1)), nobody, chunk=1)
    grid, rounding = stream._grids["u"].spacing, stream.statement.sum_rounding
    left, right = (one.copy() for one in nobody)
    # Two such people make 0.6 spacings together, which one batch rounds up and two round down.
    for person in range(1, slots):
        if (person - 1) % 4 in (0, 1):
            left[person] = right[person] = np.sqrt(0.3 * grid)
    left[0], right[0] = -1 / np.sqrt(side), 1 / np.sqrt(side)
    without = left.copy()
    without[0] = 0

    def total(left: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        places = np.full(stream._batches.capacity(len(drawn)), -1, np.int32)
        places[: len(drawn)] = drawn
        units = (jnp.asarray(left), jnp.asarray(right))
        state, key = jnp.zeros(1), jax.random.key(0)
        ((found,),) = stream._sum_sampled((state,), key, jnp.asarray(places), units)["u"]
        return np.asarray(found, np.float64) * grid

    everybody = np.arange(slots)
    drawn, zero = total(left, everybody), total(without, everybody)
    absent = total(left, everybody[1:])
    assert np.linalg.norm(drawn - zero) <= 1 + rounding
    assert np.linalg.norm(drawn - absent) <= 1 + rounding
    assert np.linalg.norm(zero - absent) <= rounding
    if microbatch is not None:  # the bound of one batch would not cover this
        of_one = factored.sum_rounding([microbatch], {"u": side**2}, {"u": grid}, {"u": 1.0})
        assert np.linalg.norm(zero - absent) > of_one


def test_noise_is_larger_by_what_rounding_adds_and_the_statement_says_so(
    make_ledgers: MakeLedgers,
) -> None:
    rows, columns, z = 200, 200, 2.0

    def nothing(state: Any, unit: Any, key: Array) -> Any:
        return {"u": Factored(jnp.zeros(rows), jnp.zeros(columns))}, {}

    made = release(z, 0.5, slots=400, local=nothing, horizon=20)
    stream, log = run(made, make_ledgers(), people(400, (1, 20)))
    rounding = stream.statement.sum_rounding
    assert 0.019 < rounding < 0.03
    assert stream.statement.noise_multiplier == z
    sample = log["u"].astype(np.float64).ravel() * made.divisor / 0.5
    error = 6 / math.sqrt(2 * sample.size)  # 0.5 per cent: what rounding adds is seen
    assert np.std(sample) == pytest.approx(z * (1 + rounding), rel=error)
    assert abs(np.std(sample) / z - 1) > error


@pytest.mark.parametrize(("sampled", "correlated"), [(False, False), (False, True), (True, False)])
def test_a_row_of_noise_serves_one_release(
    make_ledgers: MakeLedgers, sampled: bool, correlated: bool
) -> None:
    """Also when chunks are cut short, and rows that were drawn ahead wait for the next call."""
    changes: dict[str, Any] = {"horizon": 11, "local": own_matrix}
    if sampled:
        changes["participation"] = Poisson(sampling_rate=1e-9, population=4)
    if correlated:
        changes["correlation"] = Correlation(kind="prefix-sum")
    made = release(3.0, **changes)
    logs = []
    for counts in ((4, 4, 3), (4, 4, 3) if sampled else (1, 3, 4, 2, 1)):
        state, keys, released = jnp.zeros((1, 1)), jax.random.split(jax.random.key(0), 1), []
        stream = made.open(make_ledgers(), state, people(4), chunk=4, noise_seed=5)
        for count in counts:
            persons = None if sampled else np.full((1, count, 4), -1)
            units = people(4, (1,) if sampled else (1, count))
            released.append(stream.run(state, keys, persons, units)[1]["u"]["weights"][0])
        logs.append(np.concatenate(released))
    np.testing.assert_array_equal(logs[0], logs[1])
    assert len(np.unique(logs[0])) == logs[0].size == 11 * ROWS * COLUMNS


def test_certificates_say_that_sums_are_rounded(make_ledgers: MakeLedgers) -> None:
    parts = {"u": Part(clip_norm=1.0, noise_multiplier=3.0)}
    told = []
    for local in (own_layer, own_matrix):
        (ledger,) = make_ledgers()
        run(release(local=local, parts=parts), [ledger], people(4, (1, 2)), seed=None)
        certificate = derive(ledger)
        assert certificate.status == "proved"
        assert (certificate.streams[0].statement.sum_rounding > 0) == (local is own_layer)
        told.append([one.how for one in certificate.assumptions])
    assert any("float32" in how for how in told[0])
    assert any("sums are exact" in how for how in told[1])
    assert not any("sums are exact" in how for how in told[0])


def test_a_person_is_not_stored_as_a_matrix() -> None:
    """No array in the compiled sum has a person's axis and both of the matrix's."""
    part = {"u": layer(jnp.zeros((7, 11)), jnp.zeros((7, 13)))}

    def program(part: Any) -> Any:
        clipped = jax.vmap(lambda p: factored.bound_contribution(p, {"u": 1.0}, "joint"))(part)
        return factored.sum_batch(clipped["u"], 1.0, 2.0**-20, jnp.ones(7, bool))

    text = jax.jit(program).lower(part).compile().as_text()
    assert "11,13" in text
    assert not any(shape in text for shape in ("7,11,13", "11,7,13", "11,13,7"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 3000}, "use a microbatch"),
        (
            {"local": lambda s, u, k: ({"u": Factored(jnp.ones((2, 3)), jnp.ones(3))}, {})},
            "must be vectors",
        ),
        (
            {
                "local": lambda s, u, k: (
                    {"u": jnp.ones(1), "v": Factored(jnp.ones(2), jnp.ones(2))},
                    {},
                ),
                "unprotected": {"v": GAP},
            },
            "cannot be factored",
        ),
    ],
)
def test_what_cannot_be_released_is_refused(
    make_ledgers: MakeLedgers, changes: dict[str, Any], message: str
) -> None:
    made = release(**changes)
    with pytest.raises(ValueError, match=message):
        made.open(make_ledgers(), jnp.zeros((1, 1)), people(made.slots))
