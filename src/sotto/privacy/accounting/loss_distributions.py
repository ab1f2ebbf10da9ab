"""Privacy loss distributions (PLD) of Poisson-sampled and (epsilon, delta) releases.

The grids are chosen here, and dp_accounting composes the distributions on them. It rounds losses
pessimistically ("Connect the Dots", Doroshenko et al. 2022).
"""

import functools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld_lib
from dp_accounting.rdp import RdpAccountant
from jaxtyping import Float64

from sotto.privacy.accounting.curves import PrivacyCurve
from sotto.privacy.accounting.events import ApproximateDP, SampledGaussian


def loss_distribution_curve(
    mu: float, sampled: Sequence[SampledGaussian], approximate: Sequence[ApproximateDP]
) -> PrivacyCurve:
    """Returns the joint curve of Gaussian, Poisson-sampled and (epsilon, delta) releases.

    Args:
        mu: the neighbours' distance in standard deviations, for all Gaussian releases together.
        sampled: releases of Poisson samples.
        approximate: releases of which only epsilon and delta are known.
    """
    events: list[SampledGaussian | ApproximateDP] = [*sampled, *approximate]
    counts: Counter[SampledGaussian | ApproximateDP] = Counter()
    for event in events:
        counts[event.model_copy(update={"count": 1})] += event.count
    parts = tuple(sorted(counts.items(), key=repr))
    # The rounding of the FFT reaches 2e-13 at 10,000 compositions and may make delta too small.
    slack = 1e-12 + 1e-15 * sum(counts.values())

    def epsilon_at(delta: float) -> float:
        if delta < 10 * slack:
            raise ValueError(
                f"delta {delta} is finer than the PLD accountant resolves here; "
                f"ask for a delta of at least {10 * slack:.1g}"
            )
        return float(_pld(mu, parts).get_epsilon_for_delta(delta - slack))

    def delta_at(epsilon: float) -> float:
        return max(0.0, float(_pld(mu, parts).get_delta_for_epsilon(epsilon))) + slack

    def deltas_at(epsilons: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, "2 k"]:
        pld = _pld(mu, parts)
        orders = [pld._pmf_remove, pld._pmf_add]  # get_delta_for_epsilon gives the larger one
        deltas = [one.get_delta_for_epsilon(epsilons.tolist()) for one in orders]
        return np.asarray(np.maximum(0.0, deltas) + slack)

    return PrivacyCurve(
        "privacy loss distribution, pessimistic (dp_accounting)", epsilon_at, delta_at, deltas_at
    )


@functools.lru_cache(maxsize=16)
def _pld(mu: float, parts: tuple[tuple[SampledGaussian | ApproximateDP, int], ...]) -> Any:
    """Returns the composed PLD of a Gaussian (if mu > 0) and of events with their counts.

    Rounding a loss to a grid of interval h adds a variance below h^2/4 per release, and moves an
    (epsilon, delta) release up by at most h. So h is a tenth of the smallest standard deviation of
    a loss, a thousandth of the smallest epsilon, and at most 1e-4. The grid never has more than
    half a million cells over the range of the composed loss.
    """
    accountant = RdpAccountant(orders=[*range(2, 65), 128, 256])
    finest = 1e-4
    epsilon_sum = 0.0
    if mu > 0:
        accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
        finest = min(finest, mu / 10)
    for event, count in parts:
        if isinstance(event, SampledGaussian):
            z, rate = event.noise_multiplier, event.sampling_rate
            accountant.compose(_sampled(event), count)
            # Standard deviation of the likelihood ratio, capped because only small ones matter.
            finest = min(finest, rate * math.sqrt(math.expm1(min(z**-2, 50.0))) / 10)
        elif event.epsilon > 0:
            epsilon_sum += count * event.epsilon
            finest = min(finest, event.epsilon / 1000)
    loss_range = float(accountant.get_epsilon(1e-15)) + epsilon_sum
    interval = max(finest, loss_range / 5e5)

    composed = pld_lib.identity(value_discretization_interval=interval)
    if mu > 0:
        composed = composed.compose(
            pld_lib.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)
        )
    for event, count in parts:
        if isinstance(event, SampledGaussian):
            one = pld_lib.from_gaussian_mechanism(
                event.noise_multiplier,
                sampling_prob=event.sampling_rate,
                value_discretization_interval=interval,
            )
        else:
            one = pld_lib.from_privacy_parameters(
                pld_lib.common.DifferentialPrivacyParameters(event.epsilon, event.delta),
                value_discretization_interval=interval,
            )
        composed = composed.compose(one.self_compose(count))
    return composed


def _sampled(event: SampledGaussian) -> Any:
    return dp_accounting.PoissonSampledDpEvent(
        event.sampling_rate, dp_accounting.GaussianDpEvent(event.noise_multiplier)
    )
