"""Output of commands: progress for people, and one JSON object for programs."""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TextIO

from sotto.errors import visible
from sotto.files import strict_json

_answers: ContextVar[TextIO | None] = ContextVar("answers", default=None)
"""The stream that `print_json` prints to; None is stdout."""


@contextlib.contextmanager
def json_alone(words: Sequence[str]) -> Iterator[None]:
    """Keeps stdout for `print_json` if the words of a command contain --json.

    Everything else that is printed in the context, also by libraries and in other threads, goes to
    stderr.
    """
    if "--json" not in words:
        yield
        return
    token = _answers.set(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _answers.reset(token)


def print_json(values: dict[str, Any]) -> None:
    """Prints the values as one JSON object, as `strict_json` writes it."""
    print(strict_json(values, indent=2), file=_answers.get(), flush=True)


def print_table(header: Iterable[str], body: Iterable[Iterable[str]]) -> None:
    """Prints a table as wide as the terminal, or 80 columns in a file; long cells have more lines.

    Args:
        header: name of each column.
        body: cells of each row.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in header:
        table.add_column(visible(name), overflow="fold")
    for row in body:
        table.add_row(*map(visible, row))
    Console(markup=False).print(table)


def say(text: str) -> None:
    """Prints a sentence about the progress at once."""
    print(text, flush=True)
