"""The opening of a stream: its statement, an interrupted one that goes on, and data in a pool."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import small
from jaxtyping import Array
from small import GAP, HORIZON, QUIET, SLOTS, UNITS, D, keys, newcomers

from sotto.privacy.claims.streams import POOL
from sotto.privacy.errors import BudgetExceeded, HorizonExceeded, LedgerMismatch
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.mechanisms import correlated, noise
from sotto.privacy.release import devices, factored
from sotto.privacy.release.declaration import grids, noise_scales
from sotto.privacy.release.factored import Factored
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.privacy.statements import Correlation, Once, Poisson, Returning
from sotto.privacy.units import REWARD_FUNCTION

MakeLedgers = Callable[..., list[Ledger]]

PREFIX = Correlation(kind="prefix-sum")
SAMPLED = Poisson(sampling_rate=0.5, population=SLOTS)


def layer(state: Any, unit: Array, key: Array) -> Any:
    return {"u": Factored(unit, unit)}, {}


def release(noise_multiplier: float = 3.0, clip_norm: float = 1.0, **changes: Any) -> Release:
    return small.release(noise_multiplier, clip_norm, **changes)


def states(runs: int = 1) -> Array:
    return jnp.zeros(runs)


def data(releases: int, runs: int = 1) -> np.ndarray:
    return np.full((runs, releases, SLOTS, D), 0.1, np.float32)


def go(stream: Stream, first: int, releases: int, runs: int = 1) -> Array:
    """Makes releases about newcomers, and returns how many the state has counted."""
    persons = newcomers(runs, releases, first)
    return stream.run(states(runs), keys(runs), persons, data(releases, runs))[0]


# --- the statement -------------------------------------------------------------------------------


@pytest.mark.parametrize("participation", [Once(), SAMPLED], ids=["once", "sampled"])
def test_the_sampler_costs_what_all_draws_that_meet_a_person_cost(
    make_ledgers: MakeLedgers, participation: Any
) -> None:
    """A sampled person may meet every release's draws; any other one shifts all draws once."""
    made = release(participation=participation).open(make_ledgers(), states(), UNITS)
    met = HORIZON if participation == SAMPLED else 1
    expected = met * noise.sampler_delta(3.0, HORIZON * D)
    assert 0 < made.statement.sampler_delta == expected


def test_a_sampler_costs_no_more_than_delta_one(make_ledgers: MakeLedgers) -> None:
    made = release(QUIET, participation=SAMPLED).open(make_ledgers(), states(), UNITS, noise_seed=0)
    assert made.statement.sampler_delta == 1.0


@pytest.mark.parametrize("microbatch", [None, 1, 2])
@pytest.mark.parametrize("participation", [Once(), SAMPLED], ids=["once", "sampled"])
def test_sums_of_factored_parts_are_stated_for_what_a_person_may_change(
    make_ledgers: MakeLedgers, participation: Any, microbatch: int | None
) -> None:
    made = release(local=layer, participation=participation, microbatch=microbatch)
    said = made.open(make_ledgers(), states(), UNITS).statement
    # One batch has the person. Where a fair coin draws each of 4 people, it moves others to other
    # batches: of 3 and 1, or as large as stated.
    changed = [microbatch or SLOTS]
    if participation == SAMPLED:
        changed = {None: [3, 1], 1: [1] * 4, 2: [2] * 2}[microbatch]
    spacings = {"u": grids(made, True)["u"].spacing}
    expected = factored.sum_rounding(changed, {"u": D * D}, spacings, {"u": 1.0})
    assert 0 < said.sum_rounding == expected
    assert said.dimensions == {"u": D * D}


def test_rounding_of_correlated_noise_is_stated(make_ledgers: MakeLedgers) -> None:
    made = release(correlation=PREFIX, clip_norm=0.3)
    said = made.open(make_ledgers(), states(), UNITS).statement
    fine = grids(made, False)["u"].spacing / correlated.REFINEMENT
    ratio = 3.0 * 0.3 * correlated.sensitivity(PREFIX, Once(), HORIZON) / fine
    expected = correlated.rounding(PREFIX, HORIZON, {"u": D}, {"u": ratio}, 3.0)
    assert said.noise_rounding == pytest.approx(expected, rel=1e-12)
    assert said.noise_rounding > 0
    assert said.sum_rounding == 0


