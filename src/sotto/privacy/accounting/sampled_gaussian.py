"""Renyi divergences of the Poisson-subsampled Gaussian mechanism, by quadrature."""

import math

import numpy as np
from jaxtyping import Float
from scipy import special

from sotto.privacy.accounting.events import SampledGaussian
from sotto.privacy.accounting.gaussian import LOG_SQRT_2PI


def sampled_gaussian_divergences(
    event: SampledGaussian, orders: Float[np.ndarray, " orders"]
) -> Float[np.ndarray, " orders"]:
    """Returns the Renyi divergences of one run, rounded up.

    (alpha - 1) D_alpha = log E[(1 - q + q e^((2x-1)/(2 z^2)))^alpha] over x ~ N(0, z^2). This
    direction bounds the other one (Mironov, Talwar and Zhang 2019, Theorems 4 and 5). The integrand
    is analytic in a strip of half-width pi z^2, so the trapezoid rule at this step is exact to
    e^-39. The series of dp_accounting does not converge at many fractional orders.
    """
    z, rate = event.noise_multiplier, event.sampling_rate
    # The bound without sampling, for orders and noises whose integral would take too long.
    divergences = orders / (2 * z**2)
    step = min(z / 8, z * z / 2)
    for i, order in enumerate(orders):
        if (order + 24 * z) / step < 1e6:
            x = np.arange(-12 * z, order + 12 * z, step)
            log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (x - 0.5) / z**2)
            log_terms = order * log_ratio - 0.5 * (x / z) ** 2 - math.log(z / step) - LOG_SQRT_2PI
            log_moment = max(0.0, float(special.logsumexp(log_terms))) + 1e-12
            divergences[i] = min(divergences[i], log_moment / (order - 1))
    return divergences
