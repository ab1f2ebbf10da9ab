"""Marginalised values: exactness, tables, sensitivity of both halves, noise, refusals."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluated import (
    BEHAVIOUR,
    LEAST,
    MOVES,
    declared,
    every_trajectory,
    exact_value,
    parts_of,
    records_of,
    without_noise,
)
from fixed_noise import fixed_noise
from scipy.stats import chi2

from sotto.algorithms.evaluation import analysis, chains, tables
from sotto.algorithms.evaluation import release as door
from sotto.algorithms.evaluation.analysis import Asked, as_json, evaluate, settings_of
from sotto.algorithms.evaluation.cells import Cells, Correction, probabilities, reach
from sotto.algorithms.evaluation.chains import TableFacts, Tables
from sotto.algorithms.evaluation.intervals import values
from sotto.algorithms.evaluation.persons import Bounds, PersonLog, Public
from sotto.algorithms.evaluation.policies import Constant, Linear, Target, named
from sotto.algorithms.evaluation.release import UNIT, Spending
from sotto.algorithms.log_release import through_the_door
from sotto.data.imports.declaration import Declaration
from sotto.data.imports.records import Records
from sotto.keys import new_key
from sotto.privacy.certificates.derive import derive
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget

STEPS = 3
MIXED = Constant(jnp.array([0.1, 0.9]))
CHANCES = {0: (0.1, 0.9), 1: (0.1, 0.9)}
SILENT = {"visits": 0.0, "rewards": 0.0, "starts": 0.0}
HALVES = Cells.of(declared(2, STEPS), (2,))
"""Observations are 0 and 1 in the chain, and from -1 to 1: the second half begins at 0."""


def states(steps: int = STEPS) -> tuple[Records, np.ndarray, Cells]:
    """All logs of the chain, their probabilities, and its two states as cells."""
    records, chances = every_trajectory(steps)
    facts = records.declaration.model_dump()
    facts["observation"] = [{"column": "x", "categories": ["zero", "one"]}]
    declaration = Declaration.of(facts)
    seen = np.eye(2, dtype=np.float32)[records.observations[..., 0].astype(int)]
    held = Records(
        *("made for a test", declaration, seen),
        *(records.actions, records.rewards, records.propensities, records.present),
        *(records.ends, records.cut),
    )
    return held, chances, Cells.of(declaration, ())


def tables_of(people: PersonLog, cells: Cells, weights: np.ndarray) -> Tables:
    """The tables without noise, of people with these weights."""
    each, _ = jax.vmap(lambda one: tables.contribution((0.0, 2.0), 2, cells, one, new_key(0)))(
        people
    )
    return Tables(
        **{name: np.tensordot(weights, np.asarray(x, float), 1) for name, x in each.items()}
    )


def true_table(discount: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Returns of the policy [T, S, A] and the ratios [T, S+1], by hand."""
    found, later = [], np.zeros(2)
    for _ in range(STEPS):
        q = [
            [
                sum(MOVES[s, a][n] * (n * (1 + a) + discount * later[n]) for n in (0, 1))
                for a in (0, 1)
            ]
            for s in (0, 1)
        ]
        found.append(q)
        later = np.array([np.dot(CHANCES[s], q[s]) for s in (0, 1)])
    ratios = []
    ours = theirs = np.array([1.0, 0.0])
    for _ in range(STEPS):
        ratios.append([*np.where(theirs > 0, ours / np.maximum(theirs, 1e-9), 1), 1.0])
        ours, theirs = (
            sum(share[s] * chances[s][a] * np.array(MOVES[s, a]) for s in (0, 1) for a in (0, 1))
            for share, chances in ((ours, CHANCES), (theirs, BEHAVIOUR))
        )
    return np.array(found[::-1]), np.array(ratios)


def corrected(
    records: Records, policy: Target, correction: Correction, clip: float, discount: float = 1.0
) -> Any:
    asked = Asked("marginalised", largest_weights=(clip,), discount=discount)
    evaluation, least, actions = settings_of(records.declaration, asked, 1)
    public = Public((policy,), (correction,))
    return evaluation, Bounds.of(evaluation, public, least, actions), public


