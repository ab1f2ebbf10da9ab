"""Named arrays of numbers in JSON files, which hold the policies and models of users."""

import json
from pathlib import Path

import numpy as np

from sotto.errors import RunError
from sotto.files import read_given


def read_arrays(path: Path, most: int, form: str, *names: str) -> list[np.ndarray]:
    """Returns the arrays of these names, as float64.

    Args:
        path: file of one JSON object.
        most: largest size in bytes.
        form: what the file must hold, in words.
        names: names of the arrays.

    Raises:
        RunError: the file cannot be read, or does not hold arrays of numbers of these names.
    """
    content = read_given(path, most)
    try:
        found = json.loads(content)
        return [np.asarray(found[name], np.float64) for name in names]
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        raise RunError(f"{path} must hold {form}") from None
