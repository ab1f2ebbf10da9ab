"""Radii: the valid ones cover on a grid of rows, in a test that the paper's Lemma 1 fails."""

import math

import numpy as np
import pytest

from sotto.privacy.mechanisms.dirichlet.radius import (
    chi_square_radius,
    estimated_radius,
    lemma1_radius,
    markov_radius,
    policy_grid,
    radii,
    valid_radius,
)
from sotto.privacy.mechanisms.policies import Dirichlet, GaussianPolicy, TruncatedDirichlet

BETAS = (0.05, 0.1, 0.5, 0.9)
SAMPLES = 4000


def uncovered(mechanism, seed=0):
    """Returns distances of answers from every row of the grid [rows, samples]."""
    generator = np.random.default_rng(seed)
    return np.stack(
        [
            np.linalg.norm(
                mechanism.answer(np.tile(row, (SAMPLES, 1)), generator)
                - mechanism.restrict(row[None]),
                axis=1,
            )
            for row in policy_grid(mechanism.actions)
        ]
    )


def covers(distances, radius, beta):
    """Returns whether no row of the grid is certain to exceed the radius too often."""
    missed = (distances > radius).mean(axis=1).max()
    return missed <= beta + 5 * math.sqrt(beta * (1 - beta) / SAMPLES)


MECHANISMS = [
    Dirichlet(actions=6, concentration=5, floor=1e-3),
    Dirichlet(actions=6, concentration=0.01, floor=0.05),
    Dirichlet(actions=2, concentration=100, floor=0.01),
    Dirichlet(actions=18, concentration=30, floor=0.01),
    TruncatedDirichlet.sized(actions=6, concentration=20, floor=0.1, threshold=0.001),
    TruncatedDirichlet.sized(actions=3, concentration=0.5, floor=0.2, threshold=0.05),
    GaussianPolicy(actions=6, noise_stddev=0.05),
    GaussianPolicy(actions=4, noise_stddev=1.0, floor=0.1),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: f"{m.kind}-{m.actions}")
def test_every_valid_radius_covers_and_the_papers_does_not(mechanism) -> None:
    distances = uncovered(mechanism)
    for beta in BETAS:
        for one in radii(mechanism, beta):
            if one.status == "valid":
                assert covers(distances, one.value, beta), one
        estimate = estimated_radius(mechanism, beta, np.random.default_rng(1), samples=4000)
        assert estimate.status == "estimated"
        assert covers(distances, estimate.value, beta)
    if mechanism == MECHANISMS[0]:
        assert not covers(distances, lemma1_radius(5, 0.05), 0.05)
        assert not covers(distances, lemma1_radius(5, 0.5), 0.5)


def test_only_the_papers_radius_is_called_invalid() -> None:
    for mechanism in MECHANISMS:
        for one in radii(mechanism, 0.05):
            assert (one.status == "invalid") == ("Lemma 1" in one.method)


def test_published_figures() -> None:
    """The figures are for m = 6 and k = 5."""
    assert chi_square_radius(6, 5, 0.05) == pytest.approx(1.25, abs=0.005)
    assert markov_radius(6, 5, 0.5) == pytest.approx(0.527, abs=0.001)
    assert lemma1_radius(5, 0.05) == pytest.approx(0.4996, abs=1e-4)
    mechanism = MECHANISMS[0]
    assert valid_radius(mechanism, 0.5) == markov_radius(6, 5, 0.5)
    estimate = estimated_radius(mechanism, 0.05, np.random.default_rng(0))
    assert 0.55 < estimate.value < 0.58


def test_in_one_direction_four_would_not_do() -> None:
    """The directional proxy is 1/(2 (k+1)). With 1/(4 (k+1)) it fails at m = 2, k = 100."""
    beta, generator = 1e-3, np.random.default_rng(0)
    z = generator.beta(50, 50, 400_000)
    distance = math.sqrt(2) * np.abs(z - 0.5)
    assert (distance > chi_square_radius(2, 100, beta)).mean() <= beta
    assert (distance > chi_square_radius(2, 100, beta) / math.sqrt(2)).mean() > 1.1 * beta


def test_the_diameter_is_attained() -> None:
    widest = next(r for r in radii(MECHANISMS[1], 0.05) if r.method == "diameter").value
    row = np.full(6, 0.05)
    row[1] = 0.75
    assert widest == pytest.approx(np.linalg.norm(np.eye(6)[0] - row))


def test_the_grid_holds_the_uniform_row_the_corners_and_rows_between() -> None:
    for actions in (2, 4, 6, 18):
        grid = policy_grid(actions)
        np.testing.assert_allclose(grid.sum(axis=1), 1)
        assert (grid[0] == 1 / actions).all()
        assert (grid[1] == np.eye(actions)[0]).all()
        assert len(np.unique(np.round(grid, 9), axis=0)) >= len(grid) - 1


def test_nonsense_is_refused() -> None:
    for beta in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="beta"):
            radii(MECHANISMS[0], beta)
    with pytest.raises(ValueError, match="samples are too few"):
        estimated_radius(MECHANISMS[0], 0.001, np.random.default_rng(0), samples=1000)
