"""Calibrates the noise of a stream of releases to an epsilon, the sampler's own delta included."""

from collections.abc import Callable, Sequence

from sotto.privacy.accounting.composition import Event, calibrate_noise_multiplier
from sotto.privacy.mechanisms.noise import calibrate_with_sampler, sampler_delta


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
