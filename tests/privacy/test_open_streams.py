"""An open stream: padding releases nothing, keys belong to one thing each, memory is bounded."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from small import GAP, HORIZON, SLOTS, UNITS, D, keys, newcomers, release

from sotto.keys import KEY
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.release.factored import Factored
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.privacy.statements import Correlation

MakeLedgers = Callable[..., list[Ledger]]


def opened(made: Release, ledgers: list[Ledger], units: Any = (), **options: Any) -> Stream:
    runs = len(ledgers)
    return made.open(ledgers, jnp.zeros(runs), units, **({"noise_seed": 0} | options))


def data(releases: int, runs: int = 1) -> np.ndarray:
    shape = (runs, releases, SLOTS, D)
    return np.random.default_rng(0).uniform(-0.5, 0.5, shape).astype(np.float32)


@pytest.mark.parametrize("runs", [1, 2])
def test_what_pads_a_chunk_is_neither_released_nor_shown(
    make_ledgers: MakeLedgers, runs: int
) -> None:
    """The program is compiled for three releases at once, and makes one, two and two."""
    ledgers = make_ledgers(runs)
    stream = opened(release(), ledgers, UNITS, chunk=3)
    state, done = jnp.zeros(runs), 0
    for releases in (1, 2, 2):
        units = data(releases, runs)
        state, log, shown = stream.run(
            state, keys(runs), newcomers(runs, releases, 4 * done), units
        )
        done += releases
        assert log["u"].shape == (runs, releases, D)
        np.testing.assert_allclose(log["u"], units.sum(axis=2), atol=1e-4)
        np.testing.assert_array_equal(shown["seen"], units)
        np.testing.assert_array_equal(state, done)
        assert {one.streams[0].releases for one in ledgers} == {done}


def test_everybody_who_is_there_is_charged_and_nobody_else(make_ledgers: MakeLedgers) -> None:
    """Person 0 is a person, and an empty slot is nobody."""
    (ledger,) = make_ledgers()
    persons = newcomers(releases=2).copy()
    persons[0, 1, 2] = -1
    units = data(2)
    _, log, _ = opened(release(), [ledger], UNITS).run(jnp.zeros(1), keys(), persons, units)
    assert ledger.streams[0].persons.blocks == [PersonBlock(0, 6), PersonBlock(7, 8)]
    units[0, 1, 2] = 0
    np.testing.assert_allclose(log["u"], units.sum(axis=2), atol=1e-4)


def test_the_key_of_the_world_is_no_persons(make_ledgers: MakeLedgers) -> None:
    """It is folded by 2^31, one more than the largest enrolment number."""

    def world(state: Array, steps: Array, key: Array) -> Any:
        return steps, jnp.tile(jax.random.normal(key, (D,)), (SLOTS, 1))

    def local(state: Any, unit: Array, key: Array) -> Any:
        return {"u": unit}, {"world": unit, "own": jax.random.normal(key, (D,))}

    stream = opened(
        release(local=local, world=world, gaps=(GAP,)), make_ledgers(), world_states=jnp.zeros(1)
    )
    persons = newcomers(first=50)
    persons = persons + np.where(persons == 69, 2**31 - 1 - 69, 0).astype(np.int32)
    shown = stream.run(jnp.zeros(1), keys(), persons)[2]
    for number in range(HORIZON):
        key = jax.random.fold_in(keys()[0], number)
        expected = jax.random.normal(jax.random.fold_in(key, np.uint32(2**31)), (D,))
        np.testing.assert_allclose(shown["world"][0, number, 0], expected, rtol=1e-6)
        for slot, person in enumerate(persons[0, number]):
            own = jax.random.normal(jax.random.fold_in(key, int(person)), (D,))
            np.testing.assert_allclose(shown["own"][0, number, slot], own, rtol=1e-6)


def test_the_callers_arrays_are_still_there(make_ledgers: MakeLedgers) -> None:
    def world(state: Array, steps: Array, key: Array) -> Any:
        return steps + 1, jnp.tile(steps, (SLOTS, D))

    made = release(world=world, gaps=(GAP,))
    given = jnp.zeros(1), keys(), jnp.full(1, 0.25)
    stream = opened(made, make_ledgers(), world_states=given[2])
    for first in (0, 2):
        stream.run(given[0], given[1], newcomers(1, 2, 4 * first))
    assert float(given[0][0]) == 0
    np.testing.assert_array_equal(jax.random.key_data(given[1]), jax.random.key_data(keys()))
    assert float(given[2][0]) == 0.25


@pytest.mark.parametrize(("microbatch", "together"), [(None, SLOTS), (SLOTS, SLOTS), (2, 2)])
def test_no_more_people_are_mapped_at_once_than_a_microbatch_holds(
    make_ledgers: MakeLedgers, microbatch: int | None, together: int
) -> None:
    """A person's 999 numbers are never there for more people, so memory follows from it."""

    def local(state: Any, unit: Array, key: Array) -> Any:
        return {"u": jnp.outer(jnp.ones(333), unit).ravel()}, {}

    stream = opened(release(local=local, microbatch=microbatch), make_ledgers(), UNITS)
    state, one = jnp.zeros(()), jax.ShapeDtypeStruct((), KEY.dtype)
    program = jax.make_jaxpr(stream._sum_slots)((state,), one, newcomers()[0, 0], (UNITS,))
    for people in (2, SLOTS):
        assert (f"f32[{people},999]" in str(program)) is (people == together)


@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("is_factored", [False, True])
def test_noise_is_larger_by_both_kinds_of_rounding(
    make_ledgers: MakeLedgers, correlated: bool, is_factored: bool
) -> None:
    """The scale of the draws is z times clip norm and sensitivity, and grows by both roundings."""

    def local(state: Any, unit: Any, key: Array) -> Any:
        whole = Factored(jnp.zeros(200), jnp.zeros(200))
        return {"u": whole if is_factored else jnp.zeros((200, 200))}, {}

    made = release(
        2.0,
        0.5,
        local=local,
        slots=400,
        horizon=2,
        microbatch=200,
        correlation=Correlation(kind="prefix-sum" if correlated else "independent"),
    )
    stream = opened(made, make_ledgers())
    said = stream.statement
    assert (said.sum_rounding > 0) is is_factored
    assert (said.noise_rounding > 0) is correlated
    (scale,) = stream._draws._scales.values()
    more = 1 + said.sum_rounding + said.noise_rounding
    # The square root of the prefix sums of two releases has the columns (1, 1/2) and (0, 1).
    longest = np.hypot(1, 0.5) if correlated else 1.0
    assert scale == pytest.approx(2.0 * 0.5 * longest * more, rel=1e-9)