def test_rounding_that_needs_much_more_noise_is_refused(make_ledgers: MakeLedgers) -> None:
    """Sums over 2^30 people leave a grid as coarse as one person's contribution is long."""
    (ledger,) = make_ledgers()
    wide = release(
        local=lambda s, u, k: ({"u": jnp.zeros(10 * D)}, {}), slots=2**30, correlation=PREFIX
    )
    with pytest.raises(ValueError, match="rounding needs 19% more noise, which is over 5%"):
        wide.open([ledger], states(), ())
    assert ledger.streams == ()


@pytest.mark.parametrize("correlation", [Correlation(), PREFIX], ids=["independent", "prefix"])
@pytest.mark.parametrize("has_factored", [False, True])
@pytest.mark.parametrize("noise_multiplier", [1e-3, 3.0])
def test_grids_are_as_fine_as_sums_and_noise_of_32_bits_allow(
    correlation: Correlation, has_factored: bool, noise_multiplier: float
) -> None:
    """Both stay below 2^30 with the noise that covers rounding, and not on a finer grid."""
    for clip in np.geomspace(0.01, 0.02, 60):
        made = release(noise_multiplier, float(clip), correlation=correlation)
        scale = noise_multiplier * clip * correlated.sensitivity(correlation, Once(), HORIZON)
        assert noise_scales(made)["u"] == pytest.approx(scale, rel=1e-12)
        largest = correlated.NoiseSequence(correlation, HORIZON).largest * scale
        more = 1.05 if has_factored or correlation == PREFIX else 1.0
        needed = more * max(SLOTS * clip, largest)
        assert 2**29 < needed / grids(made, has_factored)["u"].spacing <= 2**30


def test_what_a_pool_must_keep_is_assumed_only_with_a_pool(make_ledgers: MakeLedgers) -> None:
    made = release(participation=SAMPLED)
    for units, assumed in ((UNITS, False), (Rows(UNITS), True)):
        said = made.open(make_ledgers(), states(), units).statement
        assert (POOL.assumption() in said.assumptions) is assumed


def test_a_part_may_be_one_number(make_ledgers: MakeLedgers) -> None:
    made = release(local=lambda s, u, k: ({"u": u[0]}, {}))
    assert made.open(make_ledgers(), states(), UNITS).statement.dimensions == {"u": 1}


def test_a_unit_within_a_radius_is_for_another_door() -> None:
    with pytest.raises(ValueError, match="use a FunctionRelease"):
        release(unit=REWARD_FUNCTION)


def test_one_leaf_of_another_shape_is_refused(make_ledgers: MakeLedgers) -> None:
    with pytest.raises(ValueError, match="one entry per ledger"):
        release().open(make_ledgers(), {"right": states(), "wrong": states(2)}, UNITS)
    with pytest.raises(ValueError, match="one entry per slot"):
        release().open(make_ledgers(), states(), {"right": UNITS, "wrong": UNITS[1:]})


def test_delta_must_do_for_those_before_and_all_who_may_come(make_ledgers: MakeLedgers) -> None:
    (ledger,) = make_ledgers(delta=1 / 32)
    once = release(QUIET, gaps=(GAP,))
    go(once.open([ledger], states(), UNITS), 0, 3)  # 12 people, and 20 more are 32
    with pytest.raises(BudgetExceeded, match=r"vacuous for the 32 persons of this stream"):
        once.open([ledger], states(), UNITS)
    returning = Returning(max_participations=HORIZON, min_separation=1)
    release(QUIET, gaps=(GAP,), participation=returning).open([ledger], states(), UNITS)


# --- an interrupted stream -----------------------------------------------------------------------


def reopened(tmp_path: Path) -> list[Ledger]:
    return [Ledger.open(path) for path in sorted(tmp_path.glob("*.sqlite"))]


