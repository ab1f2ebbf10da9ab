"""Draws Dirichlet rows, also at tiny concentrations, and truncated ones by rejection.

Parameters are rows [rows, actions] of positive numbers a. Their sum `k` is the concentration.
Truncated draws have the density prod_i z_i^(a_i - 1), up to a constant, on the rows z whose entries
are all at least tau. They come from a public number of proposals, of one of two kinds:

* `"dirichlet"`: a plain draw, accepted if no entry is below tau. It suits large concentrations.
* `"power-law"`: all entries but one are drawn independently with densities z^(a_i - 1) on
  [tau, 1 - (m - 1) tau]. The remaining entry makes the sum 1; it is chosen with weights 1 / C_j,
  where C_i is the integral of z^(a_i - 1). The density of a proposal is
  prod_i z_i^(a_i - 1) * sum_j z_j^(1 - a_j) / K with K = sum_j prod_{i != j} C_i. So accepting it
  with probability 1 / sum_j z_j^(1 - a_j), which is at most 1 / sum_j z_j = 1, is exact. It suits
  small concentrations, where plain draws almost never stay above tau.
"""

import math
from typing import Literal

import numpy as np
from jaxtyping import Float64
from scipy import integrate, special

ProposalKind = Literal["dirichlet", "power-law"]

_MARGIN = 1e-9  # relative, pays for rounding and quadrature in the bounds below


def log_dirichlet(
    parameters: Float64[np.ndarray, "rows actions"], generator: np.random.Generator
) -> Float64[np.ndarray, "rows actions"]:
    """Returns the logarithms of Dirichlet draws, which are finite even for tiny parameters.

    A gamma variate with shape a is one with shape a + 1, times U^(1/a). In logarithms, log G =
    log gamma(a + 1) - E / a with E exponential (Marsaglia and Tsang 2000, section 6).
    """
    columns = np.ascontiguousarray(parameters.T)  # sums over actions run along contiguous rows
    logs = generator.standard_gamma(columns + 1.0)
    np.log(logs, out=logs)
    logs -= generator.standard_exponential(columns.shape) / columns
    logs -= logs.max(axis=0)
    logs -= np.log(np.exp(logs).sum(axis=0))
    return logs.T


def truncated_dirichlet(
    parameters: Float64[np.ndarray, "rows actions"],
    threshold: float,
    proposals: int,
    kind: ProposalKind,
    generator: np.random.Generator,
) -> Float64[np.ndarray, "rows actions"]:
    """Draws rows with no entry below the threshold, or the uniform row if no proposal is accepted.

    It draws all proposals in any case, so that their number tells nothing.
    """
    rows, actions = parameters.shape
    repeated = np.repeat(parameters, proposals, axis=0)
    propose = _plain_proposals if kind == "dirichlet" else _power_law_proposals
    proposed, accepted = propose(repeated, threshold, generator)
    accepted = accepted.reshape(rows, proposals)
    first = accepted.argmax(axis=1)
    draws = proposed.reshape(rows, proposals, actions)[np.arange(rows), first]
    some = np.take_along_axis(accepted, first[:, None], axis=1)
    return np.asarray(np.where(some, draws, 1.0 / actions))


