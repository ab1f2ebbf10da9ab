"""Privacy loss distributions (PLD) of Poisson-sampled and (epsilon, delta) releases.

The grids are chosen here, and the delta of a sampled release is computed here, for all points of a
grid at once. dp_accounting rounds losses pessimistically ("Connect the Dots", Doroshenko et al.
2022), and composes the distributions.
"""

import functools
import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import dp_accounting
import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld_lib
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
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
    releases = sum(counts.values())
    slack = 1e-12 + 1e-15 * releases

    def epsilon_at(delta: float) -> float:
        if delta < 10 * slack:
            raise ValueError(
                f"delta {delta:g} is finer than the accountant resolves for {releases:,} releases, "
                f"which is about {10 * slack:.1g}; ask for a larger delta, or fewer releases"
            )
        return _epsilon(mu, parts, delta - slack)

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


_Parts: TypeAlias = tuple[tuple[SampledGaussian | ApproximateDP, int], ...]
"""Events of one release each, with their counts."""


@functools.lru_cache(maxsize=256)
def _epsilon(mu: float, parts: _Parts, delta: float) -> float:
    """Returns epsilon of `_pld` at delta. Calibrations and ledgers ask for the same one again."""
    return float(_pld(mu, parts).get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=16)
def _pld(mu: float, parts: _Parts) -> Any:
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
    loss_range = _without_warnings(accountant) + epsilon_sum
    interval = max(finest, loss_range / 5e5)

    composed = pld_lib.identity(value_discretization_interval=interval)
    if mu > 0:
        composed = composed.compose(
            pld_lib.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)
        )
    for event, count in parts:
        if isinstance(event, SampledGaussian):
            one = sampled_gaussian(event.noise_multiplier, event.sampling_rate, interval)
        else:
            one = pld_lib.from_privacy_parameters(
                pld_lib.common.DifferentialPrivacyParameters(event.epsilon, event.delta),
                value_discretization_interval=interval,
            )
        composed = composed.compose(one.self_compose(count))
    return composed


def _without_warnings(accountant: RdpAccountant) -> float:
    """Returns epsilon at delta 1e-15. Divergences that round to less than zero are not told."""
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return float(accountant.get_epsilon(1e-15))
    finally:
        log.setLevel(level)


def sampled_gaussian(noise_multiplier: float, rate: float, interval: float) -> Any:
    """Returns the PLD of one sampled release in a sixth of the time that dp_accounting takes.

    Its `from_gaussian_mechanism` inverts the loss at one point of the grid after the other.

    Args:
        noise_multiplier: of the Gaussian noise.
        rate: with which each person is drawn, at most 1.
        interval: between the losses of the grid.
    """
    if rate == 1:
        return pld_lib.from_gaussian_mechanism(
            noise_multiplier, value_discretization_interval=interval
        )
    orders = []
    for order in (AdjacencyType.REMOVE, AdjacencyType.ADD):
        loss = GaussianPrivacyLoss(noise_multiplier, sampling_prob=rate, adjacency_type=order)
        bounds = loss.connect_dots_bounds()
        low = math.floor(bounds.epsilon_lower / interval)
        high = math.ceil(bounds.epsilon_upper / interval)
        deltas = _deltas(loss, np.arange(low, high + 1) * interval)
        orders.append(
            pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, deltas)
        )
    return pld_lib.PrivacyLossDistribution(*orders)


def _deltas(loss: Any, epsilons: Float64[np.ndarray, " k"]) -> Float64[np.ndarray, " k"]:
    """Returns what `loss.get_delta_for_epsilon` does, for a rate below 1.

    A loss of epsilon is log(1 + (exp(epsilon) - 1) / rate) without sampling, and in the order ADD
    both have the other sign. No loss lies beyond log(1 - rate): there, delta is that of no noise
    (REMOVE) or zero (ADD).
    """
    rate, removed = loss.sampling_prob, loss.adjacency_type is AdjacencyType.REMOVE
    signed, edge = epsilons if removed else -epsilons, math.log1p(-rate)
    within = (signed > edge) & ~np.isclose(signed, edge, rtol=1e-9, atol=0)
    found = np.zeros_like(epsilons)
    if removed:
        found[~within] = -np.expm1(epsilons[~within])
    alone = signed[within] - math.log(rate) + np.log1p(-np.exp(edge - signed[within]))
    if removed:
        noise = loss._inverse_privacy_loss_without_subsampling_remove(alone)
    else:
        noise = loss._inverse_privacy_loss_without_subsampling_add(-alone)
    below = np.exp(epsilons[within] + loss.mu_lower_log_cdf(noise))
    found[within] = loss.mu_upper_cdf(noise) - below
    assert np.isfinite(found).all()
    return np.asarray(np.clip(found, 0, 1))


def _sampled(event: SampledGaussian) -> Any:
    return dp_accounting.PoissonSampledDpEvent(
        event.sampling_rate, dp_accounting.GaussianDpEvent(event.noise_multiplier)
    )
