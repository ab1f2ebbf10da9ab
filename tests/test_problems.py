"""What pydantic refuses is said in plain words, and a misspelt name before a missing one."""

from typing import Annotated, Literal

import pytest
from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from sotto.frozen import FrozenModel
from sotto.problems import first_problem, unknown_field


class Line(FrozenModel):
    length: float = Field(gt=0, allow_inf_nan=False)
    colour: str = Field(default="red", min_length=1, pattern="^[a-z]*$")


class Point(FrozenModel):
    x: int = 0


Shape = Annotated[
    Annotated[Line, Tag("line")] | Annotated[Point, Tag("point")],
    Discriminator(lambda given: "point" if "x" in given else "line"),
]


class Drawing(FrozenModel):
    person: str
    records: int = Field(ge=2, le=100)
    noise: float = Field(default=1, ge=1e-6, lt=1e6)
    shapes: tuple[Shape, ...] = Field(default=(), max_length=2)
    mode: Literal["fast", "slow"] = "fast"
    loud: bool = False
    prices: dict[str, int] = Field(default={})

    @model_validator(mode="after")
    def _agrees(self):
        if self.person == "nobody":
            raise ValueError("person must be somebody")
        return self


def error(**given) -> ValidationError:
    with pytest.raises(ValidationError) as refused:
        Drawing.model_validate(given, strict=False)
    return refused.value


WHOLE = {"person": "a", "records": 2}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"person": "a"}, "records is missing"),
        ({"persn": "a", "records": 2}, "there is no field 'persn'; did you mean person?"),
        ({"persn": "a"}, "there is no field 'persn'; did you mean person?"),
        ({**WHOLE, "zzz": 1}, "there is no field 'zzz'"),
        ({**WHOLE, "noise": 0}, "noise must be at least 1e-06, not 0"),
        ({**WHOLE, "noise": 1e6}, "noise must be below 1000000, not 1000000.0"),
        ({**WHOLE, "noise": "much"}, "noise must be a number"),
        ({**WHOLE, "records": 101}, "records must be at most 100, not 101"),
        ({**WHOLE, "records": 2.5}, "records must be a whole number, not 2.5"),
        ({**WHOLE, "person": None}, "person must be a text"),
        ({**WHOLE, "loud": 7}, "loud must be true or false, not 7"),
        ({**WHOLE, "mode": "x"}, "mode must be 'fast' or 'slow'"),
        ({**WHOLE, "shapes": 3}, "shapes must be a list, not 3"),
        ({**WHOLE, "shapes": [{"x": 1}] * 3}, "shapes must have at most 2 entries"),
        ({**WHOLE, "shapes": [{"length": 0}]}, "shapes[0].length must be above 0, not 0"),
        ({**WHOLE, "prices": {"a": "b"}}, "prices must be a whole number"),
        (
            {**WHOLE, "shapes": [{"length": float("nan")}]},
            "shapes[0].length must be a finite number, not nan",
        ),
        (
            {**WHOLE, "shapes": [{"length": 1, "colour": "RED"}]},
            "shapes[0].colour must match the pattern '^[a-z]*$'",
        ),
        (
            {**WHOLE, "shapes": [{"lenght": 1}]},
            "shapes[0] has no field 'lenght'; did you mean length?",
        ),
        ({**WHOLE, "person": "nobody"}, "person must be somebody"),
    ],
)
def test_problems_are_plain_sentences(given, sentence):
    assert first_problem(error(**given), Drawing) == sentence


def test_long_values_and_names_are_not_repeated():
    assert first_problem(error(**WHOLE, noise=10**300), Drawing) == "noise must be below 1000000"
    assert first_problem(error(**WHOLE, loud="x" * 61), Drawing) == "loud must be true or false"
    assert len(first_problem(error(**WHOLE, **{"y" * 9999: 1}), Drawing)) < 100


def test_text_that_is_not_json():
    with pytest.raises(ValidationError) as refused:
        Drawing.model_validate_json("{")
    said = first_problem(refused.value, Drawing)
    assert said.startswith("the file is not JSON (")
    assert "Invalid" not in said


def test_an_object_is_asked_for():
    with pytest.raises(ValidationError) as refused:
        Drawing.model_validate(3)
    said = first_problem(refused.value, Drawing, "the answer")
    assert said == "the answer must be an object, with names and values, not 3"


def test_unknown_fields_are_found_among_missing_ones():
    assert unknown_field(error(shapes=[{"colr": "red"}]), Drawing) == (
        "shapes[0] has no field 'colr'; did you mean colour?"
    )
    assert unknown_field(error(person="a"), Drawing) == ""
