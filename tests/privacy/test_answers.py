"""The statement of a teacher: levels known in advance, noise at those levels, and its cost."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import small
from pydantic import TypeAdapter, ValidationError

from sotto.privacy.accounting.composition import compose
from sotto.privacy.accounting.events import ApproximateDP, Gaussian, NoGuarantee, Renyi
from sotto.privacy.answers.distances import (
    AnyTwoTeachers,
    Distance,
    ObservationDistance,
    PolicyDistance,
    TrainingShards,
)
from sotto.privacy.answers.statement import AnswerStatement, Schedule
from sotto.privacy.claims import LedgerFacts, said
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.mechanisms.policies import Dirichlet, GaussianPolicy, TruncatedDirichlet
from sotto.privacy.statements import Gap

DELTA = 1e-5
VANISHING = Schedule(kind="vanishing", coefficient=0.1, queries_per_rollout=10, rollouts=4)
DIRICHLET = Dirichlet(actions=6, concentration=5.0, floor=0.1)
TRUNCATED = TruncatedDirichlet.sized(actions=6, concentration=1.0, floor=0.1, threshold=1e-4)
GAUSSIAN = GaussianPolicy(actions=6, noise_stddev=0.2)


statement = partial(
    small.answers,
    mechanism=DIRICHLET,
    distance=TrainingShards(teachers=500),
    queries_per_student=40,
)


def test_what_was_stated_before_l1_distances_counted_keeps_its_cost() -> None:
    """Its JSON stays too. New statements are charged for the smaller L1 distance."""
    for mechanism in (DIRICHLET, TRUNCATED):
        old = statement(mechanism=mechanism)
        new = statement(mechanism=mechanism, accounting=2)
        assert "accounting" not in old.model_dump_json()
        assert AnswerStatement.model_validate_json(new.model_dump_json()) == new
        between = old.distance.between(6, 0.1)
        assert old.events({0: 7}) == mechanism.events(between, 7)
        assert new.planned_epsilon(1e-5) < 0.95 * old.planned_epsilon(1e-5)
    nearby = PolicyDistance(l2=0.01)
    assert (
        statement(distance=nearby, accounting=2).events({0: 7})
        == statement(distance=nearby).events({0: 7})
    )  # fmt: skip


# --- levels --------------------------------------------------------------------------------------


def test_the_level_of_a_query_is_known_in_advance() -> None:
    vanishing = statement(schedule=VANISHING)
    assert [vanishing.level(query) for query in (0, 9, 10, 19, 20, 39)] == [0, 0, 1, 1, 2, 3]
    assert [statement().level(query) for query in (0, 9, 10**9)] == [0, 0, 0]
    for level, concentration in enumerate((5.0, 0.5, 0.05, 0.005)):
        mechanism = vanishing.mechanism_at(level)
        assert isinstance(mechanism, Dirichlet)
        assert mechanism.concentration == pytest.approx(concentration)
        assert (mechanism.actions, mechanism.floor) == (6, 0.1)


@pytest.mark.parametrize("answered", [0, 1, 9, 10, 11, 35, 40])
def test_counts_of_levels_are_those_of_the_queries_one_by_one(answered: int) -> None:
    for one in (statement(schedule=VANISHING), statement()):
        levels = [one.level(query) for query in range(answered)]
        assert one.level_counts(answered) == {level: levels.count(level) for level in set(levels)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"queries_per_student": 101}, "at most queries"),
        ({"queries": 0}, "greater than or equal to 1"),
        ({"schedule": VANISHING, "queries_per_student": 41}, r"queries_per_rollout \* rollouts"),
        ({"schedule": VANISHING, "mechanism": GAUSSIAN}, "constant schedule"),
        (
            {"schedule": VANISHING.model_copy(update={"coefficient": 1e-150}), "name": "x"},
            "concentration",
        ),
        ({"name": ""}, "at least 1 character"),
        ({"true_policy": "x"}, "Extra inputs"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        statement(**changes)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "vanishing", "coefficient": 0.1}, "states its queries_per_rollout"),
        ({"kind": "vanishing", "rollouts": 3}, "states its queries_per_rollout"),
        ({"coefficient": 0.1}, "constant schedule has no coefficient"),
        ({"rollouts": 3, "queries_per_rollout": 5}, "constant schedule has no"),
        ({"kind": "vanishing", "coefficient": 1.1}, "less than or equal to 1"),
    ],
)
def test_half_a_schedule_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Schedule(**fields)


@pytest.mark.parametrize("mechanism", [DIRICHLET, TRUNCATED, GAUSSIAN])
@pytest.mark.parametrize(
    "distance",
    [
        TrainingShards(teachers=3),
        AnyTwoTeachers(),
        PolicyDistance(l2=0.1),
        ObservationDistance(radius=0.1, lipschitz=2.5),
    ],
)
def test_json_brings_back_an_equal_statement(mechanism: Any, distance: Any) -> None:
    one = statement(mechanism=mechanism, distance=distance)
    assert AnswerStatement.model_validate_json(one.model_dump_json()) == one


# --- answering -----------------------------------------------------------------------------------


def test_every_row_is_answered_at_its_own_level() -> None:
    """The variance of one probability is p (1 - p) / (k + 1), so rows tell their concentration."""
    one = statement(schedule=VANISHING)
    policies = np.tile([0.7, 0.1, 0.1, 0.1, 0.0, 0.0], (6000, 1))
    levels = np.resize([2, 0, 1], 6000)
    answers = one.randomize(policies, levels.tolist(), GeneratorSource(0).next())
    p = 0.4 * 0.7 + 0.1
    for level, concentration in ((0, 5.0), (1, 0.5), (2, 0.05)):
        rows = answers[levels == level][:, 0]
        assert rows.mean() == pytest.approx(p, abs=0.04)
        assert rows.var() == pytest.approx(p * (1 - p) / (concentration + 1), rel=0.1)
    assert answers.sum(axis=1) == pytest.approx(1)


def test_rows_and_levels_must_match() -> None:
    with pytest.raises(ValueError, match="2 rows need as many levels, got 1"):
        statement().randomize(np.full((2, 6), 1 / 6), [0], GeneratorSource(0).next())


# --- cost ----------------------------------------------------------------------------------------


def epsilon(one: AnswerStatement, counts: dict[int, int]) -> float:
    return compose(one.events(counts)).epsilon(DELTA)


def test_the_cost_of_a_known_case() -> None:
    """566 teachers, floor 0.1, k = 5 and 1000 queries cost epsilon 1.5 at delta 1e-5."""
    shards = statement(distance=TrainingShards(teachers=566))
    assert epsilon(shards, {0: 1000}) == pytest.approx(1.5, abs=0.02)


def test_gaussian_answers_add_up_exactly() -> None:
    """c = sqrt(2) / n, and n answers are one with the noise over sqrt(n)."""
    (event,) = statement(mechanism=GAUSSIAN).events({0: 400})
    assert isinstance(event, Gaussian)
    truth = 0.2 / (math.sqrt(2) / 500) / 20
    assert event.noise_multiplier == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize("mechanism", [DIRICHLET, TRUNCATED])
def test_every_answer_costs(mechanism: Any) -> None:
    one = statement(mechanism=mechanism, schedule=VANISHING)
    assert epsilon(one, {}) == 0
    assert 0 < epsilon(one, {0: 5}) < epsilon(one, {0: 6}) < epsilon(one, {0: 6, 3: 50})
    renyi = [event for event in one.events({0: 5, 2: 7}) if isinstance(event, Renyi)]
    assert [event.count for event in renyi] == [5, 7]
    alone = mechanism.events(one.distance.between(6, 0.1), 1)
    together = [event for event in one.events({0: 5}) if isinstance(event, Renyi)]
    assert together[0].divergences == alone[0].divergences


def test_the_vanishing_schedule_pays_its_floor() -> None:
    """Unlimited noise does not make an answer free (docs/privacy.md, section 12, Dirichlet)."""
    one = statement(schedule=VANISHING, distance=PolicyDistance(l2=0.03))
    assert epsilon(one, {3: 1000}) > 0.85 * epsilon(one, {0: 1000})


@pytest.mark.parametrize("mechanism", [DIRICHLET, TRUNCATED])
def test_the_planned_epsilon_covers_whatever_is_asked(mechanism: Any) -> None:
    one = statement(mechanism=mechanism, schedule=VANISHING)
    planned = one.planned_epsilon(DELTA)
    generator = np.random.default_rng(0)
    for _ in range(20):
        counts = generator.multinomial(100, generator.dirichlet(np.full(4, 0.3)))
        assert epsilon(one, dict(enumerate(counts.tolist()))) <= planned * (1 + 1e-12)
    assert planned == pytest.approx(epsilon(one, {0: 100}), rel=1e-3)


def test_the_largest_cost_is_largest_at_every_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no level is the dearest at every order, their upper envelope is charged."""
    curves = {
        5.0: (Renyi(orders=(2, 3, 4), divergences=(0.1, 0.2, 0.9)),),
        0.5: (
            Renyi(orders=(2, 3), divergences=(0.2, 0.1)),
            ApproximateDP(epsilon=0.0, delta=1e-9),
        ),
        0.05: (),
    }
    monkeypatch.setattr(
        Dirichlet, "events", lambda self, c, n, l1: curves[round(self.concentration, 9)]
    )
    schedule = Schedule(kind="vanishing", coefficient=0.1, queries_per_rollout=20, rollouts=3)
    # Costs are cached, so this takes a distance that no other test has.
    one = statement(schedule=schedule, distance=PolicyDistance(l2=0.123456))
    assert one.largest_cost(50) == (
        Renyi(orders=(2, 3), divergences=(0.2, 0.2), count=50),
        ApproximateDP(epsilon=0.0, delta=1e-9, count=50),
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"entropy": "fixed-seed"}, "fixed seed"),
        ({"gaps": (Gap(name="exact rows", why="no noise"),)}, "exact rows"),
    ],
)
@pytest.mark.parametrize("schedule", [Schedule(), VANISHING])
def test_without_noise_nothing_is_proved(
    changes: dict[str, Any], reason: str, schedule: Schedule
) -> None:
    one = statement(**changes, schedule=schedule)
    (event,) = one.events({0: 3})
    assert isinstance(event, NoGuarantee)
    assert reason in event.reason
    assert one.events({0: 0}) == ()
    assert one.planned_epsilon(DELTA) == math.inf


# --- in words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distance", "words", "claims_training"),
    [
        (ObservationDistance(radius=0.25, lipschitz=1.0), "b = 0.25 in L2 norm", False),
        (PolicyDistance(l2=0.125), "0.125 in L2 norm, at every query", False),
        (AnyTwoTeachers(), "the whole teacher", False),
        (TrainingShards(teachers=7), "mean of 7 teachers", True),
    ],
)
def test_what_is_protected_is_said(distance: Any, words: str, claims_training: bool) -> None:
    assert TypeAdapter(Distance).validate_json(distance.model_dump_json()) == distance
    one = statement(distance=distance)
    assert words in one.unit_sentence
    near = isinstance(distance, ObservationDistance | PolicyDistance)
    assert ("another one within the stated distance is in its place" in one.unit_sentence) == near
    assert ("any other data in its place" in one.unit_sentence) == (not near)
    told = said(LedgerFacts(answers=one))
    lines = [line.sentence for line in told if "claim about training data" in line.sentence]
    assert len(lines) == (0 if claims_training else 1)
    # A whole teacher contains its training data, so no sentence may deny their protection.
    whole = isinstance(distance, AnyTwoTeachers)
    assert whole == any("covered as a part of the whole teacher" in line for line in lines)