def correction(cells: Cells, expected: Any, ratios: Any) -> Correction:
    return Correction(cells, jnp.asarray(expected, jnp.float32), jnp.asarray(ratios, jnp.float32))


def value_of(records: Records, chances: np.ndarray, *given: Any) -> Any:
    evaluation, bounds, public = corrected(records, *given)
    parts = parts_of(evaluation, bounds, public, PersonLog.of(records))
    return without_noise(evaluation, bounds, parts, 1e9 * chances)[0], parts, bounds


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_values_are_exact_if_the_returns_or_the_ratios_are_right(discount: float) -> None:
    """Every log of the chain with its probability: there is no sampling error."""
    records, chances, cells = states()
    exact = exact_value(CHANCES, STEPS, discount)
    returns, ratios = true_table(discount)
    rng = np.random.default_rng(0)
    wrong_returns, wrong_ratios = rng.uniform(0, 2, returns.shape), rng.uniform(0, 2, ratios.shape)
    for one, other, right in [
        (returns, wrong_ratios, True),
        (wrong_returns, ratios, True),
        (wrong_returns, wrong_ratios, False),
    ]:
        found, _, _ = value_of(
            records, chances, MIXED, correction(cells, one, other), 100.0, discount
        )
        assert (abs(found.value - exact) < 1e-3) == right
    assert found.tables == 0
    one, _, _ = value_of(
        records, chances, MIXED, correction(cells, returns, ratios), 100.0, discount
    )
    assert one.mean_weight == pytest.approx(1, abs=1e-3)


def test_tables_without_noise_give_the_returns_and_the_ratios() -> None:
    records, chances, cells = states()
    people = PersonLog.of(records)
    facts = TableFacts(SILENT, (0.0, 2.0), 0.8)
    (found,) = chains.corrections(
        cells, tables_of(people, cells, 1e6 * chances), facts, [probabilities(MIXED, cells)]
    )
    returns, ratios = true_table(0.8)
    np.testing.assert_allclose(found.expected, returns, atol=1e-3)
    np.testing.assert_allclose(found.ratios[1:, :2], ratios[1:, :2], atol=1e-3)
    assert found.ratios[0, 0] == pytest.approx(1, abs=1e-4)


def test_people_who_leave_and_steps_that_differ_are_in_the_tables() -> None:
    """A person leaves after the first reward, so all are in state 0; chances differ by step."""
    records, chances, cells = states()
    earned = np.cumsum(records.rewards, axis=1) - records.rewards
    people = PersonLog.of(records)._replace(present=jnp.asarray(earned == 0))
    facts = TableFacts(SILENT, (0.0, 2.0), 1.0)
    table = tables_of(people, cells, 1e6 * chances)
    found = chains.correction_of(
        table, facts, probabilities(MIXED, cells), chains.chain_of(table, facts)
    )
    stay = [0.8 * p0 + 0.3 * p1 for p0, p1 in ((0.1, 0.9), BEHAVIOUR[0])]
    for step in range(STEPS):
        there = [one**step for one in stay]
        assert found[1][step, 0] == pytest.approx(there[0] / there[1], rel=1e-3)
        if step:
            assert found[1][step, 2] == pytest.approx((1 - there[0]) / (1 - there[1]), rel=1e-3)
    value = 0.0
    for _ in range(STEPS):
        value = 0.1 * (0.2 + 0.8 * value) + 0.9 * (0.7 * 2 + 0.3 * value)
    given = correction(cells, *found)
    left = Records(**{**records.__dict__, "present": np.asarray(people.present)})
    assert value_of(left, chances, MIXED, given, 100.0)[0].value == pytest.approx(value, abs=2e-3)


