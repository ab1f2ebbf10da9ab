"""The orders of a Renyi accountant: is the best one at the end of their range?"""

import math

import numpy as np
from jaxtyping import Float64

from sotto.privacy.accounting.events import SampledGaussian
from sotto.privacy.accounting.sampled_gaussian import sampled_gaussian_divergences
from sotto.privacy.described.description import Description

_MARGIN = 0.01
"""Relative difference of epsilon from which it matters."""


def is_range_too_short(d: Description) -> bool:
    """Whether orders beyond the range of the accountant give an epsilon that is 1% smaller.

    The accountant is that of the claim: Poisson sampling and one run. False if the description
    does not say its orders.
    """
    if d.claimed.orders is None:
        return False
    low, high = d.claimed.orders
    everywhere = np.unique([low, high, *(1 + np.geomspace(1e-3, 1e4, 100))])
    epsilons = _epsilons(d, everywhere)
    inside = (everywhere >= low) & (everywhere <= high)
    return bool(epsilons.min() < (1 - _MARGIN) * epsilons[inside].min())


def _epsilons(d: Description, orders: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, " k"]:
    """Returns epsilon at each order (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    if d.batch_size == d.records:
        one = orders / (2 * d.noise_multiplier**2)
    else:
        event = SampledGaussian(noise_multiplier=d.noise_multiplier, sampling_rate=d.rate)
        one = sampled_gaussian_divergences(event, orders)
    slack = (math.log(d.claimed.delta) + np.log(orders)) / (orders - 1)
    found = d.total_steps * one + np.log1p(-1 / orders) - slack
    return np.asarray(np.maximum(found, 0.0))
