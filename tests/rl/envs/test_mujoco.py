"""HalfCheetah and Hopper, as users of Gymnasium's MuJoCo."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers, described
from sotto.rl.envs.gymnasium.mujoco_facts import FACTS


@pytest.mark.parametrize("env_id", sorted(FACTS))
def test_public_facts_fit(env_id, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    env = described(env_id)
    size = {"HalfCheetah": (17, 6), "Hopper": (11, 3)}[env_id.split("-")[0]]
    assert (env.observation_size, *env.action.shape) == size
    assert len(env.observation_scale) == size[0]
    assert env.max_episode_steps == 1000
    assert env.reward_per_step == 1.0
    # MuJoCo remarks on Gymnasium's models, in a file too; not here.
    assert capfd.readouterr().err == ""
    assert list(tmp_path.iterdir()) == []


def test_processes_play_what_gymnasium_plays(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    seeds, chosen = [3, 4, 5], jr.uniform(jr.key(0), (20, 3, 3), minval=-1.0, maxval=1.0)
    step = iter(range(20))
    with GymnasiumUsers("Hopper-v5", 3, 2) as users:
        got = users.collect(lambda o, k: chosen[next(step)], jr.key(0), seeds, 20, False)
    assert capfd.readouterr().err == ""
    assert list(tmp_path.iterdir()) == []
    for user, seed in enumerate(seeds):
        env = gym.make("Hopper-v5")
        observation, _ = env.reset(seed=seed)
        for t in range(20):
            np.testing.assert_allclose(got.observations[user, t], observation, rtol=1e-5, atol=1e-6)
            observation, reward, terminated, _, _ = env.step(np.asarray(chosen[t, user]))
            np.testing.assert_allclose(got.rewards[user, t], reward, rtol=1e-5)
            assert bool(got.terminated[user, t]) == terminated
            if terminated:
                observation, _ = env.reset()


def test_a_missing_extra_is_one_sentence(monkeypatch):
    def missing(*_given, **_options):
        raise gym.error.DependencyNotInstalled("MuJoCo is not installed")

    monkeypatch.setattr(gym, "make", missing)
    with pytest.raises(ValueError, match=r"Hopper-v5 needs .*: pip install 'sotto\[mujoco\]'"):
        GymnasiumUsers("Hopper-v5", 1)


def test_public_scales_bring_random_play_to_order_one():
    with GymnasiumUsers("HalfCheetah-v5", 4) as users:
        scale = np.array(users.described().observation_scale)
        seen = users.collect(
            jax.jit(lambda o, k: jr.uniform(k, (4, 6), minval=-1.0, maxval=1.0)),
            jr.key(0),
            range(4),
            150,
            True,
        )
    spread = np.asarray(jnp.std(seen.observations.reshape(-1, 17), axis=0)) * scale
    assert spread.min() > 0.3
    assert spread.max() < 3.0
