"""Policy evaluation: estimates, fits, and the effect of one reward or one trajectory."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from sotto.algorithms.functional_q.nodes import Grid
from sotto.experiments.wang2019 import policy_evaluation as evaluation

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


# --- smooth sensitivity --------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 0.45, 0.9, 2.0])
@pytest.mark.parametrize("size", [1, 10, 100])
def test_the_constants_of_smooth_sensitivity_are_checked(epsilon, size):
    alpha, beta = evaluation.smooth_constants(epsilon, 1e-4, size)
    assert evaluation.smooth_delta(alpha, beta, size, epsilon) <= 1e-4
    assert alpha == pytest.approx(5 * math.sqrt(2 * math.log(2e4)) / epsilon)


def test_constants_that_do_not_hold_are_refused():
    with pytest.raises(ValueError, match="smaller epsilon"):
        evaluation.smooth_constants(60.0, 1e-4, 1)


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
    assert 0 < truth <= evaluation.smooth_delta(alpha, beta, 1, epsilon) < 1


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
    alpha, beta = evaluation.smooth_constants(epsilon, delta, 2)
    if kind == "lsw":

        def fit(visits):
            return evaluation.lsw(features, weights, visits)

        def deviation(counts):
            return evaluation.lsw_deviation(features, weights, counts, largest, epsilon, delta)
    else:

        def fit(visits):
            return evaluation.lsl(features, weights, ridge, visits)

        def deviation(counts):
            return evaluation.lsl_deviation(
                features, weights, ridge, counts, 6, largest, epsilon, delta
            )

    for _ in range(200):
        distance, bound, neighbours_bound = _moved(fit, deviation, rng, alpha)
        assert distance <= min(bound, neighbours_bound)
        assert abs(math.log(bound / neighbours_bound)) <= beta / 2 + 1e-12


def test_the_printed_bound_of_lsl_is_looser():
    features, weights = np.eye(3), np.ones(3)
    counts = np.array([4, 2, 6])

    def of(ridge, bound):
        return evaluation.lsl_deviation(
            features, weights, ridge, counts, 6, 5.0, 0.9, 1e-4, bound=bound
        )

    assert of(4.0, "ours") == pytest.approx(of(4.0, "printed") * 3 / 4)
    with pytest.raises(ValueError, match="raise the ridge"):
        of(0.5, "printed")
    assert of(0.5, "ours") > 0


def test_lsl_needs_a_ridge():
    visits = evaluation.first_visits(np.zeros(2, int), np.array([False, True]), 0.9, 1)
    with pytest.raises(ValueError, match="positive ridge"):
        evaluation.lsl(np.eye(1), np.ones(1), 0.0, visits)
