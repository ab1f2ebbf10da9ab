"""Noise of DPPG: the cost of a training for one user, and the noise multiplier that a target needs.

Guarantee:
    `event` is the cost of all releases of one training for one user (docs/privacy.md, sections 3, 4
    and 17). `total_noise_multiplier` leaves room in delta for the sampler (section 7).
"""

import math

import numpy as np

from sotto.algorithms.calibration import calibrate_with_sampler
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.privacy.accounting.composition import (
    Event,
    Gaussian,
    SampledGaussian,
    calibrate_noise_multiplier,
    compose,
)
from sotto.privacy.accounting.gaussian import largest_shift
from sotto.privacy.mechanisms import correlated
from sotto.privacy.mechanisms.noise import sampler_delta
from sotto.privacy.statements import Correlation, Poisson

_LEAST_BUDGET = 1e-9


def event(config: DPPGConfig, noise_multiplier: float) -> Event:
    """Returns the cost of the whole training for one user.

    Args:
        config: settings.
        noise_multiplier: of a whole release, under zero-out adjacency.
    """
    multiplier = noise_multiplier / config.adjacency.sensitivity_factor
    if isinstance(drawn := config.participation, Poisson):
        return SampledGaussian(
            noise_multiplier=multiplier,
            sampling_rate=drawn.sampling_rate,
            count=config.num_updates,
        )
    return Gaussian(noise_multiplier=multiplier)


def total_noise_multiplier(config: DPPGConfig, dimension: int) -> float:
    """Returns the noise multiplier of a whole release, under zero-out adjacency.

    It is `noise_multiplier` if that is given. Otherwise it is calibrated to `target_epsilon`.

    Args:
        config: settings.
        dimension: how many numbers a release has. The sampler's own delta grows with it.

    Raises:
        PrivacyError: no noise meets the target.
    """
    if config.noise_multiplier is not None:
        return config.noise_multiplier
    assert config.target_epsilon is not None
    target = config.target_epsilon
    # A user who is drawn may take part in every release, and so meet the draws of each.
    releases = config.num_updates if config.population_size is not None else 1

    def least(delta: float) -> float:
        return calibrate_noise_multiplier(lambda z: [event(config, z)], target, delta)

    def sampler(noise_multiplier: float) -> float:
        multiplier = noise_multiplier / config.adjacency.sensitivity_factor
        return releases * sampler_delta(multiplier, dimension * config.num_updates)

    return calibrate_with_sampler(least, sampler, config.delta)


def part_multipliers(config: DPPGConfig, total: float) -> dict[str, float]:
    """Returns the noise multiplier of each part of a release: 1/total^2 = sum over p of 1/z_p^2."""
    if config.joint_clip:
        return {"policy": total, "critic": total}
    ratios = config.noise_ratios
    policy = total * math.sqrt(sum(ratio**-2 for ratio in ratios.values()))
    return {name: ratio * policy for name, ratio in ratios.items()}


def budget_epsilon(config: DPPGConfig) -> float:
    """Returns the epsilon of the ledger's budget: the target, or the cost of the given noise.

    A large given noise can cost epsilon 0, because delta alone covers it. A budget must be
    positive, so the smallest budget is used then; the certificate still states epsilon 0.
    """
    if not config.is_proved:
        return math.inf
    if config.target_epsilon is not None:
        return config.target_epsilon
    assert config.noise_multiplier is not None
    cost = compose([event(config, config.noise_multiplier)]).epsilon(config.delta * 0.99)
    return max(cost, _LEAST_BUDGET)


def correlation(config: DPPGConfig) -> Correlation:
    """Returns the noise over time: matched to the server's sums of releases, or independent."""
    if not config.correlated_noise:
        return Correlation()
    return Correlation(kind="prefix-sum", workload_decay=config.parameter_decay)


def spread(config: DPPGConfig) -> float:
    """Returns the standard deviation of a release's noise, in noise multipliers times clip norms.

    Correlated noise is scaled to the whole stream, and a release sums several draws of it.
    """
    over_time = correlation(config)
    factor = correlated.sensitivity(over_time, config.participation, config.num_updates)
    coefficients = correlated.noising_coefficients(over_time, config.num_updates)
    return factor * float(np.linalg.norm(coefficients))


def reach(config: DPPGConfig, noise_multiplier: float) -> float:
    """Returns by how much all users together can move the releases, in deviations of their noise.

    It is the shift of the best statistic of all releases, where every user contributes the clip
    norm in one direction that is known beforehand. Below 1, whoever reads all releases hardly tells
    users who all agree from users who do nothing: at most 69 of 100 guesses are right.

    Args:
        config: settings.
        noise_multiplier: of a whole release, under zero-out adjacency.
    """
    over_time, updates = correlation(config), config.num_updates
    column = np.zeros(updates)
    strategy = correlated.strategy_coefficients(over_time, updates)
    column[: len(strategy)] = strategy
    # Row i of C has the first i coefficients. None is negative: equal contributions move most.
    summed = float(np.linalg.norm(np.cumsum(column)))
    factor = correlated.sensitivity(over_time, config.participation, updates)
    return config.users_per_update * summed / (factor * noise_multiplier)


def without_hope(config: DPPGConfig) -> tuple[str, ...]:
    """Returns a sentence for a training whose noise hides everything; nothing for another one."""
    target = config.target_epsilon
    if target is not None and config.population_size is not None:
        # Without sampling there would be more noise. If this is little, no time is lost.
        most = config.users_per_update * largest_shift(target, config.delta)
        if most >= 1:
            return ()
    multiplier = total_noise_multiplier(config, 1)
    most = reach(config, multiplier)
    if most >= 1:
        return ()
    return (
        f"warning: with noise multiplier {multiplier:.3g} the policy can learn nothing. Even if "
        f"all {config.users:,} users agreed, they would move all releases together by {most:.2g} "
        "standard deviations of the noise. Choose a larger epsilon, or more users.",
    )
