"""A small log of people in four formats, and a second implementation of the import's rules."""

import csv
import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sotto.data.imports.declaration import Declaration
from sotto.data.imports.importing import import_log
from sotto.data.imports.records import Records, load

NAMES = ("who", "t", "x", "s", "a", "r", "p")
Row = tuple[str, ...]

DECLARED: dict[str, Any] = {
    "person": "who",
    "time": "t",
    "observation": [
        {"column": "x", "low": -1, "high": 1},
        {"column": "s", "categories": ["f", "m"]},
    ],
    "action": {"column": "a", "categories": ["no", "yes"]},
    "reward": {"column": "r", "low": 0, "high": 1},
    "propensity": {"column": "p", "low": 0.125},
    "people": 6,
    "horizon": 3,
}

ROWS: list[Row] = [
    ("bo", "2", "0.5", "f", "yes", "1", "0.5"),
    ("ann", "1", "-0.25", "m", "no", "0", "0.25"),
    ("bo", "1", "-7", "f", "no", "3", "0.0625"),
    ("żółć", "1", "0.125", "m", "yes", "0.75", "1"),
]


def declared(**changes: Any) -> Declaration:
    return Declaration.of(DECLARED | changes)


def as_csv(folder: Path, rows: Sequence[Row]) -> str:
    path = folder / "log.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([NAMES, *rows])
    return str(path)


def typed(rows: Sequence[Row]) -> pa.Table:
    """The rows with numbers as numbers; what is empty is null."""
    kinds = [pa.string(), pa.int64(), pa.float64(), pa.string(), pa.string(), *[pa.float64()] * 2]
    columns = {}
    for place, (name, kind) in enumerate(zip(NAMES, kinds, strict=True)):
        read = {pa.int64(): int, pa.float64(): float}.get(kind, str)
        columns[name] = pa.array([read(row[place]) if row[place] else None for row in rows], kind)
    return pa.table(columns)


def as_parquet(folder: Path, rows: Sequence[Row]) -> str:
    path = folder / "log.parquet"
    pq.write_table(typed(rows), path, row_group_size=2)
    return str(path)


def as_huggingface(folder: Path, rows: Sequence[Row], files: int = 2) -> str:
    """The folder that `datasets.Dataset.save_to_disk` of version 5 writes."""
    path = folder / "log"
    path.mkdir()
    table, names = typed(rows), []
    for number in range(files):
        names.append(f"data-{number:05}-of-{files:05}.arrow")
        start, end = (place * len(rows) // files for place in (number, number + 1))
        part = table.slice(start, end - start)
        with (
            pa.OSFile(str(path / names[-1]), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as stream,
        ):
            stream.write_table(part)
    state = {"_data_files": [{"filename": one} for one in names], "_format_type": None}
    (path / "state.json").write_text(json.dumps(state))
    (path / "dataset_info.json").write_text("{}")
    return str(path)


def as_sqlite(folder: Path, rows: Sequence[Row]) -> str:
    path = folder / "log.db"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE visits (who TEXT, t INTEGER, x REAL, s, a, r REAL, p REAL)"
        )
        connection.executemany(
            "INSERT INTO visits VALUES (?, ?, ?, ?, ?, ?, ?)",
            [[cell or None for cell in row] for row in rows],
        )
    connection.close()
    return f"sqlite:///{path}"


def imported(where: str, out: Path, declaration: Declaration, table: str | None = None) -> Records:
    """Imports a log and loads it."""
    import_log(where, declaration, out, table=table, say=lambda _: None)
    return load(out)


Unit = tuple[tuple[Any, ...], ...]


def units(records: Records) -> list[Unit]:
    """What is known of each person who has a step, in an order that depends on the units alone."""
    found = []
    for person in range(records.people):
        steps = np.flatnonzero(records.present[person])
        assert list(steps) == list(range(len(steps)))
        if len(steps):
            found.append(
                tuple(
                    (
                        tuple(map(float, records.observations[person, step])),
                        tuple(np.atleast_1d(records.actions[person, step]).tolist()),
                        float(records.rewards[person, step]),
                        float(records.propensities[person, step])
                        if records.propensities is not None
                        else None,
                        bool(records.ends[person, step]),
                        bool(records.cut[person, step]),
                    )
                    for step in steps
                )
            )
    return sorted(found)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _time(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(cell).replace(tzinfo=UTC).timestamp() * 1e6
    except ValueError:
        return math.nan


def expected(rows: Iterable[Row], declaration: Declaration) -> list[Unit]:
    """The units of texts in the columns of `DECLARED`, row by row in plain Python."""
    people: dict[str, list[Any]] = {}
    for who, t, x, s, a, r, p in rows:
        if not who:
            continue
        number, reward, chance, time = _number(x), _number(r), _number(p), _time(t)
        usable = (
            math.isfinite(time)
            and math.isfinite(number)
            and s in ("f", "m")
            and a in ("no", "yes")
            and math.isfinite(reward)
            and 0 < chance <= 1
        )
        seen = (min(max(number, -1), 1), float(s == "f"), float(s == "m")) if usable else ()
        step = seen, (int(a == "yes"),), min(max(reward, 0), 1), max(chance, 0.125)
        people.setdefault(who, []).append((time, usable, step))
    found = []
    for steps in people.values():
        if declaration.drop == "person" and not all(usable for _, usable, _ in steps):
            continue
        kept = sorted((one for one in steps if one[1]), key=lambda one: one[0])
        if kept:
            last = min(len(kept), declaration.horizon) - 1
            found.append(
                tuple(
                    (*step, number == last, number == last and len(kept) > last + 1)
                    for number, (_, _, step) in enumerate(kept[: last + 1])
                )
            )
    return sorted(found)
