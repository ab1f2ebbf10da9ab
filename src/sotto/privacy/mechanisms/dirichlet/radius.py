"""Distances between an answer and its row: radii for a student who knows the mechanism.

A radius r at beta promises P(|answer - restricted row|_2 > r) <= beta for every row. It is computed
from public parameters alone, which costs no privacy. Each radius has a status. `valid` is proved
for every row. `estimated` is a Monte-Carlo quantile over a grid of rows, with a confidence limit.
`invalid` is the paper's Lemma 1, which does not hold (docs/privacy.md, section 12, "Radii").
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64
from scipy import stats

from sotto.privacy.mechanisms.dirichlet.mechanism import Dirichlet, TruncatedDirichlet
from sotto.privacy.mechanisms.dirichlet.sampling import acceptance
from sotto.privacy.mechanisms.policies import GaussianPolicy, PolicyMechanism

_CONFIDENCE = 0.999
"""Confidence of an estimated radius."""


@dataclass(frozen=True)
class Radius:
    """One radius and its status.

    Attributes:
        method: name of the computation.
        value: the L2 radius.
        status: `valid`, `estimated` or `invalid`.
    """

    method: str
    value: float
    status: Literal["valid", "estimated", "invalid"]


def valid_radius(mechanism: PolicyMechanism, beta: float) -> float:
    """Returns the smallest proved radius at beta."""
    return min(one.value for one in radii(mechanism, beta) if one.status == "valid")


def radii(mechanism: PolicyMechanism, beta: float) -> tuple[Radius, ...]:
    """Returns all radii in closed form, valid or not.

    Args:
        mechanism: the mechanism at its level of a schedule.
        beta: probability that the answer is further away; strictly between 0 and 1.
    """
    if not 0 < beta < 1:
        raise ValueError(f"beta must be strictly between 0 and 1, got {beta}")
    m, floor = mechanism.actions, mechanism.floor
    # Distances are convex, so the largest is between a corner and the opposite restricted corner.
    widest = math.sqrt((1 - floor) ** 2 + (1 - (m - 1) * floor) ** 2 + (m - 2) * floor**2)
    found = [Radius("diameter", widest, "valid")]
    if isinstance(mechanism, GaussianPolicy):
        # Projecting onto a convex set that contains the row brings the answer closer to it. Noise
        # along (1, ..., 1) is projected away, which leaves m - 1 degrees of freedom.
        quantile = math.sqrt(float(stats.chi2.isf(beta, m - 1)))
        found.append(Radius("chi-square", mechanism.noise_stddev * quantile, "valid"))
        return tuple(found)
    k = mechanism.concentration
    plain = beta
    if isinstance(mechanism, TruncatedDirichlet):
        # P(far | accepted) <= P(far) / P(accepted); P(no proposal accepted) is added.
        accepted = acceptance("dirichlet", m, k, floor, mechanism.threshold)
        plain = (beta - mechanism.failure) * accepted
    if plain > 0:
        found.append(Radius("chi-square type", chi_square_radius(m, k, plain), "valid"))
        found.append(Radius("Markov", markov_radius(m, k, plain), "valid"))
    if isinstance(mechanism, Dirichlet):
        found.append(Radius("the paper's Lemma 1", lemma1_radius(k, beta), "invalid"))
    return tuple(found)


def chi_square_radius(actions: int, concentration: float, beta: float) -> float:
    """Returns a valid radius: sub-Gaussian in every direction, and so as a vector.

    In a unit direction u a Dirichlet draw is less spread, in the convex order, than a Beta draw on
    [min u, max u]. The latter's sub-Gaussian variance proxy is at most
    (max u - min u)^2 / (4 (k + 1)) (Marchal and Arbel 2017), and max u - min u is at most sqrt(2).
    Hsu, Kakade and Zhang 2012 bound the norm of such a vector.
    """
    t, dimensions = -math.log(beta), actions - 1
    spread = dimensions + 2 * math.sqrt(dimensions * t) + 2 * t
    return math.sqrt(spread / (2 * (concentration + 1)))


def markov_radius(actions: int, concentration: float, beta: float) -> float:
    """Returns a valid radius from E|answer - row|^2 = (1 - |row|^2) / (k + 1) by Markov."""
    return math.sqrt((1 - 1 / actions) / ((concentration + 1) * beta))


def lemma1_radius(concentration: float, beta: float) -> float:
    """Returns the paper's Lemma 1 (14), which is invalid: it applies one direction's bound."""
    return math.sqrt(-math.log(beta) / (2 * (concentration + 1)))


def estimated_radius(
    mechanism: PolicyMechanism,
    beta: float,
    generator: np.random.Generator,
    *,
    samples: int = 20_000,
) -> Radius:
    """Returns an upper confidence limit on the (1 - beta)-quantile of the distance.

    With confidence 0.999 the limit is above the quantile of *every* row of a grid (order
    statistics, Clopper-Pearson). Nothing is proved for rows between those of the grid.

    Raises:
        ValueError: if there are too few samples for a limit.
    """
    rows = policy_grid(mechanism.actions)
    miss = (1 - _CONFIDENCE) / len(rows)
    # The j-th smallest of n is below the quantile with probability P(Binomial(n, 1 - beta) >= j).
    rank = int(stats.binom.isf(miss, samples, 1 - beta)) + 1
    if rank > samples:
        raise ValueError(f"{samples} samples are too few for a radius at beta {beta}; take more")
    limits = []
    for row in rows:
        answers = mechanism.answer(np.broadcast_to(row, (samples, len(row))), generator)
        distances = np.linalg.norm(answers - mechanism.restrict(row[None]), axis=1)
        limits.append(float(np.partition(distances, rank - 1)[rank - 1]))
    return Radius(
        f"Monte Carlo over {len(rows)} rows, confidence {_CONFIDENCE:g}", max(limits), "estimated"
    )


def policy_grid(actions: int) -> Float64[np.ndarray, "rows actions"]:
    """Returns the multiples of 1/6, up to permutation, and the uniform row."""
    multiples = [
        np.pad(np.array(partition) / 6, (0, actions - len(partition)))
        for partition in _partitions(6, 6, actions)
    ]
    return np.stack([np.full(actions, 1.0 / actions), *multiples])


def _partitions(total: int, largest: int, length: int) -> Iterator[tuple[int, ...]]:
    """Yields the ways to write `total` as at most `length` falling numbers up to `largest`."""
    if total == 0:
        yield ()
    elif length > 0:
        for first in range(min(total, largest), 0, -1):
            for rest in _partitions(total - first, first, length - 1):
                yield (first, *rest)
