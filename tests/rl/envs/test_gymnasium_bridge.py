from functools import partial

import gymnasium as gym
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from sotto.rl.envs.base import Box, Discrete
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers


class Corridor(gym.Env):
    """The observation is (position, seed); the action moves; position 5 terminates."""

    observation_space = gym.spaces.Box(-100, 100, (1, 2), np.float64)
    action_space = gym.spaces.Discrete(2, start=3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.draw = 0, self.np_random.uniform()
        return self.see(), {}

    def see(self):
        return np.array([[self.position, self.draw]])

    def step(self, action):
        assert action in (3, 4)
        self.position += int(action) - 3
        return self.see(), float(self.position), self.position == 5, False, {}


class Lever(gym.Env):
    """Box actions; the reward is the executed action's sum."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Box(np.array([-1, -2], np.float32), np.array([1, 2], np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), float(action.sum()), False, False, {}


class Unsupported(Lever):
    observation_space = gym.spaces.Discrete(4)


class UnsupportedActions(Lever):
    action_space = gym.spaces.MultiDiscrete([2, 2])


for name, entry, limit in [
    ("SottoCorridor-v0", Corridor, 7),
    ("SottoLever-v0", Lever, 4),
    ("SottoUnsupported-v0", Unsupported, None),
    ("SottoUnsupportedActions-v0", UnsupportedActions, None),
]:
    gym.register(name, entry_point=entry, max_episode_steps=limit)


def act_by_user(observations, key):
    """User 0 walks to the end, user 1 stands still (and is truncated), user 2 walks too."""
    return jnp.array([1, 0, 1])


def test_environments_reset_alone_with_their_own_random_stream():
    with GymnasiumUsers("SottoCorridor-v0", 3) as users:
        assert users.action == Discrete(2)
        assert users.observation_size == 2
        got = users.collect(act_by_user, jr.key(0), [7, 8, 7], 12, one_episode=False)
    positions = np.array(got.observations[..., 0])
    np.testing.assert_array_equal(positions[0], [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1])
    np.testing.assert_array_equal(got.next_observations[0, :6, 0], [1, 2, 3, 4, 5, 1])
    np.testing.assert_array_equal(got.rewards[0, :6], [1, 2, 3, 4, 5, 1])
    np.testing.assert_array_equal(np.flatnonzero(got.terminated[0]), [4, 9])
    np.testing.assert_array_equal(np.flatnonzero(got.truncated[1]), [6])
    assert not np.any(got.truncated[0])
    assert not np.any(got.terminated[1])
    assert np.all(got.alive)
    # One seed, one stream: users 0 and 2 are the same person; resets move along the stream.
    draws = np.array(got.observations[..., 1])
    np.testing.assert_array_equal(draws[0], draws[2])
    assert draws[0, 0] != draws[1, 0]
    assert len(np.unique(draws[0])) == 3
    expected = np.random.default_rng(7).uniform(size=3)
    np.testing.assert_allclose(draws[0, [0, 5, 10]], expected, rtol=1e-6)


def test_one_episode_masks_what_follows():
    with GymnasiumUsers("SottoCorridor-v0", 3) as users:
        got = users.collect(act_by_user, jr.key(0), [7, 8, 9], 12, one_episode=True)
        again = users.collect(act_by_user, jr.key(0), [7, 8, 9], 12, one_episode=True)
    np.testing.assert_array_equal(got.alive.sum(1), [5, 7, 5])
    np.testing.assert_array_equal(got.rewards.sum(1), [15, 0, 15])
    assert got.terminated.sum() == 2
    assert got.truncated.sum() == 1
    assert got.observations.shape == (3, 12, 2)
    np.testing.assert_array_equal(got.observations[0, 5:, 0], 5)  # Absorbed, never reset.
    np.testing.assert_array_equal(got.observations, again.observations)


def test_a_finished_user_has_the_same_data_whoever_else_plays():
    """User 0 ends after 5 steps, the other after 5 or 7: bit for bit nothing changes."""

    def act(other, observations, key):
        return jnp.array([1, other])  # in rows that are over too

    collected = []
    for other in (1, 0):
        with GymnasiumUsers("SottoCorridor-v0", 2) as users:
            for seeds in ([7, 8], [7, 9]):
                one = users.collect(partial(act, other), jr.key(0), seeds, 12, one_episode=True)
                collected.append([np.asarray(leaf[0]).tobytes() for leaf in one])
                assert not np.any(np.asarray(one.actions)[~np.asarray(one.alive)])
                assert one.alive.sum(1).tolist() == [5, 5 if other else 7]
    assert all(one == collected[0] for one in collected)


def test_box_actions_are_clipped_only_when_executed():
    wide = jnp.array([[5.0, -5.0], [0.5, 0.25]])
    with GymnasiumUsers("SottoLever-v0", 2) as users:
        assert users.action == Box((-1.0, -2.0), (1.0, 2.0))
        got = users.collect(lambda o, k: wide, jr.key(0), [0, 1], 3, one_episode=True)
    np.testing.assert_array_equal(got.actions[:, 0], wide)
    np.testing.assert_allclose(got.rewards[:, 0], [1.0 - 2.0, 0.75])


@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        ("SottoUnsupported-v0", "Box observations"),
        ("SottoUnsupportedActions-v0", "Discrete or floating-point Box actions"),
        ("NoSuchEnv-v0", "cannot make 'NoSuchEnv-v0'"),
    ],
)
def test_refusals(env_id, sentence):
    with pytest.raises(ValueError, match=sentence):
        GymnasiumUsers(env_id, 2)


def test_one_seed_per_user():
    with (
        GymnasiumUsers("SottoLever-v0", 2) as users,
        pytest.raises(ValueError, match="one seed per user"),
    ):
        users.collect(lambda o, k: jnp.zeros((2, 2)), jr.key(0), [1], 3, one_episode=True)


def test_advancing_twice_is_collecting_once():
    def walk(observations, key):
        return jnp.ones(len(observations), jnp.int32)

    with GymnasiumUsers("SottoCorridor-v0", 2) as users:
        whole = users.collect(walk, jr.key(0), [3, 4], 12, False)
        users.begin([3, 4])
        first = users.advance(walk, jr.key(0), 5)
        second = users.advance(walk, jr.key(1), 7)
    for name in whole._fields:
        joined = np.concatenate([getattr(first, name), getattr(second, name)], axis=1)
        np.testing.assert_array_equal(joined, getattr(whole, name), err_msg=name)
    # An episode ends after five steps, and the next observation is one after a reset.
    assert second.observations[0, 0, 0] == 0
    assert first.next_observations[0, -1, 0] == 5


def test_observations_are_scaled_and_a_given_limit_counts():
    with GymnasiumUsers("SottoCorridor-v0", 1, observation_scale=0.5, max_episode_steps=3) as users:
        assert users.max_episode_steps == 3
        seen = users.collect(lambda o, k: jnp.ones(1, jnp.int32), jr.key(0), [0], 6, False)
    np.testing.assert_array_equal(seen.observations[0, :, 0], [0, 0.5, 1, 0, 0.5, 1])
    np.testing.assert_array_equal(seen.truncated[0], [0, 0, 1, 0, 0, 1])
