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


def flags_given(args: Sequence[str]) -> dict[str, str]:
    """The flags of a command line as they are written, looked at before it is parsed.

    Names have underscores, and a flag without a value is "". Of a flag that is given twice the
    first one counts.
    """
    found: dict[str, str] = {}
    for word, following in zip(args, [*args[1:], ""], strict=False):
        if not word.startswith("--"):
            continue
        written, equals, value = word.removeprefix("--").partition("=")
        if not equals and not following.startswith("--"):
            value = following
        found.setdefault(written.replace("-", "_"), value)
    return found


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
