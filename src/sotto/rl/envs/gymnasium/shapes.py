"""The shape of observations, which an environment may not keep to."""

from typing import Any

import numpy as np

from sotto.errors import EnvironmentFailed


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