def _plain_proposals(
    parameters: np.ndarray, threshold: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    rows = np.exp(log_dirichlet(parameters, generator))
    return rows, rows.min(axis=1) >= threshold


def _power_law_proposals(
    parameters: np.ndarray, threshold: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    rows, actions = parameters.shape
    span = _log_span(actions, threshold)
    uniform = generator.random(parameters.shape)
    # The inverse distribution function of z^(a - 1) on [threshold, threshold e^span].
    entries = threshold * np.exp(np.log1p(uniform * np.expm1(parameters * span)) / parameters)
    weights = np.cumsum(np.exp(-_log_power_integral(parameters, threshold, span)), axis=1)
    chosen = np.count_nonzero(generator.random((rows, 1)) * weights[:, -1:] >= weights, axis=1)
    last = np.arange(rows), np.minimum(chosen, actions - 1)
    entries[last] = 0.0
    entries[last] = 1.0 - entries.sum(axis=1)
    inside = entries[last] >= threshold
    excess = np.sum(np.maximum(entries, threshold) ** (1.0 - parameters), axis=1)
    return entries, inside & (generator.random(rows) * excess < 1.0)


def _log_span(actions: int, threshold: float) -> float:
    """Returns the log of the largest possible entry over the smallest one."""
    return math.log1p(-(actions - 1) * threshold) - math.log(threshold)


def _log_power_integral(parameters: np.ndarray, threshold: float, span: float) -> np.ndarray:
    """Returns log C, C the integral of z^(a - 1) over [threshold, threshold e^span]."""
    grown = parameters * span
    log_expm1 = grown + np.log(-np.expm1(-grown))  # does not overflow
    return np.asarray(parameters * math.log(threshold) + log_expm1 - np.log(parameters))


def acceptance(
    kind: ProposalKind, actions: int, concentration: float, floor: float, threshold: float
) -> float:
    """Returns a lower bound on the probability that a proposal is accepted, for every row.

    It is the larger of two bounds (proofs in docs/privacy.md, section 12):

    * For plain proposals, 1 - `below_threshold`: a union bound over the entries.
    * The integral I of prod z_i^(a_i - 1) over the allowed rows is convex and symmetric in a, so it
      is smallest where all a_i are equal. By Jensen's inequality it is there at least
      volume * exp((k - m) E[log z_1]), z uniform on the allowed rows. A plain proposal is accepted
      with probability I Gamma(k) / prod Gamma(a_i), a power-law one with I / K. Both denominators
      are log-convex and symmetric in a, so they are largest at a vertex.
    """
    k, m = concentration, actions
    at_floor, rest = k * floor, k * (1 - (m - 1) * floor)
    log_integral = (
        (m - 1) * math.log1p(-m * threshold)
        - math.lgamma(m)
        + (k - m) * _mean_log_entry(m, threshold)
        - abs(k - m) * _MARGIN
    )
    if kind == "dirichlet":
        log_normaliser = (m - 1) * math.lgamma(at_floor) + math.lgamma(rest) - math.lgamma(k)
        union = 1.0 - below_threshold(m, k, floor, threshold)
    else:
        small, large = (
            float(_log_power_integral(np.array(a), threshold, _log_span(m, threshold)))
            for a in (at_floor, rest)
        )
        log_normaliser = (m - 2) * small + float(np.logaddexp(small, math.log(m - 1) + large))
        union = 0.0
    jensen = math.exp(min(0.0, log_integral - log_normaliser))
    return max(0.0, max(union, jensen) - _MARGIN)


def below_threshold(actions: int, concentration: float, floor: float, threshold: float) -> float:
    """Returns a bound on P(some entry of a plain draw is below the threshold), for every row.

    Entry i is Beta(k p, k (1 - p)), for which g(p) = P(Beta < threshold) decreases in p. Every p is
    at least the floor, and one p is at least 1/m. So the bound is (m - 1) g(floor) + g(1/m).
    """
    k, m = concentration, actions
    tail = special.betainc(k * floor, k * (1 - floor), threshold)
    largest = special.betainc(k / m, k * (1 - 1 / m), threshold)
    return min(1.0, float((m - 1) * tail + largest) * (1 + _MARGIN))


def _mean_log_entry(actions: int, threshold: float) -> float:
    """Returns E[log z_1] for z uniform on the rows whose entries are all at least the threshold.

    z_1 = tau + s u with s = 1 - m tau and u of Beta(1, m - 1). By parts, with w = log z_1, it is
    log tau + the integral of P(u > (e^w - tau) / s) dw.
    """
    s = 1 - actions * threshold
    start, stop = math.log(threshold), math.log(threshold + s)
    integral, _ = integrate.quad(
        lambda w: (1 - min(1.0, math.expm1(w - start) * threshold / s)) ** (actions - 1),
        start,
        stop,
        epsabs=1e-11,
        limit=200,
    )
    return start + float(integral)
