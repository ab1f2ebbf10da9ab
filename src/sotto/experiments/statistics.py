"""Confidence intervals over seeds."""

import math

import numpy as np
from jaxtyping import Float
from scipy import stats


def half_width(values: Float[np.ndarray, "seeds ..."]) -> Float[np.ndarray, "..."]:
    """Of the 95 per cent confidence interval of the mean over seeds (Student); NaN for one seed."""
    count = len(values)
    if count < 2:
        return np.full(np.shape(values)[1:], math.nan)
    spread = np.std(values, axis=0, ddof=1)
    return np.asarray(stats.t.ppf(0.975, count - 1) * spread / math.sqrt(count))
