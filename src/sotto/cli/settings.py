"""Settings as flags, whose help shows the interval of each number."""

from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from sotto.algorithms.settings import description, interval
from sotto.cli.parsing import number

_C = TypeVar("_C")


def flags_of(config_type: type[_C]) -> type[_C]:
    """Returns the settings type as tyro reads it: help shows intervals, and values are not checked.

    The settings are checked later, when the settings type itself is made. tyro starts from default
    values, which need not pass the checks.
    """
    hints = get_type_hints(config_type, include_extras=True)
    same = {
        "__post_init__": lambda _self: None,
        "__module__": config_type.__module__,
        "__doc__": config_type.__doc__,
        "__annotations__": {name: _described(hint) for name, hint in hints.items()},
    }
    return type(config_type.__name__, (config_type,), same)


def _described(kind: Any) -> Any:
    """Returns the type of a flag, whose help is the description in its annotation if it has one."""
    text = description(kind)
    return _shown(kind) if text is None else Annotated[_shown(kind), tyro.conf.arg(help=text)]


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
