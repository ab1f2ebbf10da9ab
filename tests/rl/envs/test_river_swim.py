"""RiverSwim against its tables and the known optimal values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sotto.rl.envs.registry import make
from sotto.rl.envs.river_swim import EXCHANGED, RiverSwim, RiverSwimParams, RiverSwimState
from sotto.rl.tabular import optimal_values, policy_values

OPTIMUM = {"RiverSwim-v0": 3.3973, "RiverSwim90-v0": 5.1951}
UNIFORM = {"RiverSwim-v0": 0.044, "RiverSwim90-v0": 0.047}


def tables(stay: float) -> np.ndarray:
    """Transitions of going right, written down a second time."""
    return np.array(
        [
            [0.4, 0.6, 0, 0, 0, 0],
            [0.05, 0.6, 0.35, 0, 0, 0],
            [0, 0.05, 0.6, 0.35, 0, 0],
            [0, 0, 0.05, 0.6, 0.35, 0],
            [0, 0, 0, 0.05, 0.6, 0.35],
            [0, 0, 0, 0, 1 - stay, stay],
        ]
    )


@pytest.mark.parametrize(("env_id", "stay"), [("RiverSwim-v0", 0.6), ("RiverSwim90-v0", 0.9)])
def test_values_are_those_that_are_known(env_id: str, stay: float) -> None:
    env = make(env_id)
    mdp = env.mdp(env.default_params)
    np.testing.assert_allclose(mdp.transitions[:, 1], tables(stay), atol=1e-12)
    np.testing.assert_allclose(mdp.transitions[:, 0], np.eye(6)[[0, 0, 1, 2, 3, 4]])
    values = optimal_values(mdp)
    assert values[0, 0].max() == pytest.approx(OPTIMUM[env_id], abs=5e-5)
    assert (values[0].argmax(axis=-1) == 1).all()
    left, uniform = np.eye(2)[[0] * 6], np.full((6, 2), 0.5)
    assert policy_values(mdp, left)[0] == pytest.approx(0.1)
    assert policy_values(mdp, uniform)[0] == pytest.approx(UNIFORM[env_id], abs=5e-4)


@pytest.mark.parametrize("env_id", ["RiverSwim-v0", "RiverSwim90-v0"])
def test_exchanged_actions_have_each_others_numbers_in_half_of_the_states(env_id: str) -> None:
    usual, other = make(env_id), make(env_id.replace("Swim", "SwimExchanged"))
    one, two = usual.mdp(usual.default_params), other.mdp(other.default_params)
    assert tuple(sorted(np.random.default_rng(0).permutation(6)[:3])) == EXCHANGED
    for state in range(6):
        order = [1, 0] if state in EXCHANGED else [0, 1]
        np.testing.assert_array_equal(two.transitions[state], one.transitions[state][order])
        np.testing.assert_array_equal(two.rewards[state], one.rewards[state][order])
    np.testing.assert_allclose(optimal_values(two).max(-1), optimal_values(one).max(-1))


@pytest.mark.parametrize("env_id", [*OPTIMUM, "RiverSwimExchanged-v0", "RiverSwimExchanged90-v0"])
def test_steps_have_the_law_of_the_tables(env_id: str) -> None:
    """Many swimmers at every state and with either action, several steps deep into their coins."""
    env, each = make(env_id), 4000
    mdp = env.mdp(env.default_params)
    uniforms = (jnp.arange(each)[:, None] + 0.5) / each

    @jax.jit
    def moved(position, action):
        def one(uniform):
            state = env.reset(uniform, env.default_params)
            for _ in range(3):
                here = state._replace(position=position)
                state, reward, ended = env.step(here, action, env.default_params)
            return state.position, reward, ended

        return jax.vmap(one)(uniforms)

    for position in range(6):
        for action in range(2):
            after, reward, ended = moved(jnp.int32(position), jnp.int32(action))
            assert not np.any(ended)
            np.testing.assert_allclose(reward, mdp.rewards[position, action])
            counts = np.bincount(np.asarray(after), minlength=6)
            chances = mdp.transitions[position, action]
            assert counts[chances == 0].sum() == 0
            likely = chances > 0
            if likely.sum() > 1:
                test = stats.chisquare(counts[likely], each * chances[likely])
                assert test.pvalue > 1e-6
    state = RiverSwimState(jnp.int32(4), jnp.uint32(1))
    assert env.state_index(state) == 4
    np.testing.assert_array_equal(env.observe(state, env.default_params), np.eye(6)[4])


def test_parameters_may_be_traced() -> None:
    env = RiverSwim()
    chances = jnp.linspace(0.0, 1.0, 5)

    def ends(stay):
        params = RiverSwimParams(stay=stay)
        here = RiverSwimState(jnp.int32(5), jnp.uint32(7))
        return env.step(here, jnp.int32(1), params)[0].position

    positions = np.asarray(jax.vmap(ends)(chances))
    assert positions[0] == 4
    assert positions[-1] == 5
