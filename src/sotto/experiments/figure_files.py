"""Files that accompany a figure: its data as Parquet, from rows, and its summary as JSON."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sotto.experiments.engine import Result
from sotto.files import strict_json, write_whole


def about(result: Result) -> dict[str, Any]:
    """Returns name and label of the result's arm, and its status, epsilon and delta."""
    said = {name: getattr(result, name) for name in ("status", "epsilon", "delta")}
    return {"arm": result.arm.name, "label": result.arm.label} | said


def seed_rows(result: Result, **columns: Any) -> list[dict[str, Any]]:
    """Returns a row for each seed, with these columns and every return."""
    return [
        columns
        | {"seed": seed}
        | {kind: float(values[row]) for kind, values in result.returns.items()}
        for row, seed in enumerate(result.seeds)
    ]


def point_rows(result: Result, steps: str, **columns: Any) -> list[dict[str, Any]]:
    """Returns a row for each seed and point, with these columns and every curve.

    Args:
        result: result with curves.
        steps: name of the column of steps.
        columns: further columns, the same in all rows.
    """
    return [
        columns
        | {"seed": seed, steps: int(result.steps[row, point])}
        | {kind: float(curve[row, point]) for kind, curve in result.curves.items()}
        for row, seed in enumerate(result.seeds)
        for point in range(result.steps.shape[1])
    ]


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as Parquet; NaN becomes null. The file is replaced as a whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    cleaned = [{name: _no_nan(value) for name, value in row.items()} for row in rows]
    unfinished = path.with_suffix(".partial")
    pq.write_table(pa.Table.from_pylist(cleaned), unfinished)
    unfinished.replace(path)


def write_data(stem: Path, rows: Sequence[Mapping[str, Any]], summary: Any) -> None:
    """Writes the rows of a figure into STEM.parquet and its summary into STEM.json."""
    write_table(stem.with_suffix(".parquet"), rows)
    write_json(stem.with_suffix(".json"), summary)


def write_json(path: Path, values: Any) -> None:
    """Writes values as `strict_json` does."""
    write_whole(path, strict_json(values, indent=1) + "\n")


def _no_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
