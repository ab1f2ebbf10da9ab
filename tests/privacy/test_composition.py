"""Costs that no ledger states by itself: of several ledgers, and of replacing a unit."""

import ast
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from references import gaussian_delta
from small import answers

import sotto
from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.answers.distances import Distance, ObservationDistance, PolicyDistance
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.certificates.derive import Certificate, derive
from sotto.privacy.certificates.joint import replaced, together, zero_out_budget
from sotto.privacy.claims.rewards import LOGGED_FUNCTION
from sotto.privacy.errors import LedgerMismatch
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.release.choices import ChoiceRelease
from sotto.privacy.statements import Once, Part, Returning, StreamStatement
from sotto.privacy.units import REWARD_FUNCTION, TRANSITION, Unit

SOURCE = Path(sotto.__file__).parent
ZERO_OUT = Unit(kind="transition", adjacency="zero-out")


def charged(path: Path, unit: Unit = ZERO_OUT, noise: float = 2.0, delta: float = 1e-5) -> Ledger:
    ledger = Ledger.create(path, unit=unit, budget=Budget(epsilon=math.inf, delta=delta))
    statement = StreamStatement(
        name="release",
        unit=unit,
        participation=Once(),
        parts={"all": Part(clip_norm=1.0, noise_multiplier=noise)},
        dimensions={"all": 1},
        divisor=1.0,
        horizon=1,
        population="simulated",
        sampler_delta=1e-12,
    )
    ledger.open_stream(statement).charge(0, 1, [np.array([0])])
    return ledger


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0, 20.0])
def test_what_replacing_costs_is_never_less_than_the_truth(tmp_path: Path, noise: float) -> None:
    """Two zeroed-out sums are 1 / noise apart from the same third one, on either side of it."""
    certificate = derive(charged(tmp_path / "ledger", noise=noise))
    cost = replaced(certificate)
    assert gaussian_delta(2 / noise, cost.epsilon) <= cost.delta
    assert cost.epsilon == 2 * certificate.epsilon
    assert cost.delta == pytest.approx((1 + math.exp(certificate.epsilon)) * certificate.delta)


def test_twice_epsilon_at_the_same_delta_is_false_and_what_is_said_is_attained() -> None:
    """Three laws on two outcomes: each neighbour of M(0) is (epsilon, delta)-close to it."""
    epsilon, delta = 1.0, 0.01

    def missing(one: float, other: float, epsilon: float) -> float:
        """The delta of a coin that falls on one side so often, against another one."""
        sides = ((one, other), (1 - one, 1 - other))
        return sum(max(0.0, p - math.exp(epsilon) * q) for p, q in sides)

    there, zeroed, instead = (1 + math.exp(epsilon)) * delta, delta, 0.0
    for one, other in ((there, zeroed), (zeroed, instead)):
        assert missing(one, other, epsilon) <= delta + 1e-12
        assert missing(other, one, epsilon) <= delta + 1e-12
    assert missing(there, instead, 2 * epsilon) == pytest.approx((1 + math.exp(epsilon)) * delta)


def test_a_certificate_of_replaced_units_stays_what_it_is(tmp_path: Path) -> None:
    certificate = derive(charged(tmp_path / "ledger", unit=TRANSITION))
    assert replaced(certificate) == (certificate.epsilon, certificate.delta)


def test_a_unit_within_a_radius_is_not_replaced(tmp_path: Path) -> None:
    certificate = derive(charged(tmp_path / "ledger"))
    unit = Unit(kind="reward-function", adjacency="within-radius")
    with pytest.raises(ValueError, match="not replaced"):
        replaced(Certificate(**(dict(certificate) | {"unit": unit})))


def test_where_nothing_is_proved_nothing_follows(tmp_path: Path) -> None:
    certificate = derive(charged(tmp_path / "ledger"))
    assert replaced(Certificate(**(dict(certificate) | {"epsilon": math.inf}))) == (math.inf, 1.0)


@pytest.mark.parametrize("epsilon", [0.1, 0.9, 8.0])
def test_the_budget_of_zeroing_out_is_within_what_replacing_may_cost(epsilon: float) -> None:
    budget = zero_out_budget(epsilon, 1e-4)
    assert 2 * budget.epsilon == epsilon
    assert (1 + math.exp(budget.epsilon)) * budget.delta == pytest.approx(1e-4)


