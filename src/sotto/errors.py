"""Errors that several packages raise, and the form in which text of unknown origin is printed."""

import contextlib
import difflib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path


class RunError(ValueError):
    """A run directory, or a file in it, is not as the command needs it."""


class CodeFailed(RuntimeError):
    """Code that a user brought raised an exception; the message says whose it is, and where."""


class EnvironmentFailed(CodeFailed):
    """An environment raised an exception; the message says which one, and where."""


@contextlib.contextmanager
def failures_of(what: str, kind: type[CodeFailed] = EnvironmentFailed) -> Iterator[None]:
    """Turns every exception of a user's code into one sentence.

    Args:
        what: name of the code, with which the sentence begins.
        kind: class of the error that is raised.
    """
    try:
        yield
    except CodeFailed:
        raise
    except Exception as error:
        raise kind(f"{what} raised {said_by(error)}") from error


def said_by(error: Exception) -> str:
    """Returns the class of an exception, the place in the user's code, and what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not one.filename.startswith(_installed())]
    # Code of a user's may be an installed package, too.
    others = [one for one in frames if not one.filename.startswith(_libraries())]
    place = (own or others or frames)[-1]
    words = str(error).strip().partition("\n")[0] or "no message"
    return f"{type(error).__name__} in {place.filename}, line {place.lineno}: {words}"


def _installed() -> tuple[str, ...]:
    """Returns the folders of sotto, of installed packages and of Python."""
    used = (one for one in ("numpy", "jax", "gymnasium") if one in sys.modules)
    packages = {str(Path(str(sys.modules[one].__file__)).parent.parent) for one in used}
    return tuple(f"{one}{os.sep}" for one in (*packages, *_own_and_python()))


def _libraries() -> tuple[str, ...]:
    """Returns the folders of sotto, and of the packages that call code of users."""
    used = (one for one in ("numpy", "jax", "gymnasium", "equinox") if one in sys.modules)
    packages = [str(Path(str(sys.modules[one].__file__)).parent) for one in used]
    return tuple(f"{one}{os.sep}" for one in (*packages, _own_and_python()[0]))


def _own_and_python() -> tuple[str, str]:
    return str(Path(__file__).parent), str(Path(os.__file__).parent)


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
