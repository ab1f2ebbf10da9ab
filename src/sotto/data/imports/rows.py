"""Rows of a log as fixed-size records. What becomes of a row depends on this row alone.

Rules, in the order of the columns:
- Times are numbers, or dates and time stamps. A log that holds both gets a warning, since numbers
  and dates have no common order.
- A row without an id belongs to nobody and is left out. A log with ids such as 7.0 beside others
  gets a warning, since pandas makes 7.0 of 7, and the two are two people here.
- A number outside its bounds is moved to the nearest bound. Actions are not moved.
- An observation that is missing, not finite or of an unknown category gets its fill. Without a
  fill the row is unusable.
- A missing or infinite time or reward, an unknown action, a propensity outside (0, 1], and an end
  that is no truth value make the row unusable. A propensity below its lower bound is moved to the
  bound. Densities of real actions follow the same rules, and may be above 1.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float

from sotto.data.imports import cells
from sotto.data.imports.declaration import (
    LARGEST,
    Categories,
    Column,
    Declaration,
    Range,
)


@dataclass
class Tally:
    """Counts of an import. They are functions of the data of all people, and not private."""

    rows: int = 0
    """Rows of the log that could be parsed."""
    unparsed: int = 0
    """Lines of a CSV file with a wrong number of cells."""
    nobody: int = 0
    """Rows without an id."""
    unusable: int = 0
    """Rows with an id that cannot be used."""
    kept: int = 0
    """Steps in the dataset."""
    people: int = 0
    """People with at least one step in the dataset."""
    people_dropped: int = 0
    """People without a step, because their rows were unusable."""
    beyond_horizon: int = 0
    """Usable rows after the horizon."""
    dates: int = 0
    """Times that are dates or time stamps."""
    numbers: int = 0
    """Times that are numbers."""
    real_ids: int = 0
    """Rows whose id is a whole number with `.0` behind it."""
    other_ids: int = 0
    """Rows with another id."""
    same_time: int = 0
    """Rows of the same person and time as another one before it."""
    columns: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Cells by column and rule, such as missing, filled or clipped."""

    def as_json(self) -> dict[str, Any]:
        """Returns every count rounded down to tens."""
        numbers = {
            name: value // 10 * 10 for name, value in vars(self).items() if name != "columns"
        }
        cells = {
            f"{column}: {rule}": value // 10 * 10 for (column, rule), value in self.columns.items()
        }
        return numbers | {"cells": cells}


def record(declaration: Declaration) -> np.dtype:
    """Returns the type of a record: a row in a fixed number of bytes."""
    action = (
        ("action", "<i4") if declaration.discrete else ("action", "<f4", len(declaration.action))
    )
    return np.dtype(
        [
            ("person", "<u8", 2),
            ("episode", "<u8", 2),
            ("time", "<f8"),
            ("observation", "<f4", declaration.observation_size),
            action,
            ("reward", "<f4"),
            ("propensity", "<f4"),
            ("terminated", "?"),
            ("usable", "?"),
        ]
    )


