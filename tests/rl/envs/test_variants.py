"""Grids of physics, and that every parameter of every grid changes what happens."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.rl.envs.registry import make
from sotto.rl.envs.variants import LUNAR_LANDER, variants

RANGES = {
    "CartPole-v1": {"gravity": (8.75, 11), "force_mag": (9, 11.25), "masscart": (0.8, 1.25)},
    "Acrobot-v1": {
        "link_length_1": (0.8, 1.2),
        "link_mass_1": (0.9, 1.1),
        "link_mass_2": (0.9, 1.1),
    },
    "HIV-v0": {
        "rti_penalty": (18750, 21250),
        "pi_penalty": (1850, 2150),
        "efficacy_noise": (0, 0.01),
    },
    LUNAR_LANDER: {"gravity": (-11, -9), "wind_power": (0, 5), "turbulence_power": (0, 0.5)},
}
NATIVE = [name for name in RANGES if name != LUNAR_LANDER]


@pytest.mark.parametrize("env_id", list(RANGES))
def test_grids_of_the_paper(env_id):
    grid = variants(env_id)
    assert len(grid.values) == (2000 if env_id == "HIV-v0" else 1000)
    assert len(np.unique(grid.values, axis=0)) == len(grid.values)
    assert grid.names == tuple(RANGES[env_id])
    for name, column in zip(grid.names, grid.values.T, strict=True):
        assert (column.min(), column.max()) == pytest.approx(RANGES[env_id][name])


@pytest.mark.parametrize("env_id", NATIVE)
def test_every_parameter_changes_the_next_step(env_id):
    """Among them the cart's mass, which acts through the total mass alone."""
    env = make(env_id)
    grid = variants(env_id)
    step = jax.jit(jax.vmap(env.step, (None, None, 0)))
    state = env.reset(jnp.full(env.reset_size, 0.9), env.default_params)
    action = jnp.int32(env.action.n - 1)
    for index, name in enumerate(grid.names):
        ends = np.tile(grid.values[len(grid.values) // 2], (2, 1))
        ends[:, index] = grid.values[:, index].min(), grid.values[:, index].max()
        after, rewards, _ = step(state, action, grid._replace(values=ends).params())
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((after, rewards))]
        assert any(not np.array_equal(leaf[0], leaf[1]) for leaf in leaves), name


def test_only_what_varies_differs_from_the_default():
    grid = variants("CartPole-v1")
    chosen = grid.select(np.array([0, 999, 999]))
    params = chosen.params()
    np.testing.assert_allclose(params.gravity, [8.75, 11, 11])
    np.testing.assert_allclose(params.masscart, [0.8, 1.25, 1.25])
    np.testing.assert_allclose(params.length, [0.5, 0.5, 0.5])


def test_lunar_lander_is_made_with_its_physics_and_with_wind():
    grid = variants(LUNAR_LANDER)
    options = grid.options(999)
    env = gym.make(LUNAR_LANDER, **options).unwrapped
    env.reset(seed=0)
    assert env.enable_wind
    assert env.world.gravity[1] == pytest.approx(-9)
    assert (env.wind_power, env.turbulence_power) == (5.0, 0.5)
    env.close()


def test_refusals():
    with pytest.raises(ValueError, match="no variants of 'Pong' to train"):
        variants("Pong")
    with pytest.raises(ValueError, match="use params"):
        variants("CartPole-v1").options(0)
