"""Parsing and printing that the commands share."""

import inspect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import tyro

_T = TypeVar("_T")
_C = TypeVar("_C")


def parse(function: Callable[..., _T], args: list[str], name: str) -> _T:
    """Calls the function with what the command line says; its docstring is the help."""
    documentation = inspect.cleandoc(function.__doc__ or "").split("\nArgs:")[0].strip()
    return tyro.cli(
        function,
        prog=f"sotto {name}",
        args=args,
        description=documentation,
        config=(
            tyro.conf.OmitArgPrefixes,
            tyro.conf.FlagCreatePairsOff,
            tyro.conf.EnumChoicesFromValues,
        ),
    )


def unvalidated(config_type: type[_C]) -> type[_C]:
    """The dataclass with the same flags and help, but without the checks of its __post_init__.

    Settings are checked once they are parsed: tyro would put a box around what a check says.
    """
    same = {"__post_init__": lambda _self: None, "__module__": config_type.__module__}
    subclass = type(config_type.__name__, (config_type,), same | {"__doc__": config_type.__doc__})
    return dataclass(frozen=True)(subclass)


def flag(args: Sequence[str], name: str) -> str | None:
    """What the command line says for one flag, looked at before it is parsed.

    A flag may be written with underscores too, which the parser takes for hyphens.
    """
    for index, word in enumerate(args):
        written, equals, value = word.partition("=")
        if written.replace("_", "-") != name:
            continue
        if equals:
            return value
        if index + 1 < len(args):
            return args[index + 1]
    return None


def seed_range(first: int, count: int = 1) -> range:
    """So many seeds from the first on.

    Raises:
        ValueError: there are none, or some that compiled programs cannot hold.
    """
    if count < 1:
        raise ValueError(f"--seeds must be at least 1, got {count}")
    if not 0 <= first <= first + count - 1 < 2**31:  # they are int32 in compiled programs
        raise ValueError(f"seeds go from 0 to {2**31 - 1}; those from {first} do not")
    return range(first, first + count)


def print_json(values: dict[str, Any]) -> None:
    """Prints the values as one JSON object; infinity as the string "inf"."""
    print(json.dumps(_plain(values), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def printable(text: str) -> str:
    """The text without what a terminal would obey: it may hold names from somebody else's files."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
