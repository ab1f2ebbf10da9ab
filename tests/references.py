"""Figures that tests compute a second time, from scipy alone."""

import math

import numpy as np
from scipy import special, stats


def gaussian_delta(shift: float, epsilon: float) -> float:
    """Returns delta of N(shift, 1) against N(0, 1) (Balle and Wang 2018, Theorem 8)."""
    near = special.ndtr(shift / 2 - epsilon / shift)
    return float(near - math.exp(epsilon) * special.ndtr(-shift / 2 - epsilon / shift))


def variance_p_value(sample: np.ndarray) -> float:
    """Returns the two-sided p-value of a variance of 1, from normal numbers with mean 0."""
    lower = stats.chi2.cdf(np.square(sample).sum(), sample.size)
    return float(2 * min(lower, 1 - lower))
