"""Settings as flags, whose help shows the interval of each number."""

import ast
import inspect
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from functools import reduce
from itertools import pairwise
from operator import or_
from types import MappingProxyType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from sotto.algorithms.settings import description
from sotto.algorithms.values import interval
from sotto.cli.terminal.parsing import number

_C = TypeVar("_C")


def flags_of(
    config_type: type[_C],
    default: Mapping[str, Any] = MappingProxyType({}),
    hidden: Collection[str] = (),
) -> type[_C]:
    """Returns the settings type as tyro reads it: help shows intervals, and values are not checked.

    The settings are checked later, when the settings type itself is made. tyro starts from default
    values, which need not pass the checks. A setting whose default is True has the flag --no-NAME.
    Hidden settings have no flag and keep their default values.
    """
    texts = _docstrings(config_type)
    hints = get_type_hints(config_type, include_extras=True)
    same = {
        "__post_init__": lambda _self: None,
        "__module__": config_type.__module__,
        "__doc__": config_type.__doc__,
        "__annotations__": {
            name: Annotated[hint, tyro.conf.Suppress]
            if name in hidden
            else _described(hint, texts.get(name), default.get(name) is True)
            for name, hint in hints.items()
        },
    }
    return type(config_type.__name__, (config_type,), same)


def _described(kind: Any, docstring: str | None, is_true: bool) -> Any:
    """Returns the type of a flag, with its help: the description in its annotation, or a docstring.

    If the default is True, the help says that the flag means no.
    """
    text = description(kind) or docstring
    if text is None:
        return _shown(kind)
    turned = " This flag means no." if is_true else ""
    return Annotated[_shown(kind), tyro.conf.arg(help=text + turned)]


def _docstrings(config_type: type) -> dict[str, str]:
    """Returns the docstring below each field of a dataclass, on one line.

    tyro finds them, too, but it keeps their line breaks. A class without source has none.
    """
    found: dict[str, str] = {}
    for one in reversed(config_type.__mro__):
        try:
            source = inspect.getsource(one) if is_dataclass(one) else ""
        except (OSError, TypeError):
            continue
        for top in ast.parse(textwrap.dedent(source)).body:
            for field, below in pairwise(top.body if isinstance(top, ast.ClassDef) else ()):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        found[name] = " ".join(text.split())
    return found


def _shown(kind: Any) -> Any:
    """Returns the type with the intervals of its numbers in the help."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return reduce(or_, map(_shown, inside))
    if origin is tuple:
        elements: Any = tuple(one if one is Ellipsis else _shown(one) for one in inside)
        return tuple.__class_getitem__(elements)
    found = interval(kind)
    if found is None:
        return kind
    plain = inside[0]
    return Annotated[plain, number(plain, f"{plain.__name__.upper()} in {found}")]
