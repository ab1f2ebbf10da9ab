"""Advantages and returns against naive O(T^2) sums in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sotto.rl.returns import discounted_returns, gae, normalise_advantages
from sotto.rl.rollout import Trajectory


def trajectory(rng, length, p_end=0.15, one_episode=False):
    ends = rng.uniform(size=length)
    terminated, truncated = ends < p_end, (ends >= p_end) & (ends < 2 * p_end)
    alive = np.ones(length, bool)
    rewards = rng.normal(size=length)
    if one_episode:
        over = np.cumsum(terminated | truncated)
        alive = np.concatenate([[True], over[:-1] == 0])
        rewards, terminated, truncated = rewards * alive, terminated & alive, truncated & alive
    obs = rng.normal(size=(length, 2))
    fields = (obs, np.zeros(length, int), rewards, obs, terminated, truncated, alive)
    return Trajectory(*map(jnp.asarray, fields))


def naive(t, values, next_values, discount, lam):
    """The definition: discounted sums of residuals up to the end of each step's own episode."""
    r, term, trunc, alive = map(np.array, (t.rewards, t.terminated, t.truncated, t.alive))
    out = np.zeros(len(r))
    for i in range(len(r)):
        if not alive[i]:
            continue
        for j in range(i, len(r)):
            residual = r[j] + discount * (0 if term[j] else next_values[j]) - values[j]
            out[i] += (discount * lam) ** (j - i) * residual
            if term[j] or trunc[j]:
                break
    return out


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    discount=st.floats(0, 1),
    lam=st.floats(0, 1),
    one_episode=st.booleans(),
)
def test_gae_against_the_definition(seed, discount, lam, one_episode):
    rng = np.random.default_rng(seed)
    t = trajectory(rng, 20, one_episode=one_episode)
    values, next_values = rng.normal(size=(2, 20))
    got = jax.jit(gae)(t, jnp.asarray(values), jnp.asarray(next_values), discount, lam)
    np.testing.assert_allclose(got, naive(t, values, next_values, discount, lam), atol=1e-4)


@pytest.mark.parametrize("one_episode", [True, False])
def test_discounted_returns_against_the_definition(one_episode):
    rng = np.random.default_rng(5)
    for _ in range(20):
        t = trajectory(rng, 20, one_episode=one_episode)
        next_values = rng.normal(size=20)
        got = discounted_returns(t, jnp.asarray(next_values), 0.9)
        r, term, trunc, alive = map(np.array, (t.rewards, t.terminated, t.truncated, t.alive))
        expected = np.zeros(20)
        for i in np.flatnonzero(alive):
            factor = 1.0
            for j in range(i, 20):
                expected[i] += factor * r[j]
                factor *= 0.9
                if term[j]:
                    break
                if trunc[j] or j == 19:
                    expected[i] += factor * next_values[j]
                    break
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_truncation_is_not_termination():
    steps = jnp.arange(3)
    base = Trajectory(
        observations=steps[:, None] * 1.0,
        actions=steps,
        rewards=jnp.ones(3),
        next_observations=steps[:, None] * 1.0,
        terminated=steps < 0,
        truncated=steps == 1,
        alive=steps >= 0,
    )
    values, next_values = jnp.zeros(3), jnp.full(3, 10.0)
    cut = gae(base, values, next_values, 0.5, 1.0)
    np.testing.assert_allclose(cut, [6 + 0.5 * 6, 6, 6])
    ended = base._replace(terminated=steps == 1, truncated=steps < 0)
    np.testing.assert_allclose(gae(ended, values, next_values, 0.5, 1.0), [6 + 0.5, 1, 6])


def test_an_exact_critic_has_zero_advantages():
    """Probe: constant reward 1, never ending, V = 1 / (1 - discount)."""
    rng = np.random.default_rng(0)
    t = trajectory(rng, 30, p_end=0.0)._replace(rewards=jnp.ones(30))
    exact = jnp.full(30, 1 / (1 - 0.9))
    np.testing.assert_allclose(gae(t, exact, exact, 0.9, 0.95), 0.0, atol=1e-4)
    np.testing.assert_allclose(discounted_returns(t, exact, 0.9), exact, rtol=1e-5)


def test_normalisation_sees_living_steps_only():
    advantages = jnp.array([1.0, 2.0, 3.0, 1e6, -1e6])
    alive = jnp.array([True, True, True, False, False])
    got = np.array(normalise_advantages(advantages, alive))
    np.testing.assert_allclose(
        got[:3], (np.array([1, 2, 3]) - 2) / (np.std([1, 2, 3]) + 1e-4), rtol=1e-5
    )
    assert not np.any(got[3:])


@pytest.mark.parametrize("alive", [True, False])
def test_normalisation_of_constants_is_zero(alive):
    got = normalise_advantages(jnp.full(5, 3.0), jnp.full(5, alive))
    np.testing.assert_array_equal(got, 0.0)
