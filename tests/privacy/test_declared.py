"""A declaration of a release says the same every time, whatever its caller does with lists."""

from dataclasses import fields, replace
from pathlib import Path
from typing import get_origin

import numpy as np
import pytest
import small
from test_noisy_max import CHOICE
from test_prefixes import Consensus, planned
from test_prefixes import small as mechanism

from sotto.frozen import Declared
from sotto.privacy.certificates.derive import derive
from sotto.privacy.claims.rewards import ONE_REWARD
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.functions.rkhs import Sensitivity
from sotto.privacy.release.functions import FunctionRelease
from sotto.privacy.statements import Part
from sotto.privacy.units import TRANSITION

pytestmark = pytest.mark.unchecked_types

FUNCTION = FunctionRelease(
    "values",
    TRANSITION,
    Sensitivity(1.0, None, "b", 1.0, size=3),
    5.0,
    "real",
    size=3,
    units=3,
    protects=(ONE_REWARD(low="0", high="1"),),
)
PART = Part(clip_norm=1.0, noise_multiplier=3.0)
DECLARED = [small.release(), CHOICE, FUNCTION, planned(mechanism(Consensus()), 1)]
TUPLES = [
    (one, field.name)
    for one in DECLARED
    for field in fields(one)
    if get_origin(field.type) is tuple
]


def test_every_declaration_has_sentences_of_its_own() -> None:
    assert all(isinstance(one, Declared) for one in DECLARED)
    assert len(TUPLES) == 15


@pytest.mark.parametrize(("declared", "name"), TUPLES)
def test_a_list_or_a_generator_is_read_once(declared: Declared, name: str) -> None:
    given = getattr(declared, name)
    for changing in (list(given), (one for one in given)):
        again = replace(declared, **{name: changing})
        if isinstance(changing, list):
            changing.append("later")
        assert [getattr(again, name) for _ in range(2)] == [given, given]
    with pytest.raises(ValueError, match=f"{name} is a tuple; write \\('text',\\)"):
        replace(declared, **{name: "text"})


class Doubling(float):
    """A number that a program would divide by a second time."""

    def __float__(self) -> float:
        return 2.0

    def __rtruediv__(self, other: float) -> float:
        return 0.0


class Changing(str):
    """A text that is equal to any other."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__
    __str__ = lambda self: "real"  # noqa: E731


def test_numbers_and_texts_are_pythons_own() -> None:
    """A class derived from them would run in the program, beside people's data."""
    made = replace(
        small.release(), divisor=Doubling(4), population=Changing("simulated"), slots=np.int64(4)
    )
    assert [type(x) for x in (made.divisor, made.population, made.slots)] == [float, str, int]
    assert (made.divisor, made.population, made.slots) == (4.0, "simulated", 4)
    assert type(replace(FUNCTION, population=Changing("simulated")).population) is str


def test_arrays_of_one_number_do_not_change_a_declaration(tmp_path: Path) -> None:
    """They changed the noise, the clip and the sensitivity after the statement was written."""
    number = np.array(5.0)
    sensitivity = Sensitivity(number, None, "b", 1.0, size=3)  # type: ignore[arg-type]
    function = replace(FUNCTION, noise_multiplier=number, sensitivity=sensitivity)
    choice = replace(CHOICE, bounds=(0.0, number), radius=number, epsilon=number)
    parts = {"u": PART.model_copy(update={"clip_norm": number})}
    release = small.release(parts=parts, divisor=number)
    number *= 0.02
    assert (function.noise_multiplier, function.sensitivity.value) == (5.0, 5.0)
    assert (choice.bounds, choice.radius, choice.epsilon) == ((0.0, 5.0), 5.0, 5.0)
    assert (release.divisor, release.parts["u"].clip_norm) == (5.0, 5.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": True}, "slots: it must be a whole number, not True"),
        ({"divisor": "4"}, "divisor: it must be a number"),
        ({"population": "other"}, "population: it must be 'simulated' or 'real'"),
        ({"protects": (1,)}, r"protects: \[0\] must be a text, not 1"),
        (
            {"parts": {"u": PART.model_copy(update={"noise_multiplier": -3.0})}},
            "parts: u.noise_multiplier must be above 0",
        ),
    ],
)
def test_fields_are_of_their_types(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small.release(**changes)


def test_a_sensitivity_is_no_class_of_an_authors() -> None:
    class Smaller(Sensitivity):
        """A bound that could say another number to whoever draws the noise."""

    with pytest.raises(ValueError, match="Smaller is no class of sotto's"):
        replace(FUNCTION, sensitivity=Smaller(1.0, None, "b", 1.0, size=3))


class Louder(Part):
    """A part that could say another multiplier to whoever draws the noise."""


class Poses:
    """No text, and equal to one when it is asked."""

    def __eq__(self, other: object) -> bool:
        return other == "joint"

    def __hash__(self) -> int:
        return hash("joint")


def test_models_texts_and_what_is_in_tuples_are_of_exact_types() -> None:
    with pytest.raises(ValueError, match="Louder is no class of sotto's"):
        small.release(parts={"u": Louder(clip_norm=1.0, noise_multiplier=3.0)})
    with pytest.raises(ValueError, match="clipping is a text, not a Poses"):
        small.release(clipping=Poses())
    bounds = replace(CHOICE, bounds=tuple(map(Doubling, CHOICE.bounds))).bounds
    assert (bounds, {type(x) for x in bounds}) == (CHOICE.bounds, {float})


def test_a_gap_stands_in_the_certificate_of_every_ledger(tmp_path: Path) -> None:
    release = replace(FUNCTION, gaps=(small.GAP for _ in range(1)))  # type: ignore[arg-type]
    for number in (1, 2):
        ledger = Ledger.create(
            tmp_path / f"{number}", unit=TRANSITION, budget=Budget(epsilon=np.inf, delta=1e-6)
        )
        release.open(ledger).release(np.zeros(3))
        assert derive(ledger).status == "paper-claim"
