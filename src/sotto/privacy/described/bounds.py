"""Upper and lower bounds on the epsilon of a described training (docs/other_trainings.md).

Neighbours differ in one record: it is there or contributes zero, or another one is in its place.
"""

import math

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld_lib
from scipy import special

from sotto.privacy.accounting.composition import (
    Gaussian,
    SampledGaussian,
    compose,
)
from sotto.privacy.accounting.gaussian import gaussian_epsilon
from sotto.privacy.described.description import Description

_MARGIN = 1e-3
"""Relative margin below which a computed lower bound is not trusted."""


def accounted(d: Description) -> float:
    """Returns epsilon as if batches were drawn by Poisson sampling, for one run.

    This is what the usual accountants compute, whatever was done. It is an upper bound for zero-out
    adjacency if batches were so drawn, noise was scaled to the sum and there was one run.
    """
    return _poisson(d, 1, d.claimed.delta)


def proved(d: Description) -> float:
    """Returns an epsilon that holds for everything that the description says was done.

    Infinite if somebody knows the noise. Without Poisson sampling, a record takes part in one step
    of each epoch, so the cost is that of Gaussian releases, one for each epoch and run.
    """
    if not d.noise_secret or d.sampling == "unknown":  # a batch may hold a record several times
        return math.inf
    poisson, replaced = d.sampling == "poisson", d.claimed.adjacency == "replace"
    z = d.noise_multiplier / (2 if replaced else 1)
    if d.noise_scaled_to == "mean":  # the noise of a full batch, over a mean of fewer records
        z *= (1 if poisson else d.rest) / d.batch_size
    count = (d.steps if poisson else d.epochs) * d.runs
    found = gaussian_epsilon(z / math.sqrt(count), d.claimed.delta)
    if poisson and d.noise_scaled_to == "sum":
        found = min(found, (_replaced if replaced else _poisson)(d, d.runs, d.claimed.delta))
    return found


def least(d: Description) -> float:
    """Returns an epsilon that the training surely exceeds or meets in the worst case.

    It is a lower bound: the data and the attack are given in docs/other_trainings.md.
    """
    if not d.noise_secret:
        return math.inf
    z, delta = d.noise_multiplier, d.claimed.delta
    finished = d.steps // -(-d.records // d.batch_size)  # epochs, whatever became of the rest
    smaller = d.noise_scaled_to == "mean" and d.rest < d.batch_size
    match d.sampling:
        case "fixed":
            if smaller and d.last_batch == "kept" and finished:
                z *= d.rest / d.batch_size
            shift = 2 if d.claimed.adjacency == "replace" else 1
            noise = z / shift / math.sqrt(d.runs * max(finished, 1))
            return gaussian_epsilon(noise, delta) * (1 - 1e-9)
        case "shuffle" if finished and not smaller and d.last_batch != "unknown":
            kept = d.batches * d.batch_size / d.records if d.last_batch == "dropped" else 1.0
            return _shuffled(z, d.batches, finished * d.runs, kept, delta)
        case "poisson" if d.noise_scaled_to == "sum":
            return _poisson_least(d)
    return 0.0


def _poisson(d: Description, runs: int, delta: float) -> float:
    rate, z = d.batch_size / d.records, d.noise_multiplier
    count = d.steps * runs
    if rate >= 1:
        return compose([Gaussian(noise_multiplier=z / math.sqrt(count))]).epsilon(delta)
    event = SampledGaussian(noise_multiplier=z, sampling_rate=rate, count=count)
    return compose([event]).epsilon(delta)


def _replaced(d: Description, runs: int, delta: float) -> float:
    """Returns the cost of two zero-out steps: (2 epsilon, (1 + e^epsilon) delta')."""
    best = math.inf
    for part in np.geomspace(1e-4, 0.5, 40):
        try:
            epsilon = _poisson(d, runs, float(part) * delta)
        except ValueError:  # finer than the accountant resolves
            continue
        if epsilon < 700 and (1 + math.exp(epsilon)) * part <= 1:
            best = min(best, 2 * epsilon)
    return best


def _poisson_least(d: Description) -> float:
    """Returns epsilon of the dominating pair of Poisson sampling, rounded down."""
    rate, z, count = d.batch_size / d.records, d.noise_multiplier, d.steps * d.runs
    if rate >= 1:
        return gaussian_epsilon(z / math.sqrt(count), d.claimed.delta) * (1 - 1e-9)
    if z < 0.1 or count > 10**6 or d.claimed.delta < 1e-10:
        return 0.0  # no grid resolves it in short time
    interval = max(1e-4, _poisson(d, d.runs, d.claimed.delta) / 1e5)
    one = pld_lib.from_gaussian_mechanism(
        z,
        sampling_prob=rate,
        pessimistic_estimate=False,
        value_discretization_interval=interval,
        use_connect_dots=False,
    )
    found = one.self_compose(count).get_epsilon_for_delta(d.claimed.delta)
    return max(0.0, float(found) * (1 - _MARGIN))


def _shuffled(z: float, batches: int, epochs: int, kept: float, delta: float) -> float:
    """Returns a lower bound for shuffled batches, from the event that every epoch has a large sum.

    All other records contribute -1 along one direction and the record +1, so the batch with it is
    higher by 2, or by 1 where it contributes zero. p and q are the probabilities that the highest
    batch of an epoch exceeds a threshold in the two worlds. Epochs are independent, hence
    delta >= p^E - e^epsilon q^E at every threshold.
    """
    thresholds = np.linspace(-3, 40 * z + 4, 40_000)
    others = (batches - 1) * special.log_ndtr(thresholds / z)
    drawn = np.log(kept) if kept > 0 else -np.inf
    rest = batches * special.log_ndtr(thresholds / z)

    def log_above(shift: float) -> np.ndarray:
        below = np.logaddexp(
            drawn + special.log_ndtr((thresholds - shift) / z) + others,
            np.log1p(-kept) + rest if kept < 1 else -np.inf,
        )
        return np.asarray(np.log(-np.expm1(np.minimum(below, -1e-300))))

    p, q = epochs * log_above(2.0), epochs * log_above(1.0)
    ok = (p > math.log(delta) + 1e-9) & (q > -600)
    if not ok.any():
        return 0.0
    gain = p[ok] + np.log1p(-np.exp(math.log(delta) - p[ok])) - q[ok]
    return max(0.0, float(gain.max()) * (1 - _MARGIN))
