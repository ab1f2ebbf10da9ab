"""Lower bounds on the epsilon of the Poisson-subsampled Gaussian mechanism."""

from sotto.privacy.accounting.composition import compose
from sotto.privacy.accounting.events import SampledGaussian

MARGIN = 1e-3
"""Relative margin below which a computed lower bound is not trusted."""
MOST_STEPS = 10**6
"""Most steps whose privacy loss distribution is computed; more take minutes."""
NOISE = (0.25, 1e4)
"""Range of the noise multiplier of such steps; others can take minutes, too."""
MOST_EPSILON = 100.0
"""Largest epsilon that a grid resolves."""


def is_resolved(event: SampledGaussian, delta: float) -> bool:
    """Whether a privacy loss distribution gives epsilon at this delta in short time."""
    quick = event.count <= MOST_STEPS and NOISE[0] <= event.noise_multiplier <= NOISE[1]
    return quick and delta >= 1e-11 + 1e-14 * event.count


def sampled_least(event: SampledGaussian, delta: float) -> float:
    """Returns epsilon of the dominating pair, rounded down; 0 where no grid resolves it."""
    if not is_resolved(event, delta) or delta < 1e-10:
        return 0.0
    above = compose([event]).epsilon(delta)
    if above > MOST_EPSILON:
        return 0.0
    from dp_accounting.pld import privacy_loss_distribution as pld_lib  # takes a second to import

    one = pld_lib.from_gaussian_mechanism(
        event.noise_multiplier,
        sampling_prob=event.sampling_rate,
        pessimistic_estimate=False,
        value_discretization_interval=max(1e-4, above / 1e5),
        use_connect_dots=False,
    )
    found = one.self_compose(event.count).get_epsilon_for_delta(delta)
    return max(0.0, float(found) * (1 - MARGIN))
