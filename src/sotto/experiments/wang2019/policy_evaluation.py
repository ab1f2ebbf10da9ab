"""Differentially private policy evaluation (Balle, Gomrokchi and Precup 2016).

The estimates are those of first-visit Monte Carlo. A cell is a pair of a node and an action. An
episode that visits cell s gives one estimate of its value, the discounted sum of rewards from the
first visit on. DP-LSW and DP-LSL fit linear values Phi theta to the averages of these estimates,
and release theta with noise. Policy iteration alternates between this evaluation and acting
greedily on the released values.

Both fits are linear in rewards, theta = M r. With public states and actions M is public, and a
reward moves theta by at most range * max_t |M e_t|. The baseline uses this exact bound. With
private states (unit trajectory) M is secret. Balle et al. then scale the noise to a smooth bound on
the effect of a trajectory on theta. No ledger accounts for such noise, so it is not offered.

Guarantee:
    Unit transition. A public factor rescales the columns of M to norm at most 1, and
    `reward_perturbation.weighted_sums` releases the sums. All rounds together are one Gaussian
    mechanism.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from sotto.algorithms.functional_q.nodes import Grid


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
