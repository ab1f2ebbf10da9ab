"""Failures of Gymnasium environments, each in one sentence."""

import contextlib
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import sotto
from sotto.errors import EnvironmentFailed

_NOT_THEIRS = tuple(
    f"{folder}{os.sep}"
    for folder in (sotto.__path__[0], Path(gymnasium.__path__[0]).parent, Path(os.__file__).parent)
)
"""Folders of sotto, of installed packages and of Python, which hold no code of the user's."""


@contextlib.contextmanager
def failures_of(what: str) -> Iterator[None]:
    """Turns every exception of an environment into `EnvironmentFailed`."""
    try:
        yield
    except EnvironmentFailed:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [one for one in frames if not one.filename.startswith(_NOT_THEIRS)] or frames
        place = f"{theirs[-1].filename}, line {theirs[-1].lineno}"
        raise EnvironmentFailed(
            f"{what} raised {type(error).__name__} in {place}: {str(error) or 'no message'}"
        ) from error


def flattened(what: str, shape: tuple[int, ...], seen: Any) -> np.ndarray:
    """Returns an observation as a vector.

    Args:
        what: name of the environment.
        shape: shape of its observation space.
        seen: the observation.

    Raises:
        EnvironmentFailed: the observation has another shape. NumPy would copy one number into
            several.
    """
    found = np.asarray(seen)
    if found.shape != shape:
        raise EnvironmentFailed(
            f"{what} returned an observation of shape {found.shape}, and its observation_space "
            f"has {shape}"
        )
    return found.ravel()