@pytest.mark.parametrize("other", [{"unit": TRANSITION}, {"delta": 1e-6}])
def test_ledgers_about_other_things_have_no_cost_in_common(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    ledgers = [charged(tmp_path / "one"), charged(tmp_path / "two", **other)]
    with pytest.raises(LedgerMismatch, match="no cost in common"):
        together(ledgers)


@pytest.mark.parametrize(
    "distances",
    [
        (PolicyDistance(l2=0.001), PolicyDistance(l2=1.0)),
        (
            ObservationDistance(radius=0.1, lipschitz=1.0, rounding=1e-7),
            ObservationDistance(radius=0.2, lipschitz=1.0, rounding=1e-7),
        ),
    ],
)
def test_teachers_ledgers_about_other_distances_have_no_cost_in_common(
    tmp_path: Path, distances: tuple[Distance, Distance]
) -> None:
    """Neighbours at the larger distance would cost more in both than the sum says."""
    budget = Budget(epsilon=math.inf, delta=1e-5)
    made = [
        AnswerLedger.create(tmp_path / f"{i}", statement=answers(distance=one), budget=budget)
        for i, one in enumerate((*distances, distances[1]))
    ]
    with pytest.raises(LedgerMismatch, match="about other units or distances"):
        together(made)
    assert together(made[1:]).epsilon == 0


def test_ledgers_that_say_several_radii_have_no_cost_in_common(tmp_path: Path) -> None:
    budget = Budget(epsilon=1.0, delta=1e-4)
    made = []
    for radius in (0.05, 0.5):
        ledger = Ledger.create(tmp_path / f"{radius}", unit=REWARD_FUNCTION, budget=budget)
        ChoiceRelease(
            "policy",
            REWARD_FUNCTION,
            candidates=np.eye(2),
            weights=np.eye(2),
            bounds=(0.0, 0.5),
            radius=radius,
            epsilon=0.9,
            population="simulated",
            protects=(LOGGED_FUNCTION(radius=f"{radius}"),),
        ).open(ledger)
        made.append(ledger)
    with pytest.raises(LedgerMismatch, match="radi"):
        together(made)


@pytest.mark.parametrize("part", ["experiments", "runs", "serving", "cli"])
def test_nobody_who_reports_a_cost_multiplies_or_adds_an_epsilon(part: str) -> None:
    """Costs are composed in `privacy` only: elsewhere no certified epsilon meets an operator."""
    paths = sorted((SOURCE / part).rglob("*.py"))
    assert paths
    found = {str(path.relative_to(SOURCE)): composed(path.read_text()) for path in paths}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize("line", ["2 * epsilon", "one.epsilon + other.epsilon", "epsilon**2"])
def test_an_epsilon_that_is_composed_elsewhere_is_found(line: str) -> None:
    assert composed(f"cost = {line}") == [ast.unparse(ast.parse(line))]


def composed(source: str) -> list[str]:
    """Operations that compose an epsilon with something."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.BinOp)]
    return [
        ast.unparse(node)
        for node in nodes
        if isinstance(node.op, ast.Mult | ast.Add | ast.Pow)
        and "epsilon" in (_name(node.left), _name(node.right))
    ]


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def test_together_people_pay_for_all_that_their_ledgers_have_planned(tmp_path: Path) -> None:
    """What was released may have decided which of the planned streams they are in."""
    made = []
    for name in ("one", "other"):
        returning = Returning(max_participations=1, min_separation=1)
        statement = charged(tmp_path / name).streams[0].statement
        statement = statement.model_copy(update={"participation": returning})
        budget = Budget(epsilon=math.inf, delta=1e-5)
        ledger = Ledger.create(tmp_path / f"{name}-planned", unit=ZERO_OUT, budget=budget)
        streams = [ledger.open_stream(statement) for _ in range(2)]
        streams[0].charge(0, 1, [np.array([0])])
        made.append(ledger)
    left = 1e-5 - 4e-12
    assert made[0].spent().epsilon == pytest.approx(gaussian_epsilon(2 / 2**0.5, left), rel=1e-5)
    assert together(made).epsilon == pytest.approx(gaussian_epsilon(2 / 4**0.5, left), rel=1e-5)
