"""PPO learns, is a pure function of its key, and refuses settings that cannot run."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.algorithms.baselines.ppo import PPOConfig, _Batch, _loss, init, train_chunk, update
from sotto.rl.envs.registry import make
from sotto.rl.returns import running_returns
from sotto.rl.rollout import Trajectory, evaluate

SMALL = PPOConfig(total_steps=4096, num_envs=4, num_steps=64, hidden=(8,))


def same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_cartpole_is_solved_in_100k_steps():
    config = PPOConfig()
    keys = jax.random.split(jax.random.key(0), 2)
    states = jax.vmap(partial(init, config))(keys)
    states, metrics = jax.vmap(lambda s, k: train_chunk(config, s, k, config.num_updates))(
        states, keys
    )
    env = make(config.env_id)
    returns = jax.vmap(
        lambda policy, key: evaluate(env, env.default_params, policy, key, 50, greedy=True)
    )(states.networks.policy, keys)
    assert np.min(returns.mean(axis=1)) > 475
    assert metrics.episode_return.shape == (2, config.num_updates)
    assert np.all(metrics.episode_return[:, 0] < 40)
    assert np.all(np.nan_to_num(metrics.kl) < 0.1)


def test_chunks_do_not_change_the_result():
    state = init(SMALL, jax.random.key(0))
    key = jax.random.key(1)
    whole, metrics = train_chunk(SMALL, state, key, 4)
    half, first = train_chunk(SMALL, state, key, 2)
    half, second = train_chunk(SMALL, half, key, 2)
    same(whole.networks, half.networks)
    same(metrics.entropy, jnp.concatenate([first.entropy, second.entropy]))
    assert whole.updates == 4


def test_more_steps_go_on_at_the_rate_of_a_training_of_that_length():
    one_step = replace(SMALL, total_steps=4 * 256, num_epochs=1, num_minibatches=1)
    state, _ = train_chunk(one_step, init(one_step, jax.random.key(0)), jax.random.key(1), 4)

    def moved(updates):
        longer = replace(one_step, total_steps=256 * updates)
        after, _ = update(longer, state, jax.random.key(2))
        pairs = zip(jax.tree.leaves(after.networks), jax.tree.leaves(state.networks), strict=True)
        return sum(float(jnp.sum(jnp.abs(new - old))) for new, old in pairs)

    assert moved(4) == 0
    assert moved(8) / moved(16) == pytest.approx((1 - 4 / 8) / (1 - 4 / 16), rel=1e-2)


def test_vmapped_seeds_equal_single_seeds():
    keys = jax.random.split(jax.random.key(3), 3)
    states = jax.vmap(partial(init, SMALL))(keys)
    after, _ = jax.jit(jax.vmap(partial(update, SMALL)))(states, keys)
    single, _ = jax.jit(partial(update, SMALL))(init(SMALL, keys[1]), keys[1])
    same(jax.tree.map(lambda x: x[1], after.networks), single.networks)


def test_first_gradient_is_the_policy_gradient():
    """At ratio 1 the clipped surrogate's gradient is the mean of advantage * grad log pi."""
    config = PPOConfig(value_coefficient=0.0, hidden=(8,))
    networks = init(config, jax.random.key(0)).networks
    rng = np.random.default_rng(0)
    observations = jnp.asarray(rng.normal(size=(32, 4)), jnp.float32)
    actions = jnp.asarray(rng.integers(2, size=32), jnp.int32)
    advantages = jnp.asarray(rng.normal(size=32), jnp.float32)

    def log_probs(networks):
        return networks.policy(observations).log_prob(actions)

    batch = _Batch(observations, actions, log_probs(networks), advantages, jnp.zeros(32))
    got = jax.grad(lambda n: _loss(n, config, batch)[0])(networks)
    expected = jax.grad(lambda n: -jnp.mean(advantages * log_probs(n)))(networks)
    same(got.policy, expected.policy)


def test_the_clip_removes_the_gradient_beyond_it():
    config = PPOConfig(value_coefficient=0.0, hidden=(8,))
    networks = init(config, jax.random.key(0)).networks
    observations, actions = jnp.ones((4, 4)), jnp.zeros(4, jnp.int32)
    log_probs = networks.policy(observations).log_prob(actions) - 1.0  # Ratio e > 1.2.
    up = _Batch(observations, actions, log_probs, jnp.ones(4), jnp.zeros(4))

    def norm(batch):
        gradient = jax.grad(lambda n: _loss(n, config, batch)[0])(networks).policy
        return sum(float(jnp.abs(x).sum()) for x in jax.tree.leaves(gradient))

    assert norm(up) == 0.0
    assert norm(up._replace(advantages=-jnp.ones(4))) > 0.0


def test_running_returns_span_trajectories():
    ends = jnp.array([False, True, False, False])
    blank = jnp.zeros((4, 1))
    t = Trajectory(
        blank, blank, jnp.array([1.0, 2.0, 3.0, 4.0]), blank, ends, ends & False, ~(ends & False)
    )
    totals, carried = running_returns(t, jnp.float32(10.0))
    np.testing.assert_array_equal(totals, [11, 13, 3, 7])
    assert carried == 7


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_minibatches": 3}, "num_minibatches must divide"),
        ({"num_envs": 0}, "at least 1"),
        ({"total_steps": 10}, "total_steps must be at least"),
        ({"discount": 1.0}, "discount"),
    ],
)
def test_refusals(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        PPOConfig(**settings)


def test_unknown_environment():
    with pytest.raises(ValueError, match="did you mean"):
        init(PPOConfig(env_id="Cartpole"), jax.random.key(0))
