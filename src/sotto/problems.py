"""Sentences about what pydantic refuses, in plain words."""

import difflib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import ValidationError

_Place = tuple[int | str, ...]

_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_LONGEST = 60
"""Most characters of a name from a file that a sentence repeats."""


def first_problem(error: "ValidationError", kind: Any = None, whole: str = "the file") -> str:
    """Returns which field is wrong and why. A name that nothing has comes before a missing one.

    Args:
        error: what pydantic found.
        kind: the model that was read, which gives the names of its fields.
        whole: name of what was read.
    """
    found = error.errors(include_url=False)
    first = found[0]["loc"][:-1]
    unknown = [one for one in found if one["type"] == "extra_forbidden"]
    beside = [one for one in unknown if len(one["loc"]) == 1 or one["loc"][:-1] == first]
    return _sentence(next(iter(beside), found[0]), kind, whole)


def unknown_field(error: "ValidationError", kind: Any) -> str:
    """Returns a sentence about a field that the model does not have, or nothing."""
    found = (one for one in error.errors(include_url=False) if one["type"] == "extra_forbidden")
    return next((_sentence(one, kind, "") for one in found), "")


def _sentence(problem: Any, kind: Any, whole: str) -> str:
    said = str(problem["msg"])
    if problem["type"] in ("value_error", "assertion_error"):  # it names the field itself
        return said.partition(" error, ")[2] or said
    place: _Place = problem["loc"]
    if problem["type"] == "extra_forbidden":
        name = str(place[-1])[:_LONGEST]
        where = _named(place[:-1], kind)
        alike = difflib.get_close_matches(name, _fields(kind, place[:-1]), 1)
        opening = f"{where} has" if where else "there is"
        meant = f"; did you mean {alike[0]}?" if alike else ""
        return f"{opening} no field {name!r}{meant}"
    return f"{_named(place, kind) or whole} {_predicate(problem, said)}"


def _predicate(problem: Any, said: str) -> str:
    """Returns the rest of a sentence that begins with the name of a field."""
    if problem["type"] == "missing":
        return "is missing"
    if problem["type"] == "union_tag_not_found":
        return "does not say its kind"
    if problem["type"] == "json_invalid":
        return f"is not JSON ({said.removeprefix('Invalid JSON: ')})"
    limits = problem.get("ctx", {})
    for name, words in _LIMITS.items():
        if name in limits:
            return f"must be {words} {_plain(limits[name])}{_instead(problem['input'])}"
    for pattern, words in _REWORDED:
        if re.match(pattern, said):
            return re.sub(pattern, words, said) + _instead(problem["input"])
    return f"is wrong: {said[:1].lower()}{said[1:]}"


def _plain(limit: Any) -> Any:
    """Returns a limit, without the point of a whole number."""
    whole = isinstance(limit, float) and abs(limit) < 1e15 and limit.is_integer()
    return int(limit) if whole else limit


def _instead(given: Any) -> str:
    """Returns the number that was given, if it is short. A text might be a secret."""
    number = isinstance(given, int | float)
    return f", not {given!r}" if number and (abs(given) < 1e15 or given != given) else ""


_REWORDED = [
    (r"Input should be a valid dictionary.*", "must be an object, with names and values"),
    (r"Input should be an object.*", "must be an object, with names and values"),
    (r"Input should be a valid (tuple|list|array).*", "must be a list"),
    (r"Input should be a valid string.*", "must be a text"),
    (r"Input should be a valid integer.*", "must be a whole number"),
    (r"Input should be a valid number.*", "must be a number"),
    (r"Input should be a valid boolean.*", "must be true or false"),
    (r"String should match pattern (.*)", r"must match the pattern \1"),
    (r"(Tuple|List) should have (.*) items?.*", r"must have \2 entries"),
    (r"(Input|String|Value) should ", "must "),
]
"""Openings of pydantic's sentences, and the words in their place."""


def _named(place: _Place, kind: Any) -> str:
    """Returns the name of a place, without pydantic's names of the kinds that it tried there."""
    parts = []
    for at, part in enumerate(place):
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif kind is None or part in _fields(kind, place[:at]):
            parts.append(f".{part[:_LONGEST]}")
    return "".join(parts).removeprefix(".")


def _fields(kind: Any, place: _Place) -> list[str]:
    """Returns the names of the fields that the model, or one of several, has at a place."""
    models = list(_models(kind))
    for part in place:
        if inner := [one for model in models for one in _inside(model, part)]:
            models = inner
    return [name for model in models for name in model.model_fields]


def _inside(model: Any, part: int | str) -> list[Any]:
    field = model.model_fields.get(part)
    return [] if field is None else list(_models(field.annotation)) or [_Plain]


class _Plain:
    """A type without fields: a number, a text or a list of them."""

    model_fields: ClassVar[dict[str, Any]] = {}


def _models(kind: Any) -> Iterator[Any]:
    """Yields the models in a type: itself, or the members of a union or a list."""
    if isinstance(kind, type) and hasattr(kind, "model_fields"):
        yield kind
    elif get_origin(kind) is not None:
        for one in get_args(kind):
            yield from _models(one)
