"""HalfCheetah and Hopper, as users of Gymnasium's MuJoCo."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers
from sotto.rl.envs.gymnasium.described import SCALES, described
from sotto.rl.envs.gymnasium.mujoco_bodies import RULES, Moved, bodies_of


@pytest.mark.parametrize("env_id", sorted(SCALES))
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


def made(env_id, count=4, **options):
    return [gym.make(env_id, disable_env_checker=True, **options) for _ in range(count)]


WIDE = {"healthy_z_range": (-9.0, 9.0), "healthy_angle_range": (-9.0, 9.0)}
BODIES = [
    ("HalfCheetah-v5", {}, {"late"}),
    (
        "HalfCheetah-v5",
        {"ctrl_cost_weight": 0.3, "exclude_current_positions_from_observation": 0},
        {"late"},
    ),
    (
        "HalfCheetah-v5",
        {"forward_reward_weight": 2.0, "frame_skip": 3, "max_episode_steps": -1},
        set(),
    ),
    ("Hopper-v5", {}, {"fell", "late"}),
    ("Hopper-v5", {"terminate_when_unhealthy": 0, "healthy_z_range": (0.9, 1.3)}, {"late"}),
    (
        "Hopper-v5",
        {"healthy_angle_range": (-0.05, 0.02), "healthy_reward": 3.0, "frame_skip": 2},
        {"fell", "late"},
    ),
    (
        "Hopper-v5",
        {**WIDE, "healthy_state_range": (-2.0, 2.0), "terminate_when_unhealthy": 0},
        {"late"},
    ),
    (
        "Hopper-v5",
        {**WIDE, "healthy_state_range": (-0.2, 9.0), "reset_noise_scale": 0.1},
        {"fell"},
    ),
    (
        "Hopper-v5",  # so fast that observed velocities are clipped
        {**WIDE, "healthy_state_range": (-99.0, 99.0), "reset_noise_scale": 12.0}
        | {"forward_reward_weight": 0.5},
        {"fell", "late"},
    ),
]
"""Environments, their options, and how episodes end with them."""


@pytest.mark.parametrize(("env_id", "options", "ends"), BODIES)
def test_bodies_that_are_stepped_at_once_move_as_in_gymnasium(env_id, options, ends):
    """All numbers are equal bit by bit, over falls and time limits, whoever rests."""
    settings = {"max_episode_steps": 40, **options}
    ours, theirs = made(env_id, **settings), made(env_id, **settings)
    at_once = bodies_of(ours)
    for row in range(4):
        np.testing.assert_array_equal(ours[row].reset(seed=row)[0], theirs[row].reset(seed=row)[0])
    random, size = np.random.default_rng(0), ours[0].action_space.shape[0]
    ended = set()
    for step in range(120):
        rows = np.array([[0, 1, 3], [0, 2, 3]][step % 2])
        actions = random.uniform(-1.0, 1.0, (3, size)).astype(np.float32)
        taken = at_once.step(rows, actions)
        assert taken.terminated.dtype == taken.truncated.dtype == np.bool_
        for index, row in enumerate(rows):
            seen, reward, terminated, truncated, _ = theirs[row].step(actions[index])
            np.testing.assert_array_equal(taken.observations[index], seen)
            assert taken.rewards[index] == reward
            assert taken.terminated[index] == terminated
            assert taken.truncated[index] == truncated
            if terminated or truncated:
                ended.add("fell" if terminated else "late")
                np.testing.assert_array_equal(ours[row].reset()[0], theirs[row].reset()[0])
    assert ended == ends


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-0.5, 2.0), (-2.0, 0.7)])
def test_a_hopper_is_healthy_as_in_gymnasium(low, high):
    """Angles and velocities have the range; place and height do not."""
    options = {**WIDE, "healthy_state_range": (low, high)}
    env = made("Hopper-v5", 1, **options)[0].unwrapped
    random, healthy = np.random.default_rng(0), []
    for _ in range(400):
        positions, velocities = random.normal(0.1, 0.6, 6), random.normal(0.0, 0.4, 6)
        env.set_state(positions, velocities)
        moved = Moved(np.zeros((1, 3)), np.zeros(1), positions[None], velocities[None])
        terminated = RULES["gymnasium.envs.mujoco.hopper_v5:HopperEnv"](env, moved)[2]
        healthy.append(env.is_healthy)
        assert terminated[0] == (not env.is_healthy)
    assert 20 < sum(healthy) < 380


class MyHopper(HopperEnv):
    """A body of a user, which Gymnasium's rules need not describe."""


