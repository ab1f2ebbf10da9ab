"""Files that accompany a figure: its data as Parquet, and its summary as JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sotto.files import write_whole


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
    """Writes JSON, which has no infinity and no NaN: they become the string "inf" and null."""
    write_whole(path, json.dumps(plain(values), indent=1, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Returns JSON values in which infinity is "inf" and NaN is null."""
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _no_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
