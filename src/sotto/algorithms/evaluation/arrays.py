"""Named arrays of numbers in JSON files, which hold the policies and models of users."""

import json
from pathlib import Path

import numpy as np

from sotto.errors import RunError


def read_arrays(path: Path, most: int, form: str, *names: str) -> list[np.ndarray]:
    """Returns the arrays of these names, as float64.

    Args:
        path: file of one JSON object.
        most: bytes that are read; a longer file is cut there, and is then no JSON.
        form: what the file must hold, in words.
        names: names of the arrays.

    Raises:
        RunError: the file cannot be read, or does not hold arrays of numbers of these names.
    """
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(most))
        return [np.asarray(found[name], np.float64) for name in names]
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        raise RunError(f"{path} must hold {form}") from None
