"""A log without private numbers.

The log of an unexpected exception has only its type and the lines of code that it passed through.
Its message is left out, because it may hold arrays.
"""

import logging
import traceback
from typing import Any


def log_safely() -> None:
    """Sends warnings and errors to stderr, without requests and messages of exceptions."""
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def without_values(error: BaseException) -> str:
    """Returns the type of an exception and where it came from, without its message."""
    places = [
        f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)
    ]
    return " < ".join([type(error).__name__, *reversed(places)])


class SafeFormatter(logging.Formatter):
    """A log formatter that writes exceptions without their messages."""

    def formatException(self, ei: Any) -> str:
        """Returns type and place of an exception."""
        return without_values(ei[1]) if ei[1] is not None else ""