def test_tables_of_single_steps_are_used_where_they_differ() -> None:
    """The moves of the second step are others; with many people the tables tell."""
    moves = np.array([[[0.9, 0.1, 0.0], [0.5, 0.5, 0.0]], [[0.2, 0.8, 0.0], [0.6, 0.4, 0.0]]])
    by_step = np.stack([moves, moves[:, ::-1], moves[::-1]])
    visits = 1e5 * 0.25 * by_step
    table = Tables(visits, np.zeros((3, 2, 2)), np.array([5e4, 5e4, 0.0]))
    noise = {"visits": 10.0, "rewards": 10.0, "starts": 10.0}
    found = chains.chain_of(table, TableFacts(noise, (0.0, 1.0), 1.0))
    np.testing.assert_allclose(found.moves[:2], by_step[:2], atol=0.02)
    same = chains.chain_of(
        table._replace(visits=1e5 * 0.25 * moves[None].repeat(3, 0)),
        TableFacts(noise, (0.0, 1.0), 1.0),
    )
    np.testing.assert_allclose(same.moves[0], same.moves[1], atol=1e-12)


def test_the_redrawn_tables_keep_what_is_shrunk_away() -> None:
    """One step of many is unlike the others: the errors that this makes show in the allowance."""
    moves = np.tile(
        np.array([[[1, 0, 0], [1, 0, 0]], [[0, 1, 0], [0, 1, 0]]], float), (20, 1, 1, 1)
    )
    moves[0] = [[[0, 1, 0], [1, 0, 0]], [[0, 1, 0], [1, 0, 0]]]
    rewards = 1000 * np.tile(np.array([[-1.0, -1.0], [1.0, 1.0]]), (20, 1, 1))
    table = Tables(1000 * moves, rewards, np.array([2000.0, 2000.0, 0.0]))
    facts = TableFacts({"visits": 150.0, "rewards": 1.0, "starts": 1.0}, (0.0, 1.0), 1.0)
    taken = np.array([[0.7, 0.3], [0.7, 0.3]])
    used = chains.chain_of(table, facts)
    assert used.kept.moves < 0.9
    assert used.moves[0, 0, 0, 1] < 0.9
    (said,) = chains.errors_of_tables(table, facts, [taken])
    assert said > 0.1


@pytest.mark.parametrize("clip", [0.5, 1.2, 2.0])
def test_the_bias_from_clipping_is_within_its_bound(clip: float) -> None:
    """With true ratios there is no other bias. Wrong returns make it large."""
    records, chances, cells = states()
    _, ratios = true_table()
    exact, seen = exact_value(CHANCES, STEPS, 1.0), 0.0
    for seed in range(4):
        returns = np.random.default_rng(seed).integers(0, 2, (STEPS, 2, 2)) * 2.0
        found, _, bounds = value_of(
            records, chances, MIXED, correction(cells, returns, ratios), clip
        )
        assert abs(found.value - exact) <= found.bias + 1e-3
        assert bounds.beyond[0] > 0
        seen = max(seen, abs(found.value - exact))
    assert seen > 0.02


@pytest.mark.parametrize("steps", [1, STEPS])
def test_raised_propensities_are_in_the_bias(steps: int) -> None:
    """Logged probabilities are raised to the declared bound, and no person's log tells."""
    records, chances, cells = states(steps)
    exact = exact_value(CHANCES, steps, 1.0)
    raised = replace(records, propensities=np.maximum(records.propensities, 0.6))
    given = correction(cells, np.zeros((steps, 2, 2)), np.ones((steps, 3)))
    found, _, _ = value_of(raised, chances, MIXED, given, 50.0)
    assert found.mean_weight < 0.9
    assert abs(found.value - exact) > 0.02
    assert abs(found.value - exact) <= found.bias
    honest, _, _ = value_of(records, chances, MIXED, given, 50.0)
    assert honest.mean_weight == pytest.approx(1, abs=1e-3)
    assert honest.bias < 0.05


# --- sensitivity and noise -----------------------------------------------------------------------


