"""Functions that hold secrets: they are asked for numbers, and what goes wrong in them stays there.

An error would tell what a function holds. It would cost nothing, and could be had again and again.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Float64

SecretFunction = Callable[[Float64[np.ndarray, "q d"]], Float[np.ndarray, "q columns"]]
"""Returns a row at each of q points. The row at a point must not depend on the other points."""


def values_of(
    function: SecretFunction, points: Float64[np.ndarray, "q d"], columns: int, dtype: Any = None
) -> Float64[np.ndarray, "q columns"]:
    """Returns the rows of a function, which are NaN at the points at which it fails.

    It fails where it raises an error, or returns another shape or type. Points are then asked one
    by one, so that one of them takes no row from the others.

    Args:
        function: the function.
        points: the points; the function gets a copy.
        columns: length of a row.
        dtype: type of the rows; None takes any type that numpy makes float64 of.
    """
    try:
        found = np.asarray(function(points.copy()))
        if found.shape == (len(points), columns) and dtype in (None, found.dtype):
            return np.array(found, np.float64)
    except Exception:
        pass
    if len(points) < 2:
        return np.full((len(points), columns), np.nan)
    one_by_one = [values_of(function, point[None], columns, dtype) for point in points]
    return np.concatenate(one_by_one)


def require_rows(
    function: SecretFunction, point: Float64[np.ndarray, " d"], columns: int, dtype: Any = None
) -> None:
    """Asks a function at one public point, so that its author notices a mistake at the start.

    Args:
        function, columns, dtype: as in `values_of`.
        point: where it is asked.

    Raises:
        ValueError: the row has another shape or type. An error of the function passes through.
    """
    found = np.asarray(function(point[None].copy()))
    if found.shape != (1, columns) or dtype not in (None, found.dtype):
        kind = "numbers" if dtype is None else np.dtype(dtype).name
        raise ValueError(
            f"the function must return {kind} of shape (1, {columns}) at one point, and returned "
            f"{found.dtype} of shape {found.shape}"
        )
