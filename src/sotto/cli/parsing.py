"""Parsing and printing that the commands share."""

import inspect
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

_T = TypeVar("_T")


def parse(function: Callable[..., _T], args: list[str], name: str) -> _T:
    """Calls the function with what the command line says; its docstring is the help."""
    documentation = inspect.cleandoc(function.__doc__ or "").split("\nArgs:")[0].strip()
    return tyro.cli(
        function,
        prog=f"sotto {name}",
        args=args,
        registry=_registry(),
        description=documentation,
        config=(
            tyro.conf.OmitArgPrefixes,
            tyro.conf.FlagCreatePairsOff,
            tyro.conf.EnumChoicesFromValues,
        ),
    )


def _registry() -> ConstructorRegistry:
    """How flags are read where tyro reads them otherwise: an integer may be written as 1e6."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def whole(asked: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
        return number(int, "INT") if asked.type is int else None

    return registry


def number(kind: type, metavar: str) -> PrimitiveConstructorSpec[Any]:
    """How tyro reads a number, and what its help calls it."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: (_whole if kind is int else float)(words[0]),
        is_instance=lambda value: isinstance(value, int | kind) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def _whole(word: str) -> int:
    """The integer of a word such as 1000000 or 1e6."""
    try:
        return int(word)
    except ValueError:
        number = float(word)
        if not number.is_integer():
            raise ValueError(f"{word} is not a whole number") from None
        return int(number)


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
