"""Differentially private policy evaluation (Balle, Gomrokchi and Precup 2016).

The estimates are those of first-visit Monte Carlo. A cell is a pair of a node and an action. An
episode that visits cell s gives one estimate of its value, the discounted sum of rewards from the
first visit on. DP-LSW and DP-LSL fit linear values Phi theta to the averages of these estimates,
and release theta with noise. Policy iteration alternates between this evaluation and acting
greedily on the released values.

Both fits are linear in rewards, theta = M r. With public states and actions M is public, and a
reward moves theta by at most range * max_t |M e_t|. The baseline uses this exact bound. With
private states (unit trajectory) M is secret, and Balle et al. scale the noise to a smooth bound on
the effect of a trajectory on theta (`lsw_deviation`, `lsl_deviation`).

Guarantee:
    Unit transition. A public factor rescales the columns of M to norm at most 1, and
    `input_perturbation.weighted_sums` releases the sums. All rounds together are one Gaussian
    mechanism.

    Unit trajectory, one release. A trajectory moves the average of cell s by at most
    F / max(|X_s|, 1), F = range / (1 - discount). For data that differ in k trajectories the bound
    is F / max(|X_s| - k, 1). Let S be the largest of e^(-k beta/2) times the bound for k. Then
    |theta - theta'| <= S and S <= e^(beta/2) S' for neighbours. Noise alpha S costs a shift of
    1/alpha deviations and a change of scale by at most e^beta in each of d coordinates, and
    `smooth_delta` adds these up. With alpha and beta of `smooth_constants` the release is
    (epsilon, delta)-DP if that sum is at most delta, which the code checks.

    For DP-LSL theta = A^-1 b, A = Phi' G Phi + mu, mu = lambda / (2 m). So
    theta - theta' = A'^-1 ((b - b') - (A - A') theta), where |A'^-1| <= 1 / mu,
    |b - b'| <= |Phi| F |rho|_2 / m, |A - A'| <= |Phi|^2 |rho|_inf / m, and |theta| is at most
    |G^(1/2) averages| / (2 sqrt(mu)) <= F sqrt(sum_s rho_s |X_s| / (2 lambda)). This is the bound
    of `lsl_deviation`. It is smaller than the printed one and needs no condition on lambda.

    The ledger does not account for smooth sensitivities, so these deviations certify nothing. They
    are calibrations only.
"""

import math
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from sotto.algorithms.functional_q.nodes import Grid
from sotto.privacy.accounting.composition import gaussian_delta

# --- estimates that are linear in rewards --------------------------------------------------------


@dataclass(frozen=True)
class Visits:
    """Public facts about a round of episodes.

    Attributes:
        estimates: matrix whose product with the rewards gives the averages of first-visit
            estimates; rows of cells without visits are zero.
        counts: number of episodes that visited each cell, |X_s|.
        episodes: number of episodes, m.
    """

    estimates: Float[np.ndarray, "cells steps"]
    counts: Int[np.ndarray, " cells"]
    episodes: int


def first_visits(
    cells: Int[np.ndarray, " steps"],
    episode_ends: Bool[np.ndarray, " steps"],
    discount: float,
    count: int,
) -> Visits:
    """Returns the matrix that turns rewards into averages of first-visit estimates, and counts.

    Args:
        cells: cell of each step, one episode after the other.
        episode_ends: whether an episode ends, or is cut off, after each step.
        discount: discount factor gamma.
        count: number of cells.
    """
    steps = len(cells)
    estimates = np.zeros((count, steps))
    counts = np.zeros(count, np.int64)
    stops = [*(np.flatnonzero(episode_ends) + 1), steps]
    first, episodes = 0, 0
    for stop in stops:
        if stop == first:
            continue
        visited, firsts = np.unique(cells[first:stop], return_index=True)
        for cell, at in zip(visited, first + firsts, strict=True):
            estimates[cell, at:stop] += discount ** np.arange(stop - at)
        counts[visited] += 1
        first, episodes = stop, episodes + 1
    estimates /= np.maximum(counts, 1)[:, None]
    return Visits(estimates, counts, episodes)


