"""A world's rollouts are the environment's own, end once, and never exceed the cap."""

import dataclasses
import re
import warnings
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest

from sotto.errors import EnvironmentFailed
from sotto.rl.envs.base import Box
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers
from sotto.rl.envs.gymnasium.described import facts_of
from sotto.rl.envs.registry import make
from sotto.rl.world import GymnasiumWorld, JaxWorld, World

CARTPOLE = make("CartPole-v1")


def jax_world(cap: int = 20, seed: int = 0) -> JaxWorld:
    return JaxWorld(CARTPOLE, CARTPOLE.default_params, jax.random.key(seed), cap)


def both(cap: int) -> list[World]:
    return [jax_world(cap), GymnasiumWorld("CartPole-v1", 0, cap)]


def test_a_world_in_jax_steps_as_gymnasium_does() -> None:
    world, env = jax_world(100), gym.make("CartPole-v1").unwrapped
    first = world.reset(3)
    actions = np.random.default_rng(0).integers(0, 2, (100, 3))
    states = first.astype(np.float64)
    ended = np.zeros(3, bool)
    for row in actions:
        observations, rewards, terminated = world.step(row)
        for i in range(3):
            if ended[i]:
                assert rewards[i] == 0
                assert terminated[i]
                continue
            env.reset()
            env.state = states[i]
            expected, reward, ended[i], _, _ = env.step(int(row[i]))
            np.testing.assert_allclose(observations[i], expected, rtol=2e-4, atol=2e-5)
            assert rewards[i] == reward
            assert terminated[i] == ended[i]
        states = observations.astype(np.float64)
    assert ended.all()  # a random policy falls well within 100 steps


def test_a_world_in_gymnasium_is_the_environment_with_its_own_seed() -> None:
    with GymnasiumWorld("CartPole-v1", 0, 50) as world:
        observations = world.reset(2)
        assert not np.allclose(observations[0], observations[1])
        env = gym.make("CartPole-v1")
        env.reset()
        env.unwrapped.state = observations[0].astype(np.float64)
        for action in (0, 1, 1, 0):
            seen, reward, terminated = world.step(np.array([action, 1]))
            expected = env.step(action)[0]
            np.testing.assert_allclose(seen[0], expected, rtol=1e-5, atol=1e-6)
        assert reward.tolist() == [1.0, 1.0]
        assert not terminated.any()


@pytest.mark.parametrize("index", [0, 1])
def test_an_episode_ends_once_and_stays_where_it_ended(index: int) -> None:
    world = both(200)[index]
    world.reset(2)
    frozen, ended = None, False
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Gymnasium warns of steps beyond the end
        for _ in range(30):
            seen, rewards, terminated = world.step(np.array([1, 1]))
            if ended:
                np.testing.assert_array_equal(seen, frozen)
                assert not rewards.any()
                assert terminated.all()
            frozen, ended = seen, bool(terminated.all())
    assert ended


@pytest.mark.parametrize("index", [0, 1])
def test_rollouts_are_fresh_and_no_longer_than_the_cap(index: int) -> None:
    world = both(2)[index]
    first = world.reset(3)
    assert first.shape == (3, world.observation_size)
    for _ in range(2):
        seen, _, terminated = world.step(np.array([0, 1, 0]))
    assert not terminated.any()
    assert isinstance(seen, np.ndarray)
    with pytest.raises(ValueError, match="reset them"):
        world.step(np.array([0, 1, 0]))
    second = world.reset(5)
    assert second.shape == (5, world.observation_size)
    assert not np.isin(second, first).any()


