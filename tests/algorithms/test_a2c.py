"""A2C: one step of RMSprop along the policy gradient, computed here by hand; and that it learns."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.a2c import A2CConfig
from sotto.algorithms.baselines.gymnasium import GymnasiumRun
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers
from sotto.rl.envs.gymnasium.described import described

CONFIG = A2CConfig(
    env_id="Pendulum-v1", total_steps=960, num_envs=4, num_steps=60, hidden=(8,), gae_lambda=0.9
)


def test_one_update_is_a_step_along_the_policy_gradient():
    settings = CONFIG.ppo
    env = replace(described("Pendulum-v1"), reward_per_step=-1.0)
    with GymnasiumUsers("Pendulum-v1", 4) as users:
        run = GymnasiumRun(users, env, seed=2)
        before = ppo.begin(settings, env, run.network_key, ())
        after, metrics = next(run.train_ppo(settings))
        key = jax.random.split(jax.random.fold_in(run.key, 0))[0]
        users.begin(range(8, 12))
        seen = users.advance(
            lambda o, k: before.networks.policy(o).sample(before.networks.policy.noise(k, (4,))),
            key,
            60,
        )
    value = before.networks.value
    now, then = value(seen.observations), value(seen.next_observations)
    delta = np.asarray(seen.rewards + 0.99 * then * ~seen.terminated - now)
    ended = np.asarray(seen.terminated | seen.truncated)
    advantages, carry = np.zeros((4, 60)), np.zeros(4)
    for t in reversed(range(60)):
        carry = delta[:, t] + 0.99 * 0.9 * ~ended[:, t] * carry
        advantages[:, t] = carry
    targets = advantages + np.asarray(now)

    def loss(networks):
        gain = networks.policy(seen.observations).log_prob(seen.actions) * advantages
        error = (networks.value(seen.observations) - targets) / 100.0
        return -gain.mean() + 0.5 * jnp.square(error).mean()

    gradient = [np.asarray(g) for g in jax.tree.leaves(jax.grad(loss)(before.networks))]
    norm = np.sqrt(sum((g**2).sum() for g in gradient))
    assert norm > 0.5  # so that the clip counts
    leaves = (jax.tree.leaves(x.networks) for x in (before, after))
    for old, new, g in zip(*leaves, gradient, strict=True):
        clipped = 0.5 * g / norm
        step = 7e-4 * clipped / np.sqrt(0.01 * clipped**2 + 1e-5)
        np.testing.assert_allclose(new, old - step, rtol=1e-3, atol=2e-6)
    assert metrics.kl == pytest.approx(0.0, abs=1e-6)  # no second pass


def test_it_learns_to_lean_left():
    """Rewards that fall with the action: the mean action falls."""
    env = replace(described("Pendulum-v1"), reward_per_step=1.0)
    settings = A2CConfig(
        env_id="Pendulum-v1", total_steps=32_000, num_envs=16, num_steps=5, learning_rate=3e-3
    ).ppo
    state = ppo.begin(settings, env, jax.random.key(0), ())
    step = jax.jit(ppo.optimise, static_argnums=0)
    gather = jax.jit(ppo.gather, static_argnums=0)
    draw = np.random.default_rng(0)
    for index in range(60):
        seen = jnp.asarray(draw.normal(size=(16, 5, 3)), jnp.float32)
        actions = state.networks.policy(seen).sample(
            jnp.asarray(draw.normal(size=(16, 5, 1)), jnp.float32)
        )
        flags = jnp.zeros((16, 5), bool)
        trajectory = ppo.Trajectory(
            seen, actions, -actions[..., 0], seen, flags, flags, jnp.ones_like(flags)
        )
        collected = gather(settings, state, trajectory, ())
        state, _ = step(settings, state, collected, jax.random.key(index))
    assert float(state.networks.policy(seen).mode().mean()) < -0.5


def test_settings_that_cannot_run_are_refused():
    with pytest.raises(ValueError, match="total_steps"):
        A2CConfig(total_steps=10)
