"""Base class of settings, and types of settings: each has a type, and numbers have an interval.

Settings are dataclasses that derive from `Settings`. The annotation of a field states the type and
the interval of its value, such as `Annotated[float, Field(gt=0, le=1)]`. It is checked when the
settings are made, and the command line shows it in the flag's help. A description in the annotation
is the flag's help; without one, it is the docstring below the field. `Settings.check` checks how
settings go together.

Both checks refuse in one sentence, before anything is compiled or charged. Without them, a training
would silently use numbers that are far too large or too small for float32.
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
    """Returns an int for a whole float such as 1e6, and every other value unchanged.

    Only values from Python and the command line are converted. Files of settings have ints already.
    """
    means = info.mode == "python" and isinstance(value, float) and value.is_integer()
    return int(value) if means else value


Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Whole, Field(ge=1)]
AtLeastTwo = Annotated[Whole, Field(ge=2)]
CountOrZero = Annotated[Whole, Field(ge=0)]
Seed = Annotated[Whole, Field(ge=0, le=2**31 - 1)]
"""Seed of a pseudo-random generator. Seeds are int32 in compiled programs."""

Positive = Annotated[float, Field(ge=1e-15, le=1e15)]
"""Rate, scale or norm. Its square is finite and positive in float32."""
NotNegative = Annotated[float, Field(ge=0, le=1e15)]
Signed = Annotated[float, Field(ge=-1e15, le=1e15)]
Epsilon = Annotated[float, Field(gt=0, le=1e9)]
NoiseMultiplier = Annotated[float, Field(ge=1e-6, le=1e6)]
Probability = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
"""Number strictly between 0 and 1, such as delta."""
Share = Annotated[float, Field(gt=0, le=1)]
Discount = Annotated[float, Field(ge=0, lt=1)]


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


@dataclass(frozen=True)
class Settings:
    """Base class of an algorithm's settings, which are frozen dataclasses.

    They are hashable, and checked when they are made. Where the type is int, a whole float becomes
    an int. Numbers from NumPy become Python's.

    Example:
        @dataclass(frozen=True)
        class MyConfig(Settings):
            total_steps: Count = 1000
            discount: Discount = 0.99

        MyConfig(discount=1.0)  # ValueError: discount must be in [0, 1); 1.0 is not

    Attributes:
        former_names: names of settings in earlier versions, and their present names.
        later_names: settings that earlier versions did not have. At their default they do not
            change the names of kept results.

    Raises:
        ValueError: a setting is wrong. The message names the first one, and its value.
    """

    former_names: ClassVar[Mapping[str, str]] = {}
    later_names: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        """Checks each setting, and then how they go together."""
        for name, (kind, adapter) in _adapters(type(self)).items():  # type: ignore[arg-type]  # a type is hashable
            value = getattr(self, name)
            if isinstance(value, jax.core.Tracer):
                continue  # inside a compiled program, whose settings have been checked
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
            ValueError: settings contradict each other; one sentence says why.
        """

    def first_repr(self) -> str:
        """Returns repr() as the first version has it, after which kept results are named."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        first = as_first_named(type(self), values)
        said = ", ".join(f"{name}={value!r}" for name, value in first.items())
        return f"{type(self).__qualname__}({said})"


def as_first_named(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings as the first version had them, for digests that must not change.

    They have their first names, and those that came later are left out at their default.

    Args:
        kind: the dataclass of the settings, which may have `former_names` and `later_names`.
        values: the settings by their present names.
    """
    former: Mapping[str, str] = getattr(kind, "former_names", {})
    later: frozenset[str] = getattr(kind, "later_names", frozenset())
    first = {present: name for name, present in former.items()}
    defaults = {field.name: field.default for field in fields(kind) if field.name in later}
    return {
        first.get(name, name): value
        for name, value in values.items()
        if name not in defaults or value != defaults[name]
    }


def known(value: _T | None) -> _T:
    """Returns the value of a setting that must have been filled in.

    Raises:
        ValueError: the setting is still None.
    """
    if value is None:
        raise ValueError("a setting that is needed is None; fill the settings in first")
    return value


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


def description(kind: Any) -> str | None:
    """Returns the description in an annotation, or None if it has none."""
    metadata = getattr(kind, "__metadata__", ())
    found = (one.description for one in metadata if isinstance(one, FieldInfo))
    return next(filter(None, found), None)


@cache
def _adapters(settings: Any) -> dict[str, tuple[Any, TypeAdapter[Any]]]:
    """Returns the annotation of each field, and the adapter that checks its values."""
    kinds = get_type_hints(settings, include_extras=True)
    config = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    adapters = {}
    for field in fields(settings):
        kind = kinds[field.name]
        # A dataclass in a field has been checked already, and has its own configuration.
        held = is_dataclass(kind)
        adapters[field.name] = kind, TypeAdapter(kind, config=None if held else config)
    return adapters


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
    return _element(elements[0 if elements[-1] is Ellipsis else index], where[1:])


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
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def _shown(end: float) -> str:
    """Returns the end of an interval as text, such as 1e-6."""
    if isinstance(end, int):
        return str(end)
    digits, _, power = f"{end:g}".partition("e")
    return f"{digits}e{int(power)}" if power else digits
