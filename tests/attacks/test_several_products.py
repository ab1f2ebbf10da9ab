"""An adversary sees several products about one person, and chooses what comes next.

The delta that is attained at the budget's epsilon is the mean of (1 - e^(epsilon - L))+, where L is
the log likelihood ratio of everything seen. It is estimated from many plays of the same strategy.
"""

import math
from pathlib import Path

import numpy as np
import pytest

from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.ledger.allowances import Allowance
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.shared import SharedBudget
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.statements import Once, Part, StreamStatement
from sotto.privacy.units import Unit

ALLOWANCE = Allowance(epsilon=1.5, delta=0.05, other_epsilon=0.5, other_delta=0.02)
UNIT = Unit(kind="trajectory", adjacency="zero-out")
PLAYS = 400_000


def response(chance: np.random.Generator, epsilon: float, delta: float) -> np.ndarray:
    """Log likelihood ratios of randomised response that reveals the world with chance delta."""
    honest = chance.random(PLAYS) < math.exp(epsilon) / (1 + math.exp(epsilon))
    revealed = chance.random(PLAYS) < delta
    return np.where(revealed, np.inf, np.where(honest, epsilon, -epsilon))


def attained(squared: float, scale: float = 1.0, other_epsilon: float = 0.5) -> float:
    """Delta of a strategy with two Gaussian products and two others, which lets results decide.

    Args:
        squared: the sum of squared shifts that the strategy may spend.
        scale: true standard deviation of the noise, divided by the stated one.
        other_epsilon: epsilon of the two others together.
    """
    chance = np.random.default_rng(7)
    seen = response(chance, other_epsilon / 2, ALLOWANCE.other_delta / 2)
    left = np.full(PLAYS, squared)
    for _ in range(40):  # products take turns; whoever is near the boundary spends more
        near = np.abs(np.where(np.isinf(seen), 9.0, seen) - ALLOWANCE.epsilon + 0.4) < 0.5
        spent = np.minimum(left, squared * np.where(near, 0.1, 0.02))
        left -= spent
        shift = np.sqrt(spent) / scale
        seen = seen + shift * chance.normal(shift) - shift**2 / 2
    shift = np.sqrt(left) / scale
    seen = seen + shift * chance.normal(shift) - shift**2 / 2
    seen = seen + response(chance, other_epsilon / 2, ALLOWANCE.other_delta / 2)
    return float(np.mean(np.maximum(0.0, 1 - np.exp(ALLOWANCE.epsilon - seen))))


def test_no_strategy_over_several_products_attains_more_than_delta():
    found = attained(ALLOWANCE.squared_shift)
    assert 0.5 * ALLOWANCE.delta < found < ALLOWANCE.delta


@pytest.mark.parametrize("scale", [0.5, 0.7])
def test_less_noise_than_stated_is_found_out(scale):
    assert attained(ALLOWANCE.squared_shift, scale) > ALLOWANCE.delta


def test_products_that_each_spend_the_whole_budget_are_found_out():
    """The usual mistake: each product is within the budget, and nobody adds them up."""
    assert attained(2 * ALLOWANCE.squared_shift, other_epsilon=1.0) > ALLOWANCE.delta


def test_forgetting_the_part_of_other_streams_is_found_out():
    """Gaussian streams that spend all of epsilon and delta, beside others that spend theirs."""
    forgetful = Allowance(epsilon=ALLOWANCE.epsilon, delta=ALLOWANCE.delta).squared_shift
    assert attained(forgetful) > ALLOWANCE.delta


def test_two_products_within_their_own_budgets_are_refused_together(tmp_path: Path):
    """Each certificate alone is within the shared budget, and both together are not."""
    shared = SharedBudget.create(tmp_path / "shared", Allowance(epsilon=2.0, delta=1e-5))
    statement = StreamStatement(
        name="update",
        unit=UNIT,
        participation=Once(),
        parts={"u": Part(clip_norm=1.0, noise_multiplier=2.5)},
        dimensions={"u": 1},
        divisor=1.0,
        horizon=4,
        population="real",
        sampler_delta=1e-30,
        noise_law="on-grid",
    )
    refused = []
    for name in ("one", "two"):
        own = Budget(epsilon=2.0, delta=1e-5)
        ledger = Ledger.create(tmp_path / name, unit=UNIT, budget=own)
        ledger.join(shared)
        stream = ledger.open_stream(statement)
        try:
            stream.charge(0, 1, [np.array([5])])
        except BudgetExceeded:
            refused.append(name)
    assert refused == ["two"]
