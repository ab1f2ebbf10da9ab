"""Distances of neighbours' rows, and the protection that statements claim."""

import math

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from sotto.privacy.answers.distances import (
    AnyTwoTeachers,
    Distance,
    ObservationDistance,
    PolicyDistance,
    TrainingShards,
)
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.claims import LedgerFacts, said
from sotto.privacy.mechanisms.dirichlet.simplex import as_policies, restrict
from sotto.privacy.mechanisms.policies import GaussianPolicy

ALL = [
    ObservationDistance(radius=0.1, lipschitz=0.4),
    PolicyDistance(l2=0.05),
    AnyTwoTeachers(),
    TrainingShards(teachers=50),
]


@pytest.mark.parametrize("distance", ALL, ids=lambda d: d.kind)
def test_a_distance_is_its_json_and_says_what_it_protects(distance) -> None:
    adapter: TypeAdapter = TypeAdapter(Distance)
    assert adapter.validate_json(distance.model_dump_json()) == distance
    assert "Protected is" in distance.unit.sentence()


def test_distances_follow_from_what_neighbours_are() -> None:
    floor, shrink = 0.05, 1 - 6 * 0.05
    expected = [0.04, 0.05, math.sqrt(2), math.sqrt(2) / 50]
    for distance, unmixed in zip(ALL, expected, strict=True):
        c = distance.between(6, floor)
        assert shrink * unmixed <= c + 1e-15
        assert c == pytest.approx(shrink * unmixed, rel=1e-6)
        assert distance.between(6, 1 / 6) == 0.0
        assert distance.between(6, 0.0) == pytest.approx(unmixed, rel=1e-6)


def test_no_distance_is_above_the_diameter() -> None:
    far = ObservationDistance(radius=1e6, lipschitz=10.0)
    assert far.between(6, 0.05) == AnyTwoTeachers().between(6, 0.05)
    assert TrainingShards(teachers=1).between(6, 0.05) == AnyTwoTeachers().between(6, 0.05)
    # The restricted rows themselves include the rounding of float64.
    rows = restrict(as_policies(np.eye(6)), 0.05)
    assert np.linalg.norm(rows[0] - rows[1]) <= AnyTwoTeachers().between(6, 0.05) * (1 + 1e-15)


def test_one_of_many_teachers_moves_the_mean_by_no_more_than_said() -> None:
    rng = np.random.default_rng(0)
    teachers = as_policies(rng.dirichlet(np.full(6, 0.1), 50))
    bound = TrainingShards(teachers=50).between(6, 0.05)
    for corner in np.eye(6):
        changed = teachers.copy()
        changed[7] = as_policies(corner[None])[0]
        apart = restrict(teachers.mean(0)[None], 0.05) - restrict(changed.mean(0)[None], 0.05)
        assert np.linalg.norm(apart) <= bound


@pytest.mark.parametrize("actions", [2, 6])
def test_one_of_many_teachers_moves_the_mean_by_two_shares_and_by_no_less(actions: int) -> None:
    rng = np.random.default_rng(1)
    bound = TrainingShards(teachers=20).l1_between(actions, 0.05)
    largest = 0.0
    for _ in range(200):
        teachers = as_policies(rng.dirichlet(np.full(actions, 0.02), 20))
        changed = teachers.copy()
        changed[3] = np.roll(np.eye(actions)[0], np.argmax(teachers[3]) + 1)
        apart = restrict(teachers.mean(0)[None], 0.05) - restrict(changed.mean(0)[None], 0.05)
        largest = max(largest, float(np.abs(apart).sum()))
        assert np.abs(apart).max() <= bound / 2
    assert 0.99 * bound < largest <= bound
    assert bound == pytest.approx(2 / 20 * (1 - actions * 0.05), rel=1e-6)
    for distance in ALL[:3]:
        assert distance.l1_between(actions, 0.05) == math.inf


@pytest.mark.parametrize("distance", ALL, ids=lambda d: d.kind)
def test_training_data_are_claimed_only_where_they_are_protected(distance) -> None:
    statement = AnswerStatement(
        name="t",
        mechanism=GaussianPolicy(actions=3, noise_stddev=1.0),
        distance=distance,
        queries=1,
        queries_per_student=1,
        observation_size=1,
        population="real",
    )
    told = said(LedgerFacts(answers=statement))
    distances = [one for one in told if one.claim.startswith("distance")]
    claims = " ".join(one.sentence for one in distances if one.section == "protects")
    refused = " ".join(
        one.sentence
        for one in distances
        if one.section == "does-not-protect" and "claim" not in one.sentence
    )
    covered = distance.kind in ("any-two-teachers", "training-shards")
    assert ("train" in claims) == covered
    assert ("train" in refused) == (not covered)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ObservationDistance, {"radius": 0.0, "lipschitz": 1.0}),
        (ObservationDistance, {"radius": 1.0, "lipschitz": -1.0}),
        (ObservationDistance, {"radius": 1.0, "lipschitz": math.inf}),
        (PolicyDistance, {"l2": 0.0}),
        (TrainingShards, {"teachers": 0}),
    ],
)
def test_distances_that_make_no_sense_are_refused(kind, fields) -> None:
    with pytest.raises(ValidationError):
        kind(**fields)


def test_no_network_has_a_rounding_of_zero() -> None:
    with pytest.raises(ValidationError, match="greater than 0"):
        ObservationDistance(radius=0.1, lipschitz=0.4, rounding=0.0)
