"""Environments in JAX as Gymnasium's: the same episodes from the same uniforms."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env

from sotto.rl.envs.for_gymnasium import ForGymnasium
from sotto.rl.envs.registry import make

DOSES, SWUM = Box(0.0, 10.0, (1,)), Box(0.0, 1.0, (6,))


@pytest.mark.parametrize(
    ("env_id", "observed", "actions"),
    [
        ("Line-v0", Box(0.0, 1.0, (1,)), Discrete(2)),
        ("HIV-v0", Box(-5.0, 8.0, (6,)), Discrete(4)),
        ("Dosing-0", Box(0.0, np.inf, (9,)), DOSES),
        ("Dosing-1", Box(0.0, np.inf, (9,)), DOSES),
        ("RiverSwim-v0", SWUM, Discrete(2)),
        ("RiverSwim90-v0", SWUM, Discrete(2)),
        ("RiverSwimExchanged-v0", SWUM, Discrete(2)),
        ("RiverSwimExchanged90-v0", SWUM, Discrete(2)),
    ],
)
def test_gymnasium_plays_the_same_game(env_id, observed, actions):
    ours, theirs = make(env_id), gym.make(f"sotto.rl.envs.for_gymnasium:{env_id}")
    check_env(theirs.unwrapped, skip_render_check=True)
    assert (theirs.observation_space, theirs.action_space) == (observed, actions)
    step, observe, params = jax.jit(ours.step), jax.jit(ours.observe), ours.default_params
    actions.seed(0)
    for seed in (5, 6):
        observation, _ = theirs.reset(seed=seed)
        uniforms = np.random.Generator(np.random.PCG64(seed)).random(ours.reset_size, np.float32)
        state, steps, truncated = ours.reset(jnp.asarray(uniforms), params), 0, False
        while not truncated:
            np.testing.assert_allclose(observation, observe(state, params), rtol=1e-5)
            action = actions.sample()
            state, reward, _ = step(state, jnp.asarray(action), params)
            observation, got, terminated, truncated, _ = theirs.step(action)
            assert (got, terminated) == (pytest.approx(float(reward), abs=1e-5, rel=1e-5), False)
            steps += 1
        assert steps == ours.max_episode_steps


def test_parameters_are_arguments():
    dear, usual = ForGymnasium("HIV-v0", rti_penalty=30_000.0), ForGymnasium("HIV-v0")
    dear.reset(seed=0), usual.reset(seed=0)
    paid = usual.step(1)[1] - dear.step(1)[1]
    assert paid == pytest.approx(10_000 * 0.7**2, rel=1e-3)
    with pytest.raises(TypeError):
        gym.make("HIV-v0", rti_penalti=30_000.0)


def test_actions_are_clipped():
    high, most = ForGymnasium("Dosing-0"), ForGymnasium("Dosing-0")
    high.reset(seed=1), most.reset(seed=1)
    np.testing.assert_array_equal(high.step(np.array([25.0]))[0], most.step(np.array([10.0]))[0])