def nearest_cells(
    grid: Grid,
    observations: Float[np.ndarray, "steps obs"],
    actions: Int[np.ndarray, " steps"],
    count: int,
) -> Int[np.ndarray, " steps"]:
    """Returns the index of the cell of each step: its nearest node and its action."""
    index, weight = grid.weights(jnp.asarray(observations))
    nearest = np.take_along_axis(
        np.asarray(index), np.asarray(weight).argmax(axis=-1, keepdims=True), axis=-1
    )[:, 0]
    return np.asarray(nearest * count + actions)


def lsw(
    features: Float[np.ndarray, "cells d"], weights: Float[np.ndarray, " cells"], visits: Visits
) -> Float[np.ndarray, "d steps"]:
    """Returns the matrix M of DP-LSW, theta = (Gamma^(1/2) Phi)^+ Gamma^(1/2) averages.

    Args:
        features: Phi.
        weights: diagonal of Gamma. For the unit transition it may depend on visits.
        visits: visits of the episodes.
    """
    root = np.sqrt(weights)[:, None]
    return np.asarray(np.linalg.pinv(root * features, rcond=1e-6) @ (root * visits.estimates))


def lsl(
    features: Float[np.ndarray, "cells d"],
    weights: Float[np.ndarray, " cells"],
    ridge: float,
    visits: Visits,
) -> Float[np.ndarray, "d steps"]:
    """Returns the matrix M of DP-LSL, theta = (Phi' G Phi + lambda / (2 m))^-1 Phi' G averages.

    G is diagonal with entries rho_s |X_s| / m.

    Args:
        features: Phi.
        weights: rho.
        ridge: lambda, which must be positive.
        visits: visits of the episodes.
    """
    if not ridge > 0:
        raise ValueError(f"DP-LSL needs a positive ridge, got {ridge:g}")
    share = (weights * visits.counts / visits.episodes)[:, None]
    system = features.T @ (share * features)
    system += ridge / (2 * visits.episodes) * np.eye(features.shape[1])
    return np.asarray(np.linalg.solve(system, features.T @ (share * visits.estimates)))


def unit_columns(
    matrix: Float[np.ndarray, "d steps"],
) -> tuple[Float[np.ndarray, "steps d"], float]:
    """Returns each reward's weights, of norm at most 1, and the public factor that divided them."""
    largest = float(np.linalg.norm(matrix, axis=0).max()) * (1 + 1e-6)  # float32 rounds weights
    factor = largest if largest > 0 else 1.0
    return matrix.T / factor, factor


# --- the unit of a trajectory: smooth sensitivity ------------------------------------------------


