"""HalfCheetah and Hopper, as users of Gymnasium's MuJoCo."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers, described
from sotto.rl.envs.gymnasium.mujoco_facts import FACTS
from sotto.rl.envs.gymnasium.stepping import Mujoco, OneByOne, stepper_of


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


def same(first, second):
    for got, wanted in zip(first, second, strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


BODIES = [
    ("HalfCheetah-v5", {}),
    (
        "HalfCheetah-v5",
        {"ctrl_cost_weight": 0.3, "exclude_current_positions_from_observation": False},
    ),
    ("Hopper-v5", {}),
    ("Hopper-v5", {"terminate_when_unhealthy": False, "healthy_z_range": (0.9, 1.3)}),
    ("Hopper-v5", {"healthy_angle_range": (-0.05, 0.02), "healthy_state_range": (-4.0, 4.0)}),
]


@pytest.mark.parametrize(("env_id", "options"), BODIES)
def test_bodies_that_are_stepped_at_once_move_as_in_gymnasium(env_id, options):
    """All numbers are equal bit by bit, over falls and time limits. One body of four rests."""
    settings = {"max_episode_steps": 60, "disable_env_checker": True, **options}
    at_once, alone = (
        kind([gym.make(env_id, **settings) for _ in range(4)]) for kind in (stepper_of, OneByOne)
    )
    assert isinstance(at_once, Mujoco)
    for row in range(4):
        np.testing.assert_array_equal(at_once.reset(row, row), alone.reset(row, row))
    random, rows, ends = np.random.default_rng(0), np.array([0, 1, 3]), np.zeros(2, int)
    size = {"HalfCheetah-v5": 6, "Hopper-v5": 3}[env_id]
    for _ in range(150):
        actions = random.uniform(-0.5, 0.5, (3, size)).astype(np.float32)
        taken = at_once.step(rows, actions)
        same(taken, alone.step(rows, actions))
        ends += taken.terminated.sum(), taken.truncated.sum()
        for row in rows[taken.terminated | taken.truncated].tolist():
            np.testing.assert_array_equal(at_once.reset(row, None), alone.reset(row, None))
    falls = env_id == "Hopper-v5" and options.get("terminate_when_unhealthy", True)
    assert (ends[0] > 2) if falls else (ends[0] == 0 and ends[1] == 6)


def test_other_bodies_and_wrapped_ones_are_stepped_one_by_one():
    def stepper(env_id, **options):
        return stepper_of([gym.make(env_id, disable_env_checker=True, **options)])

    assert isinstance(stepper("Hopper-v5"), Mujoco)
    assert isinstance(stepper("Hopper-v5", render_mode="rgb_array"), Mujoco)
    assert isinstance(stepper("Hopper-v4"), OneByOne)
    wrapped = gym.wrappers.RescaleAction(gym.make("Hopper-v5"), -2.0, 2.0)
    assert isinstance(stepper_of([wrapped]), OneByOne)