def encoded(
    batch: pa.RecordBatch, declaration: Declaration, hashed: cells.Hash, tally: Tally
) -> np.ndarray:
    """Returns the records of a batch's rows that have an id, in their order.

    Args:
        batch: rows of the log with the declared columns.
        declaration: the declaration.
        hashed: hash of the ids.
        tally: counts, to which the batch is added.

    Raises:
        RunError: a column has a type that does not fit its declaration.
    """
    for name in set(declaration.columns):
        cells.require_understood(name, batch.column(name).type)
    cells.require_id(declaration.person, batch.column(declaration.person).type)
    if declaration.episode is not None:
        cells.require_id(declaration.episode, batch.column(declaration.episode).type)
    tally.rows += batch.num_rows
    person, owned = cells.hashes(batch.column(declaration.person), hashed)
    tally.nobody += int(np.sum(~owned))
    batch = batch.filter(pa.array(owned))
    real = int(cells.real_ids(batch.column(declaration.person)).sum())
    tally.real_ids += real
    tally.other_ids += batch.num_rows - real
    found = np.zeros(batch.num_rows, record(declaration))
    found["person"] = person[owned]
    usable = np.ones(batch.num_rows, bool)

    def refused(column: str, rule: str, rows: Bool[np.ndarray, " rows"]) -> None:
        nonlocal usable
        tally.columns[column, rule] += int(rows.sum())
        usable = usable & ~rows

    if declaration.time is not None:
        time, dated = cells.times(batch.column(declaration.time))
        refused(declaration.time, "missing or unreadable", ~np.isfinite(time))
        tally.dates += int(dated.sum())
        tally.numbers += int(np.sum(np.isfinite(time) & ~dated))
        found["time"] = np.where(np.isfinite(time), time, 0)
    if declaration.episode is not None:
        found["episode"], known = cells.hashes(batch.column(declaration.episode), hashed)
        refused(declaration.episode, "missing", ~known)
    start = 0
    for one in declaration.observation:
        values, bad = _observed(batch.column(one.column), one, tally)
        refused(one.column, _absent(one), bad)
        found["observation"][:, start : start + one.width] = values
        start += one.width
    for place, one in enumerate(declaration.action):
        if isinstance(one, Categories):
            code = cells.codes(batch.column(one.column), one)
            refused(one.column, _absent(one), code < 0)
            found["action"] = code.clip(min=0)
        else:
            number = cells.numbers(batch.column(one.column))
            outside = ~((number >= one.low) & (number <= one.high))
            refused(one.column, "missing or outside its bounds", outside)
            found["action"][:, place] = np.where(outside, one.low, number)
    reward = cells.numbers(batch.column(declaration.reward.column))
    refused(declaration.reward.column, "missing or unreadable", ~np.isfinite(reward))
    found["reward"] = _clipped(reward, declaration.reward, tally)
    if declaration.chance is not None:
        name, low = declaration.chance.column, declaration.chance.low
        most, rule = (1.0, "not in (0, 1]") if declaration.discrete else (LARGEST, "not above 0")
        chance = cells.numbers(batch.column(name))
        refused(name, rule, ~((chance > 0) & (chance <= most)))
        tally.columns[name, "clipped"] += int(np.sum((chance > 0) & (chance < low)))
        found["propensity"] = np.where(chance > low, chance, low).clip(max=most)
    if declaration.terminated is not None:
        said = cells.numbers(batch.column(declaration.terminated))
        refused(declaration.terminated, "no truth value", ~((said == 0) | (said == 1)))
        found["terminated"] = said == 1
    found["usable"] = usable
    tally.unusable += int(np.sum(~usable))
    return found


def _absent(declared: Column) -> str:
    return f"missing or {'unknown' if isinstance(declared, Categories) else 'unreadable'}"


def _observed(
    column: pa.Array, declared: Column, tally: Tally
) -> tuple[Float[np.ndarray, "rows width"], Bool[np.ndarray, " rows"]]:
    """Returns the entries of an observation, and whether the row is unusable."""
    if isinstance(declared, Categories):
        code = cells.codes(column, declared)
        absent = code < 0
        if declared.fill is not None:
            code = np.where(absent, declared.categories.index(declared.fill), code)
        entries = (code[:, None] == np.arange(declared.width)).astype(np.float32)
    else:
        number = cells.numbers(column)
        absent = ~np.isfinite(number)
        if declared.fill is not None:
            number = np.where(absent, declared.fill, number)
        entries = _clipped(number, declared, tally)[:, None]
    if declared.fill is not None:
        tally.columns[declared.column, "filled"] += int(absent.sum())
        absent = np.zeros_like(absent)
    return entries, absent


def _clipped(
    number: Float[np.ndarray, " rows"], declared: Range, tally: Tally
) -> Float[np.ndarray, " rows"]:
    """Returns float32 within the bounds; NaN becomes the lower bound of an unusable row."""
    outside = np.isfinite(number) & ((number < declared.low) | (number > declared.high))
    tally.columns[declared.column, "clipped"] += int(outside.sum())
    inside = np.where(np.isfinite(number), number, declared.low)
    return inside.clip(declared.low, declared.high).astype(np.float32)