class MyLimit(gym.wrappers.TimeLimit):
    """A wrapper of a user."""


def test_other_bodies_and_wrapped_ones_are_stepped_one_by_one():
    register = gym.register
    register("MyHopper-v0", MyHopper, max_episode_steps=10)
    register("OneHopper-v0", lambda **options: HopperEnv(**options), max_episode_steps=10)
    assert bodies_of(made("Hopper-v5")) is not None
    assert bodies_of(made("Hopper-v5", render_mode="rgb_array")) is not None
    for env_id in ("Hopper-v4", "MyHopper-v0", "OneHopper-v0"):
        assert bodies_of(made(env_id)) is None
    assert bodies_of(made("Hopper-v5", 3)) is None  # so few are faster one by one
    assert bodies_of([MyLimit(env, 5) for env in made("Hopper-v5")]) is None
    assert bodies_of([gym.wrappers.TimeAwareObservation(env) for env in made("Hopper-v5")]) is None
    shown = made("Hopper-v5")
    shown[0].unwrapped.render_mode = "human"
    assert bodies_of(shown) is None


def test_the_shortest_time_limit_counts():
    envs = [gym.wrappers.TimeLimit(env, 3) for env in made("HalfCheetah-v5", max_episode_steps=5)]
    at_once, rows = bodies_of(envs), np.arange(4)
    for env in envs:
        env.reset(seed=0)
    late = [at_once.step(rows, np.zeros((4, 6), np.float32)).truncated.all() for _ in range(4)]
    assert late == [False, False, True, True]


def test_an_episode_that_ends_by_itself_at_its_limit_is_not_cut_off():
    settings = {"max_episode_steps": 1, "healthy_z_range": (8.0, 9.0)}
    with GymnasiumUsers("Hopper-v5", 4, **settings) as users:
        seen = users.collect(lambda o, k: jnp.zeros((4, 3)), jr.key(0), range(4), 1, True)
        assert users._envs._together is not None
    assert seen.terminated.all()
    assert not seen.truncated.any()


@pytest.mark.parametrize("repeat", [1, 3])
@pytest.mark.parametrize("reset", [True, False])
def test_at_once_or_one_by_one_is_the_same_to_the_bridge(monkeypatch, repeat, reset):
    """Seven hoppers fall at different times."""

    def played():
        chosen = iter(jr.uniform(jr.key(0), (60, 7, 3), minval=-1.0, maxval=1.0))
        with GymnasiumUsers("Hopper-v5", 7, action_repeat=repeat, max_episode_steps=25) as users:
            seen = users.collect(lambda o, k: next(chosen), jr.key(0), range(7), 60, not reset)
            return seen, users._envs._together

    fast, bodies = played()
    monkeypatch.setattr("sotto.rl.envs.gymnasium.parallel.bodies_of", lambda envs: None)
    slow, nothing = played()
    assert bodies is not None
    assert nothing is None
    assert float(jnp.sum(fast.terminated)) > 2
    jax.tree.map(np.testing.assert_array_equal, fast, slow)


def test_a_worker_whose_users_have_all_fallen_waits_for_the_others():
    with GymnasiumUsers("Hopper-v5", 8, 2) as users:
        idle = np.concatenate([np.full((4, 3), 1.0), np.full((4, 3), 0.0)])
        _, steps, ended = users.returns(lambda o, k: idle, jr.key(0), range(8), 200)
    assert ended.all()
    assert steps[:4].max() < steps[4:].min()
