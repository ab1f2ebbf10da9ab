"""Functions that hold secrets, such as a teacher's rows or a reward function to be released.

No warning of such a function is shown after its start: it would tell what the function holds.
Python has one list of filters for the warnings of all threads, so that one thread asks at a time.
"""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from jaxtyping import Float, Float64

SecretFunction = Callable[[Float64[np.ndarray, "q d"]], Float[np.ndarray, "q columns"]]
"""Returns a row at each of q points. The row at a point must not depend on the other points."""


_ONE_THREAD = threading.RLock()


def rows_of(
    function: SecretFunction, points: Float64[np.ndarray, "q d"], columns: int
) -> Float64[np.ndarray, "q columns"]:
    """Returns the rows of a function in float64. It is asked about one point at a time.

    So the row at a point depends on no other point, whatever the function does with several.

    Args:
        function: the function.
        points: the points; the function gets a copy.
        columns: length of a row.

    Raises:
        ValueError: it returns another shape, or no real numbers. Its errors pass through.
    """
    rows = np.empty((len(points), columns))
    with _without_warnings():
        for point, row in zip(points, rows, strict=True):
            found = np.asarray(function(point[None].copy()))
            if found.shape != (1, columns) or not _is_real(found):
                raise ValueError("a function returned another shape or type than at its start")
            row[:] = found[0]
    return rows


def values_of(
    function: SecretFunction, points: Float64[np.ndarray, "q d"], columns: int
) -> Float64[np.ndarray, "q columns"]:
    """Returns the rows of a function in float64, which are NaN at the points at which it fails.

    It fails where it raises anything other than KeyboardInterrupt, or returns another shape or
    type. An error would tell what the function holds, would cost nothing, and could be had again
    and again. The points are then halved, so that one of them takes no row from the others, and so
    that less memory is needed.

    Args:
        function: the function.
        points: the points; the function gets a copy.
        columns: length of a row.
    """
    try:
        with _without_warnings():
            # A copy, because functions may write their rows into one array that they share.
            found = np.array(function(points.copy()))
        if found.shape == (len(points), columns) and found.dtype == np.float64:
            return found
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit, or the panic of a library: it may tell as much
        pass
    if len(points) < 2:
        return np.full((len(points), columns), np.nan)
    halves = np.array_split(points, 2)
    return np.concatenate([values_of(function, half, columns) for half in halves])


def require_rows(
    function: SecretFunction, dimensions: int, columns: int, *, float64: bool = False
) -> None:
    """Asks a function twice at zero, so that its author notices a mistake at the start.

    Args:
        function: the function.
        dimensions: length of a point.
        columns: length of a row.
        float64: whether rows of other types are refused; otherwise they may be any real numbers.

    Raises:
        ValueError: the row has another shape or type, or is another one the second time. Errors
            and warnings of the function pass through.
    """
    found, again = (np.array(function(np.zeros((1, dimensions)))) for _ in range(2))
    if (
        found.shape != (1, columns)
        or not _is_real(found)
        or (float64 and found.dtype != np.float64)
    ):
        raise ValueError(
            f"the function must return {'float64' if float64 else 'numbers'} of shape "
            f"(1, {columns}) at zero, and returned {found.dtype} of shape {found.shape}"
        )
    if not np.array_equal(found, again, equal_nan=True):
        raise ValueError(
            "the function returned two different rows at zero; it must have no random numbers and "
            "no memory (put a network into evaluation mode)"
        )


def _is_real(found: np.ndarray) -> bool:
    return np.can_cast(found.dtype, np.float64, "same_kind")  # complex numbers would warn


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Shows no warning of Python or NumPy, and lets one thread in at a time."""
    with _ONE_THREAD, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
