"""What the tests of the vault share."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.units import Adjacency, Unit


@pytest.fixture
def make_ledgers(tmp_path: Path) -> Callable[..., list[Ledger]]:
    """Ledgers of new runs, by default without a target epsilon."""
    numbers = itertools.count()

    def make(
        runs: int = 1,
        *,
        epsilon: float = math.inf,
        delta: float = 1e-6,
        adjacency: Adjacency = Adjacency.ZERO_OUT,
    ) -> list[Ledger]:
        unit = Unit(kind="trajectory", adjacency=adjacency)
        budget = Budget(epsilon=epsilon, delta=delta)
        return [
            Ledger.create(tmp_path / f"ledger-{next(numbers)}.sqlite", unit=unit, budget=budget)
            for _ in range(runs)
        ]

    return make
