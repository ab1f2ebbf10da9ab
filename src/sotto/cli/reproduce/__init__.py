"""`sotto reproduce`: one module for each paper, and the functions that they share."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sotto.cli.terminal.output import print_json


def answer(
    summary: dict[str, Any],
    json: bool,
    files: Path,
    show: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Prints a figure's summary as JSON, or as a table with the names of the figure's files.

    Args:
        summary: Summary of a figure.
        json: Whether to print JSON.
        files: Path of the figure and its data, without a suffix.
        show: Prints the table.
    """
    if json:
        print_json(summary)
        return
    if show is not None:
        show(summary)
    print(f"Figure, data and summary: {files}.png, .parquet, .json")


def check_used(figure: str, options: Mapping[str, tuple[bool, Sequence[str]]]) -> None:
    """Refuses options that a figure does not use, since ignoring them would mislead.

    Args:
        figure: Name of the figure.
        options: For each option, whether it has another value than by default, and the figures
            that use it.

    Raises:
        ValueError: such an option was given.
    """
    for option, (given, figures) in options.items():
        if given and figure not in figures:
            raise ValueError(
                f"{figure} does not use {option}, which is for {', '.join(figures)}; leave it out"
            )


def check_workers(workers: int | None) -> None:
    """Raises ValueError if the number of processes is below 1."""
    if workers is not None and workers < 1:
        raise ValueError("--workers must be at least 1")
