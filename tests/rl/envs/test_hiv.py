"""HIV-v0 against an adaptive integrator in float64, and against known returns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.stats import kstest

from sotto.rl.envs.hiv import HIV, HIVParams, HIVState, _two_normals
from sotto.rl.envs.registry import make

EFFICACY = {0: (0.0, 0.0), 1: (0.7, 0.0), 2: (0.0, 0.3), 3: (0.7, 0.3)}
RETURNS = {0: 8.58e5, 1: 7.98e5, 2: 9.93e5, 3: 1.757e6}  # RLPy's domain with 20 days x 50


def slopes(_, y, e1, e2):
    """Adams et al. 2004, written down a second time from the paper's notation."""
    t1, t2, s1, s2, v, e = y
    k1, k2, f, delta, m, nt, c = 8e-7, 1e-4, 0.34, 0.7, 1e-5, 100.0, 13.0
    source = s1 + s2
    return [
        1e4 - 0.01 * t1 - (1 - e1) * k1 * v * t1,
        31.98 - 0.01 * t2 - (1 - f * e1) * k2 * v * t2,
        (1 - e1) * k1 * v * t1 - delta * s1 - m * e * s1,
        (1 - f * e1) * k2 * v * t2 - delta * s2 - m * e * s2,
        (1 - e2) * nt * delta * source
        - c * v
        - ((1 - e1) * 1.0 * k1 * t1 + (1 - f * e1) * 1.0 * k2 * t2) * v,
        1.0 + 0.3 * source / (source + 100.0) * e - 0.25 * source / (source + 500.0) * e - 0.1 * e,
    ]


def reference(cells, action, days=20.0):
    solved = solve_ivp(
        slopes, (0.0, days), cells, "LSODA", args=EFFICACY[action], rtol=1e-9, atol=1e-9
    )
    return solved.y[:, -1]


def play(env, params, actions, uniform=0.5):
    """States and rewards of one episode, observed."""
    step = jax.jit(env.step)
    state = env.reset(jnp.array([uniform]), params)
    states, rewards = [np.array(state.cells)], []
    for action in actions:
        state, reward, terminated = step(state, jnp.int32(action), params)
        assert not terminated
        states.append(np.array(state.cells))
        rewards.append(float(reward))
    return np.array(states), np.array(rewards)


def test_each_transition_is_that_of_an_adaptive_integrator():
    env = make("HIV-v0")
    # On and off again: interruptions make the virus surge, which is where the model is stiffest.
    actions = [3, 3, 3, 0, 0, 1, 2, 0, 3, 3, 1, 0, 2, 3, 0, 0, 0, 3, 2, 1]
    states, rewards = play(env, env.default_params, actions)
    assert np.isfinite(states).all()
    for before, action, after, reward in zip(states, actions, states[1:], rewards, strict=False):
        expected = reference(before.astype(np.float64), action)
        np.testing.assert_allclose(np.log10(after), np.log10(expected), atol=1e-4)
        e1, e2 = EFFICACY[action]
        wanted = -0.1 * expected[4] - 2e4 * e1**2 - 2e3 * e2**2 + 1e3 * expected[5]
        assert reward == pytest.approx(wanted, rel=3e-4, abs=5.0)


def test_known_returns_of_constant_treatments():
    env = make("HIV-v0")
    step = jax.jit(jax.vmap(env.step, (0, 0, None)))
    actions = jnp.arange(4)
    state = jax.vmap(env.reset, (0, None))(jnp.full((4, 1), 0.5), env.default_params)
    total = np.zeros(4)
    for _ in range(env.max_episode_steps):
        state, reward, _ = step(state, actions, env.default_params)
        total += np.array(reward)
    assert np.isfinite(total).all()
    for action, expected in RETURNS.items():
        assert total[action] == pytest.approx(expected, rel=1e-3)


def test_too_few_substeps_are_caught_by_these_tests():
    """At 400 the integrator diverges somewhere, and the checks above would say so."""
    actions = [3] * 8 + [0] * 12
    right, _ = play(HIV(), HIVParams(), actions)
    wrong, _ = play(HIV(substeps=400), HIVParams(), actions)
    with np.errstate(invalid="ignore"):
        assert not np.allclose(np.log10(right), np.log10(wrong), atol=1e-2)


def test_penalties_are_paid_by_dose_and_noise_moves_only_drugs_that_are_taken():
    env = make("HIV-v0")
    dear = HIVParams(rti_penalty=30_000.0, pi_penalty=3_000.0)
    for action, (e1, e2) in EFFICACY.items():
        _, (cheap_reward,) = play(env, env.default_params, [action])
        _, (dear_reward,) = play(env, dear, [action])
        paid = 10_000 * e1**2 + 1_000 * e2**2
        assert cheap_reward - dear_reward == pytest.approx(paid, abs=0.1)
    noisy = HIVParams(efficacy_noise=0.01)
    still, _ = play(env, env.default_params, [0, 3])
    moved, _ = play(env, noisy, [0, 3])
    np.testing.assert_array_equal(still[1], moved[1])
    assert np.abs(np.log10(still[2]) - np.log10(moved[2])).max() > 1e-3


def test_noise_is_normal_and_differs_between_steps_and_drugs():
    coins = jax.vmap(env_coins)(jnp.arange(4000) / 4000)
    after, (one, two) = jax.vmap(_two_normals)(coins)
    _, (later, _) = jax.vmap(_two_normals)(after)
    for draws in (one, two, later):
        assert kstest(np.array(draws), "norm").pvalue > 1e-6
    correlations = np.corrcoef([one, two, later])[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 5 / 4000**0.5


def env_coins(uniform):
    return HIV().reset(uniform[None], HIVParams()).coins


def test_variants_run_side_by_side():
    env = make("HIV-v0")
    params = HIVParams(jnp.array([19e3, 21e3]), jnp.array([1.9e3, 2.1e3]), jnp.array([0.0, 0.01]))
    state = jax.vmap(env.reset)(jnp.full((2, 1), 0.5), params)
    _, rewards, _ = jax.jit(jax.vmap(env.step))(state, jnp.array([3, 3]), params)
    assert rewards[0] != rewards[1]
    assert isinstance(state, HIVState)
