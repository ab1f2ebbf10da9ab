"""Errors that several packages raise, and the form in which text of unknown origin is printed."""

import difflib
from collections.abc import Sequence


class RunError(ValueError):
    """A run directory, or a file in it, is not as the command needs it."""


class EnvironmentFailed(RuntimeError):
    """A Gymnasium environment raised an exception; the message says which one, and where."""


def visible(text: str) -> str:
    """Returns the text with every character that does not print spelled out, as in `\\x1b`.

    Names and sentences in a ledger or in a service's response may come from an attacker. Spelled
    out, none of them moves the cursor, starts a new line or reverses the direction of the text.
    """
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Returns a question in parentheses with the known word that is most like a word, or nothing.

    Args:
        word: the unknown word.
        known: the words that there are.
    """
    alike = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {alike[0]}?)" if alike else ""
