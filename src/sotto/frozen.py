"""Base classes of what never changes.

`FrozenModel` is that of what sotto writes as JSON and reads again: certificates, statements,
settings. It refuses what it does not know, so that a file of another version or a misspelt field is
an error and never half understood. `Declared` is that of the declarations of releases.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, cast, get_origin

import numpy as np
from jaxtyping import AbstractArray
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from sotto.modules import is_defined_in
from sotto.problems import first_problem


class FrozenModel(BaseModel):
    """An immutable pydantic model that refuses unknown fields.

    A model that is given to another one is checked again and copied, since `model_copy` checks
    nothing. Infinite numbers are written as strings, because JSON has none.

    Raises:
        pydantic.ValidationError: a field is missing, unknown or wrong.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_inf_nan="strings",
        revalidate_instances="always",
    )


@dataclass(frozen=True, eq=False)
class Declared:
    """A frozen dataclass that copies its tuples, numbers and texts.

    A field that is declared as a tuple may be given as any iterable, which is read once. A list
    that the caller changes afterwards, or a generator that the first reader uses up, would
    otherwise make a declaration say something else the second time. So would a class that is
    derived from `float`, `str` or a model of sotto, whose methods may be anything, or an array with
    one number, which can be changed: numbers and texts become Python's, and models must be sotto's
    own. Every field except an array is then checked against its type. A copy by `copy` or `pickle`
    is made anew, and is checked as well.

    Raises:
        ValueError: a tuple is given as text, a text as something else, a model is of another
            class, or a field is not of its type.
    """

    def __post_init__(self) -> None:
        for one in fields(self):
            given = _plain(getattr(self, one.name))
            if get_origin(one.type) is tuple:
                if isinstance(given, str):
                    raise ValueError(f"{one.name} is a tuple; write ({given!r},)")
                given = tuple(map(_plain, given))
            elif isinstance(given, Mapping):
                given = {name: _plain(value) for name, value in given.items()}
            elif get_origin(one.type) is Literal and type(given) is not str:
                raise ValueError(f"{one.name} is a text, not a {type(given).__name__}")
            if not (isinstance(one.type, type) and issubclass(one.type, AbstractArray)):
                try:
                    given = _of_type(cast(Hashable, one.type)).validate_python(given, strict=True)
                except ValidationError as error:
                    raise ValueError(f"{one.name}: {first_problem(error, whole='it')}") from error
            object.__setattr__(self, one.name, given)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, one.name) for one in fields(self))


@cache
def _of_type(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _plain(value: Any) -> Any:
    """Returns numbers and texts as Python's types, without calling a method of another class.

    Raises:
        ValueError: it is a model of a class that is not one of sotto's.
    """
    if isinstance(value, BaseModel | Declared) and not is_defined_in(type(value), "sotto"):
        raise ValueError(f"{type(value).__name__} is no class of sotto's; give the class itself")
    if isinstance(value, np.generic):
        value = np.generic.item(value)
    if type(value) is np.ndarray and value.ndim == 0:
        value = value.item()
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__mul__(value, 1.0)
    if isinstance(value, int) and type(value) is not bool:
        return int.__add__(value, 0)
    return value