def smooth_constants(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """Returns alpha and beta of Balle et al. 2016, after Nissim, Raskhodnikova and Smith 2007.

    Raises:
        ValueError: the constants do not give (epsilon, delta)-DP at this epsilon.
    """
    tail = math.log(2 / delta)
    alpha, beta = 5 * math.sqrt(2 * tail) / epsilon, epsilon / 4 / (size + tail)
    reached = smooth_delta(alpha, beta, size, epsilon)
    if reached > delta:
        raise ValueError(
            f"the constants of DP-LSW give delta {reached:.2g}, not {delta:.2g}, at epsilon "
            f"{epsilon:g}; choose a smaller epsilon"
        )
    return alpha, beta


def smooth_delta(alpha: float, beta: float, size: int, epsilon: float) -> float:
    """Returns delta at epsilon of noise alpha S in `size` coordinates, for a beta-smooth bound S.

    Between neighbours the mean moves by at most 1/alpha deviations, at a cost (e1, d1) with d1 of
    the analytic Gaussian mechanism. Then the scale changes by at most e^beta, at a cost (e2, d2).
    The log-ratio is at most size beta where the scale grows. Where it shrinks, the log-ratio is at
    most (e^(2 beta) - 1) / 2 |z|^2 - size beta, and |z|^2 has a chi-square law. Together the cost
    is (e1 + e2, d1 + e^e1 d2), in either order of the neighbours. The function takes the best
    split of epsilon.
    """
    reached = 1.0
    for share in np.linspace(0.02, 0.98, 49):
        moved = share * epsilon
        scaled = epsilon - moved
        if scaled < size * beta:
            continue
        edge = (scaled + size * beta) / (math.expm1(2 * beta) / 2)
        tail = float(stats.chi2.sf(edge, size))
        reached = min(reached, gaussian_delta(alpha, moved) + math.exp(moved) * tail)
    return reached


def lsw_deviation(
    features: Float[np.ndarray, "cells d"],
    weights: Float[np.ndarray, " cells"],
    counts: Int[np.ndarray, " cells"],
    largest_return: float,
    epsilon: float,
    delta: float,
) -> float:
    """Returns the standard deviation of DP-LSW's noise for the unit trajectory.

    It is alpha F |(Gamma^(1/2) Phi)^+| sqrt(psi), with
    psi = max_k e^(-k beta) sum_s w_s / max(|X_s| - k, 1)^2.

    Args:
        features: Phi.
        weights: diagonal of Gamma, which must be constant.
        counts: |X_s|, which is private here.
        largest_return: F, for estimates in [0, F].
        epsilon, delta: target of this release.
    """
    alpha, beta = smooth_constants(epsilon, delta, features.shape[1])
    inverse = np.linalg.pinv(np.sqrt(weights)[:, None] * features)
    away = np.arange(int(counts.max()) + 1)
    bounds = (weights / np.maximum(counts - away[:, None], 1) ** 2).sum(axis=1)
    psi = float((np.exp(-away * beta) * bounds).max())
    return alpha * largest_return * float(np.linalg.norm(inverse, 2)) * math.sqrt(psi)


def lsl_deviation(
    features: Float[np.ndarray, "cells d"],
    weights: Float[np.ndarray, " cells"],
    ridge: float,
    counts: Int[np.ndarray, " cells"],
    episodes: int,
    largest_return: float,
    epsilon: float,
    delta: float,
    bound: Literal["ours", "printed"] = "ours",
) -> float:
    """Returns the standard deviation of DP-LSL's noise for the unit trajectory.

    It is 2 alpha F |Phi| / D sqrt(psi), with psi = max_k e^(-k beta) phi_k^2 and phi_k = |rho|_2 +
    |Phi| |rho|_inf / sqrt(2 lambda) sqrt(sum_s rho_s min(|X_s| + k, m)). The denominator D is
    lambda here, and lambda - |Phi|^2 |rho|_inf in the paper.

    Args:
        features, weights, ridge: Phi, rho and lambda, as in `lsl`.
        counts: |X_s|, which is private here.
        episodes: m, which is public.
        largest_return: F, for estimates in [0, F].
        epsilon, delta: target of this release.
        bound: denominator D; "ours" is lambda, "printed" is the paper's.
    """
    alpha, beta = smooth_constants(epsilon, delta, features.shape[1])
    norm = float(np.linalg.norm(features, 2))
    highest = float(weights.max())
    away = np.arange(episodes + 1)
    mass = (weights * np.minimum(counts + away[:, None], episodes)).sum(axis=1)
    phi = norm * highest / math.sqrt(2 * ridge) * np.sqrt(mass) + float(np.linalg.norm(weights))
    psi = float((np.exp(-away * beta) * phi**2).max())
    denominator = ridge if bound == "ours" else ridge - norm**2 * highest
    if not denominator > 0:
        raise ValueError("the printed DP-LSL needs lambda above |Phi|^2 |rho|_inf; raise the ridge")
    return 2 * alpha * largest_return * norm / denominator * math.sqrt(psi)
