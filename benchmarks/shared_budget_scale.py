"""How long does a shared budget take to charge many people, beside the product's ledger?

Two products about a million people: one has releases of new people in random order, and the other
has one release of everybody. Both budgets are files on this disk. A charge waits for the disk, so
its time on the processor is measured, too.

    python benchmarks/shared_budget_scale.py --releases 1000
"""

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tyro

from sotto.privacy.ledger.allowances import Allowance
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.shared import SharedBudget
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.ledger.standing import standing
from sotto.privacy.ledger.streams import LedgerStream
from sotto.privacy.statements import Once, Part, StreamStatement
from sotto.privacy.units import Adjacency, Unit

UNIT = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
PEOPLE = 1_000_000


@dataclass
class Settings:
    """What is measured."""

    releases: int = 1000
    """Number of releases of the first product."""
    people: int = 500
    """Number of new people in each."""
    json: bool = False
    """Print one JSON object."""


def product(place: Path, budget: SharedBudget | None) -> LedgerStream:
    """Returns the stream of a new product, which may share a budget."""
    ledger = Ledger.create(place, unit=UNIT, budget=Budget(epsilon=2.0, delta=1e-7))
    if budget is not None:
        ledger.join(budget)
    return ledger.open_stream(
        StreamStatement(
            name="update",
            unit=UNIT,
            participation=Once(),
            parts={"u": Part(clip_norm=1.0, noise_multiplier=5.0)},
            dimensions={"u": 1},
            divisor=1.0,
            horizon=PEOPLE,
            population="real",
            sampler_delta=0.0,
            noise_law="on-grid",
        )
    )


def charged(stream: LedgerStream, asked: Settings) -> tuple[float, float, float]:
    """Returns milliseconds a release: on the clock, on the processor, and there at the end."""
    order = np.random.default_rng(0).permutation(PEOPLE)
    clock, busy = [], []
    for number in range(asked.releases):
        people = order[number * asked.people : (number + 1) * asked.people]
        began, working = time.perf_counter(), time.process_time()
        stream.charge(number, 1, [people])
        clock.append(1000 * (time.perf_counter() - began))
        busy.append(1000 * (time.process_time() - working))
    tenth = max(1, len(busy) // 10)
    return statistics.mean(clock), statistics.mean(busy), statistics.mean(busy[-tenth:])


def main(asked: Settings) -> None:
    """Measures and prints."""
    if asked.releases * asked.people > PEOPLE:
        raise SystemExit(f"there are {PEOPLE:,} people; ask for fewer releases")
    with TemporaryDirectory() as folder:
        place = Path(folder)
        alone = charged(product(place / "alone", None), asked)
        budget = SharedBudget.create(place / "budget", Allowance(epsilon=2.0, delta=1e-7))
        shared = charged(product(place / "first", budget), asked)
        second = product(place / "second", budget)
        began = time.perf_counter()
        second.charge(0, 1, [PersonBlock(0, PEOPLE)])
        everybody = time.perf_counter() - began
        began = time.perf_counter()
        again = SharedBudget.open(place / "budget")
        opened = time.perf_counter() - began
        began = time.perf_counter()
        standing(again)
        shown = time.perf_counter() - began
    if asked.json:
        found = {"alone": alone, "shared": shared, "everybody": everybody}
        print(json.dumps(found | {"opened": opened, "shown": shown}))
        return
    for name, (clock, busy, last) in (("ledger alone", alone), ("with the budget", shared)):
        print(
            f"{name:<16}{clock:.2f} ms a release, of which {busy:.2f} computing ({last:.2f} last)"
        )
    print(f"{PEOPLE:,} people at once: {everybody:.2f} s; opened in {opened:.2f} s")
    print(f"`sotto budget show` adds up in {shown:.2f} s")


if __name__ == "__main__":
    main(tyro.cli(Settings))