def test_a_stream_goes_on_where_it_stopped(make_ledgers: MakeLedgers, tmp_path: Path) -> None:
    ledgers = make_ledgers()
    other = release(name="another")
    go(other.open(ledgers, states(), UNITS), 0, 1)
    go(release().open(ledgers, states(), UNITS), 4, 2)
    (ledger,) = reopened(tmp_path)
    stream = release().open([ledger], states(), UNITS, resume=True)
    assert (stream.released, len(ledger.streams)) == (2, 2)
    assert go(stream, 12, 3)[0] == 3
    with pytest.raises(HorizonExceeded):
        go(stream, 24, 1)
    assert ledger.streams[1].releases == HORIZON


def test_nothing_goes_on_that_was_not_begun(make_ledgers: MakeLedgers) -> None:
    ledgers = make_ledgers()
    release(name="another").open(ledgers, states(), UNITS)
    with pytest.raises(LedgerMismatch, match="no interrupted stream 'update'"):
        release().open(ledgers, states(), UNITS, resume=True)
    release().open(ledgers, states(), UNITS)
    assert len(ledgers[0].streams) == 2


@pytest.mark.parametrize("microbatch", [None, 1])
def test_going_on_with_another_number_of_devices(
    make_ledgers: MakeLedgers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, microbatch: int
) -> None:
    """Whole microbatches are rounded as often on any number of devices."""
    made = release(local=layer, participation=SAMPLED, microbatch=microbatch)
    made.open(make_ledgers(), states(), UNITS)
    ledgers = reopened(tmp_path)
    monkeypatch.setattr(devices.Devices, "chosen", lambda: devices.Devices(2))
    if microbatch is None:
        with pytest.raises(LedgerMismatch, match="'update' was opened on another number of dev"):
            made.open(ledgers, states(), UNITS, resume=True)
    else:
        assert made.open(ledgers, states(), UNITS, resume=True).released == 0


def test_without_resume_a_stream_begins_anew(make_ledgers: MakeLedgers, tmp_path: Path) -> None:
    go(release().open(make_ledgers(), states(), UNITS), 0, 2)
    (ledger,) = reopened(tmp_path)
    assert release().open([ledger], states(), UNITS).released == 0
    assert len(ledger.streams) == 2


@pytest.mark.parametrize("participation", [Once(), SAMPLED], ids=["once", "sampled"])
def test_runs_side_by_side_go_on_at_the_same_release(
    make_ledgers: MakeLedgers, tmp_path: Path, participation: Any
) -> None:
    """One ledger had been charged for a release more: the other one skips it, about nobody."""
    made = release(participation=participation)
    ledgers = make_ledgers(2)
    made.open(ledgers, states(2), UNITS)
    once = participation == Once()
    for ledger, charged in zip(reopened(tmp_path), (2, 1), strict=True):
        people = list(newcomers(releases=charged)[0]) if once else None
        ledger.resume_stream(ledger.streams[0].statement).charge(0, charged, people)
    later = reopened(tmp_path)
    stream = made.open(later, states(2), UNITS, resume=True)
    assert stream.released == 2
    assert [ledger.streams[0].releases for ledger in later] == [2, 2]
    assert [ledger.persons for ledger in later] == ([8, 4] if once else [SLOTS, SLOTS])


def test_a_run_that_was_not_begun_begins_where_another_goes_on(
    make_ledgers: MakeLedgers, tmp_path: Path
) -> None:
    first, second = make_ledgers(2)
    go(release().open([first], states(), UNITS), 0, 1)
    release(name="another").open([second], states(), UNITS)
    later = reopened(tmp_path)
    stream = release().open(later, states(2), UNITS, resume=True)
    assert stream.released == 1
    assert [[one.releases for one in ledger.streams] for ledger in later] == [[1], [0, 1]]


# --- a pool --------------------------------------------------------------------------------------


