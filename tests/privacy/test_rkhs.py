"""Norms and sensitivities, against quadrature, brute force, and matrices."""

import itertools
import math

import numpy as np
import pytest
from norms import norm_1d, norm_at_points
from scipy import integrate

from sotto.privacy.mechanisms.functions.rkhs import (
    Sensitivity,
    generic_sensitivity,
    hat_basis_beta,
    hat_basis_sensitivity,
    vector_sensitivity,
)


def mahalanobis(points: np.ndarray, values: np.ndarray, beta: float) -> float:
    distance = np.abs(points[:, None] - points[None])
    return math.sqrt(values @ np.linalg.solve(np.exp(-beta * distance), values))


@pytest.mark.parametrize("beta", [0.5, 1.0, 24.0])
def test_the_norm_is_the_formula_and_the_limit_of_matrices(beta: float) -> None:
    nodes, values = np.array([0.0, 0.2, 0.7, 1.0]), np.array([1.0, -2.0, 0.5, 3.0])

    def f(x: float) -> float:
        return float(np.interp(x, nodes, values))

    slopes = np.diff(values) / np.diff(nodes)
    squares = integrate.quad(lambda x: f(x) ** 2, 0, 1, points=[0.2, 0.7])[0]
    expected = (f(0) ** 2 + f(1) ** 2) / 2 + np.sum(slopes**2 * np.diff(nodes)) / (2 * beta)
    expected = math.sqrt(expected + beta / 2 * squares)
    norm = norm_1d(nodes, values, beta)
    assert norm == pytest.approx(expected, rel=1e-9)
    coarse, fine = (np.unique([*np.linspace(0, 1, n), *nodes]) for n in (30, 400))
    at_coarse = mahalanobis(coarse, np.interp(coarse, nodes, values), beta)
    at_fine = mahalanobis(fine, np.interp(fine, nodes, values), beta)
    assert at_coarse < at_fine < norm
    assert at_fine == pytest.approx(norm, rel=2e-3)


def test_the_norm_at_points_is_that_of_the_matrix() -> None:
    generator = np.random.default_rng(0)
    points, values = np.sort(generator.random(30)), generator.standard_normal(30)
    assert norm_at_points(points, values, 3.0) == pytest.approx(
        mahalanobis(points, values, 3.0), rel=1e-8
    )


@pytest.mark.parametrize("nodes", [2, 6])
def test_a_hat_basis_is_as_sensitive_as_the_worst_signs(nodes: int) -> None:
    places = np.linspace(0, 1, nodes)

    def worst(beta: float) -> float:
        signs = itertools.product((-1.0, 1.0), repeat=nodes)
        return max(norm_1d(places, np.array(one), beta) for one in signs)

    exact, beta = hat_basis_sensitivity(nodes, 1, 1.0).value, hat_basis_beta(nodes)
    assert exact == pytest.approx(worst(beta), rel=1e-12)
    assert exact < min(worst(factor * beta) for factor in (0.2, 0.6, 1.2, 4.0))
    inside = np.random.default_rng(1).uniform(-1, 1, (200, nodes))
    assert max(norm_1d(places, values, beta) for values in inside) < exact
    assert hat_basis_sensitivity(nodes, 4, 3.0).value == pytest.approx(6 * exact)


@pytest.mark.parametrize(("nodes", "actions"), [(2, 1), (11, 2), (21, 4)])
def test_figures_of_section_13_of_privacy(nodes: int, actions: int) -> None:
    best = hat_basis_sensitivity(nodes, actions, 0.5)
    squared = 0.25 * actions * (1 + math.sqrt(6) / 2 * (nodes - 1))
    assert best.value**2 == pytest.approx(squared)
    assert best.beta == pytest.approx(math.sqrt(6) * (nodes - 1)) == hat_basis_beta(nodes)
    vector = vector_sensitivity(nodes, actions, 0.5)
    assert vector.value**2 == pytest.approx(0.25 * nodes * actions)
    assert vector.beta is None
    # The bound for any Lipschitz function is larger: 22.7 instead of 18.0 for 11 nodes.
    generic = generic_sensitivity(0.5, (nodes - 1) * 1.0, actions, 1.0)
    assert generic.value > best.value


