"""Dirichlet draws: their law at any concentration, and bounds on the acceptance of proposals."""

import numpy as np
import pytest
from scipy import integrate, special, stats

from sotto.privacy.mechanisms.dirichlet import sampling
from sotto.privacy.mechanisms.dirichlet.sampling import (
    acceptance,
    below_threshold,
    log_dirichlet,
    truncated_dirichlet,
)

KINDS = ("dirichlet", "power-law")


def vertex(m, floor):
    row = np.full(m, floor)
    row[0] = 1 - (m - 1) * floor
    return row


@pytest.mark.parametrize("total", [1e-12, 1e-6, 1e-3])
def test_logarithms_are_finite_and_have_the_right_law_at_tiny_concentrations(total) -> None:
    """For small k, k log z_i is minus an exponential variate over pi_i, or 0 for the winner."""
    row = np.array([0.5, 0.3, 0.2])
    logs = log_dirichlet(np.tile(total * row, (20_000, 1)), np.random.default_rng(0))
    assert np.isfinite(logs).all()
    np.testing.assert_allclose(special.logsumexp(logs, axis=1), 0, atol=1e-9)
    # The winner has log z near 0. The rates are pi_i, so P(i wins) = pi_i.
    np.testing.assert_allclose(
        np.bincount(logs.argmax(axis=1), minlength=3) / 20_000, row, atol=0.015
    )
    second = -np.sort(total * logs, axis=1)[:, 1]
    # E = -k log z_i of the loser i is exponential with rate pi_i, from the winner's value on.
    loser = np.argsort(logs, axis=1)[:, 1]
    for i in range(3):
        one = second[loser == i]
        assert stats.kstest(one, stats.expon(scale=one.mean()).cdf).pvalue > 1e-4


def test_moderate_draws_are_dirichlet() -> None:
    a = np.array([0.25, 1.0, 3.75])
    z = np.exp(log_dirichlet(np.tile(a, (20_000, 1)), np.random.default_rng(1)))
    for i in range(3):
        assert stats.kstest(z[:, i], stats.beta(a[i], 5 - a[i]).cdf).pvalue > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_draws_have_the_truncated_law(kind) -> None:
    """The distribution function for two actions comes from integration."""
    a, tau = np.array([0.4, 1.3]), 0.05
    z = truncated_dirichlet(np.tile(a, (10_000, 1)), tau, 60, kind, np.random.default_rng(2))[:, 0]
    grid = np.linspace(tau, 1 - tau, 2001)
    density = grid ** (a[0] - 1) * (1 - grid) ** (a[1] - 1)
    cumulative = integrate.cumulative_trapezoid(density, grid, initial=0)
    ks = stats.kstest(z, lambda x: np.interp(x, grid, cumulative / cumulative[-1]))
    assert ks.pvalue > 1e-4


def test_both_kinds_of_proposals_draw_from_one_law() -> None:
    parameters = np.tile(np.array([0.3, 0.8, 1.7, 0.2]), (8_000, 1))
    one, two = (
        truncated_dirichlet(parameters, 0.04, 80, kind, np.random.default_rng(seed))
        for seed, kind in enumerate(KINDS)
    )
    for statistic in (lambda z: z[:, 0], lambda z: z[:, 2], lambda z: np.log(z).sum(axis=1)):
        assert stats.ks_2samp(statistic(one), statistic(two)).pvalue > 1e-4


def test_a_row_without_an_accepted_proposal_is_uniform() -> None:
    parameters = np.tile(0.01 * vertex(6, 0.05), (50, 1))
    rows = truncated_dirichlet(parameters, 0.04, 1, "dirichlet", np.random.default_rng(0))
    np.testing.assert_array_equal(rows, np.full((50, 6), 1 / 6))


def test_the_first_accepted_proposal_is_the_answer(monkeypatch) -> None:
    proposed = np.array([[0.1, 0.9], [0.4, 0.6], [0.5, 0.5], [0.2, 0.8], [0.3, 0.7], [0.6, 0.4]])
    accepted = np.array([False, True, True, False, False, False])
    monkeypatch.setattr(sampling, "_plain_proposals", lambda *_: (proposed, accepted))
    rows = truncated_dirichlet(np.ones((2, 2)), 0.05, 3, "dirichlet", np.random.default_rng(0))
    np.testing.assert_array_equal(rows, [[0.4, 0.6], [0.5, 0.5]])


def test_the_number_of_draws_does_not_depend_on_the_rows() -> None:
    """Afterwards the generator is always in the same state."""
    after = []
    for row in (vertex(6, 0.02), np.full(6, 1 / 6)):
        generator = np.random.default_rng(5)
        truncated_dirichlet(np.tile(0.1 * row, (10, 1)), 0.01, 40, "power-law", generator)
        after.append(generator.bit_generator.state)
    assert after[0] == after[1]


@pytest.mark.parametrize("kind", KINDS)
def test_acceptance_is_never_below_its_bound(kind) -> None:
    propose = {"dirichlet": sampling._plain_proposals, "power-law": sampling._power_law_proposals}
    generator = np.random.default_rng(3)
    used = 0
    for m, floor, tau in ((2, 0.1, 0.01), (4, 0.2, 0.1), (6, 0.1, 0.05), (6, 0.15, 0.001)):
        rows = [vertex(m, floor), np.full(m, 1 / m)]
        rows += list((1 - m * floor) * generator.dirichlet(np.full(m, 0.5), 4) + floor)
        for k in (0.01, 0.5, 2.0, 8.0, 50.0):
            bound = acceptance(kind, m, k, floor, tau)
            if bound < 0.003:
                continue
            used += 1
            for row in rows:
                accepted = propose[kind](np.tile(k * row, (20_000, 1)), tau, generator)[1]
                assert accepted.mean() + 5 * np.sqrt(bound / 20_000) >= bound
    assert used >= 8


def test_some_kind_is_accepted_at_every_concentration() -> None:
    """Plain proposals alone would need a billion draws at the end of a vanishing schedule."""
    assert acceptance("dirichlet", 6, 0.01, 0.1, 0.01) < 1e-9
    for k in (1e-9, 1e-3, 0.1, 1.0, 5.0, 20.0, 100.0):
        assert max(acceptance(kind, 6, k, 0.1, 0.01) for kind in KINDS) > 0.05


def test_the_bound_on_small_entries_holds_for_every_row() -> None:
    generator = np.random.default_rng(4)
    for m, k, floor, tau in ((6, 5.0, 0.05, 1e-4), (3, 20.0, 0.1, 0.02), (2, 1.0, 0.2, 1e-3)):
        bound = below_threshold(m, k, floor, tau)
        rows = [vertex(m, floor), np.full(m, 1 / m)]
        rows += list((1 - m * floor) * generator.dirichlet(np.full(m, 0.3), 5) + floor)
        for row in rows:
            z = np.exp(log_dirichlet(np.tile(k * row, (50_000, 1)), generator))
            assert (z.min(axis=1) < tau).mean() <= bound + 4 * np.sqrt(bound / 50_000)
        exact = stats.beta.cdf(tau, k * floor, k * (1 - floor))
        assert bound >= (m - 1) * exact
