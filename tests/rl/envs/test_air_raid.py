import builtins

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from sotto.rl.envs.base import Discrete
from sotto.rl.envs.gymnasium.air_raid import air_raid


def test_the_game_is_the_papers():
    users, env = air_raid(2)
    with users:
        seen = users.collect(lambda o, k: jr.randint(k, (2,), 0, 6), jr.key(0), [0, 1], 40, False)
    assert env.action == Discrete(6)
    assert (env.observation_size, env.max_episode_steps) == (128, 10_000)
    values = np.asarray(seen.observations) * 255
    np.testing.assert_allclose(values, np.round(values), atol=1e-3)  # bytes, divided by 255
    assert 100 < values.max() <= 255.001
    assert values.min() >= 0
    assert len(np.unique(values[0], axis=0)) > 20  # the game goes on
    with pytest.raises(NotImplementedError, match="AirRaid runs in Gymnasium"):
        env.step(None, jnp.zeros(()), None)


def test_without_the_arcade_a_sentence_says_what_to_install(monkeypatch):
    original = builtins.__import__

    def refuse(name, *rest):
        if name == "ale_py":
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ValueError, match=r"pip install 'sotto\[atari\]'"):
        air_raid(1)
