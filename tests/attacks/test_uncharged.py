"""People who take part and are not charged: numbers that wrap around, and files that drop entries.

Before, 40 releases of one person whose number was given as 7 - 2^32 were certified with epsilon
0.93 for nobody at all, and a handed-over ledger with a trigger forgot every charge.
"""

import sqlite3
from pathlib import Path
from typing import Any

import jax
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


def test_people_written_into_the_same_array_are_not_in_the_release_before(tmp_path: Path) -> None:
    """JAX calls programs without waiting, and on a CPU they read an aligned array in its place."""

    def slow(state: Any, unit: Any, key: Any) -> tuple[Any, Any]:
        begun = jnp.full((60, 60), 0.01) + 0 * unit[0]
        work = jax.lax.fori_loop(0, 40, lambda _, x: jnp.tanh(x @ x), begun)
        return {"sum": unit + 0 * work.sum()}, ()

    slots, size = 50, 200
    release = Release(
        name="sums",
        local=slow,
        server=lambda state, released: (state, released["sum"]),
        unit=UNIT,
        parts={"sum": Part(clip_norm=1.0, noise_multiplier=0.4)},
        slots=slots,
        divisor=1.0,
        horizon=2,
        population="real",
    )
    whole = np.zeros(slots * size * 4 + 64, np.uint8)
    aligned = whole[-whole.ctypes.data % 64 :][: slots * size * 4]
    units = aligned.view(np.float32).reshape(1, 1, slots, size)
    ledger = Ledger.create(
        tmp_path / "ledger.sqlite", unit=UNIT, budget=Budget(epsilon=200.0, delta=1e-5)
    )
    stream = release.open([ledger], jnp.zeros(1), units[0, 0], chunk=1)
    found = []
    for first in (0, slots):
        persons = np.arange(first, first + slots)[None, None]
        _, log, _ = stream.run(jnp.zeros(1), keys_of([0], 1), persons, units)
        units[..., 0] = 1.0  # the next people
        found.append(log)
    sums = [float(np.asarray(one)[0, 0, 0]) for one in found]
    assert abs(sums[0]) < 10  # noise alone
    assert abs(sums[1] - slots) < 10


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
