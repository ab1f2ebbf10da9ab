"""Doubly-robust values of several steps: exactness, bounds, noise, intervals, learned models."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluated import (
    MOVES,
    declared,
    every_trajectory,
    exact_value,
    parts_of,
    records_of,
    without_noise,
)
from fixed_noise import fixed_noise
from people_logs import scales
from people_logs import settings as settings_of_people
from scipy.stats import chi2

from sotto.algorithms.evaluation import release as door
from sotto.algorithms.evaluation.analysis import Asked, settings_of
from sotto.algorithms.evaluation.intervals import values
from sotto.algorithms.evaluation.models import ReturnModel, read_return_model
from sotto.algorithms.evaluation.persons import Bounds, PersonLog, Public
from sotto.algorithms.evaluation.policies import Constant, Linear, Target, deterministic, named
from sotto.algorithms.evaluation.release import UNIT, Spending
from sotto.algorithms.log_release import through_the_door
from sotto.algorithms.offline_people.model import Model
from sotto.algorithms.offline_people.moments import products
from sotto.algorithms.offline_people.returns import expected_returns
from sotto.data.imports.records import Records
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget

STEPS = 3
MIXED: tuple[Target, dict[int, tuple[float, float]]] = (
    Constant(jnp.array([0.1, 0.9])),
    {0: (0.1, 0.9), 1: (0.1, 0.9)},
)
ALWAYS: tuple[Target, dict[int, tuple[float, float]]] = (
    named("always:1", 2, 1),
    {0: (0.0, 1.0), 1: (0.0, 1.0)},
)
HALF: tuple[Target, dict[int, tuple[float, float]]] = (
    named("uniform", 2, 1),
    {0: (0.5, 0.5), 1: (0.5, 0.5)},
)


def model_of(table: Any) -> ReturnModel:
    """A model whose returns of step, action and state are given."""
    table = np.asarray(table)
    linear = np.stack([table[..., 0], table[..., 1] - table[..., 0]], axis=-1)
    return ReturnModel(jnp.asarray(linear, jnp.float32), jnp.zeros(1), jnp.ones(1))


def any_model(seed: int) -> ReturnModel:
    return model_of(np.random.default_rng(seed).uniform(-2, 8, (STEPS, 2, 2)))


def true_model(policy: dict[int, tuple[float, float]], discount: float = 1.0) -> ReturnModel:
    """The returns of a policy on the chain, by dynamic programming."""
    table, later = [], np.zeros(2)
    for _ in range(STEPS):
        q = np.array(
            [
                [
                    sum(MOVES[s, a][n] * (n * (1 + a) + discount * later[n]) for n in (0, 1))
                    for s in (0, 1)
                ]
                for a in (0, 1)
            ]
        )
        later = np.array([policy[s] @ q[:, s] for s in (0, 1)])
        table.append(q)
    return model_of(table[::-1])


def set_up(
    records: Records, policy: Target, model: ReturnModel, clip: float, discount: float = 1.0
) -> Any:
    asked = Asked("doubly-robust", largest_weights=(clip,), discount=discount)
    evaluation, least, actions = settings_of(records.declaration, asked, 1)
    public = Public((policy,), (model,))
    return evaluation, Bounds.of(evaluation, public, least, actions), public


def found_on(records: Records, chances: np.ndarray, *given: Any) -> Any:
    evaluation, bounds, public = set_up(records, *given)
    parts = parts_of(evaluation, bounds, public, PersonLog.of(records))
    return without_noise(evaluation, bounds, parts, 1e9 * chances)[0], parts


# --- values --------------------------------------------------------------------------------------


def test_a_model_that_overflows_leaves_nobody_out() -> None:
    """Infinity less infinity is no number; the middle of the bounds stands in its place."""
    records, chances = every_trajectory(STEPS)
    linear = np.tile(np.array([np.inf, -np.inf], np.float32), (STEPS, 2, 1))
    model = ReturnModel(jnp.asarray(linear), jnp.zeros(1), jnp.ones(1))
    found, parts = found_on(records, chances, MIXED[0], model, 100.0)
    assert all(np.isfinite(one).all() for one in parts.values())
    assert (np.asarray(parts["sums"])[:, 0] > 0).all()
    assert found.value == pytest.approx(exact_value(MIXED[1], STEPS, 1.0), abs=1e-4)


@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_values_are_exact_for_any_model(discount: float) -> None:
    """Every log of the chain with its probability: there is no sampling error."""
    records, chances = every_trajectory(STEPS)
    for seed in range(3):
        found, _ = found_on(records, chances, MIXED[0], any_model(seed), 100.0, discount)
        assert found.value == pytest.approx(exact_value(MIXED[1], STEPS, discount), abs=1e-4)
        assert found.mean_weight == pytest.approx(1, abs=1e-4)


def test_values_are_exact_where_people_leave() -> None:
    """A person leaves after the first reward, so that later steps are missing."""
    records, chances = every_trajectory(STEPS)
    earned = np.cumsum(records.rewards, axis=1) - records.rewards
    left = records_of(
        records.declaration,
        records.observations[..., 0],
        records.actions,
        records.rewards,
        records.propensities,
        earned == 0,
    )
    value = 0.0
    for _ in range(STEPS):  # all who are there are in state 0
        value = sum(
            p * (MOVES[0, a][1] * (1 + a) + MOVES[0, a][0] * value)
            for a, p in enumerate((0.1, 0.9))
        )
    for seed in range(3):
        found, _ = found_on(left, chances, MIXED[0], any_model(seed), 100.0)
        assert found.value == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_the_true_model_is_exact_with_clipped_weights(clip: float) -> None:
    records, chances = every_trajectory(STEPS)
    found, parts = found_on(records, chances, MIXED[0], true_model(MIXED[1]), clip)
    exact = exact_value(MIXED[1], STEPS, 1.0)
    assert found.value == pytest.approx(exact, abs=1e-4)
    assert not parts["sums"][:, 2].any()  # no sum is beyond its bound
    wrong, _ = found_on(records, chances, MIXED[0], any_model(0), clip)
    assert abs(wrong.value - exact) > 0.05


def test_the_model_makes_values_more_precise() -> None:
    records, chances = every_trajectory(STEPS)
    widths = []
    for model in (true_model(MIXED[1]), model_of(np.zeros((STEPS, 2, 2)))):
        found, _ = found_on(records, chances / 1e6, MIXED[0], model, 10.0)
        widths.append(found.high - found.low)
    assert widths[0] < 0.5 * widths[1]


@pytest.mark.parametrize(
    ("policy", "clip"),
    [(MIXED, 0.5), (MIXED, 2.0), (ALWAYS, 1.0), (ALWAYS, 5.0), (HALF, 1.2)],
    ids=["mixed-0.5", "mixed-2", "always-1", "always-5", "half-1.2"],
)
def test_the_bias_from_clipping_is_within_its_bound(policy: Any, clip: float) -> None:
    """Also where sums are beyond their bounds, as the worst models make them."""
    records, chances = every_trajectory(STEPS)
    exact = exact_value(policy[1], STEPS, 1.0)
    beyond = False
    for number in range(0, 64, 7):
        worst = np.array([number >> bit & 1 for bit in range(6)]).reshape(STEPS, 2, 1)
        model = model_of(np.broadcast_to(6.0 * worst, (STEPS, 2, 2)))
        found, parts = found_on(records, chances, policy[0], model, clip)
        assert abs(found.value - exact) <= found.bias + 1e-3
        beyond = beyond or bool(parts["sums"][:, 2].any())
    assert beyond == (policy is HALF)


def test_who_draws_actions_is_known() -> None:
    assert deterministic(ALWAYS[0])
    assert deterministic(Linear.zeros(2, 1))
    assert not deterministic(MIXED[0])


# --- sensitivity and noise -----------------------------------------------------------------------


def made_release(records: Records, model: ReturnModel, policy: Target = MIXED[0]) -> Any:
    evaluation, bounds, public = set_up(records, policy, model, 2.0)
    noise = door.multipliers(Spending(1.0, 1e-5), 6)
    release = door.made(evaluation, bounds, records.declaration, records.people, noise)
    return release, public, parts_of(evaluation, bounds, public, PersonLog.of(records))


def new_ledger(folder: Path, name: str) -> Ledger:
    budget = Budget(epsilon=math.inf, delta=1e-5)  # nothing is proved with a fixed seed
    return Ledger.create(folder / f"{name}.sqlite", unit=UNIT, budget=budget)


def test_a_person_who_is_another_moves_the_sums_by_both_contributions(tmp_path: Path) -> None:
    records, _ = every_trajectory(STEPS)
    release, public, parts = made_release(records, any_model(1))
    people = PersonLog.of(records)

    def released(who: PersonLog, name: str) -> Any:
        ledger = new_ledger(tmp_path, name)
        with fixed_noise(7):
            return through_the_door(release, ledger, public, who, 0)

    before = released(people, "before")
    for row, (one, other) in enumerate([(0, 63), (5, 40)]):
        swapped = jax.tree.map(lambda x, a=one, b=other: x.at[a].set(x[b]), people)
        after = released(swapped, f"after-{row}")
        for name, part in release.parts.items():
            moved = after[name] - before[name]
            np.testing.assert_allclose(moved, parts[name][other] - parts[name][one], atol=1e-4)
            for person in (one, other):
                assert np.linalg.norm(parts[name][person]) <= part.clip_norm


def test_the_noise_is_as_large_as_stated_and_a_wrong_scale_is_noticed(tmp_path: Path) -> None:
    records = records_of(declared(2, STEPS), *(np.zeros((2, STEPS)) for _ in range(3)), np.ones(1))
    policies = tuple(Constant(jnp.array([1 - p, p])) for p in np.linspace(0.1, 0.9, 8))
    asked = Asked("doubly-robust", largest_weights=(2.0,))
    evaluation, least, actions = settings_of(records.declaration, asked, len(policies))
    public = Public(policies, (any_model(0),) * len(policies))
    bounds = Bounds.of(evaluation, public, least, actions)
    multipliers = door.multipliers(Spending(1.0, 1e-5), 1 + 5 * len(policies))
    release = door.made(evaluation, bounds, records.declaration, 2, multipliers)
    parts = parts_of(evaluation, bounds, public, PersonLog.of(records))
    ledger = new_ledger(tmp_path, "ledger")
    with fixed_noise(3):
        found = through_the_door(release, ledger, public, PersonLog.of(records), 0)
    stated = door.stddevs(release)
    noise = np.concatenate([(found[n] - p.sum(axis=0)) / stated[n] for n, p in parts.items()])
    low, high = chi2.ppf([5e-5, 1 - 5e-5], noise.size)
    sizes = [np.sum((noise / wrong) ** 2) for wrong in (1.0, 0.5, 2.0)]
    assert [bool(low < size < high) for size in sizes] == [True, False, False]


# --- intervals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [1.0, 0.01])
def test_intervals_cover_and_those_that_forget_the_noise_do_not(told: float) -> None:
    records, chances = every_trajectory(STEPS)
    model = model_of(np.asarray(true_table()) + 0.3)
    evaluation, bounds, public = set_up(records, MIXED[0], model, 8.0)
    parts = parts_of(evaluation, bounds, public, PersonLog.of(records))
    (truth,) = without_noise(evaluation, bounds, parts, 1e9 * chances)
    noise, norms = door.multipliers(Spending(0.5, 1e-5), 6), bounds.clip_norms("doubly-robust")
    scales = {name: noise[name] * norms[name] for name in norms}
    rng, held = np.random.default_rng(5), 0
    for _ in range(400):
        drawn = rng.multinomial(1000, chances / chances.sum())
        sums = {
            name: drawn @ part + rng.normal(0, scales[name], part.shape[1])
            for name, part in parts.items()
        }
        known = {name: told * one for name, one in scales.items()}
        (one,) = values(evaluation, bounds, sums["sums"], sums["squares"], known, 0.95)
        held += one.low <= truth.value <= one.high
    assert held / 400 >= 0.925 if told == 1 else held / 400 < 0.8


def true_table() -> np.ndarray:
    """The entries of the true model by step, action and state."""
    weights = np.asarray(true_model(MIXED[1]).weights)
    return np.stack([weights[..., 0], weights.sum(axis=-1)], axis=-1)


# --- models --------------------------------------------------------------------------------------


def test_a_model_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text(json.dumps({"weights": [[[1], [2]], [[3], [4]]], "bias": [[0, 0], [1, 1]]}))
    found = read_return_model(file, 2, 2, 1)(jnp.array([[2.0], [-1.0]]))
    np.testing.assert_allclose(found, [[2, 4], [-2, -3]])
    with pytest.raises(ValueError, match=r"needs \(3, 2, 1\)"):
        read_return_model(file, 3, 2, 1)
    file.write_text(json.dumps({"weights": [[1], [2]], "bias": [0, 5]}))
    np.testing.assert_allclose(read_return_model(file, 1, 2, 1)(jnp.array([[2.0]])), [[2, 9]])


@pytest.mark.parametrize("content", ["[]", '{"weights": [[[1e99]]], "bias": [[0]]}'])
def test_another_file_is_no_model(tmp_path: Path, content: str) -> None:
    file = tmp_path / "m.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"m\.json"):
        read_return_model(file, 1, 1, 1)


def test_expected_returns_are_those_of_the_learned_model() -> None:
    """Action a moves the first observation by a tenth, and the reward is linear in it."""
    config = settings_of_people(actions=2, horizon=4)
    blank, size = scales(), len(products(settings_of_people(actions=2)))
    whole = blank._replace(
        centre=np.zeros(2, np.float32), whitening=np.eye(2, dtype=np.float32), spread=np.ones(2)
    )
    weights = np.zeros((1, 2, size, 4), np.float32)
    weights[0, 0, 0, 0], weights[0, 1, 0, 0] = -0.1, 0.1  # changes
    weights[0, :, 0, 2], weights[0, :, 1, 2] = 0.5, 0.25  # reward (1 + x / 2) / 2, from 0 to 1
    weights[0, 1, 0, 3] = 0.2  # the chance of an end after action 1
    starts = np.random.default_rng(0).uniform(-0.5, 0.5, (200, 2)).astype(np.float32)
    model = Model(jax.tree.map(jnp.asarray, whole), jnp.asarray(weights), jnp.asarray(starts))
    found = expected_returns(config, model, named("always:1", 2, 2), 4, 0.9)
    x = np.array([0.2, -0.4, 0.1, 0.3])
    seen = np.stack([5 + 5 * x, np.zeros(4)], axis=1)
    got = np.asarray(found(jnp.asarray(seen, jnp.float32)))

    def later(x: float, left: int) -> float:
        return 0.0 if left == 0 else x / 2 + 0.9 * 0.8 * later(x + 0.1 / 0.8, left - 1)

    for t in range(4):
        wanted = [x[t] / 2 + 0.9 * later(x[t] - 0.1, 3 - t), later(x[t], 4 - t)]
        np.testing.assert_allclose(got[t], wanted, atol=2e-3)
