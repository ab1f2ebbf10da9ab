"""Rio et al. 2025: figure 3's formulas, and what is trained for table 1."""

import math

import numpy as np
import pytest
from references import gaussian_delta

from sotto.experiments.rio2025 import cells as rio2025
from sotto.experiments.rio2025.cells import Cell, Reported

EVERY = [row.env_id for row in rio2025.TABLE1]


def delta_of(epsilon, z):
    """Delta of one Gaussian release at sensitivity 1."""
    return gaussian_delta(1 / z, epsilon)


def test_the_tight_curve_is_exact_and_the_loose_one_is_valid():
    for point in rio2025.figure3((0.5, 1.0, 3.0, 6.0), delta=1e-5):
        z = point.noise_multiplier
        assert delta_of(point.tight, z) == pytest.approx(1e-5, rel=1e-4)
        assert delta_of(0.99 * point.tight, z) > 1.02e-5
        assert delta_of(point.zhao, z) < 1e-5
        assert delta_of(point.tight_replace_one, z / 2) == pytest.approx(1e-5, rel=1e-4)


def test_the_classical_formula_is_a_guarantee_below_epsilon_one_only():
    small, large = rio2025.figure3((0.25, 6.0), delta=1e-5)
    assert small.classical == pytest.approx(19.379, abs=1e-3)
    assert delta_of(small.classical, 0.25) > 1e-3  # it says 1e-5
    assert large.classical < 1
    assert delta_of(large.classical, 6.0) < 1e-5


def test_the_papers_formula_breaks_at_epsilon_one():
    """Appendix B.1: the classical mechanism below 1, Zhao et al. beyond."""
    assert rio2025.claimed_epsilon(6.0) == pytest.approx(4.8448 / 6, abs=1e-4)
    assert rio2025.claimed_epsilon(3.0) == pytest.approx(1.556, abs=1e-3)
    assert rio2025.claimed_epsilon(0.1) == pytest.approx(95.0, abs=0.05)
    # What it prints for Dosing (about 38 and 8) is the invalid formula at delta 1e-3.
    assert math.sqrt(2 * math.log(1.25e3)) / np.array([0.1, 0.5]) == pytest.approx(
        [37.8, 7.55], 1e-2
    )


def test_table_1_is_trained_where_the_paper_has_a_number():
    cells = rio2025.table1(EVERY, ("paper",))
    assert all(rio2025.reported(cell) is not None for cell in cells)
    assert [cell.env_id for cell in cells if cell.method == "a2c"] == [
        "HalfCheetah-v5",
        "Hopper-v5",
    ]
    private = [cell for cell in cells if cell.method == "dppg"]
    assert len(private) == 12
    assert {cell.env_id for cell in cells if cell.method == "ppo"} == set(EVERY)
    third = next(c for c in private if c.env_id == "Acrobot-v1" and c.noise_multiplier == 3.0)
    assert rio2025.reported(third) == Reported(-89.8, 7.6)


def test_our_preset_adds_its_goal_and_leaves_out_what_no_certificate_can_cover():
    cells = rio2025.table1(["Dosing-0", "CartPole-v1"], ("sotto",))
    noise = {
        env_id: [(c.noise_multiplier, c.target_epsilon) for c in cells if c.env_id == env_id][1:]
        for env_id in ("Dosing-0", "CartPole-v1")
    }
    assert noise["CartPole-v1"] == [(1.0, None), (3.0, None), (None, 0.05)]
    assert noise["Dosing-0"] == [(0.1, None), (0.5, None), (None, 0.1)]
    assert not rio2025.certifiable(0.08, rio2025.DELTA)
    assert rio2025.certifiable(0.1, rio2025.DELTA)


def test_a_cell_says_what_its_noise_is_worth():
    cell = Cell("CartPole-v1", "dppg", "paper", 1.0)
    assert delta_of(cell.noise_epsilon, 1.0) == pytest.approx(1e-5, rel=1e-4)
    assert Cell("CartPole-v1", "dppg", "sotto", target_epsilon=0.5).noise_epsilon == 0.5
    assert Cell("CartPole-v1", "ppo").noise_epsilon is None
    assert Cell("CartPole-v1", "ppo").claimed_epsilon is None


def test_cells_become_settings():
    private = Cell("Acrobot-v1", "dppg", "paper", 3.0, delta=1e-6, total_steps=4096).config()
    assert (private.noise_multiplier, private.target_epsilon) == (3.0, None)
    assert (private.delta, private.total_steps, private.is_proved) == (1e-6, 4096, False)
    for method in ("ppo", "a2c"):
        alone = Cell("Acrobot-v1", method, total_steps=4096).config()
        assert (type(alone).__name__, alone.total_steps) == (f"{method.upper()}Config", 4096)
