"""Parsing of the command line, for all commands."""

import contextlib
import inspect
import io
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from sotto.cli.terminal.output import json_alone

Command = Callable[[list[str]], int]
"""Type of a command: it takes the words after its name and returns the exit code."""


def command(name: str) -> Callable[[Callable[..., int | None]], Command]:
    """Turns a function into the command `sotto NAME`, as `parse` says."""

    def made(function: Callable[..., int | None]) -> Command:
        return lambda args: parse(function, args, name)

    return made


def parse(function: Callable[..., int | None], args: list[str], name: str) -> int:
    """Calls the function with the values of the flags; returns the exit code.

    The function's parameters are the flags and its docstring is the help. It returns the exit code,
    or None for 0.

    Raises:
        ValueError: a flag is unknown, missing or has a value of the wrong type.
        SystemExit: the help was asked for and is printed.
    """
    flags_given(args)
    documentation, *described = inspect.cleandoc(function.__doc__ or "").split("\nArgs:")

    def flags(*values: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return values, named

    # tyro would keep some line breaks of the docstring, so that the help would be ragged.
    joined = [re.sub(r"\n {5,}", " ", one) for one in described]
    flags.__doc__ = "\nArgs:".join([documentation, *joined])
    flags.__annotations__ = function.__annotations__
    vars(flags)["__signature__"] = inspect.signature(function)
    description = re.sub(r"(?<=\S)\n(?=\S)", " ", documentation.strip())
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            values, named = tyro.cli(
                flags,
                prog=f"sotto {name}",
                args=args,
                registry=_registry(),
                description=description,
                config=(
                    tyro.conf.OmitArgPrefixes,
                    tyro.conf.FlagCreatePairsOff,
                    tyro.conf.EnumChoicesFromValues,
                ),
            )
    except SystemExit as error:
        if not error.code:
            raise
        raise ValueError(f"{_problem(said.getvalue())}; see sotto {name} --help") from None
    sys.stderr.write(said.getvalue())
    with json_alone(args):
        return function(*values, **named) or 0


def _problem(box: str) -> str:
    """Returns the problem that tyro frames in a box, without the frame and without the help."""
    first, *others = _parts(box)
    text = " ".join(line.strip() for line in first)
    if text.startswith("Missing from"):
        unknown = [flag for one in others if "Unrecognized" in one[0] for flag in _listed(one)]
        return " and ".join(
            [f"give {' and '.join(_listed(first))}"]
            + [f"leave out {flag}" for flag in unknown if flag.startswith("--")]
        )
    text = text.removeprefix("Error parsing ").strip(" .")
    # Of several types, this is what the last one says.
    text = re.sub(r": no type matching .*: ", ": ", text)
    text = re.sub(r"^\[.*?\]: ", "", text)  # the types of an optional word, which has no name
    for pattern, instead in _REWORDED:
        text = re.sub(pattern, instead, text)
    text = text[:1].lower() + text[1:].replace(". Expected 1 values", "").replace(". Exp", ", exp")
    if text.startswith("unrecognized options: "):
        words = text.removeprefix("unrecognized options: ").split(", ")
        flags = [word for word in words if word.startswith("--")]
        text = f"unrecognized options: {', '.join(flags or words)}"  # without their values
    meant = [line for one in others if "Perhaps you meant" in one[0] for line in _listed(one)]
    similar = " or ".join(line.split()[0] for line in meant if line.startswith("--"))
    return f"{text} (did you mean {similar}?)" if similar else text


_REWORDED = [
    (r"\[/?(bold|bright_red|red|dim|italic|cyan|magenta|yellow|green|white)\]", ""),
    (
        r"[Ii]nput length (\d+) did not match expected argument count (\d+) of `(.*)`",
        r"give \2 values (\3), not \1",
    ),
    (r"Could not find valid parse for arguments: ", "cannot be read: "),
]
"""Markup and sentences of tyro, and the words in their place."""


def _parts(box: str) -> list[list[str]]:
    """Returns the parts of tyro's box below its title, as lines without the frame.

    Rules of dashes separate the parts. Where the encoding has no lines to draw with, the frame is
    made of blanks and hyphens.
    """
    parts: list[list[str]] = [[]]
    for line in box.splitlines()[1:]:
        inside = line[1:].rstrip(" │")
        if set(inside.strip(" ╯")) in ({"-"}, {"─"}):
            parts.append([])
        elif inside.strip():
            parts[-1].append(inside)
    return [one for one in parts if one]


def _listed(part: list[str]) -> list[str]:
    """Returns the flags that a part of tyro's box lists; their help is indented by more."""
    return [line.strip() for line in part if re.match(r" {5}[^ ]", line)]


def _registry() -> ConstructorRegistry:
    """Returns rules by which tyro reads numbers; to tyro itself 1e6 is not an integer."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def numbers(asked: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        kind = asked.type
        return number(kind, kind.__name__.upper()) if kind in (int, float) else None

    return registry


def number(kind: type, metavar: str) -> PrimitiveConstructorSpec[Any]:
    """Returns how tyro reads a number, which its help calls `metavar`."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: _read(kind, words[0]),
        is_instance=lambda value: isinstance(value, int | kind) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def _read(kind: type, word: str) -> float:
    """Returns the number that a word stands for; 1e6 is an integer, too."""
    try:
        return int(word) if kind is int else float(word)
    except ValueError:
        pass
    with contextlib.suppress(ValueError):
        if kind is int and float(word).is_integer():
            return int(float(word))
    raise ValueError(f"{word} is not a {'whole ' if kind is int else ''}number")


def flags_given(args: Sequence[str]) -> dict[str, str]:
    """Returns the flags of a command line with their values as written, before it is parsed.

    Names have underscores. The value of a flag without one is "". If a flag is given twice, the
    last value counts, as it does when the command line is parsed.
    """
    found: dict[str, str] = {}
    for word, following in zip(args, [*args[1:], ""], strict=False):
        if not word.startswith("--"):
            continue
        written, equals, value = word.removeprefix("--").partition("=")
        if not equals and not following.startswith("--"):
            value = following
        found[written.replace("-", "_")] = value
    return found
