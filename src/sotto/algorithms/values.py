"""Types and intervals of settings and arguments, and sentences that refuse other values.

JAX is not imported here, since public functions that need none are checked too.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError, ValidationInfo
from pydantic.fields import FieldInfo

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _whole(value: Any, info: ValidationInfo) -> Any:
    """Returns an int for a whole float such as 1e6, and every other value unchanged.

    Only values from Python and the command line are converted. Files of settings have ints already.
    """
    means = info.mode == "python" and isinstance(value, float) and value.is_integer()
    return int(value) if means else value


Whole = Annotated[int, BeforeValidator(_whole)]


class Interval(NamedTuple):
    """Interval that a number must lie in. An end that is None is infinite."""

    low: float | None
    high: float | None
    with_low: bool
    with_high: bool

    def __str__(self) -> str:
        opening, closing = "[" if self.with_low else "(", "]" if self.with_high else ")"
        low = "-inf" if self.low is None else _shown(self.low)
        high = "inf" if self.high is None else _shown(self.high)
        return f"{opening}{low}, {high}{closing}"

    @property
    def wanted(self) -> str:
        """Requirement in words, for an error: a number must be ..."""
        if self.low is None or self.high is not None:
            return f"in {self}"
        return f"{'at least' if self.with_low else 'finite and above'} {_shown(self.low)}"


_ENDS = ("gt", "ge", "lt", "le")


def interval(kind: Any) -> Interval | None:
    """Returns the interval of an annotated number, or None for every other type."""
    ends: dict[str, float] = {}
    for one in getattr(kind, "__metadata__", ()):
        for end in one.metadata if isinstance(one, FieldInfo) else ():
            ends |= {key: getattr(end, key) for key in _ENDS if hasattr(end, key)}
    if not ends:
        return None
    low, high = ends.get("ge", ends.get("gt")), ends.get("le", ends.get("lt"))
    return Interval(low, high, "ge" in ends, "le" in ends)


def adapter(kind: Any) -> TypeAdapter[Any]:
    """Returns what checks values of an annotated type, without conversions."""
    config = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    # A dataclass has been checked already, and has its own configuration.
    return TypeAdapter(kind, config=None if is_dataclass(kind) else config)


def checked(name: str, kind: Any, checks: TypeAdapter[Any], value: Any) -> Any:
    """Returns a value, as a number of Python's if it is one of NumPy's.

    Args:
        name: name of the setting or argument, for the error.
        kind: its annotation.
        checks: `adapter(kind)`.
        value: the value.

    Raises:
        ValueError: it is of another type, or outside of the interval.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    try:
        return checks.validate_python(plain)
    except ValidationError as error:
        raise ValueError(_refusal(name, kind, plain, error)) from None


def checks_arguments(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Returns a function that refuses arguments as `Settings` refuses values.

    Its annotations say the types and intervals. Its wrapper raises ValueError in one sentence.
    """
    signature = inspect.signature(function)

    @functools.cache
    def adapters() -> dict[str, tuple[Any, TypeAdapter[Any]]]:
        kinds = get_type_hints(function, include_extras=True)
        names = [name for name in signature.parameters if name in kinds]
        return {name: (kinds[name], adapter(kinds[name])) for name in names}

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        given = signature.bind(*args, **kwargs)
        for name, (kind, checks) in adapters().items():
            if name in given.arguments:
                given.arguments[name] = checked(name, kind, checks, given.arguments[name])
        return function(*given.args, **given.kwargs)

    return call


def _refusal(name: str, kind: Any, value: Any, error: ValidationError) -> str:
    """Returns the sentence that refuses a value."""
    found = error.errors()[0]
    wanted = interval(_element(kind, found["loc"]))
    if wanted is not None and found["type"] in _OUTSIDE:
        return f"{name} must be {wanted.wanted}; {found['input']!r} is not"
    return f"{name} must be of type {_named(kind)}, not {value!r}"


_OUTSIDE = (
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
    "finite_number",
)
"""Types of pydantic's errors that are about an interval."""


def _element(kind: Any, where: tuple[int | str, ...]) -> Any:
    """Returns the annotation that an error is about: of a setting, or of an element of a tuple."""
    if get_origin(kind) in (Union, UnionType):
        kind, *others = (one for one in get_args(kind) if one is not NoneType)
        where = () if others else where
    if not where:
        return kind
    elements, index = get_args(kind), int(where[0])
    alike = get_origin(kind) is not tuple or elements[-1] is Ellipsis
    return _element(elements[0 if alike else index], where[1:])


def _named(kind: Any) -> str:
    """Returns a type in words, without its interval."""
    if get_origin(kind) is Annotated:
        return _named(get_args(kind)[0])
    if kind is Ellipsis:
        return "..."
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(map(_named, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"tuple[{', '.join(map(_named, get_args(kind)))}]"
    if kind is NoneType:
        return "None"
    if isinstance(kind, type):
        return kind.__name__
    return str(kind).replace("collections.abc.", "").replace("typing.", "")


def _shown(end: float) -> str:
    """Returns the end of an interval as text, such as 1e-6."""
    if isinstance(end, int):
        return str(end)
    digits, _, power = f"{end:g}".partition("e")
    return f"{digits}e{int(power)}" if power else digits
