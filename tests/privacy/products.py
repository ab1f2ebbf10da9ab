"""Small products for tests of shared budgets. As a program, one that charges people."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import small
from small import UNIT

from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.ledger import entries
from sotto.privacy.ledger.joining import Numbers
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.shared import SharedBudget
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.ledger.streams import LedgerStream
from sotto.privacy.statements import Returning, StreamStatement

BUDGET = Budget(epsilon=50.0, delta=1e-6)
OFTEN = Returning(max_participations=20, min_separation=1)


def statement(z: float = 4.0, **changes: Any) -> StreamStatement:
    """A stream of real people with noise multiplier z."""
    fields = {"horizon": 1000, "population": "real", "noise_law": "on-grid"}
    return small.statement(z, **fields | changes)


def product(
    budget: SharedBudget, place: Path | str, name: str | None = None, numbers: Any = None
) -> Ledger:
    """A new ledger that shares a budget."""
    ledger = Ledger.create(place, name, unit=UNIT, budget=BUDGET)
    ledger.join(budget, None if numbers is None else Numbers(numbers))
    return ledger


def charge(stream: LedgerStream, *people: int) -> None:
    """Charges one release of these people."""
    stream.charge(stream.releases, 1, [np.array(people, np.int64)])


def main(shared: str, place: str, z: str, people: str, dies: str) -> None:
    """Charges people one after the other, and prints each number and whether it was charged.

    With `dies` it kills itself between the charge of the shared budget and the one of its ledger.
    """
    append = entries.append

    def killed(engine: Any, entry: entries.Entry) -> None:
        if entry.kind == "charge":
            os.kill(os.getpid(), signal.SIGKILL)
        append(engine, entry)

    if dies == "dies":
        entries.append = killed
    stream = product(SharedBudget.open(shared), place, Path(place).name).open_stream(
        statement(float(z))
    )
    print("ready", flush=True)
    for person in range(int(people)):
        try:
            charge(stream, person)
            print(person, 1, flush=True)
        except BudgetExceeded:
            print(person, 0, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
