"""Base classes of what never changes.

`FrozenModel` is that of what sotto writes as JSON and reads again: certificates, statements,
settings. It refuses what it does not know, so that a file of another version or a misspelt field is
an error and never half understood. `Declared` is that of the declarations of releases.
"""

from dataclasses import dataclass, fields
from typing import Any, get_origin

import numpy as np
from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """An immutable pydantic model that refuses unknown fields.

    Infinite numbers are written as strings, because JSON has none.

    Raises:
        pydantic.ValidationError: a field is missing, unknown or wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


@dataclass(frozen=True, eq=False)
class Declared:
    """A frozen dataclass that copies its tuples, numbers and texts.

    A field that is declared as a tuple may be given as any iterable, which is read once. A list
    that the caller changes afterwards, or a generator that the first reader uses up, would
    otherwise make a declaration say something else the second time. So would a class that is
    derived from `float` or `str`, whose methods may be anything: numbers and texts become Python's.

    Raises:
        ValueError: a tuple is given as text.
    """

    def __post_init__(self) -> None:
        for one in fields(self):
            given = _plain(getattr(self, one.name))
            if get_origin(one.type) is tuple:
                if isinstance(given, str):
                    raise ValueError(f"{one.name} is a tuple; write ({given!r},)")
                given = tuple(given)
            object.__setattr__(self, one.name, given)


def _plain(value: Any) -> Any:
    """Returns numbers and texts as Python's types, without calling a method of another class."""
    if isinstance(value, np.generic):
        value = np.generic.item(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__mul__(value, 1.0)
    if isinstance(value, int) and type(value) is not bool:
        return int.__add__(value, 0)
    return value
