"""Policy evaluation: estimates, fits, and the effect of one reward or one trajectory."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from sotto.algorithms.functional_q.nodes import Grid
from sotto.experiments.wang2019 import policy_evaluation as evaluation
from sotto.privacy.accounting.composition import delta_of_shift

_DISCOUNT = 0.8


def _episodes(rng, episodes=6, length=5, cells=4):
    visited = rng.integers(0, cells, episodes * length)
    ends = np.zeros(visited.size, bool)
    ends[length - 1 :: length] = True
    return visited, ends


def _brute_force(visited, ends, rewards, cells):
    """Returns first-visit estimates, computed one episode and one cell at a time."""
    estimates = [[] for _ in range(cells)]
    first = 0
    for stop in np.flatnonzero(ends) + 1:
        for cell in range(cells):
            at = [t for t in range(first, stop) if visited[t] == cell]
            if at:
                value = sum(_DISCOUNT ** (t - at[0]) * rewards[t] for t in range(at[0], stop))
                estimates[cell].append(value)
        first = stop
    return estimates


def test_first_visits_are_first_visit_monte_carlo():
    rng = np.random.default_rng(0)
    visited, ends = _episodes(rng)
    rewards = rng.random(visited.size)
    visits = evaluation.first_visits(visited, ends, _DISCOUNT, 5)
    wanted = _brute_force(visited, ends, rewards, 5)
    assert visits.counts.tolist() == [len(one) for one in wanted]
    assert visits.episodes == 6
    averages = [np.mean(one) if one else 0.0 for one in wanted]
    np.testing.assert_allclose(visits.estimates @ rewards, averages, atol=1e-12)


def test_fits_solve_their_least_squares():
    rng = np.random.default_rng(1)
    visited, ends = _episodes(rng)
    rewards = rng.random(visited.size)
    visits = evaluation.first_visits(visited, ends, _DISCOUNT, 4)
    features, weights = rng.normal(size=(4, 2)), rng.random(4) + 0.5
    averages = visits.estimates @ rewards

    theta = evaluation.lsw(features, weights, visits) @ rewards
    gradient = features.T @ (weights * (features @ theta - averages))
    np.testing.assert_allclose(gradient, 0, atol=1e-9)

    ridge, episodes = 1.7, visits.episodes
    theta = evaluation.lsl(features, weights, ridge, visits) @ rewards

    def objective(theta):
        every = _brute_force(visited, ends, rewards, 4)
        errors = [
            weights[s] * (value - features[s] @ theta) ** 2 for s in range(4) for value in every[s]
        ]
        return sum(errors) / episodes + ridge / (2 * episodes) * theta @ theta

    for step in np.eye(2) * 1e-4:
        assert objective(theta) < min(objective(theta + step), objective(theta - step))


def test_nearest_cells_are_of_nodes_and_actions():
    grid = Grid((0.0,), (1.0,), (11,))
    observations, actions = np.array([[0.04], [0.06], [1.0]]), np.array([1, 0, 1])
    cells = evaluation.nearest_cells(grid, observations, actions, 2)
    assert cells.tolist() == [1, 2, 21]


def test_columns_bound_what_a_reward_moves():
    rng = np.random.default_rng(2)
    matrix = rng.normal(size=(3, 7))
    columns, factor = evaluation.unit_columns(matrix)
    norms = np.linalg.norm(columns, axis=1)
    assert norms.max() == pytest.approx(1, abs=1e-5)
    assert norms.max() < 1
    np.testing.assert_allclose(columns.T * factor, matrix)


def test_columns_of_nothing_are_nothing():
    columns, factor = evaluation.unit_columns(np.zeros((2, 3)))
    assert factor == 1
    assert not columns.any()


def test_lsl_needs_a_ridge():
    visits = evaluation.first_visits(np.zeros(2, int), np.array([False, True]), 0.9, 1)
    with pytest.raises(ValueError, match="positive ridge"):
        evaluation.lsl(np.eye(1), np.ones(1), 0.0, visits)


# --- smooth sensitivity, with which sotto does not release ---------------------------------------
#
# A trajectory moves the average of cell s by at most F / max(|X_s|, 1), F = range / (1 - discount).
# For data that differ in k trajectories the bound is F / max(|X_s| - k, 1). Let S be the largest of
# e^(-k beta/2) times the bound for k. Then |theta - theta'| <= S and S <= e^(beta/2) S' for
# neighbours. Noise alpha S costs a shift of 1/alpha deviations and a change of scale by at most
# e^beta in each of d coordinates, and `smooth_delta` adds these up. The release is
# (epsilon, delta)-DP if that sum is at most delta.
#
# For DP-LSL theta = A^-1 b, A = Phi' G Phi + mu, mu = lambda / (2 m). So
# theta - theta' = A'^-1 ((b - b') - (A - A') theta), where |A'^-1| <= 1 / mu,
# |b - b'| <= |Phi| F |rho|_2 / m, |A - A'| <= |Phi|^2 |rho|_inf / m, and |theta| is at most
# |G^(1/2) averages| / (2 sqrt(mu)) <= F sqrt(sum_s rho_s |X_s| / (2 lambda)). This is the bound of
# `lsl_deviation`. It is smaller than the printed one and needs no condition on lambda.


def smooth_constants(epsilon, delta, size):
    """Returns alpha and beta of Balle et al. 2016, after Nissim, Raskhodnikova and Smith 2007."""
    tail = math.log(2 / delta)
    return 5 * math.sqrt(2 * tail) / epsilon, epsilon / 4 / (size + tail)


def smooth_delta(alpha, beta, size, epsilon):
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
        reached = min(reached, delta_of_shift(1 / alpha, moved) + math.exp(moved) * tail)
    return reached


def lsw_deviation(features, weights, counts, largest_return, epsilon, delta):
    """Returns the standard deviation of DP-LSW's noise for the unit trajectory.

    It is alpha F |(Gamma^(1/2) Phi)^+| sqrt(psi), with
    psi = max_k e^(-k beta) sum_s w_s / max(|X_s| - k, 1)^2.
    """
    alpha, beta = smooth_constants(epsilon, delta, features.shape[1])
    inverse = np.linalg.pinv(np.sqrt(weights)[:, None] * features)
    away = np.arange(int(counts.max()) + 1)
    bounds = (weights / np.maximum(counts - away[:, None], 1) ** 2).sum(axis=1)
    psi = float((np.exp(-away * beta) * bounds).max())
    return alpha * largest_return * float(np.linalg.norm(inverse, 2)) * math.sqrt(psi)


def lsl_deviation(
    features, weights, ridge, counts, episodes, largest_return, epsilon, delta, printed=False
):
    """Returns the standard deviation of DP-LSL's noise for the unit trajectory.

    It is 2 alpha F |Phi| / D sqrt(psi), with psi = max_k e^(-k beta) phi_k^2 and phi_k = |rho|_2 +
    |Phi| |rho|_inf / sqrt(2 lambda) sqrt(sum_s rho_s min(|X_s| + k, m)). The denominator D is
    lambda here, and lambda - |Phi|^2 |rho|_inf in the paper.
    """
    alpha, beta = smooth_constants(epsilon, delta, features.shape[1])
    norm = float(np.linalg.norm(features, 2))
    highest = float(weights.max())
    away = np.arange(episodes + 1)
    mass = (weights * np.minimum(counts + away[:, None], episodes)).sum(axis=1)
    phi = norm * highest / math.sqrt(2 * ridge) * np.sqrt(mass) + float(np.linalg.norm(weights))
    psi = float((np.exp(-away * beta) * phi**2).max())
    denominator = ridge - norm**2 * highest if printed else ridge
    return 2 * alpha * largest_return * norm / denominator * math.sqrt(psi)


@pytest.mark.parametrize("epsilon", [0.1, 0.45, 0.9, 2.0])
@pytest.mark.parametrize("size", [1, 10, 100])
def test_the_constants_of_smooth_sensitivity_are_checked(epsilon, size):
    alpha, beta = smooth_constants(epsilon, 1e-4, size)
    assert smooth_delta(alpha, beta, size, epsilon) <= 1e-4
    assert alpha == pytest.approx(5 * math.sqrt(2 * math.log(2e4)) / epsilon)


def test_the_constants_do_not_hold_at_every_epsilon():
    alpha, beta = smooth_constants(60.0, 1e-4, 1)
    assert smooth_delta(alpha, beta, 1, 60.0) > 1e-4


@pytest.mark.parametrize("grows", [True, False])
def test_smooth_delta_bounds_the_truth(grows):
    """Integrates one coordinate, for means 1/alpha apart and scales e^beta apart."""
    alpha, beta, epsilon = 1.0, 0.15, 1.0
    ratio = math.exp(beta if grows else -beta)

    def excess(x):
        one = stats.norm.pdf(x, 0, 1)
        other = stats.norm.pdf(x, 1 / alpha, ratio)
        return max(one - math.exp(epsilon) * other, 0.0)

    truth, _ = integrate.quad(excess, -20, 20, limit=500)
    assert 0 < truth <= smooth_delta(alpha, beta, 1, epsilon) < 1


def _moved(fit, deviation, rng, factor):
    """Replaces one trajectory; returns the change of theta and both smooth bounds."""
    visited, ends = _episodes(rng)
    rewards = (rng.random(visited.size) < 0.5).astype(float)
    other, changed = visited.copy(), rewards.copy()
    other[:5] = rng.integers(0, 4, 5)
    changed[:5] = 1 - changed[:5]
    one = evaluation.first_visits(visited, ends, _DISCOUNT, 4)
    two = evaluation.first_visits(other, ends, _DISCOUNT, 4)
    distance = np.linalg.norm(fit(one) @ rewards - fit(two) @ changed)
    return distance, deviation(one.counts) / factor, deviation(two.counts) / factor


@pytest.mark.parametrize("kind", ["lsw", "lsl"])
def test_a_trajectory_moves_theta_by_at_most_the_smooth_bound(kind):
    rng = np.random.default_rng(3)
    features, weights, ridge = rng.normal(size=(4, 2)), rng.random(4) + 0.5, 2.0
    largest, epsilon, delta = 1 / (1 - _DISCOUNT), 0.9, 1e-4
    alpha, beta = smooth_constants(epsilon, delta, 2)
    if kind == "lsw":

        def fit(visits):
            return evaluation.lsw(features, weights, visits)

        def deviation(counts):
            return lsw_deviation(features, weights, counts, largest, epsilon, delta)
    else:

        def fit(visits):
            return evaluation.lsl(features, weights, ridge, visits)

        def deviation(counts):
            return lsl_deviation(features, weights, ridge, counts, 6, largest, epsilon, delta)

    for _ in range(200):
        distance, bound, neighbours_bound = _moved(fit, deviation, rng, alpha)
        assert distance <= min(bound, neighbours_bound)
        assert abs(math.log(bound / neighbours_bound)) <= beta / 2 + 1e-12


def test_the_printed_bound_of_lsl_is_looser():
    features, weights = np.eye(3), np.ones(3)
    counts = np.array([4, 2, 6])

    def of(ridge, printed):
        return lsl_deviation(features, weights, ridge, counts, 6, 5.0, 0.9, 1e-4, printed)

    assert of(4.0, printed=False) == pytest.approx(of(4.0, printed=True) * 3 / 4)
    assert of(0.5, printed=True) < 0 < of(0.5, printed=False)  # the paper needs a larger lambda