def extreme_people() -> PersonLog:
    """All logs of states, actions, rewards and propensities at their ends, of 1 to 3 steps."""
    every = np.indices((2,) * 4 * STEPS).reshape(4, STEPS, -1).transpose(0, 2, 1)
    state, action, reward, chance = (
        np.concatenate([one[:: 16 ** (STEPS - n)] for n in range(1, STEPS + 1)]) for one in every
    )
    lengths = np.repeat(np.arange(1, STEPS + 1), [16**n for n in range(1, STEPS + 1)])
    return PersonLog(
        jnp.asarray(np.eye(2)[state], jnp.float32),
        jnp.asarray(action, jnp.int32),
        jnp.asarray(2.0 * reward, jnp.float32),
        jnp.asarray(np.where(chance, LEAST, 1), jnp.float32),
        jnp.asarray(np.arange(STEPS) < lengths[:, None]),
    )


def possible_returns(rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(0, 2 * np.arange(STEPS, 0, -1)[:, None, None], (STEPS, 2, 2))


def test_no_person_is_longer_than_the_clip_norm_of_the_tables_and_some_are_as_long() -> None:
    records, _, cells = states()
    noise = tables.multipliers(records.declaration, cells, Spending(1.0, 1e-5))
    release = tables.made(records.declaration, cells, 10, noise)
    parts, _ = jax.vmap(lambda one: release.local(cells, one, new_key(0)))(extreme_people())
    for name, part in parts.items():
        longest = np.sqrt(np.sum(np.square(part).reshape(len(part), -1), axis=1)).max()
        assert longest == pytest.approx(release.parts[name].clip_norm, rel=1e-6)


@pytest.mark.parametrize("clip", [0.7, 3.0])
def test_the_largest_sum_is_that_of_the_worst_log(clip: float) -> None:
    """Among all extreme logs one attains the bound of `reach`, and none exceeds it."""
    records, _, cells = states()
    rng = np.random.default_rng(2)
    given = correction(cells, possible_returns(rng), rng.uniform(0, 2, (STEPS, 3)))
    linear = Linear(jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.zeros(2))
    policies = (MIXED, linear, named("always:0", 2, 2), named("always:1", 2, 2))
    asked = Asked("marginalised", largest_weights=(clip,))
    evaluation, least, actions = settings_of(records.declaration, asked, 4)
    public = Public(policies, (given,) * 4)
    bounds = Bounds.of(evaluation, public, least, actions)
    people = extreme_people()
    parts = parts_of(evaluation, bounds, public, people)
    norms = bounds.clip_norms("marginalised")
    for name, part in parts.items():
        longest = np.linalg.norm(part, axis=1).max()
        assert longest <= norms[name] * (1 + 1e-6)
        assert longest >= 0.6 * norms[name]
    far = reach(given, MIXED, LEAST, clip, (0.0, 2.0), 1.0)
    scale = bounds.scales[0]
    assert scale <= 1 + 2 * clip
    size = max(far.high - evaluation.middle, evaluation.middle - far.low) / evaluation.half_width
    assert scale == pytest.approx(min(size, 1 + 2 * clip), rel=1e-3)
    assert np.abs(parts["sums"][:, 1]).max() > 0.999
    if scale < 1 + 2 * clip:  # then only lost weight is in the last numbers
        assert bounds.beyond[0] == pytest.approx(far.lost / evaluation.half_width, abs=1e-3)
    elif bounds.beyond[0]:
        assert parts["sums"][:, 5].max() > 0.4


def test_policies_without_a_common_action_do_not_share_the_norm_of_weights() -> None:
    """Who left after a step has the ratio of being gone for all policies."""
    records, _, cells = states()
    given = correction(cells, np.ones((STEPS, 2, 2)), np.full((STEPS, 3), 4.0))
    public = Public((named("always:0", 2, 2), named("always:1", 2, 2)), (given, given))
    asked = Asked("marginalised", largest_weights=(1.0,))
    evaluation, least, actions = settings_of(records.declaration, asked, 2)
    bounds = Bounds.of(evaluation, public, least, actions)
    squares = parts_of(evaluation, bounds, public, extreme_people())["squares"]
    longest = np.linalg.norm(squares, axis=1).max()
    assert np.linalg.norm(squares[:, :2], axis=1).max() > 1.2  # and not 1, as for products
    assert longest <= bounds.clip_norms("marginalised")["squares"]


def test_policies_that_differ_within_a_cell_are_in_the_bound() -> None:
    """A linear policy acts within a cell of numbers; its weights may be those of any action."""
    records, _ = every_trajectory(STEPS)
    rng = np.random.default_rng(4)
    given = correction(HALVES, possible_returns(rng), np.ones((STEPS, 3)))
    policy = Linear(jnp.array([[1.0], [-1.0]]), jnp.array([0.3, -0.3]))
    evaluation, bounds, public = corrected(records, policy, given, 2.0)
    people = extreme_people()
    seen = rng.uniform(-1, 1, (*people.present.shape, 1))
    people = people._replace(observations=jnp.asarray(seen, jnp.float32))
    parts = parts_of(evaluation, bounds, public, people)
    assert 0.4 < np.abs(parts["sums"][:, 1]).max() < 1  # 1 is where it would be clipped
    assert 0.1 < parts["sums"][:, 2].max() < 0.5


def new_ledger(folder: Path, epsilon: float = 1.0, name: str = "ledger") -> Ledger:
    budget = Budget(epsilon=epsilon, delta=1e-5)
    return Ledger.create(folder / f"{name}.sqlite", unit=UNIT, budget=budget)


def test_the_noise_of_the_tables_is_as_stated_and_a_person_moves_them(tmp_path: Path) -> None:
    """Half and twice of the noise are noticed; a person who leaves moves the sums by theirs."""
    records, _, cells = states()
    people = PersonLog.of(records)
    noise = tables.multipliers(records.declaration, cells, Spending(1.0, 1e-5))
    assert sum(one**-2 for one in noise.values()) ** -0.5 == pytest.approx(3.7304, rel=1e-3)
    release = tables.made(records.declaration, cells, 64, noise)
    with fixed_noise(3):  # fresh noise would miss the limits once in 10,000 runs
        found = through_the_door(release, new_ledger(tmp_path, math.inf), cells, people, 0)
    parts = tables_of(people, cells, np.ones(64))._asdict()
    stated = door.stddevs(release)
    size = np.concatenate([((found[n] - parts[n]) / stated[n]).ravel() for n in parts])
    low, high = chi2.ppf([5e-5, 1 - 5e-5], size.size)
    sizes = [np.sum((size / wrong) ** 2) for wrong in (1.0, 0.5, 2.0)]
    assert [bool(low < one < high) for one in sizes] == [True, False, False]
    fixed = new_ledger(tmp_path, math.inf, "a")  # nothing is proved with a fixed seed
    with fixed_noise(7):
        before = through_the_door(release, fixed, cells, people, 0)
    there = np.array(people.present)
    there[5] = False
    without = people._replace(present=jnp.asarray(there))
    fixed = new_ledger(tmp_path, math.inf, "b")
    with fixed_noise(7):
        after = through_the_door(release, fixed, cells, without, 0)
    gone = tables_of(jax.tree.map(lambda x: x[5:6], people), cells, np.ones(1))._asdict()
    for name in gone:
        np.testing.assert_allclose(before[name] - after[name], gone[name], atol=1e-3)


# --- intervals -----------------------------------------------------------------------------------


def resampled(
    people: int, epsilon: float, draws: int, second: bool = True, told: bool = True
) -> Any:
    """Coverage and mean allowance for the errors of tables.

    Without `second` the second half has no noise and no sampling error. Without `told` intervals
    leave out the errors of tables.
    """
    records, chances, cells = states(2)
    everyone = PersonLog.of(records)
    declaration, spending = records.declaration, Spending(epsilon, 1e-5)
    noise = tables.multipliers(declaration, cells, spending)
    stddevs = door.stddevs(tables.made(declaration, cells, 2, noise))
    facts, taken = TableFacts(stddevs, (0.0, 2.0), 1.0), [probabilities(MIXED, cells)]
    truth, rng, held, wider = exact_value(CHANCES, 2, 1.0), np.random.default_rng(5), 0, 0.0
    for _ in range(draws):
        first, judges = rng.multinomial(people // 2, chances / chances.sum(), 2)
        clean = tables_of(everyone, cells, first)._asdict()
        table = Tables(**{n: x + rng.normal(0, stddevs[n], x.shape) for n, x in clean.items()})
        (given,) = chains.corrections(cells, table, facts, taken)
        evaluation, bounds, public = corrected(records, MIXED, given, 4.0)
        parts = parts_of(evaluation, bounds, public, everyone)
        norms, factors = bounds.clip_norms("marginalised"), door.multipliers(spending, 6)
        scales = {name: second * factors[name] * norms[name] for name in norms}
        weights = judges if second else 1e9 * chances
        sums = {
            name: weights @ part + rng.normal(0, scales[name], part.shape[1])
            for name, part in parts.items()
        }
        errors = chains.errors_of_tables(table, facts, taken) if told else []
        (one,) = values(evaluation, bounds, sums["sums"], sums["squares"], scales, 0.95, errors)
        held += one.low <= truth <= one.high
        wider += one.tables / draws
    return held / draws, wider


def test_intervals_cover_and_are_wider_where_tables_are_noisy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chains, "_REDRAWN", 20)
    noisy, clear = resampled(600, 1.0, 12), resampled(6000, 1.0, 2)
    assert noisy[0] >= 0.9
    assert noisy[1] > 10 * clear[1] > 0


def test_the_allowance_covers_the_errors_of_tables_and_intervals_without_it_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chains, "_REDRAWN", 20)
    assert resampled(600, 1.0, 12, second=False)[0] >= 0.9
    assert resampled(600, 1.0, 12, second=False, told=False)[0] <= 0.3


