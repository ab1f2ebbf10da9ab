"""Declarations that are not complete yet: from a file, from words on a command line, from answers.

A draft is the JSON object of a declaration. Null stands for a value that is missing, so that a
template with nulls can be completed and given again.
"""

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sotto.errors import RunError
from sotto.files import read_given

Draft = dict[str, Any]

_LARGEST_FILE = 2**20
_REQUIRED = ("person", "observation", "action", "reward", "people", "horizon")
_COLUMNS = ("observation", "action")
_CHANCES = ("propensity", "density")

ASKED = "LOW..HIGH for numbers, as in 0..120, or the categories, as in no,yes"
"""The form in which bounds of a column are given in words."""


def read(path: Path) -> Draft:
    """Reads a draft from a JSON or TOML file.

    Raises:
        RunError: it cannot be read, or holds no object.
    """
    if path.suffix not in (".json", ".toml"):
        raise RunError(f"{path} must be named .json or .toml, for the format that it has")
    content = read_given(path, _LARGEST_FILE)
    try:
        text = content.decode()
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(found, dict):
        raise RunError(f"{path} must hold one object, a declaration")
    return found


def column(word: str) -> Draft:
    """Returns the draft of a column from a word: NAME, NAME=LOW..HIGH or NAME=A,B,C.

    Categories that are all numbers are numbers.

    Raises:
        RunError: the word has another form.
    """
    name, equals, bounds = word.partition("=")
    if not name:
        raise RunError(f"{word!r} names no column; write NAME={ASKED}")
    return {"column": name, **(_bounds(bounds) if equals else {"low": None, "high": None})}


def _bounds(text: str) -> Draft:
    low, dots, high = text.partition("..")
    if dots:
        if low.rstrip().endswith(".") or high.lstrip().startswith("."):
            raise RunError(
                f"{text!r} has a point beside its two dots, which can be read in two ways; write a "
                "digit there, as in 0..0.5"
            )
        first, last = _value(low), _value(high)
        if isinstance(first, str) or isinstance(last, str):
            raise RunError(f"{text!r} are no bounds; write {ASKED}")
        return {"low": first, "high": last}
    words = [one.strip() for one in text.split(",")]
    if len(words) < 2 or not all(words):
        raise RunError(f"{text!r} are neither bounds nor categories; write {ASKED}")
    values = [_value(one) for one in words]
    return {"categories": words if any(isinstance(one, str) for one in values) else values}


def chance(word: str) -> Draft:
    """Returns the draft of the propensity or the density from a word: NAME or NAME=LOW."""
    name, equals, low = word.partition("=")
    return {"column": name, "low": _value(low) if equals else None}


def filled(draft: Draft, words: tuple[str, ...]) -> Draft:
    """Returns the draft with the fills of observations, each in the form NAME=VALUE.

    Raises:
        RunError: there is no such observation.
    """
    fills = {name: value for name, _, value in (word.partition("=") for word in words)}
    columns = []
    for one in _listed(draft.get("observation")):
        if one.get("column") in fills:
            value = fills.pop(one["column"])
            texts = any(isinstance(known, str) for known in one.get("categories") or ())
            one = one | {"fill": value if texts else _value(value)}
        columns.append(one)
    if fills:
        raise RunError(f"--fill names {next(iter(fills))!r}, which is no observation")
    return draft | {"observation": columns}


def missing(draft: Draft) -> list[tuple[str, ...]]:
    """Returns the places of a draft that are empty: a field, or a field and a column."""
    places: list[tuple[str, ...]] = [(name,) for name in _REQUIRED if _is_empty(draft.get(name))]
    for name, one in _columns(draft):
        bounds = [one["categories"]] if "categories" in one else [one.get("low"), one.get("high")]
        if None in bounds:
            places.append((name, str(one.get("column"))))
    for name in _CHANCES:
        found = draft.get(name)
        if isinstance(found, dict) and found.get("low") is None:
            places.append((name, str(found.get("column"))))
    return places


def _is_empty(value: Any) -> bool:
    """Whether nothing was declared; the number 0 was, and the declaration refuses it."""
    return value is None or value in ("", [], {})


def template(draft: Draft) -> str:
    """Returns the draft as JSON with null in every empty place."""
    empty: Draft = {"observation": [], "action": [], "reward": None}
    return json.dumps({name: empty.get(name) for name in _REQUIRED} | draft, indent=2)


def asked(draft: Draft, ask: Callable[[str], str]) -> Draft:
    """Returns the draft with an answer in every empty place.

    Args:
        draft: the draft.
        ask: returns the answer to a question.

    Raises:
        RunError: an answer has the wrong form.
    """
    draft = json.loads(json.dumps(draft))
    for place in missing(draft):
        name = place[0]
        if name in _COLUMNS and len(place) == 1:
            words = ask(f"Columns of the {name}, each as NAME={ASKED}, with blanks between").split()
            draft[name] = [column(word) for word in words]
        elif name == "reward" and len(place) == 1:
            draft[name] = column(ask("Column of the reward, as NAME=LOW..HIGH"))
        elif name == "person":
            draft[name] = ask("Column with the id of the person")
        elif name == "people":
            draft[name] = _value(ask("Number of people, or more, which will be public"))
        elif name == "horizon":
            draft[name] = _value(ask("Largest number of steps of a person"))
        elif name in _CHANCES:
            draft[name]["low"] = _value(ask(f"Lower bound of the {name} {place[1]}, above 0"))
        else:
            bounds = _bounds(ask(f"Public bounds of {place[1]} ({name}): {ASKED}"))
            for known, one in _columns(draft):
                if (known, one.get("column")) == place:
                    if "categories" in bounds:
                        one.pop("low", None), one.pop("high", None)
                    one.update(bounds)
    return draft


def _columns(draft: Draft) -> Iterator[tuple[str, Draft]]:
    for name in (*_COLUMNS, "reward"):
        for one in _listed(draft.get(name)):
            yield name, one


def _listed(given: Any) -> list[Draft]:
    """Returns the columns of a field; others are left to the declaration to refuse."""
    found = [given] if isinstance(given, dict) else given
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _value(text: str) -> str | int | float:
    """Returns the number that a text stands for, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
