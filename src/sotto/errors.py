"""Errors that several packages raise, and the form in which text of unknown origin is printed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class RunError(ValueError):
    """A run directory, or a file in it, is not as the command needs it."""


class EnvironmentFailed(RuntimeError):
    """A Gymnasium environment raised an exception; the message says which one, and where."""


def first_problem(error: "ValidationError") -> str:
    """Returns where the first problem of a file is, and what it is."""
    problem = error.errors()[0]
    return f"{'.'.join(map(str, problem['loc'])) or 'the file'}: {problem['msg']}"


def visible(text: str) -> str:
    """Returns the text with every character that does not print spelled out, as in `\\x1b`.

    Names and sentences in a ledger or in a service's response may come from an attacker. Spelled
    out, none of them moves the cursor, starts a new line or reverses the direction of the text.
    """
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )
