"""The public bound on the observations that a teacher answers.

Rounding moves a row further for larger observations. So a teacher states a bound on that for
observations within `LARGEST`, and refuses the others.
"""

import numpy as np
from jaxtyping import Float, Float64

LARGEST = 1e6
"""Largest magnitude of an entry."""


def checked(
    observations: Float[np.ndarray, "rows obs"], size: int
) -> Float64[np.ndarray, "rows obs"]:
    """Returns the observations in float64.

    Args:
        observations: in the environment's own units.
        size: length of an observation.

    Raises:
        ValueError: the shape is wrong, or an entry is beyond `LARGEST`, infinite or not a number.
    """
    rows = np.asarray(observations, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != size or not np.all(np.abs(rows) <= LARGEST):
        raise ValueError(
            f"observations must be [rows, {size}], every entry a number between {-LARGEST:g} and "
            f"{LARGEST:g}: beyond that, rounding would move answers further than is charged"
        )
    return rows
