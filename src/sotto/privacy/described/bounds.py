"""Upper and lower bounds on the epsilon of a described training (docs/other_trainings.md).

Neighbours differ in one record: it is there or contributes zero, or another one is in its place.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special

from sotto.privacy.accounting.composition import (
    Gaussian,
    NoGuarantee,
    PrivacyCurve,
    Renyi,
    SampledGaussian,
    compose,
)
from sotto.privacy.accounting.gaussian import gaussian_epsilon
from sotto.privacy.accounting.sampled_gaussian import sampled_gaussian_divergences
from sotto.privacy.accounting.sampled_least import MARGIN, is_resolved, sampled_least
from sotto.privacy.described.description import Description

_FINEST = 1e-9
"""Least delta of one record that group privacy takes from a privacy loss distribution."""
_ORDERS = np.array([*(1 + np.geomspace(0.01, 0.9, 30)), *range(2, 65), 128, 256, 512, 1024])


@dataclass(frozen=True)
class Cost:
    """A proved cost.

    Attributes:
        event: cost of everything to one record that contributes zero instead.
        method: name of the accountant.
        epsilon: function of delta, for neighbours under the adjacency of the claim; it raises
            ValueError where the accountant does not resolve delta.
    """

    event: Gaussian | SampledGaussian | NoGuarantee
    method: str
    epsilon: Callable[[float], float]


def accounted(d: Description) -> float:
    """Returns epsilon as if batches were drawn by Poisson sampling, for one run.

    This is what the usual accountants compute, whatever was done. It is an upper bound for zero-out
    adjacency if batches were so drawn, noise was scaled to the sum and there was one run.
    """
    return _accountant(_drawn(d, d.total_steps), d.claimed.delta).epsilon(d.claimed.delta)


def is_tight(d: Description) -> bool:
    """Whether `accounted` is close to the truth under its assumptions, not only above it."""
    curve = _accountant(_drawn(d, d.total_steps), d.claimed.delta)
    return d.batch_size == d.records or curve.method.startswith("privacy loss distribution")


def proved(d: Description, records: int = 1) -> float:
    """Returns an epsilon that holds for everything that the description says was done.

    Infinite if somebody knows the noise.

    Args:
        d: the description.
        records: number of records in which neighbours differ.
    """
    return cost(d, records).epsilon(d.claimed.delta)


def cost(d: Description, records: int = 1) -> Cost:
    """Returns the proved cost where neighbours differ in this many records.

    Without Poisson sampling, a record takes part in one step of each epoch, so the cost is that of
    Gaussian releases, one for each epoch and run. The absence of g records, or half as many
    replacements, moves a step g times as far as the absence of one. Sampled steps use group
    privacy: an (epsilon, delta) for one record gives (g epsilon, delta (1 + e^epsilon + ... +
    e^((g - 1) epsilon))) for g of them.
    """
    event, delta = _event(d), d.claimed.delta
    apart = records * (2 if d.claimed.adjacency == "replace" else 1)
    match event:
        case NoGuarantee(reason=reason):
            return Cost(event, f"no guarantee: {reason}", lambda _: math.inf)
        case Gaussian(noise_multiplier=z):
            method = compose([event]).method
            return Cost(event, method, lambda at: gaussian_epsilon(z / apart, at))
    curve = _accountant(event, delta)
    whole = event.noise_multiplier / math.sqrt(event.count) / apart  # with sampling ignored
    sampled = curve.epsilon if apart == 1 else _of_group(curve, _renyi(event), apart)
    method = (
        curve.method if apart == 1 else f"{curve.method}, or Renyi composition, with group privacy"
    )
    return Cost(event, method, lambda at: min(gaussian_epsilon(whole, at), sampled(at)))


def _event(d: Description) -> Gaussian | SampledGaussian | NoGuarantee:
    """Returns the cost of all steps and runs to one record that contributes zero instead."""
    if not d.noise_secret:
        return NoGuarantee(reason="the seed of the noise is known")
    if d.sampling == "unknown":
        return NoGuarantee(reason="a batch may hold a record several times")
    poisson = d.sampling == "poisson"
    if poisson and d.noise_scaled_to == "sum":
        return _drawn(d, d.total_steps * d.runs)
    z, count = d.noise_multiplier, (d.total_steps if poisson else d.begun) * d.runs
    if d.noise_scaled_to == "mean":  # the noise of a full batch, over a mean of fewer records
        z *= (1 if poisson else d.rest) / d.batch_size
    return Gaussian(noise_multiplier=z / math.sqrt(count))


def _drawn(d: Description, count: int) -> Gaussian | SampledGaussian:
    """Returns the cost of this many steps whose batches are drawn by Poisson sampling."""
    z = d.noise_multiplier
    if d.batch_size == d.records:
        return Gaussian(noise_multiplier=z / math.sqrt(count))
    return SampledGaussian(noise_multiplier=z, sampling_rate=d.rate, count=count)


def _accountant(event: Gaussian | SampledGaussian, delta: float) -> PrivacyCurve:
    """Returns the curve of sampled steps; that of Renyi where a finer one takes too long."""
    if isinstance(event, Gaussian) or is_resolved(event, delta):
        return compose([event])
    return _renyi(event)


def _renyi(event: SampledGaussian) -> PrivacyCurve:
    """Returns a curve that is quick for any number of steps, and resolves any delta."""
    one = sampled_gaussian_divergences(event, _ORDERS.copy())
    orders, divergences = tuple(_ORDERS.tolist()), tuple(one.tolist())
    return compose([Renyi(orders=orders, divergences=divergences, count=event.count)])


def _of_group(fine: PrivacyCurve, renyi: PrivacyCurve, apart: int) -> Callable[[float], float]:
    """Returns epsilon by group privacy of the lower curve, the least on a grid of 0.4%."""
    epsilons = np.geomspace(1e-4, 100, 3500)
    epsilons = epsilons[epsilons * apart < 600]
    factors = np.expm1(apart * epsilons) / np.expm1(epsilons)
    deltas, coarse = (curve.deltas(epsilons).max(axis=0) for curve in (fine, renyi))
    one = np.minimum(np.maximum(deltas, _FINEST), coarse)
    deltas = one * factors * (1 + 1e-9)

    def epsilon(delta: float) -> float:
        enough = np.flatnonzero(deltas <= delta)
        return apart * float(epsilons[enough[0]]) if enough.size else math.inf

    return epsilon


def least(d: Description) -> float:
    """Returns an epsilon that the training surely exceeds or meets in the worst case.

    It is a lower bound: the data and the attack are given in docs/other_trainings.md.
    """
    if not d.noise_secret:
        return math.inf
    z, delta = d.noise_multiplier, d.claimed.delta
    finished = d.finished
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


def _poisson_least(d: Description) -> float:
    """Returns epsilon of the dominating pair of Poisson sampling, rounded down."""
    z, delta, count = d.noise_multiplier, d.claimed.delta, d.total_steps * d.runs
    if d.batch_size == d.records:
        return gaussian_epsilon(z / math.sqrt(count), delta) * (1 - 1e-9)
    event = SampledGaussian(noise_multiplier=z, sampling_rate=d.rate, count=count)
    return sampled_least(event, delta)


def _shuffled(z: float, batches: int, epochs: int, kept: float, delta: float) -> float:
    """Returns a lower bound for shuffled batches, from the event that every epoch has a large sum.

    All other records contribute -1 along one direction and the record +1, so the batch with it is
    higher by 2, or by 1 where it contributes zero. p and q are the probabilities that the highest
    batch of an epoch exceeds a threshold in the two worlds. Epochs are independent, hence
    delta >= p^E - e^epsilon q^E at every threshold.
    """
    thresholds = np.linspace(-3, 40 * z + 4, 40_000)
    one, others = special.log_ndtr(thresholds / z), batches - 1

    def log_above(shift: float) -> np.ndarray:
        below = special.log_ndtr((thresholds - shift) / z) + others * one
        # Complements are mixed, because near 1 a mixture of probabilities has no digits left.
        with np.errstate(divide="ignore"):
            there, absent = np.log(-np.expm1(below)), np.log(-np.expm1(batches * one))
            mixed = np.logaddexp(np.log(kept) + there, np.log1p(-kept) + absent)
        return np.asarray(mixed)

    p, q = epochs * log_above(2.0), epochs * log_above(1.0)
    ok = (p > math.log(delta) + 1e-9) & (q > -600)
    if not ok.any():
        return 0.0
    gain = p[ok] + np.log1p(-np.exp(math.log(delta) - p[ok])) - q[ok]
    return max(0.0, float(gain.max()) * (1 - MARGIN))