class Rows:
    """A pool: the rows of a table."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = table

    def draw(self, persons: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return self.table[persons]


@pytest.mark.parametrize("microbatch", [None, 1, 3])
def test_a_pool_releases_what_its_table_would(
    make_ledgers: MakeLedgers, microbatch: int | None
) -> None:
    population = 30
    eye = np.eye(population, dtype=np.float32)
    made = release(
        QUIET,
        participation=Poisson(sampling_rate=0.4, population=population),
        slots=population,
        microbatch=microbatch,
    )
    drawn = []
    for units, given in ((Rows(eye), ()), (eye, eye[None])):
        stream = made.open(make_ledgers(), states(), units, chunk=2, noise_seed=0)
        logs = []
        for expected in (2, 2, 1):  # what is left of the horizon
            state, log, shown = stream.run(states(), keys(), units=given)
            assert (state[0], log["u"].shape[1], shown) == (expected, expected, None)
            logs.append(np.rint(log["u"][0]))
        with pytest.raises(HorizonExceeded):
            stream.run(states(), keys(), units=given)
        drawn.append(np.concatenate(logs))
    assert set(np.unique(drawn[0])) == {0, 1}
    # The pool takes the same coins, since its own generator comes after them.
    np.testing.assert_array_equal(drawn[0][:2], drawn[1][:2])


class Leaving(Rows):
    """A pool that leaves out who has no data, so that one row is everybody's."""

    def draw(self, persons: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return self.table[persons][:1]


class Widest(Rows):
    """A pool whose rows are as long as the longest that was asked for."""

    def draw(self, persons: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return np.pad(self.table[persons], ((0, 0), (0, int(persons.max()) // 2)))


class Doubles(Rows):
    """A pool whose rows have another type after the first."""

    def draw(self, persons: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return self.table[persons].astype(np.float32 if len(persons) == 1 else np.int32)


@pytest.mark.parametrize("pool", [Leaving, Widest, Doubles])
def test_a_pool_has_one_row_for_each_person_and_always_of_one_shape(
    make_ledgers: MakeLedgers, pool: type[Rows]
) -> None:
    """Otherwise one person's row would be everybody's, or JAX would run another program."""
    people = 20
    made = release(participation=Poisson(sampling_rate=0.9, population=people), slots=people)
    table = np.ones((people, D), np.float32)
    stream = made.open(make_ledgers(), states(), pool(table), chunk=1, noise_seed=0)
    with pytest.raises(ValueError, match="the pool must return one row for each person"):
        stream.run(states(), keys())


class Listed(Rows):
    """A pool whose rows are collected in a list, which has no shape if nobody is drawn."""

    def draw(self, persons: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return np.array([self.table[one] for one in persons])


def test_a_pool_is_not_asked_if_nobody_is_drawn(make_ledgers: MakeLedgers) -> None:
    made = release(QUIET, participation=Poisson(sampling_rate=1e-9, population=SLOTS))
    stream = made.open(make_ledgers(), states(), Listed(UNITS + 1), noise_seed=0)
    _, log, _ = stream.run(states(), keys())
    np.testing.assert_allclose(log["u"], 0, atol=1e-4)


def test_a_pool_is_for_sampling_and_brings_its_own_data(make_ledgers: MakeLedgers) -> None:
    with pytest.raises(ValueError, match="a pool is for Poisson sampling"):
        release().open(make_ledgers(), states(), Rows(UNITS))
    sampled = release(participation=SAMPLED, population="real")
    (ledger,) = make_ledgers()
    stream = sampled.open([ledger], states(), Rows(UNITS))  # the data of real people
    with pytest.raises(ValueError, match="opened for a pool; leave `units` out"):
        stream.run(states(), keys(), units=UNITS[None])
    assert ledger.streams[0].releases == 0


def test_nobody_is_counted_twice_where_everybody_is_drawn(make_ledgers: MakeLedgers) -> None:
    rate = math.nextafter(1.0, 0.0)
    for microbatch in (None, 1, 3, SLOTS):
        made = release(
            QUIET,
            participation=Poisson(sampling_rate=rate, population=SLOTS),
            microbatch=microbatch,
        )
        eye = np.eye(SLOTS, dtype=np.float32)
        stream = made.open(make_ledgers(), states(), eye, noise_seed=0)
        log = stream.run(states(), keys(), units=eye[None])[1]
        np.testing.assert_allclose(log["u"], 1.0, atol=1e-3)
