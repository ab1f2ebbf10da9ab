"""Checks the annotated shapes and types of the modules that compute, while tests run.

`conftest` has jaxtyping apply `checked` to every function and dataclass of `MODULES` when it is
imported. A test that hands over a stand-in, or what must be refused, carries the mark
`unchecked_types`, which switches the check off for that test.
"""

import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintPep673Exception

_RELEASE = Path(__file__).parents[1] / "src/sotto/privacy/release"
_PROGRAM_READERS = ("purity", "primitives")
"""They walk through programs and see no array; checking each call took an eighth of the time."""

MODULES = (
    "sotto.rl",
    "sotto.privacy.mechanisms",
    *sorted(
        f"sotto.privacy.release.{file.stem}"
        for file in _RELEASE.glob("*.py")
        if file.stem not in ("__init__", *_PROGRAM_READERS)
    ),
)

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float


def install() -> None:
    """Checks `MODULES` from now on; none of them may have been imported."""
    import jax

    # JAX takes NumPy's arrays wherever it takes its own.
    jaxtyping.Array = jax.Array | np.ndarray | np.generic
    jaxtyping.install_import_hook(MODULES, "shapes.checked")


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Has beartype check a function's arguments and result."""
    for hint in getattr(function, "__annotations__", {}).values():
        for one in (hint, *typing.get_args(hint)):
            if getattr(one, "_is_protocol", False):
                typing.runtime_checkable(one)
    try:
        return _beartype(function)
    except BeartypeDecorHintPep673Exception:  # `Self` is checked in decorated classes only
        return function
