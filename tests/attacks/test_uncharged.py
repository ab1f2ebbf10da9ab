"""People who take part and are not charged: numbers that wrap around, and files that drop entries.

Before, 40 releases of one person whose number was given as 7 - 2^32 were certified with epsilon
0.93 for nobody at all, and a handed-over ledger with a trigger forgot every charge.
"""

import sqlite3
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from sotto.keys import keys_of
from sotto.privacy.errors import LedgerCorrupt, ParticipationViolation
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.privacy.statements import Part
from sotto.privacy.units import Adjacency, Unit

UNIT = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
SLOTS, RELEASES = 2, 4


def new_ledger(path: Path) -> Ledger:
    return Ledger.create(path, "run", unit=UNIT, budget=Budget(epsilon=2.0, delta=1e-5))


def opened(ledger: Ledger) -> Stream:
    release = Release(
        name="sums",
        local=lambda state, unit, key: ({"sum": unit}, ()),
        server=lambda state, released: (state, released["sum"]),
        unit=UNIT,
        parts={"sum": Part(clip_norm=1.0, noise_multiplier=4.0)},
        slots=SLOTS,
        divisor=1.0,
        horizon=RELEASES,
        population="real",
    )
    return release.open([ledger], jnp.zeros(1), np.zeros((SLOTS, 1), np.float32))


def run(stream: Stream, persons: Any) -> None:
    units = np.ones((1, RELEASES, SLOTS, 1), np.float32)
    stream.run(jnp.zeros(1), keys_of([0], 1), persons, units)


@pytest.mark.unchecked_types
@pytest.mark.parametrize("number", [7 - 2**32, -(2**63), -2, 2**31, 2**32 + 7])
def test_a_number_that_wraps_around_is_refused_before_any_charge(
    tmp_path: Path, number: int
) -> None:
    ledger = new_ledger(tmp_path / "ledger.sqlite")
    stream = opened(ledger)
    persons = np.full((1, RELEASES, SLOTS), -1, np.int64)
    persons[..., 0] = number
    with pytest.raises(ParticipationViolation, match="enrolment numbers"):
        run(stream, persons)
    with pytest.raises(ParticipationViolation, match="enrolment numbers"):
        run(stream, np.where(persons < -1, np.nan, -1.0))
    assert ledger.streams[0].releases == 0
    persons[..., 0] = np.arange(RELEASES)  # the same stream serves people
    run(stream, persons)
    assert ledger.persons == RELEASES


FORGETS = {
    "trigger": "CREATE TRIGGER no_insert BEFORE INSERT ON entries BEGIN SELECT RAISE(IGNORE); END",
    "a trigger of our name": "DROP TRIGGER no_update; CREATE TRIGGER no_update BEFORE INSERT ON "
    "entries BEGIN SELECT RAISE(IGNORE); END",
    "view": "ALTER TABLE entries RENAME TO kept; CREATE VIEW entries AS SELECT * FROM kept; "
    "CREATE TRIGGER t INSTEAD OF INSERT ON entries BEGIN SELECT 1; END",
    "conflict": "ALTER TABLE entries RENAME TO kept; CREATE TABLE entries (run_id, sequence, kind, "
    "payload, previous_hash, hash, CHECK (sequence < 1) ON CONFLICT IGNORE, "
    "UNIQUE (run_id, sequence) ON CONFLICT IGNORE); INSERT INTO entries SELECT * FROM kept; "
    "DROP TABLE kept",
}


@pytest.mark.parametrize("how", FORGETS)
def test_a_file_that_would_forget_charges_is_refused(tmp_path: Path, how: str) -> None:
    path = tmp_path / "ledger.sqlite"
    new_ledger(path)
    assert Ledger.open(path).persons == 0
    with sqlite3.connect(path) as connection:
        connection.executescript(FORGETS[how])
    with pytest.raises(LedgerCorrupt, match="which could drop or hide what is charged"):
        Ledger.open(path)
