"""The public bound on what a teacher is asked about.

Rounding moves a row the further, the larger the observation is. So a teacher states how far for
observations within `LARGEST`, and refuses the others.
"""

import numpy as np
from jaxtyping import Float, Float64

LARGEST = 1e6
"""Magnitude of an entry."""


def checked(
    observations: Float[np.ndarray, "rows obs"], size: int
) -> Float64[np.ndarray, "rows obs"]:
    """The observations in float64.

    Args:
        observations: in the environment's own units.
        size: length of one.

    Raises:
        ValueError: another shape, or an entry beyond `LARGEST`, infinite or not a number.
    """
    rows = np.asarray(observations, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != size or not np.all(np.abs(rows) <= LARGEST):
        raise ValueError(
            f"observations must be [rows, {size}], every entry a number between {-LARGEST:g} and "
            f"{LARGEST:g}: beyond that, rounding would move answers further than is charged"
        )
    return rows
