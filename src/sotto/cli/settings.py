"""Settings as flags: the help of a flag shows the interval that its number must lie in."""

from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from sotto.algorithms.settings import description, interval
from sotto.cli.parsing import number

_C = TypeVar("_C")


def flags_of(config_type: type[_C]) -> type[_C]:
    """The settings as tyro reads them: with their intervals in the help, and not yet checked.

    Settings are checked once all flags are parsed and the settings are made: tyro would put a box
    around what a check says, and what it starts from, the defaults, need not be complete.
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
    """A type whose numbers have their intervals in the help."""
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
