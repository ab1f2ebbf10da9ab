"""The inputs of releases of functions."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.algorithms.functional_q import functions
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.release import Logged
from sotto.rl.envs.line import Line

CONFIG = FunctionalQConfig(target_epsilon=0.9, delta=1e-4)


@dataclass(frozen=True, kw_only=True)
class Odd(Line):
    """An environment whose rewards are NaN right of the middle."""

    worth: float

    def step(self, state, action, params):
        after, reward, terminated = super().step(state, action, params)
        return after, jnp.where(state.position > 0.5, self.worth, reward), terminated


@pytest.mark.parametrize("worth", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_counts_as_the_middle(monkeypatch, worth: float) -> None:
    line = Line()
    uniforms = jax.random.uniform(jax.random.key(0), (50, line.reset_size))
    states = jax.vmap(lambda one: line.reset(one, line.default_params))(uniforms)
    nothing = np.zeros((50, 1))
    logged = Logged(states, np.zeros(50, np.int32), nothing, nothing, np.zeros(50, bool))
    expected = functions.secret_rewards(CONFIG, logged)
    monkeypatch.setattr(FunctionalQConfig, "environment", Odd(worth=worth))
    rewards = functions.secret_rewards(CONFIG, logged)
    odd = np.asarray(states.position) > 0.5
    assert 0 < odd.sum() < len(odd)
    np.testing.assert_array_equal(rewards, np.where(odd, CONFIG.middle, expected))
