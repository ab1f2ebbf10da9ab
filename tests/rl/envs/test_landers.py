"""LunarLanders that are stepped at once move as Gymnasium's do, bit for bit."""

import gymnasium as gym
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from gymnasium.envs.box2d.lunar_lander import LunarLander

from sotto.rl.envs.gymnasium import parallel
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers
from sotto.rl.envs.gymnasium.landers import landers_of
from sotto.rl.envs.gymnasium.specs import make

LANDER = "LunarLander-v3"
SETTINGS = [
    ({}, {"landed", "crashed"}),
    ({"gravity": -4.0, "max_episode_steps": 150}, {"late"}),
    ({"enable_wind": True, "wind_power": 20.0, "turbulence_power": 2.0}, {"landed", "crashed"}),
    (
        {"enable_wind": True, "wind_power": 3.0, "turbulence_power": 0.3, "gravity": -11.0},
        {"landed", "crashed"},
    ),
]
"""Options, and how episodes end with them."""


def made(count=4, env_id=LANDER, **options):
    return [make(env_id, options) for _ in range(count)]


def careful(seen, random):
    """Returns the action of a pilot who often lands, or a random one."""
    if random.random() < 0.1:
        return int(random.integers(4))
    x, _, right, up, angle, spin, *legs = seen
    lean = np.clip(0.5 * x + right, -0.4, 0.4)
    turn = 0.5 * (lean - angle) - spin
    hover = 0.55 * abs(x) - seen[1]
    climb = 0.5 * hover - 0.5 * up
    if any(legs):
        turn, climb = 0.0, -0.5 * up
    if climb > abs(turn) and climb > 0.05:
        return 2
    return 3 if turn < -0.05 else 1 if turn > 0.05 else 0


@pytest.mark.parametrize(("options", "ends"), SETTINGS)
def test_landers_that_are_stepped_at_once_move_as_in_gymnasium(options, ends):
    """Observations, rewards and ends are equal bit by bit, over crashes, landings and limits."""
    ours, theirs = made(**options), made(**options)
    at_once = landers_of(ours)
    now = [theirs[row].reset(seed=row)[0] for row in range(4)]
    for row in range(4):
        np.testing.assert_array_equal(ours[row].reset(seed=row)[0], now[row])
    random, taken_actions, ended = np.random.default_rng(0), set(), []
    for step in range(900):
        rows = np.array([[0, 1, 3], [0, 2, 3]][step % 2])
        actions = np.array([careful(now[row], random) for row in rows])
        taken_actions.update(actions.tolist())
        taken = at_once.step(rows, actions)
        assert taken.observations.dtype == np.float32
        assert taken.terminated.dtype == taken.truncated.dtype == np.bool_
        for index, row in enumerate(rows):
            seen, reward, terminated, truncated, _ = theirs[row].step(int(actions[index]))
            np.testing.assert_array_equal(taken.observations[index], seen)
            assert taken.rewards[index] == reward
            assert taken.terminated[index] == terminated
            assert taken.truncated[index] == truncated
            now[row] = seen
            if terminated or truncated:
                ended.append("late" if truncated else "landed" if reward == 100 else "crashed")
                now[row] = theirs[row].reset()[0]
                np.testing.assert_array_equal(ours[row].reset()[0], now[row])
    assert taken_actions == {0, 1, 2, 3}
    assert len(ended) > 4
    assert set(ended) == ends


@pytest.mark.parametrize("late", [0, 1])
def test_a_lander_that_leaves_the_picture_is_lost(late):
    """It drifts to the left or right, also in the last step that the limit allows."""

    def drifting(seen, lean):
        turn = 0.5 * (lean - seen[4]) - seen[5]
        if abs(turn) > 0.1:
            return 1 if turn > 0 else 3
        return 2 if seen[3] < 0.2 else 0

    sides = set()
    for seed in range(4):
        env, actions, ended = make(LANDER, {}), [], False
        seen = env.reset(seed=seed)[0]
        while not ended:
            actions.append(drifting(seen, [0.5, -0.5][seed % 2]))
            seen, _, ended, truncated, _ = env.step(actions[-1])
            assert not truncated
        if abs(seen[0]) < 1:
            continue
        sides.add(np.sign(seen[0]))
        ours = made(max_episode_steps=len(actions) + late)
        at_once, rows = landers_of(ours), np.arange(4)
        for one in ours:
            one.reset(seed=seed)
        taken = [at_once.step(rows, np.full(4, action)) for action in actions]
        assert (taken[-1].rewards == -100).all()
        assert taken[-1].terminated.all()
        assert taken[-1].truncated.all() == (late == 0)
        assert not any(one.terminated.any() for one in taken[:-1])
    assert sides == {-1.0, 1.0}


@pytest.mark.parametrize("action", [-1, 4])
def test_an_action_that_there_is_not_is_refused(action):
    envs = made()
    for env in envs:
        env.reset(seed=0)
    with pytest.raises(ValueError, match=f"actions 0 to 3; {action} is none of them"):
        landers_of(envs).step(np.arange(4), np.array([0, 1, 2, action]))


class MyLander(LunarLander):
    """A lander of a user, which Gymnasium's rules need not describe."""


def test_other_landers_and_rendered_ones_are_stepped_one_by_one():
    gym.register("MyLander-v0", MyLander, max_episode_steps=10)
    assert landers_of(made()) is not None
    assert landers_of(made(env_id="MyLander-v0")) is None
    assert landers_of(made(continuous=True)) is None
    assert landers_of(made(render_mode="rgb_array")) is None  # flames are bodies there
    assert landers_of(made(env_id="CartPole-v1")) is None
    assert landers_of(made(count=3)) is None  # so few are faster one by one
    assert landers_of([gym.wrappers.TimeAwareObservation(env) for env in made()]) is None


@pytest.mark.parametrize("reset", [True, False])
def test_at_once_or_one_by_one_is_the_same_to_the_bridge(monkeypatch, reset):
    """Five landers crash at different times."""

    def played():
        chosen = iter(jr.randint(jr.key(0), (150, 5), 0, 4))
        with GymnasiumUsers(LANDER, 5, action_repeat=2, enable_wind=True) as users:
            trajectory = users.collect(
                lambda seen, key: next(chosen), jr.key(1), range(5), 150, one_episode=not reset
            )
            return type(users._envs._together), trajectory

    kind, together = played()
    monkeypatch.setattr(parallel, "landers_of", lambda envs: None)
    other, alone = played()
    assert kind is not other
    assert other is type(None)
    for ours, theirs in zip(together, alone, strict=True):
        np.testing.assert_array_equal(jnp.asarray(ours), jnp.asarray(theirs))
    assert together.terminated.any(axis=1).all()