def test_the_errors_of_tables_are_those_that_new_tables_make() -> None:
    """Redrawn from one noisy table, they are about those of many tables about the true chain."""
    records, chances, cells = states()
    noise = {"visits": 20.0, "rewards": 20.0, "starts": 10.0}
    facts, taken = TableFacts(noise, (0.0, 2.0), 1.0), probabilities(MIXED, cells)
    true = chains.chain_of(
        tables_of(PersonLog.of(records), cells, 1e6 * chances), facts._replace(noise=SILENT)
    )
    rng, made, said = np.random.default_rng(1), [], []
    for row in range(60):
        clean = tables_of(
            PersonLog.of(records), cells, rng.multinomial(500, chances / chances.sum())
        )
        table = Tables(*(x + rng.normal(0, noise[n], x.shape) for n, x in clean._asdict().items()))
        found = chains.correction_of(table, facts, taken, chains.chain_of(table, facts))
        made.append(chains.error_in(true, facts, taken, *found))
        if row < 4:
            said += chains.errors_of_tables(table, facts, [taken])
    assert 0.5 < np.mean(said) / np.sqrt(np.mean(np.square(made))) < 3


# --- the whole evaluation ------------------------------------------------------------------------


def people_of_the_chain(people: int, steps: int, seed: int = 0) -> Records:
    rng = np.random.default_rng(seed)
    seen, actions, rewards, chances = np.zeros((4, people, steps))
    now = np.zeros(people)
    for step in range(steps):
        seen[:, step], yes = now, np.where(now > 0, BEHAVIOUR[1][1], BEHAVIOUR[0][1])
        actions[:, step] = rng.random(people) < yes
        chances[:, step] = np.where(actions[:, step] > 0, yes, 1 - yes)
        now = (rng.random(people) < np.where(actions[:, step] > 0, 0.7, 0.2)).astype(float)
        rewards[:, step] = now * (1 + actions[:, step])
    return records_of(declared(people, steps), seen, actions, rewards, chances)


