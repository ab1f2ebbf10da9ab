"""Rollouts: time limits, resets, masks, purity, and agreement with stepping by hand."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.rl.envs.base import Box, Discrete, Environment
from sotto.rl.envs.registry import make
from sotto.rl.networks import Policy
from sotto.rl.rollout import continue_rollout, evaluate, rollout, start

COIN, INTERVAL = Discrete(2), Box((-0.5,), (0.25,))


@dataclass(frozen=True, kw_only=True)
class Counter(Environment):
    """A probe: the state counts steps from a random start; `end` terminates; limit 6."""

    id: str = "Counter"
    observation_size: int = 1
    action: Discrete | Box = COIN
    default_params: float = 4.0
    reset_size: int = 1
    max_episode_steps: int = 6
    observation_scale: tuple[float, ...] = (1.0,)
    reward_per_step: float = 1.0

    def reset(self, uniforms, params):
        return 0.5 * uniforms[0]

    def step(self, state, action, params):
        following = state + 1.0
        return following, following, following > params

    def observe(self, state, params):
        return state[None]


@dataclass(frozen=True, kw_only=True)
class Push(Counter):
    """The executed action is the reward."""

    action: Discrete | Box = INTERVAL

    def step(self, state, action, params):
        return state, action[0], jnp.zeros((), bool)


def policy_for(env, seed=0, **options):
    return Policy(env.observation_size, env.action, (8,), jax.random.key(seed), **options)


def test_termination_resets_the_environment():
    env = Counter()
    got = rollout(env, 4.5, policy_for(env), jax.random.key(0), 12, one_episode=False)
    # From a start in [0, .5), the fifth step is the first beyond 4.5.
    np.testing.assert_array_equal(np.flatnonzero(got.terminated), [4, 9])
    assert not np.any(got.truncated)
    assert np.all(got.alive)
    steps = np.floor(got.observations[:, 0])
    np.testing.assert_array_equal(steps, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1])
    np.testing.assert_allclose(got.next_observations[:, 0], got.observations[:, 0] + 1)
    starts = np.array(got.observations[[0, 5, 10], 0])
    assert len(np.unique(starts)) == 3


def test_the_time_limit_truncates():
    env = Counter()
    got = rollout(env, 100.0, policy_for(env), jax.random.key(0), 14, one_episode=False)
    np.testing.assert_array_equal(np.flatnonzero(got.truncated), [5, 11])
    assert not np.any(got.terminated)


def test_termination_at_the_time_limit_is_termination():
    env = Counter()
    got = rollout(env, 5.5, policy_for(env), jax.random.key(0), 6, one_episode=True)
    np.testing.assert_array_equal(np.flatnonzero(got.terminated), [5])
    assert not np.any(got.truncated)


@pytest.mark.parametrize(("end", "length"), [(4.5, 5), (100.0, 6)])
def test_one_episode_is_masked_after_its_end(end, length):
    env = Counter()
    got = rollout(env, end, policy_for(env), jax.random.key(0), 10, one_episode=True)
    np.testing.assert_array_equal(got.alive, np.arange(10) < length)
    assert not np.any(np.array(got.rewards)[length:])
    assert not np.any(np.array(got.actions)[length:])
    assert np.sum(got.terminated) + np.sum(got.truncated) == 1
    final = np.array(got.next_observations)[length - 1]
    np.testing.assert_array_equal(got.observations[length:], np.tile(final, (10 - length, 1)))


def test_continuing_equals_one_long_rollout():
    env = make("CartPole-v1")
    policy, params = policy_for(env), env.default_params
    begin = start(env, params, jax.random.key(0))
    whole, end = continue_rollout(env, params, policy, jax.random.key(1), begin, 100)
    # Replay the actions by hand, resetting to the observed fresh states.
    state, elapsed = begin.state, 0
    for t in range(100):
        np.testing.assert_allclose(whole.observations[t], jnp.stack(state), rtol=1e-5, atol=1e-6)
        state, _, ended = env.step(state, whole.actions[t], params)
        np.testing.assert_allclose(
            whole.next_observations[t], jnp.stack(state), rtol=1e-5, atol=1e-6
        )
        elapsed += 1
        assert bool(ended) == bool(whole.terminated[t])
        if ended:
            following = whole.observations[t + 1] if t < 99 else jnp.stack(end.state)
            assert np.all(np.abs(following) <= 0.05)
            state, elapsed = type(state)(*following), 0
    np.testing.assert_allclose(jnp.stack(end.state), jnp.stack(state), rtol=1e-5, atol=1e-6)
    assert end.elapsed == elapsed


def test_actions_follow_the_policy():
    env = Counter()
    policy = policy_for(env, last_gain=1.0)
    batch = jax.vmap(lambda k: rollout(env, 4.5, policy, k, 5, one_episode=True))(
        jax.random.split(jax.random.key(0), 20_000)
    )
    probability = jax.nn.softmax(policy(batch.observations).logits)[..., 1]
    error = (batch.actions - probability).mean(axis=0) / np.sqrt(0.25 / 20_000)
    assert np.all(np.abs(error) < 4)
    # Actions at different steps of one user are independent given the observations.
    centred = np.array(batch.actions - probability)
    assert abs(np.corrcoef(centred[:, 0], centred[:, 1])[0, 1]) < 0.03


def test_box_actions_are_clipped_for_the_environment_only():
    env = Push()
    policy = policy_for(env, initial_log_std=1.0)
    got = rollout(env, 0.0, policy, jax.random.key(0), 200, one_episode=False)
    np.testing.assert_allclose(got.rewards, np.clip(got.actions[:, 0], -0.5, 0.25))
    assert np.std(got.actions) > 1


def test_evaluate_counts_whole_episodes():
    env = Counter()
    returns = evaluate(env, 4.5, policy_for(env), jax.random.key(0), 7, greedy=True)
    assert returns.shape == (7,)
    # 1 + ... + 5 and five times the random start in [0, .5).
    assert np.all((returns >= 15) & (returns <= 17.5))
    capped = evaluate(env, 1e9, policy_for(env), jax.random.key(0), 7, greedy=False)
    assert np.all((capped >= 21) & (capped <= 24))


def test_greedy_evaluation_ignores_the_noise():
    env = make("CartPole-v1")
    lean = policy_for(env, last_gain=0.0)  # Uniform; the mode is action 0.
    greedy = evaluate(env, env.default_params, lean, jax.random.key(0), 50, greedy=True)
    sampled = evaluate(env, env.default_params, lean, jax.random.key(0), 50, greedy=False)
    assert 8 <= greedy.mean() <= 10.5  # Gymnasium's "always left" falls after 8 to 10 steps.
    assert 15 <= sampled.mean() <= 32  # Uniform play lasts about 22.


@pytest.mark.parametrize("one_episode", [True, False])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1"])
def test_no_captured_arrays_and_float32_under_x64(env_id, one_episode):
    """The privacy door refuses functions that close over arrays, and may trace under x64."""
    env = make(env_id, action_repeat=2)
    policy = policy_for(env, observation_scale=env.observation_scale)

    def local(policy, key):
        return rollout(env, env.default_params, policy, key, 8, one_episode)

    with jax.enable_x64(True):
        traced = jax.make_jaxpr(local)(policy, jax.random.key(0))
        got = jax.jit(local)(policy, jax.random.key(0))
    assert not traced.consts
    assert {x.dtype for x in jax.tree.leaves(got)} == {
        jnp.dtype(t) for t in ("float32", "int32", "bool")
    }
    plain = jax.jit(local)(policy, jax.random.key(0))
    np.testing.assert_allclose(got.observations, plain.observations, rtol=1e-4, atol=1e-6)
