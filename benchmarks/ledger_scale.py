"""How long does a ledger take to check and to write a charge, with a million people?

Three rules of participation: a million people who come once, in random order; a tenth of them who
come ten times; and a million people of whom each release draws its own. The ledger is a file on
this disk. Opening it reads and checks all of it again.

    python benchmarks/ledger_scale.py --releases 100000
"""

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tyro

from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.statements import Once, Part, Poisson, Returning, StreamStatement
from sotto.privacy.units import Adjacency, Unit

UNIT = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
PEOPLE = 1_000_000
TIMES = 10  # participations of people who return


@dataclass
class Settings:
    """What is measured."""

    releases: int = 100_000
    """Number of releases."""
    chunk: int = 1
    """Number of releases that are charged together, with one commit."""
    rules: tuple[str, ...] = ("once", "returning", "drawn")
    """Rules of participation."""
    json: bool = False
    """Print one JSON object."""


def statement(rule: str, releases: int) -> StreamStatement:
    """Returns the statement of a stream with this rule."""
    participation: Any = {
        "once": Once(),
        "returning": Returning(max_participations=TIMES, min_separation=1),
        "drawn": Poisson(sampling_rate=1e-5, population=PEOPLE),
    }[rule]
    return StreamStatement(
        name="update",
        unit=UNIT,
        participation=participation,
        parts={"u": Part(clip_norm=1.0, noise_multiplier=20.0)},
        dimensions={"u": 1},
        clipping="separate",
        divisor=1.0,
        horizon=releases,
        population="simulated",
        entropy="operating-system",
        sampler_delta=0.0,
        noise_law="on-grid",
    )


def measured(rule: str, releases: int, chunk: int, folder: Path) -> dict[str, float]:
    """Returns milliseconds a release, at the beginning and at the end, and seconds to open."""
    budget = Budget(epsilon=100.0, delta=1e-7)
    place = folder / f"{rule}.sqlite"
    stream = Ledger.create(place, "run", unit=UNIT, budget=budget).open_stream(
        statement(rule, releases)
    )
    chance = np.random.default_rng(0)
    size = PEOPLE // releases
    rounds = TIMES if rule == "returning" else 1
    order = np.concatenate([chance.permutation(PEOPLE // rounds) for _ in range(rounds)])
    taken = []
    for number in range(0, releases, chunk):
        each = range(number, number + chunk)
        people = None if rule == "drawn" else [order[n * size : (n + 1) * size] for n in each]
        began = time.perf_counter()
        stream.charge(number, chunk, people)
        taken.append(1000 * (time.perf_counter() - began) / chunk)
    began = time.perf_counter()
    Ledger.open(place)
    tenth = max(1, len(taken) // 10)
    return {
        "first": statistics.mean(taken[:tenth]),
        "last": statistics.mean(taken[-tenth:]),
        "mean": statistics.mean(taken),
        "open": time.perf_counter() - began,
        "bytes": float(place.stat().st_size),
    }


def main(asked: Settings) -> None:
    """Measures and prints."""
    found = {}
    for rule in asked.rules:
        with TemporaryDirectory() as folder:
            found[rule] = measured(rule, asked.releases, asked.chunk, Path(folder))
        if not asked.json:
            row = found[rule]
            print(
                f"{rule:<10} {row['first']:.2f} ms a release at first, {row['last']:.2f} at the "
                f"end, {row['mean']:.2f} on average; opened in {row['open']:.1f} s; "
                f"{row['bytes'] / 1e6:.0f} MB",
                flush=True,
            )
    if asked.json:
        print(json.dumps({"releases": asked.releases, "people": PEOPLE, "rules": found}))


if __name__ == "__main__":
    main(tyro.cli(Settings))
