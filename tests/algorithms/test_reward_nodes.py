"""Grids of nodes: interpolation, averages, and fits to noisy sums."""

import jax.numpy as jnp
import numpy as np
import pytest

from sotto.algorithms.functional_q.nodes import (
    Grid,
    GridValues,
    averages,
    by_action,
    fit,
    largest_share,
    mesh,
)

GRID = Grid((0.0, -1.0, 5.0), (1.0, 2.0, 6.0), (3, 4, 1))
RNG = np.random.default_rng(0)
POINTS = RNG.random((500, 3)) * [1, 3, 1] + [0, -1, 5]


def test_weights_are_those_of_linear_interpolation() -> None:
    linear = lambda p: 2 * p[:, 0] - p[:, 1] + 1  # noqa: E731
    weights = GRID.matrix(POINTS)
    assert weights.shape == (500, 12)
    assert weights.data.min() >= 0
    np.testing.assert_allclose(np.asarray(weights.sum(axis=1)).ravel(), 1.0, atol=1e-15)
    np.testing.assert_allclose(weights @ linear(mesh(GRID)), linear(POINTS), atol=1e-12)
    np.testing.assert_array_equal(GRID.matrix(mesh(GRID)).toarray(), np.eye(12))


def test_numpy_and_jax_agree() -> None:
    dense = GRID.matrix(POINTS).toarray()
    np.testing.assert_allclose(GRID.spread(jnp.asarray(POINTS, jnp.float32)), dense, atol=1e-5)
    table = RNG.random((12, 2))
    found = GRID.interpolate(jnp.asarray(table, jnp.float32), jnp.asarray(POINTS, jnp.float32))
    np.testing.assert_allclose(found, dense @ table, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 4])
def test_points_of_another_length_are_refused(length: int) -> None:
    values = GridValues(jnp.zeros((12, 2)), GRID)
    for points in (jnp.ones((5, length)), jnp.ones(length)):
        with pytest.raises(ValueError, match=f"must have 3 numbers, got {length}"):
            values(points)
    with pytest.raises(ValueError, match=f"must have 3 numbers, got {length}"):
        GRID.matrix(np.ones((5, length)))


def test_points_beyond_the_box_count_as_the_nearest_in_it() -> None:
    far = np.array([[-9.0, 9.0, 0.0], [np.inf, -np.inf, 5.0]])
    near = np.array([[0.0, 2.0, 5.0], [1.0, -1.0, 5.0]])
    np.testing.assert_array_equal(GRID.matrix(far).toarray(), GRID.matrix(near).toarray())


def test_averages_do_not_expand_and_unvisited_nodes_are_public() -> None:
    left = POINTS[POINTS[:, 0] < 0.5]
    weights = GRID.matrix(left)
    values = RNG.random(len(left))
    changed = values + RNG.choice([-1, 1], len(left)) * 0.3
    first, second = averages(weights, values, 7.0), averages(weights, changed, 7.0)
    assert np.abs(first - second).max() <= 0.3 + 1e-12
    assert (first[8:] == 7).all()  # at the right end nobody was
    assert (second[8:] == 7).all()


def test_how_much_one_row_can_move_the_averages() -> None:
    actions = RNG.integers(0, 2, 500)
    weights = by_action(GRID.matrix(POINTS), actions, 2)
    np.testing.assert_array_equal(
        weights.toarray().reshape(500, 12, 2)[np.arange(500), :, actions],
        GRID.matrix(POINTS).toarray(),
    )
    largest, norm = largest_share(weights)
    values = np.zeros(500)
    moved = []
    for row in range(500):
        one = values.copy()
        one[row] = 1.0
        moved.append(averages(weights, one, 0.0))
    assert largest == pytest.approx(np.abs(moved).max())
    assert norm == pytest.approx(np.linalg.norm(moved, axis=1).max())


def test_fit_is_least_squares_without_noise_and_the_middle_without_visits() -> None:
    truth = RNG.random(12)
    weights = GRID.matrix(POINTS)
    sums = weights.T @ (weights @ truth)
    np.testing.assert_allclose(fit(sums, weights, 1e-6, 1.0), truth, atol=1e-6)
    left = GRID.matrix(POINTS[POINTS[:, 0] < 0.5])
    found = fit(left.T @ (left @ truth) + 3 * RNG.standard_normal(12), left, 3.0, 0.3)
    assert (found[8:] == 0).all()
    assert np.abs(fit(sums, weights, 1e6, 1.0)).max() < 1e-3


def test_fit_is_the_posterior_mean() -> None:
    """On average over truths and noise, the fit is closer than with a wrong prior."""
    weights = GRID.matrix(POINTS[:60])
    gram = (weights.T @ weights).toarray()
    errors = dict.fromkeys((0.3, 1.0, 3.0), 0.0)
    for _ in range(300):
        truth = 0.3 * RNG.standard_normal(12)
        sums = gram @ truth + RNG.standard_normal(12)
        for scale in errors:
            errors[scale] += float(np.sum((fit(sums, weights, 1.0, 0.3 * scale) - truth) ** 2))
    assert errors[1.0] == min(errors.values())


@pytest.mark.parametrize(
    ("low", "high", "nodes", "message"),
    [
        ((0.0,), (1.0, 2.0), (3,), "each dimension"),
        ((1.0,), (1.0,), (3,), "below node_high"),
        ((0.0,), (1.0,), (0,), "at least 1"),
    ],
)
def test_what_is_no_grid(low, high, nodes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Grid(low, high, nodes)
