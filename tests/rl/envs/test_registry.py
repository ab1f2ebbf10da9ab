import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.rl.envs.registry import is_native, make


def test_unknown_environment_lists_close_names():
    with pytest.raises(ValueError, match="did you mean CartPole-v1"):
        make("Cartpole-v0")
    assert is_native("Acrobot-v1")
    assert not is_native("Hopper-v5")


def test_environments_are_hashable_and_equal():
    assert make("CartPole-v1") == make("CartPole-v1")
    assert hash(make("Acrobot-v1", 2)) == hash(make("Acrobot-v1", 2))
    assert make("Acrobot-v1", 2) != make("Acrobot-v1", 4)


@pytest.mark.parametrize("repeat", [0, -2, 3])
def test_repeat_must_divide_the_time_limit(repeat):
    with pytest.raises(ValueError, match="positive divisor"):
        make("Acrobot-v1", repeat)


def test_action_repeat_sums_rewards_until_termination():
    base, repeated = make("CartPole-v1"), make("CartPole-v1", 4)
    assert (repeated.max_episode_steps, repeated.reward_per_step) == (125, 4.0)
    params, action = base.default_params, jnp.int32(1)
    uniforms = jnp.array([0.3, 0.9, 0.6, 0.2])

    state, expected, ended = base.reset(uniforms, params), [], []
    while not any(ended):
        state, reward, terminated = base.step(state, action, params)
        expected.append(float(reward))
        ended.append(bool(terminated))
    last = np.array(state)

    params = repeated.default_params
    state, got = repeated.reset(uniforms, params), []
    terminated = False
    step = jax.jit(repeated.step)
    while not terminated:
        state, reward, terminated = step(state, action, params)
        got.append(float(reward))
    assert sum(got) == sum(expected)
    assert got[0] == 4.0
    assert len(got) == -(-len(expected) // 4)
    np.testing.assert_allclose(np.array(state), last, atol=1e-5)  # Frozen where it terminated.
