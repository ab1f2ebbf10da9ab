"""Units: what neighbouring inputs differ by, and what that costs."""

import pytest
from pydantic import ValidationError

from sotto.privacy.units import REWARD_FUNCTION, TRANSITION, Adjacency, Unit


def test_replacing_a_unit_moves_a_sum_twice_as_far_as_zeroing_it() -> None:
    assert Adjacency.ZERO_OUT.sensitivity_factor == 1.0
    assert Adjacency.REPLACE_ONE.sensitivity_factor == 2.0


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_sentence_names_the_adjacency(adjacency: Adjacency) -> None:
    sentence = Unit(kind="trajectory", adjacency=adjacency).sentence()
    assert adjacency.value in sentence
    assert adjacency.phrase in sentence
    assert "whole of their trajectory" in sentence


def test_the_sentence_of_a_segment_does_not_promise_a_person() -> None:
    sentence = Unit(kind="segment", adjacency=Adjacency.ZERO_OUT).sentence()
    assert "protected less" in sentence


def test_a_teacher_and_its_policy_are_units_of_their_own() -> None:
    teacher = Unit(kind="teacher", adjacency=Adjacency.REPLACE_ONE).sentence()
    assert "everything it was trained on" in teacher
    policy = Unit(kind="policy", adjacency=Adjacency.REPLACE_ONE).sentence()
    assert "train" not in policy


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "trajectory"},
        {"adjacency": "zero-out"},
        {"kind": "trajectory", "adjacency": "add-remove"},
        {"kind": "user", "adjacency": "zero-out"},
        {"kind": "trajectory", "adjacency": "zero-out", "radius": 1.0},
    ],
)
def test_a_unit_without_both_or_with_anything_else_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Unit.model_validate(fields)


def test_a_unit_cannot_be_changed() -> None:
    unit = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
    with pytest.raises(ValidationError):
        unit.adjacency = Adjacency.REPLACE_ONE  # type: ignore[misc]


def test_a_reward_function_is_protected_within_a_radius_that_is_stated_elsewhere() -> None:
    sentence = REWARD_FUNCTION.sentence()
    assert "the whole reward function, within the stated radius" in sentence
    assert "another one within the stated radius is in its place" in sentence
    assert REWARD_FUNCTION.adjacency.sensitivity_factor == 1.0
    assert "states were visited" in TRANSITION.sentence()
    assert TRANSITION.adjacency.sensitivity_factor == 2.0


def test_units_are_counted_by_their_name() -> None:
    assert [REWARD_FUNCTION.counted(n) for n in (1, 2)] == [
        "1 reward function",
        "2 reward functions",
    ]
    assert TRANSITION.counted(5000) == "5000 transitions"
    assert Unit(kind="expert", adjacency=Adjacency.ZERO_OUT).counted(3) == "3 experts"
    assert Unit(kind="segment", adjacency=Adjacency.ZERO_OUT).counted(1) == "1 person"
