"""Private values of policies from logs: estimators, sensitivity, noise, intervals, refusals."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluated import (
    BEHAVIOUR,
    LEAST,
    declared,
    every_trajectory,
    exact_value,
    parts_of,
    trial,
    without_noise,
)
from fixed_noise import fixed_noise
from scipy.stats import chi2

from sotto.algorithms.evaluation import release as door
from sotto.algorithms.evaluation.analysis import (
    Asked,
    Found,
    default_delta,
    evaluate,
    settings_of,
)
from sotto.algorithms.evaluation.intervals import Moments, Value, interval, values
from sotto.algorithms.evaluation.models import ReturnModel
from sotto.algorithms.evaluation.persons import Bounds, Evaluation, PersonLog, Public
from sotto.algorithms.evaluation.policies import (
    Constant,
    Linear,
    Target,
    as_json,
    named,
    read_linear,
)
from sotto.algorithms.evaluation.release import UNIT, Spending
from sotto.algorithms.log_release import through_the_door
from sotto.data.imports.records import Records
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import ParticipationViolation
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms import gaussian

ESTIMATORS = ("self-normalised", "importance", "per-decision")
TARGET = {0: (0.1, 0.9), 1: (0.1, 0.9)}
POLICY = Constant(jnp.array([0.1, 0.9]))
ALWAYS = {"always:0": named("always:0", 2, 1), "always:1": named("always:1", 2, 1)}


def settings(
    records: Records, asked: Asked, policies: tuple[Target, ...], model: Any = None
) -> Any:
    evaluation, least, actions = settings_of(records.declaration, asked, len(policies))
    public = Public(policies, () if model is None else (model,) * len(policies))
    return evaluation, Bounds.of(evaluation, public, least, actions), public


def linear_model(weights: Any, bias: Any) -> ReturnModel:
    every = np.concatenate([np.asarray(bias)[..., None], np.asarray(weights)], axis=-1)
    return ReturnModel(jnp.asarray(every, jnp.float32), jnp.zeros(1), jnp.ones(1))


def new_ledger(
    folder: Path, epsilon: float = 1.0, name: str = "ledger", delta: float = 1e-5
) -> Ledger:
    budget = Budget(epsilon=epsilon, delta=delta)
    return Ledger.create(folder / f"{name}.sqlite", unit=UNIT, budget=budget)


# --- estimators ----------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("discount", [1.0, 0.8])
def test_the_mean_over_all_logs_is_the_exact_value(estimator, discount):
    """Every log of the chain with its probability: there is no sampling error."""
    records, chances = every_trajectory(3)
    asked = Asked(estimator, largest_weights=(100.0,), discount=discount)
    evaluation, bounds, public = settings(records, asked, (POLICY,))
    parts = parts_of(evaluation, bounds, public, PersonLog.of(records))
    (found,) = without_noise(evaluation, bounds, parts, 1e6 * chances)
    assert found.value == pytest.approx(exact_value(TARGET, 3, discount), abs=1e-4)
    assert found.value != pytest.approx(exact_value(BEHAVIOUR, 3, discount), abs=0.05)
    assert found.mean_weight == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("weights", [[[[0.0], [0.0]]], [[[0.3], [-0.2]]]])
def test_doubly_robust_is_exact_for_any_model(weights):
    records, chances = every_trajectory(1)
    asked = Asked("doubly-robust", largest_weights=(100.0,))
    model = linear_model(weights, [[0.4, 1.1]])
    evaluation, bounds, public = settings(records, asked, (POLICY,), model)
    parts = parts_of(evaluation, bounds, public, PersonLog.of(records))
    (found,) = without_noise(evaluation, bounds, parts, 1e6 * chances)
    assert found.value == pytest.approx(exact_value(TARGET, 1, 1.0), abs=1e-4)
    assert parts["sums"].shape[1] == 2


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("clip", [0.5, 1.0, 2.0, 5.0])
def test_the_bias_from_clipping_is_within_its_bound(estimator, clip):
    records, chances = every_trajectory(3)
    asked = Asked(estimator, largest_weights=(clip,))
    evaluation, bounds, public = settings(records, asked, (POLICY,))
    parts = parts_of(evaluation, bounds, public, PersonLog.of(records))
    (found,) = without_noise(evaluation, bounds, parts, 1e9 * chances)
    bias = abs(found.value - exact_value(TARGET, 3, 1.0))
    assert 1e-3 < bias <= found.bias + 1e-3


def test_weights_beyond_the_clip_are_all_the_same():
    records = trial(4)
    asked = Asked(largest_weights=(1.5,))
    evaluation, bounds, public = settings(records, asked, (ALWAYS["always:1"],))
    people = PersonLog.of(records)
    people = people._replace(actions=jnp.ones_like(people.actions))
    seen = [
        parts_of(evaluation, bounds, public, people._replace(propensities=jnp.full((4, 1), chance)))
        for chance in (0.6, 0.3, 0.9)
    ]
    np.testing.assert_array_equal(seen[0]["sums"], seen[1]["sums"])
    assert not np.array_equal(seen[0]["sums"], seen[2]["sums"])


# --- sensitivity and noise -----------------------------------------------------------------------


def extreme_people(horizon: int, seed: int) -> PersonLog:
    rng = np.random.default_rng(seed)
    shape = (400, horizon)
    return PersonLog(
        jnp.asarray(rng.choice([-1, 0, 1], (*shape, 1)), jnp.float32),
        jnp.asarray(rng.integers(0, 2, shape), jnp.int32),
        jnp.asarray(rng.choice([0, 2], shape), jnp.float32),
        jnp.asarray(rng.choice([LEAST, 0.5, 1], shape), jnp.float32),
        jnp.asarray(np.sort(rng.random(shape) < 0.8)[:, ::-1].copy()),
    )


@pytest.mark.parametrize("estimator", [*ESTIMATORS, "doubly-robust"])
@pytest.mark.parametrize("horizon", [1, 3])
def test_no_person_is_longer_than_the_clip_norm_and_some_are_nearly_as_long(estimator, horizon):
    records, _ = every_trajectory(horizon)
    linear = Linear(jnp.array([[1.0], [-1.0]]), jnp.zeros(2))
    policies = (*ALWAYS.values(), POLICY, linear)
    model = None
    if estimator == "doubly-robust":
        model = linear_model(9 * np.ones((horizon, 2, 1)), np.ones((horizon, 2)))
    asked = Asked(estimator, largest_weights=(4.0, 1.5, 2.0, 3.0))
    evaluation, bounds, public = settings(records, asked, policies, model)
    norms = bounds.clip_norms(estimator)
    parts = parts_of(evaluation, bounds, public, extreme_people(horizon, 1))
    for name, part in parts.items():
        longest = np.linalg.norm(part, axis=1).max()
        assert longest <= norms[name] * (1 + 1e-6)
        assert longest >= (0.5 if estimator == "doubly-robust" else 0.9) * norms[name]


def test_policies_that_exclude_each_other_share_the_clip_norm():
    records = trial(10)
    asked = Asked(largest_weights=(4.0, 4 / 3))
    _, bounds, _ = settings(records, asked, tuple(ALWAYS.values()))
    assert bounds.clip_norms("self-normalised")["sums"] == pytest.approx(np.sqrt(2))


def made_release(records: Records, policies: tuple[Target, ...], epsilon: float) -> Any:
    asked = Asked(largest_weights=(1 / records.declaration.propensity.low,))  # type: ignore[union-attr]
    evaluation, bounds, public = settings(records, asked, policies)
    noise = door.multipliers(Spending(epsilon, 1e-5), 1 + 5 * len(policies))
    release = door.made(evaluation, bounds, records.declaration, records.people, noise)
    return release, public, parts_of(evaluation, bounds, public, PersonLog.of(records))


def has_scale(noise: np.ndarray, stated: float) -> bool:
    """Whether the noise has the stated deviation, by a test of level 1e-4."""
    sizes = np.sum((noise / stated) ** 2)
    return bool(chi2.ppf(5e-5, noise.size) < sizes < chi2.ppf(1 - 5e-5, noise.size))


def test_the_noise_is_as_large_as_stated_and_a_wrong_scale_is_noticed(tmp_path):
    records = trial(50)
    policies = tuple(Constant(jnp.array([1 - p, p])) for p in np.linspace(0, 1, 50))
    release, public, parts = made_release(records, policies, 1.0)
    found = through_the_door(release, new_ledger(tmp_path), public, PersonLog.of(records), 0)
    stated = door.stddevs(release)
    for name, part in parts.items():
        noise = found[name] - part.sum(axis=0)
        assert has_scale(noise, stated[name])
        assert not has_scale(noise, 0.5 * stated[name])
        assert not has_scale(noise, 2 * stated[name])


def test_the_parts_cost_the_target_together():
    noise = door.multipliers(Spending(1.0, 1e-5), 10)
    together = sum(one**-2 for one in noise.values()) ** -0.5
    assert together == pytest.approx(3.7304, rel=1e-3)  # the analytic Gaussian mechanism


def test_a_person_who_leaves_moves_the_sums_by_that_contribution(tmp_path):
    """Every person in turn leaves a place empty, with the same noise."""
    records = trial(12)
    release, public, parts = made_release(records, tuple(ALWAYS.values()), 1.0)
    people = PersonLog.of(records)
    untested = new_ledger(tmp_path, math.inf)  # nothing is proved with a fixed seed
    with fixed_noise(7):
        before = through_the_door(release, untested, public, people, 0)
    for gone in range(3):
        there = np.array(people.present)
        there[gone] = False
        ledger = new_ledger(tmp_path, math.inf, f"without-{gone}")
        without = people._replace(present=jnp.asarray(there))
        with fixed_noise(7):
            after = through_the_door(release, ledger, public, without, 0)
        for name, part in release.parts.items():
            moved = before[name] - after[name]
            assert np.linalg.norm(moved) <= part.clip_norm
            np.testing.assert_allclose(moved, parts[name][gone], atol=1e-4)


# --- intervals -----------------------------------------------------------------------------------


def coverage(people: int, epsilon: float, estimator: Any, told: float = 1.0) -> float:
    """Share of intervals that hold the value; `told` scales the noise that they know of."""
    records = trial(20_000, least=0.25)
    asked = Asked(estimator, largest_weights=(4.0,))
    evaluation, bounds, public = settings(records, asked, (ALWAYS["always:0"],))
    parts = parts_of(evaluation, bounds, public, PersonLog.of(records))
    noise = door.multipliers(Spending(epsilon, 1e-5), 6)
    norms = bounds.clip_norms(estimator)
    scales = {name: noise[name] * norms[name] for name in norms}
    (truth,) = without_noise(evaluation, bounds, parts, np.ones(20_000))
    rng, held = np.random.default_rng(5), 0
    for _ in range(600):
        chosen = rng.integers(0, 20_000, people)
        sums = {
            name: part[chosen].sum(axis=0) + rng.normal(0, scales[name], part.shape[1])
            for name, part in parts.items()
        }
        known = {name: told * one for name, one in scales.items()}
        (one,) = values(evaluation, bounds, sums["sums"], sums["squares"], known, 0.95)
        held += one.low <= truth.value <= one.high
    return held / 600


@pytest.mark.parametrize("estimator", ["self-normalised", "importance"])
@pytest.mark.parametrize(("people", "epsilon"), [(60, 3.0), (200, 1.0), (1000, 0.5), (3000, 1.0)])
def test_intervals_cover(estimator, people, epsilon):
    assert coverage(people, epsilon, estimator) >= 0.93  # 0.95, less two standard deviations


def test_intervals_that_forget_the_noise_do_not_cover():
    assert coverage(600, 0.3, "self-normalised", told=0.01) < 0.8


def test_the_interval_is_the_whole_range_if_the_weights_drown_in_noise():
    moments = Moments(1.0, 2.0, 25.0, 25.0, (3.0, 0.0, 4.0), (400.0, 400.0, 400.0), 2.0)
    assert interval(moments, 0.05)[1:] == (-1.0, 1.0)
    assert interval(dataclasses.replace(moments, v=-3.0), 0.05) == (0.0, -1.0, 1.0)


def test_empty_places_change_nothing_but_noise():
    full, half = trial(300), trial(600)
    half.present[300:] = False
    found = []
    for records in (full, half):
        asked = Asked("importance", largest_weights=(4.0,))
        evaluation, bounds, public = settings(records, asked, (ALWAYS["always:1"],))
        people = jax.tree.map(lambda x: x[:300], PersonLog.of(full))
        if records is half:
            people = jax.tree.map(
                lambda x, y: jnp.concatenate([x, y[300:]]), people, PersonLog.of(half)
            )
        parts = parts_of(evaluation, bounds, public, people)
        found += without_noise(evaluation, bounds, parts, np.ones(len(people.present)))
    assert found[0] == found[1]


# --- the whole evaluation ------------------------------------------------------------------------


def test_an_evaluation_finds_the_better_policy_and_certifies_its_cost(tmp_path):
    records, ledger = trial(4000), new_ledger(tmp_path)
    asked = Asked(largest_weights=(4.0, 4 / 3, 4.0), learn=True)
    found = evaluate(records, ALWAYS, asked, ledger, Spending(1.0, 1e-5))
    assert found.best == "linear"
    assert found.values["linear"].value == pytest.approx(1.4, abs=0.15)  # 2 (1/2 + 0.4 / 2)
    for name in ALWAYS:
        assert found.values[name].low < 1.0 < found.values[name].high
    certificate = derive(ledger)
    assert certificate.status == "proved"
    assert certificate.epsilon == pytest.approx(1.0, rel=1e-6)  # each person is in one half
    assert certificate.persons == 4000
    said = " ".join((*certificate.protects, *(one.statement for one in certificate.assumptions)))
    for words in ("one id", "No cell of the log is public", "made up", "CC0"):
        assert words in said


def test_policies_that_may_be_as_good_are_those_within_intervals_and_biases():
    def value(middle, half, bias):
        return Value(middle, middle - half, middle + half, 0.1, 1.0, bias)

    told = {"best": value(5, 1, 0), "near": value(3, 1, 0), "far": value(1, 1, 0)}
    found = Found(told | {"biased": value(1, 1, 2)}, None, None)  # type: ignore[arg-type]
    assert (found.best, found.rivals) == ("best", ("near", "biased"))


def test_a_published_log_says_so(tmp_path):
    records, ledger = trial(400, already_public=True), new_ledger(tmp_path, 3.0)
    evaluate(records, ALWAYS, Asked(), ledger, Spending(3.0, 1e-5))
    assert "It is public already." in " ".join(derive(ledger).does_not_protect)


def test_people_are_in_one_release_of_a_ledger(tmp_path):
    """Fresh numbers for a second evaluation would certify the cost of one."""
    records, ledger = trial(400), new_ledger(tmp_path, 9.0)
    evaluate(records, ALWAYS, Asked(), ledger, Spending(3.0, 1e-5))
    with pytest.raises(ParticipationViolation, match="took part before"):
        evaluate(records, ALWAYS, Asked(), ledger, Spending(3.0, 1e-5))
    assert ledger.persons == 400


def test_a_delta_that_is_vacuous_for_both_halves_is_refused_before_the_charge(tmp_path):
    records, ledger = trial(400), new_ledger(tmp_path, 9.0, delta=1 / 300)
    asked = Asked(largest_weights=(4.0, 4 / 3, 4.0), learn=True)
    with pytest.raises(ValueError, match="vacuous for 400 people"):
        evaluate(records, ALWAYS, asked, ledger, Spending(3.0, 1 / 300))
    assert not ledger.persons


def test_raised_propensities_are_in_the_bias(tmp_path):
    """An import raises them to the declared bound, and the weights then add up to less than 1."""
    records = trial(4000)
    assert records.propensities is not None
    raised = dataclasses.replace(records, propensities=np.maximum(records.propensities, 0.6))
    found = evaluate(raised, ALWAYS, Asked(), new_ledger(tmp_path, 9.0), Spending(5.0, 1e-5))
    rare = min(found.values.values(), key=lambda one: one.mean_weight)
    assert rare.mean_weight < 0.9
    assert rare.bias > 0.1


def test_too_few_people_are_refused_and_as_many_as_it_says_are_not(tmp_path):
    records, ledger = trial(60), new_ledger(tmp_path)
    with pytest.raises(ValueError, match="would suffice") as refused:
        evaluate(records, ALWAYS, Asked(), ledger, Spending(1.0, 1e-5))
    assert not ledger.streams
    said = re.search(r"([\d,]+) people or epsilon ([\d.]+)", str(refused.value))
    assert said is not None
    enough = trial(int(said[1].replace(",", "")))
    evaluate(enough, ALWAYS, Asked(), ledger, Spending(1.0, 1e-5))
    more = 1.05 * float(said[2])
    evaluate(records, ALWAYS, Asked(), new_ledger(tmp_path, more, "b"), Spending(more, 1e-5))


@pytest.mark.parametrize(
    ("changes", "asked", "said"),
    [
        ({"propensity": None}, Asked(), "no probabilities"),
        ({"horizon": 3}, Asked(), "--largest-weight"),
        ({"horizon": 3}, Asked("doubly-robust", (5.0,), returns=(0, 1)), "--returns"),
        ({}, Asked("per-decision", returns=(0.0, 1.0)), "--returns"),
        (
            {},
            Asked(largest_weights=(1.0, 2.0, 3.0)),
            "has 3 numbers, and there are 2 policies; give one",
        ),
        ({}, Asked(returns=(-1.0, 1.0)), "two numbers from 0 to 2"),
        ({}, Asked(largest_weights=(0.0,)), "positive"),
        ({}, Asked(discount=0.0), "discount"),
    ],
)
def test_impossible_wishes_are_refused(changes, asked, said):
    with pytest.raises(ValueError, match=said):
        settings_of(declared(100, changes.pop("horizon", 1), **changes), asked, 2)


def test_the_model_belongs_to_one_estimator(tmp_path):
    with pytest.raises(ValueError, match="--model"):
        evaluate(
            trial(400), ALWAYS, Asked("doubly-robust"), new_ledger(tmp_path), Spending(1.0, 1e-5)
        )


# --- policies ------------------------------------------------------------------------------------


def test_a_linear_policy_survives_its_file(tmp_path):
    linear = Linear(jnp.array([[0.5], [-0.25]]), jnp.array([0.0, 1.0]))
    (tmp_path / "p.json").write_text(json.dumps(as_json(linear)))
    again = read_linear(tmp_path / "p.json", 2, 1)
    np.testing.assert_array_equal(again.weights, linear.weights)
    np.testing.assert_array_equal(again(jnp.array([[2.0], [-2.0]])), [[1, 0], [0, 1]])


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"weights": [[1]], "bias": [1]}', '{"weights": [["x"]], "bias": [1]}']
)
def test_another_file_is_no_linear_policy(tmp_path, content):
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(ValueError, match=r"p\.json"):
        named(str(tmp_path / "p.json"), 2, 1)


@pytest.mark.parametrize("word", ["always:2", "always:-1", "always:x", "best"])
def test_unknown_words_are_refused(word):
    with pytest.raises(ValueError, match=word):
        named(word, 2, 1)


def test_the_default_delta_is_below_one_over_the_people():
    assert default_delta(100) == 1e-5
    assert default_delta(3_000_000) == pytest.approx(1e-8)


def test_an_evaluation_has_positive_clips():
    with pytest.raises(ValueError, match="bounds of returns"):
        Evaluation("importance", (1.0,), 1.0, (0.0, 1.0), (1.0, 0.0), 1)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("is_coarse", [False, True])
@pytest.mark.parametrize("people", [10**4, 10**7])
def test_the_bias_covers_what_the_grid_takes_away(estimator, people, is_coarse, monkeypatch):
    """Contributions of many people are rounded towards zero, which does not average out.

    A coarse grid has 64 steps in a clip norm with 10^7 people: all sums are in one word.
    """
    if is_coarse:
        monkeypatch.setattr(gaussian, "_FEW", people)
    records, chances = every_trajectory(3)
    asked = Asked(estimator, largest_weights=(100.0,))
    evaluation, bounds, public = settings(records, asked, (POLICY,))
    parts = parts_of(evaluation, bounds, public, PersonLog.of(records))
    noise = door.multipliers(Spending(1.0, 1e-8), 6)
    release = door.made(evaluation, bounds, records.declaration, people, noise)
    off, sums = door.truncations(release), {}
    for name, part in parts.items():
        spacing = off[name] / people
        sums[name] = people * chances @ (np.trunc(part / spacing) * spacing)
    given = evaluation, bounds, sums["sums"], sums["squares"], dict.fromkeys(sums, 0.0), 0.95
    ((found,), (silent,)) = (values(*given), values(*given, truncations=off))[::-1]
    error = abs(found.value - exact_value(TARGET, 3, 1.0))
    counted = found.bias - silent.bias
    assert error <= counted + 1e-4
    if is_coarse and people == 10**7:
        assert error > found.high - found.value  # it is no error of sampling
    else:
        assert counted < 0.01
