"""Theorem 1 of Gohari et al. 2021: its figures, its flaw, and the repair under attack."""

import math

import numpy as np
import pytest
from scipy import special

from sotto.privacy.accounting.composition import compose
from sotto.privacy.mechanisms.dirichlet.mechanism import Dirichlet
from sotto.privacy.mechanisms.dirichlet.sampling import below_threshold, log_dirichlet
from sotto.privacy.mechanisms.dirichlet.theorem1 import (
    paper_epsilon,
    paper_theorem1,
    repaired_epsilon,
    repaired_theorem1,
    threshold_for,
)

# m = 6, k = 5, delta 1e-5 at (floor, distance): paper (12), repaired, paper x 1000.
TABLE = {
    (0.01, 0.01): (49.3, 17.5, 66239),
    (0.01, 0.05): (179, 87.7, 2.6e5),
    (0.01, 0.1): (341, 175, 5.1e5),
    (0.05, 0.01): (13.9, 3.66, 17242),
    (0.05, 0.05): (40.5, 18.3, 57409),
    (0.05, 0.1): (73.8, 36.6, 1.1e5),
    (0.1, 0.01): (5.84, 1.87, 7533),
    (0.1, 0.05): (19.5, 9.37, 27986),
    (0.1, 0.1): (36.6, 18.7, 53553),
}


@pytest.mark.parametrize(("floor", "distance"), TABLE)
def test_the_published_figures(floor, distance) -> None:
    one, repaired, thousand = TABLE[floor, distance]
    assert paper_epsilon(6, 5.0, floor, distance, 1e-5, 1) == pytest.approx(one, rel=0.005)
    assert repaired_epsilon(6, 5.0, floor, distance, 1e-5, 1) == pytest.approx(repaired, rel=0.005)
    assert paper_epsilon(6, 5.0, floor, distance, 1e-5, 1000) == pytest.approx(thousand, rel=0.03)


def test_the_threshold_is_the_largest_that_delta_allows() -> None:
    tau = threshold_for(6, 5.0, 0.05, 1e-5)
    assert below_threshold(6, 5.0, 0.05, tau) <= 1e-5 < below_threshold(6, 5.0, 0.05, tau * 1.001)
    assert threshold_for(6, 1e-6, 0.05, 1e-5) == 0.0
    assert math.isinf(repaired_theorem1(6, 1e-6, 0.05, 0.01, 1e-5))
    assert math.isinf(paper_theorem1(6, 1e-6, 0.05, 0.01, 1e-5))


def test_the_papers_epsilon_does_not_vanish_with_the_distance_and_the_repaired_one_does() -> None:
    """(7) says epsilon = O(b ...), but (12) compares unrelated rows: it is 7.20 at b = 0."""
    assert paper_theorem1(6, 5.0, 0.05, 0.0, 1e-5) == pytest.approx(7.20, abs=0.01)
    assert repaired_theorem1(6, 5.0, 0.05, 0.0, 1e-5) == 0.0
    assert repaired_theorem1(6, 5.0, 0.05, 1e-6, 1e-5) < 1e-3


def test_the_log_likelihood_ratio_stays_below_the_repaired_epsilon() -> None:
    rng = np.random.default_rng(0)
    k, floor, distance, delta = 5.0, 0.05, 0.03, 0.01
    epsilon = repaired_theorem1(4, k, floor, distance, delta)
    tau = threshold_for(4, k, floor, delta)
    worst = 0.0
    for _ in range(200):
        b = k * ((1 - 4 * floor) * rng.dirichlet(np.full(4, 0.3)) + floor)
        d = rng.choice([[1, 1, -1, -1], [1, -1, 1, -1], rng.standard_normal(4)])
        d = (d - np.mean(d)) * k * distance / np.linalg.norm(d - np.mean(d))
        a = b + d
        if (a < k * floor).any():
            continue
        logs = log_dirichlet(np.tile(a, (500, 1)), rng)
        logs = logs[logs.min(axis=1) >= math.log(tau)]
        loss = logs @ (a - b) - (special.gammaln(a) - special.gammaln(b)).sum()
        worst = max(worst, loss.max())
    assert 0.3 * epsilon < worst <= epsilon


def test_composed_it_is_never_worse_than_basic_composition_and_looser_than_the_certificate() -> (
    None
):
    many = repaired_epsilon(6, 5.0, 0.1, 0.001, 1e-5, 200)
    assert many <= 200 * repaired_theorem1(6, 5.0, 0.1, 0.001, 1e-5 / 200)
    events = Dirichlet(actions=6, concentration=5, floor=0.1).events(0.001, 200)
    assert compose(events).epsilon(1e-5) < many