def test_an_evaluation_holds_and_each_person_is_in_one_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, ledger = people_of_the_chain(3000, 5), new_ledger(tmp_path)
    seen: list[Any] = []

    def watched(release: Any, ledger: Any, public: Any, people: Any, *given: Any) -> Any:
        seen.append((given[0], np.asarray(people.rewards)))
        return through_the_door(release, ledger, public, people, *given)

    monkeypatch.setattr(analysis, "through_the_door", watched)
    monkeypatch.setattr(tables, "through_the_door", watched)
    asked = Asked("marginalised", largest_weights=(3.0,), cells=(2,))
    policies = {"mixed": MIXED, "always:0": named("always:0", 2, 1)}
    found = evaluate(records, policies, asked, ledger, Spending(1.0, 1e-5))
    for name, chance in (("mixed", (0.1, 0.9)), ("always:0", (1.0, 0.0))):
        one = found.values[name]
        exact = exact_value({0: chance, 1: chance}, 5, 1.0)
        assert one.low - 0.1 <= exact <= one.high + 0.1
        assert 0 < one.tables < one.high - one.low < 1.5
    assert found.best == "mixed"
    assert as_json(found, Spending(1.0, 1e-5), 0.95)["policies"][0]["added_for_tables"] > 0
    certificate = derive(ledger)
    assert certificate.status == "proved"
    assert certificate.epsilon == pytest.approx(1.0, rel=1e-6)  # and not twice as much
    assert certificate.persons == 3000
    assert len(ledger.streams) == 2
    assert [first for first, _ in seen] == [0, 1500]
    np.testing.assert_array_equal(np.concatenate([one for _, one in seen]), records.rewards)
    assert "cells" in " ".join(one.statement for one in certificate.assumptions)


