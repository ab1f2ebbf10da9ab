"""Rows are repaired, mixed, rounded to the grid and projected."""

import numpy as np
import pytest
from scipy import optimize

from sotto.privacy.mechanisms.dirichlet.simplex import (
    GRID,
    as_policies,
    by_blocks,
    capped_distance,
    project,
    restrict,
    to_grid,
)


@pytest.mark.filterwarnings("error")
def test_what_is_no_row_is_the_nearest_one_and_nan_is_uniform() -> None:
    rows = np.array([[0.5, 0.7], [np.nan, 1], [-1, np.inf], [0, 0], [1e308, 1e308], [-2.0, 1]])
    expected = [[0.4, 0.6], [0.5, 0.5], [0, 1], *[[0.5, 0.5]] * 2, [0.0, 1.0]]
    np.testing.assert_allclose(as_policies(rows), expected, atol=1e-15)
    single = as_policies(np.array([[0.1, 0.9]], dtype=np.float32))
    assert single.dtype == np.float64
    assert abs(single.sum() - 1) < 1e-15


@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e300])
def test_policies_are_as_near_as_the_rows_were(scale: float) -> None:
    """Whatever the rows are: as where a teacher gives 1 minus the other probabilities."""
    rng = np.random.default_rng(0)
    for middle in (0.0, 1e-6, 1 / 4, 1.0):
        one, two = middle + scale * rng.normal(size=(2, 5000, 4))
        apart = np.linalg.norm(one - two, axis=1)
        moved = np.linalg.norm(as_policies(one) - as_policies(two), axis=1)
        assert np.all(moved <= apart + 1e-14)
    edges = np.array([[1.000001, -0.999e-6], [1.000001, -1.001e-6], [0.04, 0.96 - 6.5e-18]])
    for row in edges:
        near = row + np.array([1e-9, -1e-9])
        assert np.linalg.norm(as_policies(row[None]) - as_policies(near[None])) < 2e-9
    tiny = as_policies(np.array([[1e-6, 0.0], [0.0, 1e-6]]))
    assert np.linalg.norm(tiny[0] - tiny[1]) < 2e-6


def test_mixing_keeps_the_floor_and_shrinks_distances() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.dirichlet(np.full(5, 0.1), (2, 1000))
    mixed = restrict(one, 0.07), restrict(two, 0.07)
    assert min(rows.min() for rows in mixed) >= 0.07
    np.testing.assert_allclose(
        np.linalg.norm(mixed[0] - mixed[1], axis=1), 0.65 * np.linalg.norm(one - two, axis=1)
    )


def test_the_grid_moves_no_entry_by_more_than_its_width_and_sums_are_exact() -> None:
    rng = np.random.default_rng(1)
    rows = np.concatenate(
        [
            rng.dirichlet(np.full(7, 0.05), 20_000),
            np.eye(7),
            np.full((1, 7), 1 / 7),
            np.full((1, 7), (1 + 4e-16) / 7),
        ]
    )
    rounded = to_grid(rows)
    assert (rounded.sum(axis=1) == 1.0).all()
    assert (rounded >= 0).all()
    assert np.abs(rounded - rows).max() <= 7 / GRID
    np.testing.assert_array_equal(to_grid(rounded), rounded)


def test_projection_is_the_nearest_point_of_the_simplex() -> None:
    rng = np.random.default_rng(2)
    points = rng.normal(scale=0.7, size=(12, 4))
    for point, projected in zip(points, project(points), strict=True):
        nearest = optimize.minimize(
            lambda x, p=point: ((x - p) ** 2).sum(),
            np.full(4, 0.25),
            bounds=[(0, 1)] * 4,
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-14},
        ).x
        np.testing.assert_allclose(projected, nearest, atol=1e-6)


@pytest.mark.parametrize("total", [0.0, 1.0, 7.0])
def test_the_nearest_point_has_an_obtuse_angle_to_every_other(total: float) -> None:
    """This holds for the nearest point of a convex set, and for no other one."""
    rng = np.random.default_rng(7)
    points = rng.normal(0.3, 1.0, (200, 4))
    nearest = project(points, total)
    assert (nearest >= 0).all()
    np.testing.assert_allclose(nearest.sum(axis=1), total)
    corners = np.concatenate([np.eye(4), rng.dirichlet(np.ones(4), 300)]) * total
    products = np.einsum("na,nka->nk", points - nearest, corners[None] - nearest[:, None])
    assert products.max() < 1e-9
    each = np.full((200, 1), total)
    np.testing.assert_array_equal(project(points, each), nearest)
    np.testing.assert_array_equal(project(points[0], total), nearest[0])


def test_a_distance_is_capped_and_checked() -> None:
    assert capped_distance(0.3, 4, 0.2) == pytest.approx(np.sqrt(2) * 0.2)
    assert capped_distance(0.01, 4, 0.2) == 0.01
    assert capped_distance(0.01, 4, 0.25) == 0.0
    with pytest.raises(ValueError, match="not negative"):
        capped_distance(float("nan"), 4, 0.2)


def test_blocks_are_put_together_in_order_and_draw_for_themselves() -> None:
    rows = np.arange(20.0)[:, None]

    def noisy(block, generator):
        return np.hstack([block, generator.random(block.shape)])

    whole = by_blocks(noisy, rows, np.random.default_rng(0), block=6)
    np.testing.assert_array_equal(whole[:, 0], np.arange(20.0))
    assert len(np.unique(whole[:, 1])) == 20
    again = by_blocks(noisy, rows, np.random.default_rng(0), block=6)
    np.testing.assert_array_equal(whole, again)