def test_the_generic_bound_holds_and_is_least_at_its_own_beta() -> None:
    sup, slope = 2.0, 7.0
    best = generic_sensitivity(sup, slope, 1, 1.0)
    assert best.beta == pytest.approx(3.5)
    assert best.value**2 == pytest.approx(sup**2 + sup * slope)

    def bound(beta: float) -> float:
        return math.sqrt(sup**2 * (1 + beta / 2) + slope**2 / (2 * beta))

    assert best.value == pytest.approx(bound(3.5))
    assert best.value < min(map(bound, (1.0, 3.0, 4.0, 9.0)))
    nodes, generator = np.linspace(0, 1, 8), np.random.default_rng(2)
    for beta in (0.3, 3.5, 40.0):
        for _ in range(200):
            steps = generator.uniform(-slope / 7, slope / 7, 7)
            values = np.clip(generator.uniform(-sup, sup) + np.cumsum([0, *steps]), -sup, sup)
            assert norm_1d(nodes, values, beta) <= bound(beta)


def mixed_partials_bound(
    bounds: dict[tuple[int, ...], float], dimensions: int, actions: int, beta: float
) -> float:
    """Returns the sensitivity of functions on [0, 1]^d with bounded mixed derivatives.

    |f|_H^2 <= sum over subsets S of the axes of
    (1 + beta/2)^(d - |S|) (2 beta)^-|S| sup |d_S f|^2, for each action.
    """
    return math.sqrt(
        actions
        * sum(
            bounds[axes] ** 2 * (1 + beta / 2) ** (dimensions - size) / (2 * beta) ** size
            for size in range(dimensions + 1)
            for axes in itertools.combinations(range(dimensions), size)
        )
    )


def norm_on_square(f: object, size: int, beta: float) -> float:
    axis = np.linspace(0, 1, size)
    decay = math.exp(-beta / (size - 1))
    white = f(axis[:, None], axis[None, :]) + np.zeros((size, size))  # type: ignore[operator]
    for _ in range(2):
        white = white.T.copy()
        white[1:] = (white[1:] - decay * white[:-1]) / math.sqrt(1 - decay**2)
    return float(np.square(white).sum())


def test_in_two_dimensions_mixed_derivatives_bound_the_norm() -> None:
    beta = 2.0

    def f(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.tanh(3 * (x - y))

    # tanh' <= 1 and |tanh''| <= 4 / (3 sqrt 3), times 3 for each derivative.
    bounds = {(): 1.0, (0,): 3.0, (1,): 3.0, (0, 1): 9 * 4 / (3 * math.sqrt(3))}
    bound = mixed_partials_bound(bounds, 2, 1, beta) ** 2
    norms = [norm_on_square(f, size, beta) for size in (65, 257, 513)]
    assert norms[2] == pytest.approx(norms[1], rel=0.02)  # converges below the bound
    assert norms[2] < bound
    one = mixed_partials_bound({(): 2.0, (0,): 7.0}, 1, 3, 3.5)
    assert one == pytest.approx(generic_sensitivity(2.0, 7.0, 3, 1.0).value)


def test_relu_functions_are_not_in_the_space_beyond_one_dimension() -> None:
    """The norm keeps doubling on finer grids, so no noise hides such a difference."""
    norms = [
        norm_on_square(lambda x, y: np.maximum(x + y - 0.8, 0), size, 2.0) for size in (17, 65, 257)
    ]
    assert norms[1] > 1.5 * norms[0]
    assert norms[2] > 2 * norms[1]


@pytest.mark.parametrize(
    "ask",
    [
        lambda: Sensitivity(0.0, None, "", 1.0),
        lambda: Sensitivity(math.inf, None, "", 1.0),
        lambda: Sensitivity(1.0, -1.0, "", 1.0),
        lambda: Sensitivity(1.0, None, "", 0.0),
        lambda: vector_sensitivity(0, 1, 1.0),
        lambda: hat_basis_sensitivity(1, 1, 1.0),
        lambda: hat_basis_sensitivity(3, 1, math.nan),
        lambda: generic_sensitivity(1.0, 0.0, 1, 1.0),
    ],
)
def test_nonsense_is_refused(ask: object) -> None:
    with pytest.raises(ValueError, match=r"must|nodes|needs"):
        ask()  # type: ignore[operator]
