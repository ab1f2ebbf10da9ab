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
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import jax
from pydantic import Field, TypeAdapter
from pydantic.fields import FieldInfo

from sotto.algorithms.values import Whole, adapter, checked

_T = TypeVar("_T")


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
        for name, (kind, checks) in _adapters(type(self)).items():  # type: ignore[arg-type]  # a type is hashable
            value = getattr(self, name)
            if isinstance(value, jax.core.Tracer):
                continue  # inside a compiled program, whose settings have been checked
            found = checked(name, kind, checks, value)
            if found is not value:
                object.__setattr__(self, name, found)
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


def description(kind: Any) -> str | None:
    """Returns the description in an annotation, or None if it has none."""
    metadata = getattr(kind, "__metadata__", ())
    found = (one.description for one in metadata if isinstance(one, FieldInfo))
    return next(filter(None, found), None)


@cache
def _adapters(settings: Any) -> dict[str, tuple[Any, TypeAdapter[Any]]]:
    """Returns the annotation of each field, and the adapter that checks its values."""
    kinds = get_type_hints(settings, include_extras=True)
    return {
        field.name: (kinds[field.name], adapter(kinds[field.name])) for field in fields(settings)
    }
