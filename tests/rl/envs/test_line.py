"""Line-v0, and CartPole with a reward of the state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sotto.rl.distributions import Categorical
from sotto.rl.envs.cartpole import CartPole
from sotto.rl.envs.registry import make
from sotto.rl.rollout import evaluate

OPTIMUM, RANDOM, RIGHT = 20.71, 10.94, 0.93


class Rule:
    """Acts by log-probabilities that are a function of the position."""

    def __init__(self, logits) -> None:
        self.logits = logits

    def __call__(self, observation) -> Categorical:
        return Categorical(self.logits(observation[..., 0]))

    def noise(self, key, shape):
        return jax.random.uniform(key, (*shape, 1))


def centre(x):
    return jnp.stack([jnp.where(x < 0.5, 50.0, -50.0), jnp.zeros_like(x)], axis=-1)


def anything(x):
    return jnp.zeros((*x.shape, 2))


def right(x):
    return jnp.stack([jnp.full_like(x, 50.0), jnp.zeros_like(x)], axis=-1)


@pytest.mark.parametrize(
    ("rule", "expected"), [(centre, OPTIMUM), (anything, RANDOM), (right, RIGHT)]
)
def test_known_returns(rule, expected: float) -> None:
    env = make("Line-v0")
    returns = evaluate(env, env.default_params, Rule(rule), jax.random.key(0), 4000, False)
    error = float(returns.std()) / 4000**0.5
    assert float(returns.mean()) == pytest.approx(expected, abs=max(0.02, 4 * error))


def test_steps_are_uniform_and_independent() -> None:
    """Steps come from a word of bits in the state, which every step scatters anew."""
    env = make("Line-v0")
    middle = lambda state: state._replace(position=jnp.float32(0.5))  # noqa: E731

    def walk(key):
        state = env.reset(jax.random.uniform(key, (2,)), env.default_params)

        def step(state, _):
            after, _, _ = env.step(middle(state), jnp.int32(0), env.default_params)
            return after, 4 * (after.position - 0.5)

        return jax.lax.scan(step, state, None, length=50)[1]

    steps = np.asarray(jax.jit(jax.vmap(walk))(jax.random.split(jax.random.key(1), 4000)))
    assert stats.kstest(steps[:, ::10].ravel(), "uniform").pvalue > 1e-3
    for lag in (1, 2, 7):
        pairs = np.corrcoef(steps[:, :-lag].ravel(), steps[:, lag:].ravel())[0, 1]
        assert abs(pairs) < 4 / np.sqrt(steps[:, lag:].size)
    across = np.corrcoef(steps[:-1, 0], steps[1:, 0])[0, 1]
    assert abs(across) < 4 / np.sqrt(4000)


def test_walls_stop_the_walk_and_rewards_are_of_the_next_state() -> None:
    env = make("Line-v0")
    state = env.reset(jnp.array([0.99, 0.3]), env.default_params)
    for action in [0] * 20 + [1] * 40:
        state, reward, _ = env.step(state, jnp.int32(action), env.default_params)
        assert 0 <= float(state.position) <= 1
        assert float(reward) == pytest.approx(0.5 - abs(float(state.position) - 0.5))


def test_centred_cartpole_is_cartpole_with_another_reward() -> None:
    plain, centred = CartPole(), make("CartPoleCentred-v0")
    rng = np.random.default_rng(0)
    state = plain.reset(jnp.array(rng.random(4)), plain.default_params)
    for _ in range(200):
        action = jnp.int32(rng.integers(2))
        expected, _, ended = plain.step(state, action, plain.default_params)
        found, reward, stopped = centred.step(state, action, centred.default_params)
        np.testing.assert_array_equal(np.array(found), np.array(expected))
        assert bool(ended) == bool(stopped)
        assert 0 <= float(reward) <= 1
        state = plain.reset(jnp.array(rng.random(4)), plain.default_params) if ended else found
    middle = plain.reset(jnp.full(4, 0.5), plain.default_params)
    assert float(centred.step(middle, jnp.int32(0), centred.default_params)[1]) > 0.99
