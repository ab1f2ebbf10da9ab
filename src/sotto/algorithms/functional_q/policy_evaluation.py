"""Differentially private policy evaluation (Balle, Gomrokchi and Precup 2016).

First-visit Monte Carlo: `cells` are pairs of a node and an action; an episode that visits cell s
gives one estimate of its value, the discounted sum of rewards from the first visit on. DP-LSW and
DP-LSL fit linear values Phi theta to the averages of these estimates, and release theta with noise.
Evaluating, acting greedily on what was released, and evaluating again is policy iteration.

Both fits are linear in rewards: theta = M r. With public states and actions M is public, and a
reward moves theta by at most range * max_t |M e_t|. That is exact, and what the baseline uses.
Where states are private too (unit trajectory) M is secret, and Balle et al. scale the noise to a
smooth bound of how far a trajectory moves theta (`lsw_deviation`, `lsl_deviation`).

Guarantee:
    Unit transition. Rows of M are rescaled to norm at most 1 by a public factor, and released by
    `reward_perturbation.weighted_sums`: one Gaussian mechanism over all rounds.

    Unit trajectory, one release. A trajectory moves the average of cell s by at most
    F / max(|X_s|, 1), F = range / (1 - discount), and this holds k trajectories away with
    max(|X_s| - k, 1). So S, the largest of e^(-k beta/2) times the bound k away, satisfies
    |theta - theta'| <= S and S <= e^(beta/2) S' for neighbours. Noise alpha S then costs a shift of
    1/alpha deviations and a change of scale by at most e^beta in each of d coordinates, which
    `smooth_delta` adds up: alpha and beta as in `smooth_constants` are (epsilon, delta)-DP wherever
    that is at most delta, which is checked and not assumed.

    For DP-LSL theta = A^-1 b, A = Phi' G Phi + mu, mu = lambda / (2 m). So
    theta - theta' = A'^-1 ((b - b') - (A - A') theta), where |A'^-1| <= 1 / mu,
    |b - b'| <= |Phi| F |rho|_2 / m, |A - A'| <= |Phi|^2 |rho|_inf / m, and |theta| is at most
    |G^(1/2) averages| / (2 sqrt(mu)) <= F sqrt(sum_s rho_s |X_s| / (2 lambda)). That is the bound
    of `lsl_deviation`: smaller than the printed one, and without a condition on lambda.

    The vault has no account for smooth sensitivities: these deviations are calibrations only.
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
        estimates: averages of first-visit estimates are `estimates @ rewards`; zero where nobody
            was.
        counts: |X_s|, how many episodes visited each cell.
        episodes: m.
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
    """How rewards add up to the averages of first-visit estimates.

    Args:
        cells: which cell each step was in, episode after episode.
        episode_ends: where an episode ends (or is cut off).
        discount: gamma.
        count: how many cells there are.
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
    """The pair of the nearest node and the action, as one index."""
    index, weight = grid.weights(jnp.asarray(observations))
    nearest = np.take_along_axis(
        np.asarray(index), np.asarray(weight).argmax(axis=-1, keepdims=True), axis=-1
    )[:, 0]
    return np.asarray(nearest * count + actions)


def lsw(
    features: Float[np.ndarray, "cells d"], weights: Float[np.ndarray, " cells"], visits: Visits
) -> Float[np.ndarray, "d steps"]:
    """DP-LSW before noise: theta = (Gamma^(1/2) Phi)^+ Gamma^(1/2) averages, linear in rewards.

    Args:
        features: Phi.
        weights: diagonal of Gamma. Under the unit transition they may depend on visits.
        visits: of the episodes.
    """
    root = np.sqrt(weights)[:, None]
    return np.asarray(np.linalg.pinv(root * features, rcond=1e-6) @ (root * visits.estimates))


def lsl(
    features: Float[np.ndarray, "cells d"],
    weights: Float[np.ndarray, " cells"],
    ridge: float,
    visits: Visits,
) -> Float[np.ndarray, "d steps"]:
    """DP-LSL before noise: (Phi' G Phi + lambda / (2 m))^-1 Phi' G averages, linear in rewards.

    G is diagonal, rho_s |X_s| / m.

    Args:
        features: Phi.
        weights: rho.
        ridge: lambda, positive.
        visits: of the episodes.
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
    """Each reward's weights, of norm at most 1, and the public factor they were divided by."""
    largest = float(np.linalg.norm(matrix, axis=0).max()) * (1 + 1e-6)  # float32 rounds weights
    factor = largest if largest > 0 else 1.0
    return matrix.T / factor, factor


# --- the unit of a trajectory: smooth sensitivity ------------------------------------------------


def smooth_constants(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """alpha and beta of Balle et al. 2016 (after Nissim, Raskhodnikova and Smith 2007), checked.

    Raises:
        ValueError: at this epsilon they do not give (epsilon, delta).
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
    """Delta at epsilon of noise alpha S in `size` coordinates, for a beta-smooth bound S.

    The noise of one neighbour is moved by at most 1/alpha deviations, costing (e1, d1) with d1 the
    analytic Gaussian mechanism's, and then changes its scale by at most e^beta, costing
    (e2, d2): the log-ratio is at most size beta where the scale grows, and
    (e^(2 beta) - 1) / 2 |z|^2 - size beta where it shrinks, |z|^2 being chi-square. Together
    (e1 + e2, d1 + e^e1 d2), in either order of the neighbours. The best split is taken.
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
    """Standard deviation of DP-LSW's noise for one trajectory; `weights` must be public constants.

    alpha F |(Gamma^(1/2) Phi)^+| sqrt(psi), with
    psi = max_k e^(-k beta) sum_s w_s / max(|X_s| - k, 1)^2.

    Args:
        features, weights: as in `lsw`.
        counts: |X_s|, private here.
        largest_return: F, if estimates lie in [0, F].
        epsilon, delta: of this release.
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
    """Standard deviation of DP-LSL's noise for one trajectory.

    2 alpha F |Phi| / D sqrt(psi), psi = max_k e^(-k beta) phi_k^2 and phi_k = |rho|_2 +
    |Phi| |rho|_inf / sqrt(2 lambda) sqrt(sum_s rho_s min(|X_s| + k, m)); D is lambda, and
    lambda - |Phi|^2 |rho|_inf as printed.

    Args:
        features, weights, ridge: as in `lsl`.
        counts: |X_s|, private here.
        episodes: m, public.
        largest_return: F, if estimates lie in [0, F].
        epsilon, delta: of this release.
        bound: which denominator.
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
        raise ValueError("DP-LSL as printed needs lambda above |Phi|^2 |rho|_inf; raise the ridge")
    return 2 * alpha * largest_return * norm / denominator * math.sqrt(psi)
