"""Accounts releases, and calibrates their noise to an epsilon with the sampler's delta."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import Field

from sotto.algorithms.values import Whole, checks_arguments
from sotto.privacy.accounting.composition import (
    Event,
    Gaussian,
    SampledGaussian,
    calibrate_noise_multiplier,
    compose,
)
from sotto.privacy.mechanisms.noise import SAMPLER_SHARE, sampler_delta

_Positive = Annotated[float, Field(gt=0)]
_Fraction = Annotated[float, Field(gt=0, lt=1)]

_DRAWS = 2**40
"""Number of random draws that `calibrate` assumes, more than any training makes."""


@checks_arguments
def account(
    *,
    noise_multiplier: _Positive,
    delta: _Fraction,
    releases: Whole = 1,
    sampling_rate: _Fraction | None = None,
) -> float:
    """Returns epsilon at delta for a person in every release; arguments as for `calibrate`.

    Example:
        sotto.account(noise_multiplier=1.0, delta=1e-5)                        # 4.38

    It uses the analytic Gaussian mechanism (Balle and Wang 2018, Theorem 8), or privacy loss
    distributions under sampling. Both are tight.

    Raises:
        ValueError: an argument has another type or is out of range.
    """
    return compose([all_releases(noise_multiplier, releases, sampling_rate)]).epsilon(delta)


@checks_arguments
def calibrate(
    *,
    target_epsilon: _Positive,
    delta: _Fraction,
    releases: Whole = 1,
    sampling_rate: _Fraction | None = None,
) -> float:
    """Returns the least noise multiplier that meets a target, for a person in every release.

    Example:
        sotto.calibrate(target_epsilon=1.0, delta=1e-5)                        # 3.73

    Args:
        target_epsilon: largest allowed epsilon.
        delta: delta of the guarantee, below one over the number of people.
        releases: number of releases in which one person takes part.
        sampling_rate: probability with which each person is drawn for each release, in secret
            (Poisson sampling); None if everybody takes part.

    Raises:
        ValueError: the target is out of reach, or an argument has another type or is out of range.
    """
    all_releases(1.0, releases, sampling_rate)  # refuses settings that mean nothing
    # The shifts of all releases are one shift, except under sampling (`calibrated_multiplier`).
    shift, met = (math.sqrt(releases), 1) if sampling_rate is None else (1.0, releases)
    return calibrate_with_sampler(
        lambda at: calibrate_noise_multiplier(
            lambda z: [all_releases(z, releases, sampling_rate)], target_epsilon, at
        ),
        lambda z: met * sampler_delta(z / shift, _DRAWS),
        delta,
    )


def all_releases(
    noise_multiplier: float, releases: int, sampling_rate: float | None = None
) -> Gaussian | SampledGaussian:
    """Returns what all releases to one person cost; without sampling they are one of less noise."""
    if releases < 1:
        raise ValueError(f"releases must be at least 1, got {releases}")
    if sampling_rate is not None:
        return SampledGaussian(
            noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, count=releases
        )
    return Gaussian(noise_multiplier=noise_multiplier / math.sqrt(releases))


def calibrated_multiplier(
    events: Callable[[float], Sequence[Event]],
    epsilon: float,
    delta: float,
    *,
    draws: int,
    met: int = 1,
) -> float:
    """Returns the least noise multiplier with which all events together are (epsilon, delta)-DP.

    Args:
        events: all events that the budget pays for, at a noise multiplier.
        epsilon, delta: the target.
        draws: random numbers that the sampler draws over the whole stream.
        met: number of releases in which one person may take part when people are drawn in secret.
            The sampler's delta is counted once for each. It is 1 without drawing.

    Raises:
        ValueError: no noise meets the target, or the sampler's own delta is too large for it.
    """
    return calibrate_with_sampler(
        lambda at: calibrate_noise_multiplier(events, epsilon, at),
        lambda multiplier: met * sampler_delta(multiplier, draws),
        delta,
    )


def gaussian_multiplier(epsilon: float, delta: float, *, draws: int) -> float:
    """Returns the least noise multiplier of one Gaussian mechanism that is (epsilon, delta)-DP.

    Args:
        epsilon, delta: the target.
        draws: as for `calibrated_multiplier`.

    Raises:
        ValueError: as `calibrated_multiplier`.
    """
    return calibrated_multiplier(
        lambda z: [Gaussian(noise_multiplier=z)], epsilon, delta, draws=draws
    )


def calibrate_with_sampler(
    least: Callable[[float], float], cost: Callable[[float], float], delta: float
) -> float:
    """Returns the least noise multiplier that meets a target at delta, with the sampler's delta.

    The sampler's delta falls as the noise grows, so one correction is on the safe side.

    Args:
        least: returns the multiplier that meets the target at a delta, without the sampler.
        cost: returns the sampler's delta over the whole stream at a multiplier, also an infinite
            one.
        delta: of the guarantee.

    Raises:
        ValueError: the sampler would cost more than a ledger allows, or would at any noise.
    """
    if (smallest := SAMPLER_SHARE * cost(math.inf)) > delta:
        raise ValueError(
            f"delta {delta:.2g} is too small for the sampler of the noise, which costs a delta at "
            f"any epsilon; choose a delta of at least 1e{math.ceil(math.log10(smallest))}"
        )
    first = least(delta)
    tail = cost(first)
    if tail > delta / SAMPLER_SHARE:
        raise ValueError(
            f"the target needs so little noise (multiplier {first:.3g}) that the finite tails of "
            "any sampler would show; choose a smaller epsilon"
        )
    return least(delta - tail)
