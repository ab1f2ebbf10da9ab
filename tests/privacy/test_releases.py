"""The door: each of its conditions is tried, and each attempt to break it is refused."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from jaxtyping import Array
from references import variance_p_value
from scipy import linalg, stats
from small import GAP, HORIZON, QUIET, SLOTS, UNITS, D, keys, newcomers

from sotto.errors import CodeFailed
from sotto.privacy.certificates.derive import derive
from sotto.privacy.claims.streams import SAMPLED_PLACES
from sotto.privacy.errors import (
    BudgetExceeded,
    HorizonExceeded,
    LedgerUnavailable,
    ParticipationViolation,
    PrivacyError,
)
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.purity import ImpureFunction
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.privacy.statements import Correlation, Part, Poisson, Returning
from sotto.privacy.units import Adjacency

MakeLedgers = Callable[..., list[Ledger]]

PRIVATE = jnp.arange(float(D))


def own_noise(state: Any, unit: Any, key: Array) -> Any:
    return {"u": jax.random.normal(key, (D,))}, {}


def nothing(state: Any, unit: Any, key: Array) -> Any:
    return {"u": jnp.zeros(D)}, {}


def add(state: Any, released: Any) -> Any:
    return state + released["u"], released


release = partial(small.release, server=add, divisor=float(SLOTS))


def states(runs: int = 1, d: int = D) -> Array:
    return jnp.zeros((runs, d))


def people_data(runs: int = 1, releases: int = HORIZON, seed: int = 0) -> np.ndarray:
    """Short vectors, which clipping leaves alone."""
    data = np.random.default_rng(seed).uniform(-0.5, 0.5, (runs, releases, SLOTS, D))
    return data.astype(np.float32)


def chunks(counts: tuple[int, ...]) -> Iterator[slice]:
    edges = np.cumsum((0, *counts))
    return (slice(a, b) for a, b in itertools.pairwise(edges))


# --- what a release is ---------------------------------------------------------------------------


def test_a_release_is_the_noisy_sum_over_the_public_divisor(make_ledgers: MakeLedgers) -> None:
    data = people_data()
    stream = release(divisor=7.0).open(make_ledgers(), states(), UNITS, noise_seed=0)
    after, log, seen = stream.run(states(), keys(), newcomers(), data)
    np.testing.assert_allclose(log["u"], data.sum(axis=2) / 7, atol=1e-4)
    np.testing.assert_allclose(after[0], log["u"][0].sum(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(seen["seen"], data)


@pytest.mark.parametrize("microbatch", [None, 700])
def test_many_people_lose_nothing_to_the_grid(
    make_ledgers: MakeLedgers, microbatch: int | None
) -> None:
    """Sums in one word would take 8 per cent of the small numbers, each rounded towards zero."""
    people = 20_000
    data = np.broadcast_to(np.float32([1e-4, -1e-4, 0.5]), (1, 1, people, D))
    made = release(horizon=1, slots=people, divisor=float(people), microbatch=microbatch)
    stream = made.open(make_ledgers(), states(), UNITS[0][None].repeat(people, 0), noise_seed=0)
    _, log, _ = stream.run(states(), keys(), newcomers(releases=1, slots=people), data)
    np.testing.assert_allclose(log["u"][0, 0], data[0, 0, 0], rtol=1e-3)


def test_long_contributions_are_clipped_and_poison_is_zero(make_ledgers: MakeLedgers) -> None:
    data = np.zeros((1, 1, SLOTS, D), dtype=np.float32)
    data[0, 0, :, 0] = [1e6, np.nan, np.inf, -0.25]
    stream = release(horizon=1, divisor=1.0).open(make_ledgers(), states(), UNITS, noise_seed=0)
    _, log, _ = stream.run(states(), keys(), newcomers(releases=1), data)
    np.testing.assert_allclose(log["u"][0, 0], [0.75, 0, 0], atol=1e-4)


def test_a_joint_clip_bounds_all_parts_together(make_ledgers: MakeLedgers) -> None:
    def local(state: Any, unit: Array, key: Array) -> Any:
        return {"u": 30 * unit, "v": {"w": 40 * unit[:1]}}, {}

    both = {
        "u": Part(clip_norm=1.0, noise_multiplier=QUIET),
        "v": Part(clip_norm=2.0, noise_multiplier=QUIET),
    }
    data = np.zeros((1, 1, SLOTS, D), dtype=np.float32)
    data[0, 0, 0, 0] = 1.0
    for clipping, first, second in [("joint", 0.83205, 1.1094), ("separate", 1.0, 2.0)]:
        stream = release(local=local, parts=both, clipping=clipping, horizon=1, divisor=1.0).open(
            make_ledgers(), states(), UNITS, noise_seed=0
        )
        _, log, _ = stream.run(states(), keys(), newcomers(releases=1), data)
        # (30, 40) in units of the clip norms is (30, 20): jointly (3, 2) / sqrt(13) of them.
        np.testing.assert_allclose(log["u"][0, 0, 0], first, atol=1e-3)
        np.testing.assert_allclose(log["v"]["w"][0, 0, 0], second, atol=1e-3)


def test_released_noise_has_the_declared_scale(make_ledgers: MakeLedgers) -> None:
    """And a scale wrong by 5% would be noticed."""
    d, z, clip, divisor = 20_000, 2.0, 0.3, 8.0
    stream = release(
        z, clip, local=lambda s, u, k: ({"u": jnp.zeros(d)}, {}), divisor=divisor
    ).open(make_ledgers(), states(d=d))
    _, log, _ = stream.run(states(d=d), keys(), newcomers())
    white = np.asarray(log["u"], dtype=np.float64).ravel() / (z * clip / divisor)
    assert stats.kstest(white, "norm").pvalue > 1e-6
    assert stats.kstest(1.05 * white, "norm").pvalue < 1e-6


@pytest.mark.parametrize(
    "participation", [Returning(max_participations=2, min_separation=2), None], ids=str
)
def test_correlated_noise_has_the_declared_covariance(
    make_ledgers: MakeLedgers, participation: Returning | None
) -> None:
    n, d, z, clip, divisor = 6, 20_000, 2.0, 0.3, 8.0
    stream = release(
        z,
        clip,
        local=lambda s, u, k: ({"u": jnp.zeros(d)}, {}),
        divisor=divisor,
        horizon=n,
        correlation=Correlation(kind="prefix-sum"),
        **({"participation": participation} if participation else {}),
    ).open(make_ledgers(), states(d=d), chunk=4, noise_seed=0)
    state, logs = states(d=d), []
    for some in chunks((4, 2)):
        state, log, _ = stream.run(state, keys(), newcomers(releases=n)[:, some])
        logs.append(log["u"][0])
    noise = np.concatenate(logs).astype(np.float64)
    c = linalg.sqrtm(np.tril(np.ones((n, n)))).real
    columns = c[:, 0] + (c[:, 2] if participation else 0)
    white = c @ noise / (z * clip * np.linalg.norm(columns) / divisor)

    assert variance_p_value(white) > 1e-3
    assert variance_p_value(1.05 * white) < 1e-6
    assert variance_p_value(0.95 * white) < 1e-6
    assert np.abs(np.corrcoef(white) - np.eye(n)).max() < 5 / math.sqrt(d)


# --- purity --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"local": lambda s, u, k: ({"u": u + PRIVATE}, {})},
        {"local": lambda s, u, k: ({"u": jax.lax.psum(u, "people")}, {})},
        {"server": lambda s, r: (s + PRIVATE, r)},
        {"server": lambda s, r: (s, jax.pure_callback(lambda x: x, s, s))},
    ],
    ids=["local captures", "local psum", "server captures", "server calls back"],
)
def test_impure_functions_are_refused_before_the_ledger_knows(
    make_ledgers: MakeLedgers, changes: dict[str, Any]
) -> None:
    (ledger,) = make_ledgers()
    with pytest.raises(ImpureFunction):
        release(**changes).open([ledger], states(), UNITS)
    assert ledger.streams == ()


@pytest.mark.parametrize("role", ["local", "server"])
def test_an_error_of_an_authors_function_says_whose_it_is_and_where(
    make_ledgers: MakeLedgers, role: str
) -> None:
    def misspelt(*_given: Any) -> Any:
        return stat  # noqa: F821

    def branches(state: Any, *_given: Any) -> Any:
        return state if state.sum() > 0 else -state

    (ledger,) = make_ledgers()
    line = misspelt.__code__.co_firstlineno + 1
    for function, says in (
        (misspelt, rf"NameError in .*test_releases.py, line {line}: name 'stat' is not defined"),
        (branches, r"TracerBoolConversionError in .*test_releases.py, line \d+: Attempted boolean"),
    ):
        with pytest.raises(CodeFailed, match=rf"^`{role}` of '.+' raised {says}") as failure:
            release(**{role: function}).open([ledger], states(), UNITS)
        assert "\n" not in str(failure.value)
    with pytest.raises(ValueError, match=rf"^{role} must return "):
        release(**{role: lambda state, *_given: state}).open([ledger], states(), UNITS)
    assert ledger.streams == ()


@pytest.mark.parametrize("slip", ["local", "server"])
def test_a_function_that_changes_after_it_was_checked_changes_nothing(
    make_ledgers: MakeLedgers, slip: str
) -> None:
    smuggled: list[Array] = []

    def local(state: Any, unit: Array, key: Array) -> Any:
        return {"u": unit + (smuggled[0] if smuggled and slip == "local" else 0.0)}, {}

    def server(state: Any, released: Any) -> Any:
        return state + (smuggled[0] if smuggled and slip == "server" else 0.0), released

    ledgers = make_ledgers()
    stream = release(local=local, server=server).open(ledgers, states(), UNITS, noise_seed=0)
    smuggled.append(0.1 * jnp.ones(D))
    after, log, _ = stream.run(states(), keys(), newcomers(), np.zeros((1, HORIZON, SLOTS, D)))
    np.testing.assert_allclose(after, 0.0, atol=1e-4)
    np.testing.assert_allclose(log["u"], 0.0, atol=1e-4)


# --- who takes part ------------------------------------------------------------------------------


def twice_in_one() -> np.ndarray:
    persons = newcomers().copy()
    persons[0, 2, 3] = persons[0, 2, 1]
    return persons


def twice_in_two() -> np.ndarray:
    persons = newcomers().copy()
    persons[0, 4, 0] = persons[0, 0, 0]
    return persons


@pytest.mark.parametrize("persons", [twice_in_one(), twice_in_two()], ids=["one", "two"])
def test_nobody_takes_part_twice(make_ledgers: MakeLedgers, persons: np.ndarray) -> None:
    (ledger,) = make_ledgers()
    stream = release(3.0).open([ledger], states(), UNITS)
    assert_nothing_runs(stream, ParticipationViolation, persons)
    assert ledger.persons == 0


def test_nobody_takes_part_again_after_a_restart(make_ledgers: MakeLedgers, tmp_path: Any) -> None:
    (ledger,) = make_ledgers()
    stream = release(3.0).open([ledger], states(), UNITS)
    stream.run(states(), keys(), newcomers(), people_data())
    resumed = Ledger.open(next(tmp_path.glob("*.sqlite")))
    stream = release(3.0).open([resumed], states(), UNITS)
    again = newcomers(first=resumed.next_person - 1)
    assert_nothing_runs(stream, ParticipationViolation, again)
    stream.run(states(), keys(), newcomers(first=resumed.next_person), people_data())


def test_a_returning_person_keeps_the_distance(make_ledgers: MakeLedgers) -> None:
    rule = Returning(max_participations=2, min_separation=3)
    persons = newcomers().copy()
    persons[0, 2, 0] = persons[0, 0, 0]
    stream = release(3.0, participation=rule).open(make_ledgers(), states(), UNITS)
    assert_nothing_runs(stream, ParticipationViolation, persons)
    persons[0, 2, 0], persons[0, 3, 0] = 99, persons[0, 0, 0]
    stream.run(states(), keys(), persons, people_data())


def test_no_more_releases_than_the_horizon(make_ledgers: MakeLedgers) -> None:
    stream = release(3.0).open(make_ledgers(), states(), UNITS)
    stream.run(states(), keys(), newcomers(releases=3), people_data(releases=3))
    assert_nothing_runs(
        stream, HorizonExceeded, newcomers(releases=3, first=100), people_data(releases=3)
    )
    sampled = release(3.0, participation=Poisson(sampling_rate=0.5, population=SLOTS), gaps=(GAP,))
    stream = sampled.open(make_ledgers(), states(), UNITS)
    stream.run(states(), keys(), units=people_data()[:, 0])
    assert_nothing_runs(stream, HorizonExceeded, None, people_data()[:, 0])


def test_an_absent_slot_counts_zero_and_the_divisor_stays(make_ledgers: MakeLedgers) -> None:
    data, persons = people_data(), newcomers().copy()
    persons[0, 0, 1:] = -1
    persons[0, 1] = -1
    data[0, 0, 1:] = np.nan
    stream = release(local=lambda s, u, k: ({"u": u, "v": u}, {}), unprotected={"v": GAP}).open(
        make_ledgers(), states(), UNITS, noise_seed=0
    )
    _, log, _ = stream.run(states(), keys(), persons, data)
    for name in ("u", "v"):
        np.testing.assert_allclose(log[name][0, 0], data[0, 0, 0] / SLOTS, atol=1e-4)
        np.testing.assert_allclose(log[name][0, 1], 0, atol=1e-4)


@pytest.mark.parametrize("sampled", [False, True])
def test_an_empty_release_costs_and_is_noisy(make_ledgers: MakeLedgers, sampled: bool) -> None:
    who = {"participation": Poisson(sampling_rate=1e-12, population=SLOTS)} if sampled else {}
    (ledger,) = make_ledgers()
    stream = release(5.0, **who).open([ledger], states(), UNITS)
    persons = None if sampled else np.full((1, HORIZON, SLOTS), -1)
    units = people_data()[:, 0] if sampled else people_data()
    _, log, _ = stream.run(states(), keys(), persons, units)
    assert np.all(np.abs(log["u"]) > 0)
    assert np.std(log["u"]) == pytest.approx(5.0 / SLOTS, rel=0.7)
    assert ledger.streams[0].releases == HORIZON
    assert sampled or ledger.spent().epsilon > 0.5


# --- the charge comes first ----------------------------------------------------------------------


def assert_nothing_runs(
    stream: Stream, error: type[PrivacyError], persons: Any, units: Any = None
) -> None:
    """The program is not called, no noise is drawn, and the count stays."""
    program, draws, released = stream._program, stream._draws, stream.released

    def forbidden(*arguments: Any) -> Any:
        raise AssertionError("this ran before the charge")

    stream._program = forbidden
    stream._draws = forbidden
    try:
        with pytest.raises(error):
            stream.run(states(), keys(), persons, people_data() if units is None else units)
    finally:
        stream._program, stream._draws = program, draws
    assert stream.released == released


def test_nothing_runs_that_could_not_be_charged(
    make_ledgers: MakeLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = make_ledgers(2)
    stream = release(3.0).open(ledgers, states(2), UNITS)

    def down(*arguments: Any) -> None:
        raise LedgerUnavailable("the disk is full")

    monkeypatch.setattr(stream._ledger_streams[1], "charge", down)
    before = states(2)
    program, calls = stream._program, []
    monkeypatch.setattr(stream, "_program", lambda *a: calls.append(a) or program(*a))
    used = stream._draws._generators._used
    with pytest.raises(LedgerUnavailable):
        stream.run(before, keys(2), newcomers(2), people_data(2))
    assert calls == []
    assert stream._draws._generators._used == used == 0
    np.testing.assert_array_equal(before, 0)
    # The first ledger has paid for releases that were never made: nothing is ever refunded.
    assert [ledger.streams[0].releases for ledger in ledgers] == [HORIZON, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"states": jnp.zeros((1, D + 1))},
        {"states": jnp.zeros((1, D), dtype=jnp.int32)},
        {"keys": jax.random.PRNGKey(0)[None]},
        {"keys": keys(2)},
        {"persons": newcomers(releases=HORIZON, slots=SLOTS - 1)},
        {"persons": newcomers(runs=2)},
        {"persons": newcomers(releases=0)},
        {"persons": None},
        {"units": people_data()[:, :, :, :-1]},
        {"units": people_data()[:, :-1]},
        {"units": ()},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_wrong_shapes_are_refused_before_they_cost(
    make_ledgers: MakeLedgers, wrong: dict[str, Any]
) -> None:
    (ledger,) = make_ledgers()
    stream = release(3.0).open([ledger], states(), UNITS)
    right = {"states": states(), "keys": keys(), "persons": newcomers(), "units": people_data()}
    with pytest.raises(ValueError, match=r"opened for|must be|give `persons`"):
        stream.run(**(right | wrong))
    assert ledger.streams[0].releases == 0


# --- Poisson sampling ----------------------------------------------------------------------------

POPULATION = 40


def sampled(rate: float, horizon: int, **changes: Any) -> Release:
    """Releases who was drawn: the sum of one-hot vectors, almost without noise."""
    return release(
        participation=Poisson(sampling_rate=rate, population=POPULATION),
        slots=POPULATION,
        divisor=1.0,
        horizon=horizon,
        gaps=(GAP,),
        **changes,
    )


def test_the_certificate_of_sampled_people_names_the_rounding_by_place() -> None:
    for one, drawn in ((sampled(0.5, 2), True), (release(), False)):
        said = one.statement(dict.fromkeys(one.parts, 1), "operating-system").assumptions
        assert (SAMPLED_PLACES.assumption() in said) == drawn


def who_was_drawn(stream: Stream, runs: int = 1, seed: int = 0) -> np.ndarray:
    eye = jnp.broadcast_to(jnp.eye(POPULATION), (runs, POPULATION, POPULATION))
    _, log, diagnostics = stream.run(states(runs, POPULATION), keys(runs, seed), units=eye)
    assert diagnostics is None
    drawn = np.asarray(log["u"])
    np.testing.assert_allclose(drawn, np.rint(drawn), atol=1e-3)
    return np.rint(drawn).astype(int)


def test_people_are_drawn_at_the_stated_rate_and_independently(make_ledgers: MakeLedgers) -> None:
    rate, horizon = 0.3, 400
    stream = sampled(rate, horizon).open(
        make_ledgers(2), states(2, POPULATION), np.eye(POPULATION), chunk=horizon
    )
    drawn = who_was_drawn(stream, runs=2)
    assert set(np.unique(drawn)) == {0, 1}  # nobody is counted twice in one release
    deviation = math.sqrt(rate * (1 - rate) / drawn.size)
    assert abs(drawn.mean() - rate) < 4 * deviation
    sizes = drawn.sum(axis=2).ravel()
    assert stats.chi2.sf(sizes.var() * sizes.size / (POPULATION * 0.21), sizes.size) > 1e-4
    assert stats.chi2.cdf(sizes.var() * sizes.size / (POPULATION * 0.21), sizes.size) > 1e-4
    correlations = np.corrcoef(drawn.transpose(0, 2, 1).reshape(2 * POPULATION, -1))
    assert np.abs(correlations - np.eye(2 * POPULATION)).max() < 6 / math.sqrt(horizon)


def test_draws_are_secret_and_not_of_the_training_key(make_ledgers: MakeLedgers) -> None:
    def draw(training_seed: int, noise_seed: int | None) -> np.ndarray:
        stream = sampled(0.5, 5).open(
            make_ledgers(), states(1, POPULATION), np.eye(POPULATION), noise_seed=noise_seed
        )
        return who_was_drawn(stream, seed=training_seed)

    assert np.mean(draw(0, None) != draw(0, None)) == pytest.approx(0.5, abs=0.2)
    np.testing.assert_array_equal(draw(0, noise_seed=7), draw(1, noise_seed=7))


@pytest.mark.parametrize("microbatch", [1, 7, POPULATION, 1000])
@pytest.mark.parametrize("rate", [0.02, 0.98])
def test_nobody_who_was_drawn_is_cut_off(
    make_ledgers: MakeLedgers, rate: float, microbatch: int
) -> None:
    def draw(size: int | None) -> np.ndarray:
        stream = sampled(rate, 8, microbatch=size).open(
            make_ledgers(), states(1, POPULATION), np.eye(POPULATION), noise_seed=0
        )
        return who_was_drawn(stream)

    drawn = draw(microbatch)
    np.testing.assert_array_equal(drawn, draw(None))
    assert abs(drawn.mean() - rate) < 0.05


def test_sampling_with_correlated_noise_is_refused(make_ledgers: MakeLedgers) -> None:
    with pytest.raises(ValueError, match="no accountant"):
        sampled(0.1, 5, correlation=Correlation(kind="prefix-sum")).open(
            make_ledgers(), states(1, POPULATION), np.eye(POPULATION)
        )


# --- chunks, batches, runs side by side ----------------------------------------------------------


@pytest.mark.parametrize("microbatch", [1, 2, SLOTS])
def test_microbatches_release_the_same_bits(make_ledgers: MakeLedgers, microbatch: int) -> None:
    data = people_data()

    def log(size: int | None) -> np.ndarray:
        stream = release(microbatch=size).open(make_ledgers(), states(), UNITS, noise_seed=3)
        _, log, seen = stream.run(states(), keys(), newcomers(), data)
        np.testing.assert_array_equal(seen["seen"], data)
        return np.asarray(log["u"])

    np.testing.assert_array_equal(log(microbatch), log(None))


def test_one_program_serves_every_chunk_and_chunks_change_no_key(
    make_ledgers: MakeLedgers,
) -> None:
    logs = []
    for chunk, counts in [(5, (5,)), (2, (2, 2, 1)), (3, (1, 3, 1))]:
        stream = release(local=own_noise, divisor=1.0).open(
            make_ledgers(), states(), chunk=chunk, noise_seed=0
        )
        state, parts_of_log = states(), []
        for some in chunks(counts):
            state, log, _ = stream.run(state, keys(), newcomers()[:, some])
            assert log["u"].shape[1] == some.stop - some.start
            parts_of_log.append(log["u"])
        assert stream._program._cache_size() == 1
        assert stream.released == HORIZON
        logs.append(np.concatenate(parts_of_log, axis=1))
    np.testing.assert_allclose(logs[1], logs[0], atol=1e-4)
    np.testing.assert_allclose(logs[2], logs[0], atol=1e-4)
    assert np.abs(np.diff(logs[0], axis=1)).min() > 1e-4  # every release has keys of its own


def test_runs_side_by_side_have_noise_of_their_own(make_ledgers: MakeLedgers) -> None:
    d = 5000
    stream = release(3.0, local=lambda s, u, k: ({"u": jnp.zeros(d)}, {})).open(
        make_ledgers(3), states(3, d)
    )
    _, log, _ = stream.run(states(3, d), keys(3), newcomers(3))
    correlations = np.corrcoef(np.asarray(log["u"]).reshape(3 * HORIZON, d))
    assert np.abs(correlations - np.eye(3 * HORIZON)).max() < 6 / math.sqrt(d)


def test_a_run_is_the_same_alone_and_in_company(make_ledgers: MakeLedgers) -> None:
    company = release(local=own_noise).open(make_ledgers(3), states(3), noise_seed=0)
    alone = release(local=own_noise).open(make_ledgers(), states(), noise_seed=0)
    _, together, _ = company.run(states(3), keys(3), newcomers(3))
    _, single, _ = alone.run(states(), keys(3)[1:2], newcomers())
    np.testing.assert_allclose(single["u"][0], together["u"][1], atol=1e-4)


def test_nobody_moves_anybody_elses_random_numbers(make_ledgers: MakeLedgers) -> None:
    """Leaving a slot empty changes the sum by what its person contributed, and nothing else."""
    logs = []
    for absent in (None, 2):
        persons = newcomers().copy()
        if absent is not None:
            persons[0, :, absent] = -1
        stream = release(QUIET, 10.0, local=own_noise, divisor=1.0).open(
            make_ledgers(), states(), noise_seed=0
        )
        logs.append(np.asarray(stream.run(states(), keys(), persons)[1]["u"][0]))
    of_releases = [jax.random.fold_in(keys()[0], i) for i in range(HORIZON)]
    own = [
        jax.random.normal(jax.random.fold_in(key, int(newcomers()[0, i, 2])), (D,))
        for i, key in enumerate(of_releases)
    ]
    np.testing.assert_allclose(logs[0] - logs[1], own, atol=1e-3)


def test_a_world_carries_on_from_release_to_release(make_ledgers: MakeLedgers) -> None:
    def world(state: Array, steps: Array, key: Array) -> Any:
        return steps + 1, jnp.full((SLOTS, D), 0.1) * steps

    made = release(world=world, gaps=(GAP,), divisor=float(SLOTS))
    counters = jnp.zeros(2)
    stream = made.open(make_ledgers(2), states(2), world_states=counters, chunk=3, noise_seed=0)
    logs, state = [], states(2)
    for some in chunks((3, 2)):
        state, log, _ = stream.run(state, keys(2), newcomers(2)[:, some])
        logs.append(log["u"])
    steps = np.concatenate(logs, axis=1)[:, :, 0]
    np.testing.assert_allclose(steps, np.tile(0.1 * np.arange(HORIZON), (2, 1)), atol=1e-4)
    np.testing.assert_array_equal(counters, 0)  # the caller's array is still there


# --- what people see, and what is certified ------------------------------------------------------


@pytest.mark.parametrize("sampled_people", [False, True])
def test_nothing_is_shown_of_real_people(make_ledgers: MakeLedgers, sampled_people: bool) -> None:
    who = {"participation": Poisson(sampling_rate=0.5, population=SLOTS)} if sampled_people else {}
    stream = release(5.0, population="real", **who).open(make_ledgers(), states(), UNITS)
    persons = None if sampled_people else newcomers()
    units = people_data()[:, 0] if sampled_people else people_data()
    assert stream.run(states(), keys(), persons, units)[2] is None


def test_people_of_the_programs_own_making_are_not_real(make_ledgers: MakeLedgers) -> None:
    """`local` could only have made them from its key, and a world has made them."""
    with pytest.raises(ValueError, match="are simulated"):
        release(population="real").open(make_ledgers(), states(), ())
    with pytest.raises(ValueError, match="are simulated"):
        release(population="real", world=lambda *given: given, gaps=(GAP,)).open(
            make_ledgers(), states(), UNITS
        )


def test_certificates_follow_from_what_was_done(make_ledgers: MakeLedgers) -> None:
    def certify(noise_seed: int | None = None, **changes: Any) -> Any:
        (ledger,) = make_ledgers()
        stream = release(3.0, **changes).open([ledger], states(), UNITS, noise_seed=noise_seed)
        stream.run(states(), keys(), newcomers(), people_data())
        return derive(ledger)

    proved = certify()
    assert (proved.status, proved.epsilon) == ("proved", pytest.approx(1.43, abs=0.03))
    assert certify(noise_seed=0).status == "none"

    def leaky(state: Any, unit: Array, key: Array) -> Any:
        return {"u": unit, "critic": unit}, {}

    claim = certify(local=leaky, unprotected={"critic": GAP})
    assert (claim.status, claim.epsilon) == ("paper-claim", math.inf)


def test_the_statement_is_the_same_for_every_run_and_in_every_ledger(
    make_ledgers: MakeLedgers,
) -> None:
    ledgers = make_ledgers(2, epsilon=2.0)
    stream = release(3.0).open(ledgers, states(2), UNITS)
    assert [ledger.streams[0].statement for ledger in ledgers] == [stream.statement] * 2
    assert stream.statement.entropy == "operating-system"
    assert 0 < stream.statement.sampler_delta < 1e-30


def test_a_budget_that_cannot_cover_the_stream_is_refused_at_once(
    make_ledgers: MakeLedgers,
) -> None:
    with pytest.raises(BudgetExceeded, match="over the budget"):
        release(1.0).open(make_ledgers(epsilon=1.0), states(), UNITS)
    with pytest.raises(BudgetExceeded, match="sampler alone"):
        release().open(make_ledgers(), states(), UNITS)
    with pytest.raises(BudgetExceeded, match="vacuous for the 20 persons"):
        release(3.0).open(make_ledgers(delta=0.05), states(), UNITS)
    with pytest.raises(BudgetExceeded, match="epsilon infinity"):
        release(gaps=(GAP,)).open(make_ledgers(epsilon=9.0), states(), UNITS)
    with pytest.raises(PrivacyError, match="use a ledger of its own"):
        release(3.0).open(make_ledgers(adjacency=Adjacency.REPLACE_ONE), states(), UNITS)


# --- what cannot be declared ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world": lambda s, w, k: (w, UNITS)}, "name the gap"),
        ({"slots": 0}, "at least one slot"),
        ({"horizon": 0}, "horizon of at least one"),
        ({"microbatch": 0}, "must be positive"),
        ({"unprotected": {"u": GAP}}, "both protected and unprotected"),
        ({"participation": Poisson(sampling_rate=0.1, population=9)}, "size of the population"),
        (
            {"population": "real", "unprotected": {"critic": GAP}},
            "real people's critic would leave without noise",
        ),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        release(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"local": lambda s, u, k: ({"u": u, "more": u}, {})}, "declared"),
        ({"local": lambda s, u, k: ({"u": ()}, {})}, "no numbers"),
        ({"server": lambda s, r: (s[:1], r)}, "same structure"),
        ({"server": lambda s, r: ((s, s), r)}, "same structure"),
    ],
)
def test_mismatches_are_refused_at_opening(
    make_ledgers: MakeLedgers, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        release(**changes).open(make_ledgers(), states(), UNITS)
    with pytest.raises(ValueError, match="one entry per ledger"):
        release().open(make_ledgers(), states(2), UNITS)
    with pytest.raises(ValueError, match="one entry per slot"):
        release().open(make_ledgers(), states(), UNITS[1:])


def test_noise_that_does_not_fit_in_memory_is_refused_before_anything_is_charged(
    make_ledgers: MakeLedgers,
) -> None:
    kept = release(
        1e3,
        local=nothing,
        server=lambda state, released: (state, ()),
        slots=1,
        horizon=10**5,
        correlation=Correlation(kind="binary-tree"),
    )
    wide = replace(kept, local=lambda s, u, k: ({"u": jnp.zeros(2 * 10**4)}, {}))
    (ledger,) = make_ledgers()
    with pytest.raises(ValueError, match="15 GiB of draws"):
        wide.open([ledger], states(), UNITS[:1])
    assert not ledger.streams
    kept.open([ledger], states(), UNITS[:1])
    assert ledger.streams


def test_what_was_declared_cannot_change_afterwards() -> None:
    declared = {"u": Part(clip_norm=1.0, noise_multiplier=3.0)}
    made = release(parts=declared)
    declared["u"] = Part(clip_norm=1e9, noise_multiplier=1e-9)
    assert made.parts["u"].noise_multiplier == 3.0
    with pytest.raises(TypeError):
        made.parts["u"] = declared["u"]  # type: ignore[index]