class Failing(gym.Env):
    """Fails in a step, or ends episodes by itself."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, dose: str | None = None, render_mode: str | None = None) -> None:
        self.dose = {"none": 0}[dose] if dose else None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.dose == 0:
            raise KeyError("dose")
        return np.zeros(2, np.float32), 0.0, False, True, {}


@pytest.mark.parametrize(
    ("dose", "failure"), [("none", "KeyError in .*'dose'"), (None, "truncated an episode after 1")]
)
def test_an_environment_that_fails_says_so(dose: str | None, failure: str) -> None:
    gym.register("Failing-v0", Failing)
    try:
        with GymnasiumWorld("Failing-v0", 0, 5, dose=dose) as world:
            world.reset(1)
            with pytest.raises(EnvironmentFailed, match=failure):
                world.step(np.array([0]))
        with pytest.raises(EnvironmentFailed, match="Failing-v0 raised KeyError in "):
            facts_of("Failing-v0", {"dose": "other"}, unseen=False)
    finally:
        del gym.registry["Failing-v0"]


def test_seeds_repeat_a_world() -> None:
    np.testing.assert_array_equal(jax_world().reset(4), jax_world().reset(4))
    assert not np.isin(jax_world(seed=1).reset(4), jax_world().reset(4)).any()
    starts = [GymnasiumWorld("CartPole-v1", 7, 5).reset(4) for _ in range(2)]
    np.testing.assert_array_equal(starts[0], starts[1])


def test_a_variant_of_lunar_lander_is_a_world() -> None:
    with GymnasiumWorld("LunarLander-v3", 0, 5, gravity=-9.0) as world:
        assert (world.observation_size, world.num_actions) == (8, 4)
        assert isinstance(world, World)
        world.reset(2)
        seen, rewards, _ = world.step(np.array([2, 0]))
        assert np.isfinite(seen).all()
        assert np.isfinite(rewards).all()


@pytest.mark.unchecked_types
@pytest.mark.parametrize("index", [0, 1])
def test_wrong_actions_are_refused(index: int) -> None:
    world = both(5)[index]
    with pytest.raises(ValueError, match="call reset"):
        world.step(np.array([0]))
    world.reset(2)
    for actions in (np.array([0]), np.array([0.0, 1.0])):
        with pytest.raises(ValueError, match="one integer action for each of the 2"):
            world.step(actions)
    for actions in (np.array([0, 2]), np.array([-1, 0])):
        with pytest.raises(ValueError, match="actions are 0 to 1"):
            world.step(actions)
    with pytest.raises(ValueError, match="at least one rollout"):
        world.reset(0)


def test_other_environments_are_refused() -> None:
    pushed = dataclasses.replace(CARTPOLE, action=Box((-1.0,), (1.0,)))
    with pytest.raises(ValueError, match="Discrete"):
        JaxWorld(pushed, pushed.default_params, jax.random.key(0), 5)
    with pytest.raises(ValueError, match="Box observations and Discrete actions"):
        GymnasiumWorld("MountainCarContinuous-v0", 0, 5)
    with pytest.raises(ValueError, match="cannot make 'Nowhere-v0'"):
        GymnasiumWorld("Nowhere-v0", 0, 5)
    with pytest.raises(ValueError, match="must be positive"):
        jax_world(cap=0)


class Broken(gym.Env):
    """Observes one number, or two, where its space has another shape."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, first=(0.0, 0.0), later=(0.0, 0.0)):
        self.first, self.later = np.asarray(first, np.float32), np.asarray(later, np.float32)

    def reset(self, *, seed=None, options=None):
        return self.first, {}

    def step(self, action):
        return self.later, 0.0, False, False, {}


def stepped() -> None:
    with GymnasiumWorld("Broken-v0", 0, 5) as world:
        world.reset(2)
        world.step(np.array([0, 1]))


@pytest.mark.parametrize("wrong", [0.5, [0.5], [0.5] * 3, [[0.5, 0.5]]])
@pytest.mark.parametrize("when", ["first", "later"])
def test_an_observation_of_another_shape_than_its_space_is_refused(when, wrong):
    """NumPy alone would copy one number into both."""
    gym.register(
        "Broken-v0",
        entry_point=Broken,
        max_episode_steps=5,
        disable_env_checker=True,
        kwargs={when: wrong},
    )
    shape = re.escape(str(np.shape(wrong)))
    says = rf"^Broken-v0 returned an observation of shape {shape}, and its .* has \(2,\)$"
    try:
        with pytest.raises(EnvironmentFailed, match=says):
            stepped()
        with GymnasiumUsers("Broken-v0", 2) as users, pytest.raises(EnvironmentFailed, match=says):
            users.collect(lambda seen, _: np.zeros(2, int), jax.random.key(0), [1, 2], 3, True)
    finally:
        del gym.registry["Broken-v0"]