@pytest.mark.parametrize(
    ("changes", "asked", "said"),
    [
        ({}, {}, "--cells must be one whole number for each of x"),
        ({}, {"cells": (2, 2)}, "--cells must be one whole number"),
        ({}, {"cells": (0,)}, "--cells must be one whole number"),
        ({}, {"cells": (40,)}, "at most 15 are possible"),
        ({}, {"cells": (2000,)}, "more than 1,048,576 numbers"),
        ({}, {"cells": (2,), "returns": (0.0, 1.0)}, "--returns"),
        (
            {"observation": [{"column": "x", "categories": ["a", "b"]}]},
            {"cells": (2,)},
            "all observations of this log are categories",
        ),
    ],
)
def test_what_the_tables_do_not_allow_is_refused_before_the_charge(
    tmp_path: Path, changes: dict[str, Any], asked: dict[str, Any], said: str
) -> None:
    declaration = declared(1200, 3, **changes)
    blank = np.zeros((1200, 3))
    records = records_of(declaration, blank, blank, blank, blank + 0.5)
    ledger = new_ledger(tmp_path)
    wishes = Asked("marginalised", largest_weights=(3.0,), **asked)
    with pytest.raises(ValueError, match=said):
        evaluate(records, {"mixed": MIXED}, wishes, ledger, Spending(1.0, 1e-5))
    assert not ledger.streams


def test_wishes_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="--cells is for"):
        Asked("importance", cells=(2,))
    with pytest.raises(ValueError, match="both need the first half"):
        Asked("marginalised", learn=True)
    real = declared(
        100,
        2,
        action=[{"column": "a", "low": 0, "high": 1}],
        propensity=None,
        density={"column": "p", "low": 0.1},
    )
    with pytest.raises(ValueError, match="marginalised is for actions of categories"):
        settings_of(real, Asked("marginalised", (3.0,)), 1)


def test_cells_are_all_combinations_of_parts_and_categories() -> None:
    declaration = declared(
        100,
        1,
        observation=[
            {"column": "x", "low": -1, "high": 3},
            {"column": "c", "categories": ["u", "v", "w"]},
            {"column": "y", "low": 0, "high": 1},
        ],
    )
    cells = Cells.of(declaration, (4, 2))
    assert cells.count == 24
    assert not cells.finite
    np.testing.assert_array_equal(cells(cells.middles), np.arange(24))
    ends = jnp.array([[-1.0, 1, 0, 0, 0.0], [3.0, 0, 0, 1, 1.0], [-0.01, 0, 1, 0, 0.49]])
    np.testing.assert_array_equal(cells(ends), [0, 23, 2])
