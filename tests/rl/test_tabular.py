"""Exact dynamic programming against matrix products, enumeration and simulation."""

import itertools

import numpy as np
import pytest

from sotto.rl.tabular import FiniteMDP, optimal_values, policy_values, regret, softmax


def random_mdp(seed: int, states: int = 3, actions: int = 2, horizon: int = 3) -> FiniteMDP:
    rng = np.random.default_rng(seed)
    return FiniteMDP(
        rng.dirichlet(np.ones(states), size=(states, actions)),
        rng.random((states, actions)),
        horizon,
        start=1,
    )


def test_policy_values_are_expected_rewards_under_powers_of_the_chain() -> None:
    mdp, rng = random_mdp(0, horizon=7), np.random.default_rng(1)
    policy = rng.dirichlet(np.ones(2), size=3)
    chain = np.einsum("sa,sat->st", policy, mdp.transitions)
    reward = (policy * mdp.rewards).sum(axis=1)
    expected = sum(np.linalg.matrix_power(chain, h) @ reward for h in range(7))
    np.testing.assert_allclose(policy_values(mdp, policy), expected, rtol=1e-12)


def test_the_best_of_all_deterministic_policies_is_the_optimum() -> None:
    """Every policy of an MDP with 3 states, 2 actions and 3 steps: 2^9 tables, in one call."""
    mdp = random_mdp(2)
    choices = np.array(list(itertools.product([0, 1], repeat=9))).reshape(-1, 3, 3)
    values = policy_values(mdp, np.eye(2)[choices])
    assert values.shape == (512, 3)
    np.testing.assert_allclose(values.max(axis=0), optimal_values(mdp)[0].max(axis=-1), rtol=1e-12)
    losses = regret(mdp, np.eye(2)[choices])
    assert losses.min() == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(losses.max(), np.ptp(values[:, mdp.start]))


def test_a_policy_by_step_that_repeats_itself_is_the_policy() -> None:
    mdp = random_mdp(3)
    policies = np.random.default_rng(4).dirichlet(np.ones(2), size=(5, 3))
    by_step = np.repeat(policies[:, None], mdp.horizon, axis=1)
    np.testing.assert_allclose(policy_values(mdp, by_step), policy_values(mdp, policies))


def test_softmax_does_not_overflow() -> None:
    np.testing.assert_allclose(softmax(np.array([[1e4, 0.0], [0.0, 0.0]])), [[1, 0], [0.5, 0.5]])


@pytest.mark.unchecked_types
@pytest.mark.parametrize(
    ("transitions", "rewards", "horizon", "message"),
    [
        (np.full((2, 1, 2), 0.5), np.zeros((2, 2)), 1, "need"),
        (np.full((2, 1, 2), 0.6), np.zeros((2, 1)), 1, "probability distribution"),
        (np.full((2, 1, 2), 0.5), np.zeros((2, 1)), 0, "horizon"),
    ],
)
def test_tables_that_are_no_mdp_are_refused(transitions, rewards, horizon, message) -> None:
    with pytest.raises(ValueError, match=message):
        FiniteMDP(transitions, rewards, horizon)


@pytest.mark.parametrize("policy", [np.full((3, 2), 0.6), np.ones((3, 2, 1)), -np.eye(3)[:, :2]])
def test_tables_that_are_no_policy_are_refused(policy) -> None:
    with pytest.raises(ValueError, match="polic"):
        policy_values(random_mdp(0), policy)
