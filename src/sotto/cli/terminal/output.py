"""Output of commands: progress for people, and one JSON object for programs."""

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TextIO

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
    """Prints the values as one JSON object; infinity is the string "inf"."""
    text = json.dumps(_plain(values), indent=2, allow_nan=False)
    print(text, file=_answers.get(), flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def say(text: str) -> None:
    """Prints a sentence about the progress at once."""
    print(text, flush=True)
