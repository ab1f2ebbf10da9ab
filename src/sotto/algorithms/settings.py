"""What every algorithm asks of its settings: each has a type, and numbers lie in an interval.

Settings are dataclasses that derive from `Settings`. The annotation of a field says everything that
is asked of its value alone, such as `Annotated[float, Field(gt=0, le=1)]`; it is checked when the
settings are made, and the command line shows it in the flag's help. What settings ask of each other
is checked by `Settings.check`. Both refuse in one sentence, before anything is compiled or charged:
a number that is far too large or small for float32 would otherwise be trained with in silence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import jax
import numpy as np
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic.fields import FieldInfo

_T = TypeVar("_T")


def _whole(value: Any, info: ValidationInfo) -> Any:
    """An int where a float such as 1e6 means one; everything else is left for the type to judge.

    A file of settings is of a program's making and has ints, whose bounds are checked as such.
    """
    means = info.mode == "python" and isinstance(value, float) and value.is_integer()
    return int(value) if means else value


Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Whole, Field(ge=1)]
AtLeastTwo = Annotated[Whole, Field(ge=2)]
CountOrZero = Annotated[Whole, Field(ge=0)]
Seed = Annotated[Whole, Field(ge=0, le=2**31 - 1)]
"""Seeds are int32 in compiled programs."""

Positive = Annotated[float, Field(ge=1e-15, le=1e15)]
"""Rates, scales and norms, whose squares are still numbers in float32."""
NotNegative = Annotated[float, Field(ge=0, le=1e15)]
Signed = Annotated[float, Field(ge=-1e15, le=1e15)]
Epsilon = Annotated[float, Field(gt=0, le=1e9)]
NoiseMultiplier = Annotated[float, Field(ge=1e-6, le=1e6)]
Probability = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
"""Strictly between 0 and 1, such as delta."""
Share = Annotated[float, Field(gt=0, le=1)]
Discount = Annotated[float, Field(ge=0, lt=1)]


class Interval(NamedTuple):
    """The interval that a number must lie in; an end that is None is infinite, and not included."""

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
        """What a number must be, as it is said in an error."""
        if self.low is None or self.high is not None:
            return f"in {self}"
        return f"{'at least' if self.with_low else 'finite and above'} {_shown(self.low)}"


@dataclass(frozen=True)
class Settings:
    """Base of an algorithm's settings, which are frozen dataclasses: hashable, and checked.

    A whole float becomes an int where an int is asked for, and a number of NumPy's one of Python's.

    Example:
        @dataclass(frozen=True)
        class MyConfig(Settings):
            total_steps: Count = 1000
            discount: Discount = 0.99

        MyConfig(discount=1.0)  # ValueError: discount must be in [0, 1); 1.0 is not

    Attributes:
        former_names: of settings that earlier versions stored, and their present names.

    Raises:
        ValueError: the first setting that is wrong, and its value.
    """

    former_names: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        """Checks each setting by itself, and then how they go together."""
        for name, (kind, adapter) in _adapters(type(self)).items():  # type: ignore[arg-type]  # a type is hashable
            value = getattr(self, name)
            if isinstance(value, jax.core.Tracer):
                continue  # inside a compiled program, which was made of settings that were checked
            plain = value.item() if isinstance(value, np.generic) else value
            try:
                checked = adapter.validate_python(plain)
            except ValidationError as error:
                raise ValueError(_refusal(name, kind, plain, error)) from None
            if checked is not value:
                object.__setattr__(self, name, checked)
        self.check()

    def check(self) -> None:
        """Refuses settings that contradict each other.

        Raises:
            ValueError: why, in a sentence.
        """

    def first_repr(self) -> str:
        """repr() under the names that settings had at first; kept results are named after it."""
        first = {present: former for former, present in self.former_names.items()}
        names = (field.name for field in fields(self))
        said = ", ".join(f"{first.get(name, name)}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({said})"


def known(value: _T | None) -> _T:
    """A setting that may be left open, where it must have been filled in.

    Raises:
        ValueError: it is open.
    """
    if value is None:
        raise ValueError("a setting was left open, and is needed; fill the settings in first")
    return value


_ENDS = ("gt", "ge", "lt", "le")


def interval(kind: Any) -> Interval | None:
    """The interval of an annotated number; None for every other type."""
    ends: dict[str, float] = {}
    for one in getattr(kind, "__metadata__", ()):
        for end in one.metadata if isinstance(one, FieldInfo) else ():
            ends |= {key: getattr(end, key) for key in _ENDS if hasattr(end, key)}
    if not ends:
        return None
    low, high = ends.get("ge", ends.get("gt")), ends.get("le", ends.get("lt"))
    return Interval(low, high, "ge" in ends, "le" in ends)


@cache
def _adapters(settings: Any) -> dict[str, tuple[Any, TypeAdapter[Any]]]:
    """The annotation of each field, and what checks it."""
    kinds = get_type_hints(settings, include_extras=True)
    config = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    adapters = {}
    for field in fields(settings):
        kind = kinds[field.name]
        # A dataclass in a field has been checked, and brings a configuration of its own.
        held = is_dataclass(kind)
        adapters[field.name] = kind, TypeAdapter(kind, config=None if held else config)
    return adapters


def _refusal(name: str, kind: Any, value: Any, error: ValidationError) -> str:
    """What is wrong, in a sentence."""
    found = error.errors()[0]
    wanted = interval(_element(kind, found["loc"]))
    if wanted is not None and found["type"] in _OUTSIDE:
        return f"{name} must be {wanted.wanted}; {found['input']!r} is not"
    return f"{name} must be of type {_named(kind)}, not {value!r}"


_OUTSIDE = (
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
    "finite_number",
)
"""Kinds of pydantic's errors that are about an interval."""


def _element(kind: Any, where: tuple[int | str, ...]) -> Any:
    """The annotation of what an error is about: of an element, where it is about a tuple's."""
    if get_origin(kind) in (Union, UnionType):
        kind, *others = (one for one in get_args(kind) if one is not NoneType)
        where = () if others else where
    if not where:
        return kind
    elements, index = get_args(kind), int(where[0])
    return _element(elements[0 if elements[-1] is Ellipsis else index], where[1:])


def _named(kind: Any) -> str:
    """A type in words, without what is asked of its values."""
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
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def _shown(end: float) -> str:
    """An end of an interval, such as 1e-6."""
    if isinstance(end, int):
        return str(end)
    digits, _, power = f"{end:g}".partition("e")
    return f"{digits}e{int(power)}" if power else digits
