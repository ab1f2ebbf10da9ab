"""`sotto reproduce`, one module for each paper, and what they share."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sotto.cli.parsing import print_json


def speaker(json: bool) -> Callable[[str], None]:
    """Prints progress: on stderr where JSON goes to stdout."""
    return partial(print, file=sys.stderr if json else sys.stdout, flush=True)


def answer(
    summary: dict[str, Any],
    json: bool,
    files: Path,
    show: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Prints the summary as JSON; or shows it, and says where figure and data are.

    Args:
        summary: of a figure.
        json: as JSON.
        files: figure and data, without an ending.
        show: prints a table.
    """
    if json:
        print_json(summary)
        return
    if show is not None:
        show(summary)
    print(f"Figure, data and summary: {files}.png, .parquet, .json")


def check_workers(workers: int | None) -> None:
    """Raises ValueError unless there is a process at least."""
    if workers is not None and workers < 1:
        raise ValueError("--workers must be at least 1")
