"""Public changes to an environment (that of repeated actions is tested where it is used)."""

import math

import jax
import jax.numpy as jnp
import pytest

from sotto.rl.envs.registry import make
from sotto.rl.envs.wrappers import LogReward


def test_rewards_are_logarithms_and_nothing_else_changes():
    env = make("HIV-v0")
    logarithmic = LogReward.of(env, 20_000.0)
    params = env.default_params
    state = env.reset(jnp.full(1, 0.5), params)
    after, reward, terminated = jax.jit(env.step)(state, jnp.int32(3), params)
    same, changed, ended = jax.jit(logarithmic.step)(state, jnp.int32(3), params)
    assert float(changed) == pytest.approx(
        math.copysign(math.log1p(abs(float(reward)) / 20_000), float(reward)), rel=1e-6
    )
    assert jnp.array_equal(after.cells, same.cells)
    assert bool(terminated) == bool(ended)
    assert logarithmic.reward_per_step == pytest.approx(math.log(2))
    assert logarithmic.max_episode_steps == env.max_episode_steps


def test_a_negative_reward_stays_negative():
    env = make("Acrobot-v1")
    state = env.reset(jnp.full(env.reset_size, 0.5), env.default_params)
    _, reward, _ = LogReward.of(env, 1.0).step(state, jnp.int32(1), env.default_params)
    assert float(reward) == pytest.approx(-math.log(2), rel=1e-6)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_that_is_none_is_refused(scale):
    with pytest.raises(ValueError, match="must be positive"):
        LogReward.of(make("HIV-v0"), scale)
