"""What every algorithm asks of its settings: each has its type, and numbers lie in an interval.

Settings are refused here, in a sentence, before anything is compiled or charged: what is not a
number, or is far too large or small for float32, would otherwise be trained with in silence.
"""

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import numpy as np
from pydantic import TypeAdapter, ValidationError

COUNT = "[1, inf)"
POSITIVE = "[1e-15, 1e15]"
"""Rates, scales and norms, whose squares are still numbers in float32."""
SIGNED = "[-1e15, 1e15]"
SEED = "[0, 2147483647]"
"""Seeds are int32 in compiled programs."""


def require(config: Any, intervals: Mapping[str, str]) -> None:
    """Refuses settings that have not their declared type, or lie outside their interval.

    Args:
        config: a dataclass.
        intervals: of a field's number, or of every number in a tuple, such as "(0, 1]"; a field
            that is None is not asked.

    Raises:
        ValueError: the first setting that is wrong, and its value.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, jax.core.Tracer):
            continue  # inside a compiled program, which was made of settings that were checked
        value = value.item() if isinstance(value, np.generic) else value
        if not _has_type(field.type, value):
            raise ValueError(f"{field.name} must be of type {_named(field.type)}, not {value!r}")
        if field.name not in intervals or value is None:
            continue
        for number in value if isinstance(value, tuple) else (value,):
            _require_number(field.name, number, intervals[field.name])


def _require_number(name: str, number: float, interval: str) -> None:
    """Refuses a number outside the interval; nan is outside of all."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = low <= number if interval.startswith("[") else low < number
    below = number <= high if interval.endswith("]") else number < high
    if not (above and below):
        wanted = f"in {interval}"
        if interval.endswith("inf)"):
            wanted = f"{'at least' if interval.startswith('[') else 'finite and above'} {low:g}"
        raise ValueError(f"{name} must be {wanted}; {number!r} is not")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _has_type(kind: Any, value: Any) -> bool:
    try:
        _adapter(kind).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _named(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
