"""Calibrates the noise of a stream of releases to an epsilon, the sampler's own delta included."""

import math
from collections.abc import Callable, Sequence

from sotto.privacy.accounting.composition import Event, calibrate_noise_multiplier
from sotto.privacy.mechanisms.noise import SAMPLER_SHARE, sampler_delta


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
