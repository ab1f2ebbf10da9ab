"""CartPole and Acrobot step for step against Gymnasium 1.3.

Ours computes in float32, Gymnasium in float64. One step from the same state agrees within a few
float32 roundings, which Acrobot amplifies near its maximal velocities; termination may differ only
within that distance of its threshold. In float64 the two agree to 1e-10.
"""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.rl.envs.acrobot import Acrobot, AcrobotState
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.cartpole import CartPole, CartPoleState
from sotto.rl.envs.registry import make

ENVIRONMENTS = {"CartPole-v1": (CartPole(), CartPoleState), "Acrobot-v1": (Acrobot(), AcrobotState)}
NUM_STEPS = 6000
TOLERANCE = {"CartPole-v1": 2e-6, "Acrobot-v1": 2e-4}


def distance(env_id: str, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Absolute difference of states; Acrobot's angles are compared on the circle."""
    difference = ours - theirs
    if env_id == "Acrobot-v1":
        angles = difference[..., :2]
        difference[..., :2] = (angles + np.pi) % (2 * np.pi) - np.pi
    return np.abs(difference)


def margin(env_id: str, state: np.ndarray) -> float:
    """How far a state is from the threshold at which an episode terminates."""
    if env_id == "CartPole-v1":
        return min(abs(2.4 - abs(state[0])), abs(np.pi / 15 - abs(state[2])))
    return abs(-np.cos(state[0]) - np.cos(state[0] + state[1]) - 1.0)


def gymnasium_steps(env_id: str, **physics: float) -> dict[str, np.ndarray]:
    """Random play with random starts that cover fast, terminal and wrapping states."""
    env = gym.make(env_id).unwrapped
    for name, value in physics.items():
        setattr(env, name, value)
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    rows: dict[str, list] = {k: [] for k in ("state", "action", "next", "obs", "reward", "ended")}
    spread = np.array([2.0, 2.0, 0.2, 2.0]) if env_id == "CartPole-v1" else np.array([3, 3, 12, 28])
    for t in range(NUM_STEPS):
        if t % 20 == 0:  # A new start, so that whole regions of the state space are covered.
            env.reset()
            if t % 40 == 0:
                env.state = rng.uniform(-spread, spread)
        # What both see must be one float32 number: errors do not accumulate.
        env.state = np.asarray(env.state, np.float32).astype(np.float64)
        action = int(rng.integers(env.action_space.n))
        rows["state"].append(env.state.copy())
        rows["action"].append(action)
        obs, reward, ended, _, _ = env.step(action)
        for key, value in (("next", env.state), ("obs", obs), ("reward", reward), ("ended", ended)):
            rows[key].append(np.array(value))
        if ended:
            env.reset()
    return {key: np.asarray(value) for key, value in rows.items()}


def our_steps(env: AnyEnvironment, state_type, rows, params):
    def one(state, action):
        state, reward, ended = env.step(state_type(*state), action, params)
        return jnp.stack(state), env.observe(state, params), reward, ended

    states = jnp.asarray(rows["state"], jnp.float32)
    return map(np.asarray, jax.jit(jax.vmap(one))(states, jnp.asarray(rows["action"], jnp.int32)))


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_each_step_from_gymnasiums_own_state(env_id):
    env, state_type = ENVIRONMENTS[env_id]
    rows = gymnasium_steps(env_id)
    state, obs, reward, ended = our_steps(env, state_type, rows, env.default_params)
    scale = 1.0 + np.abs(rows["next"])
    assert np.max(distance(env_id, state, rows["next"]) / scale) < TOLERANCE[env_id]
    assert np.max(np.abs(obs - rows["obs"]) / (1 + np.abs(rows["obs"]))) < TOLERANCE[env_id]
    assert np.quantile(distance(env_id, state, rows["next"]) / scale, 0.99) < 5e-6
    decided = np.array([margin(env_id, s) for s in rows["next"]]) > 1e-4
    assert decided.mean() > 0.99
    assert rows["ended"].sum() > 50
    np.testing.assert_array_equal(ended[decided], rows["ended"][decided])
    np.testing.assert_array_equal(reward[decided], rows["reward"][decided])


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_the_same_mathematics_in_float64(env_id):
    env, state_type = ENVIRONMENTS[env_id]
    rows = gymnasium_steps(env_id)
    with jax.enable_x64(True):
        step = jax.jit(jax.vmap(env.step, (0, 0, None)))
        states = state_type(*jnp.asarray(rows["state"], jnp.float64).T)
        following, _, ended = step(states, jnp.asarray(rows["action"]), env.default_params)
        following = np.stack(following, axis=1)
    assert following.dtype == np.float64
    assert np.max(distance(env_id, following, rows["next"])) < 1e-10
    np.testing.assert_array_equal(ended, rows["ended"])


@pytest.mark.parametrize(
    ("env_id", "theirs", "ours"),
    [
        # Gymnasium's dynamics use total_mass and polemass_length, which its masses only initialise.
        (
            "CartPole-v1",
            {"masscart": 2.0, "masspole": 0.3, "total_mass": 2.3, "length": 0.7}
            | {"polemass_length": 0.3 * 0.7, "gravity": 7.0, "force_mag": 6.0, "tau": 0.03},
            {"masscart": 2.0, "masspole": 0.3, "length": 0.7}
            | {"gravity": 7.0, "force_mag": 6.0, "tau": 0.03},
        ),
        (
            "Acrobot-v1",
            {"LINK_LENGTH_1": 1.3, "LINK_LENGTH_2": 5.0, "LINK_MASS_1": 0.8, "LINK_MASS_2": 1.4}
            | {"LINK_COM_POS_1": 0.6, "LINK_COM_POS_2": 0.4, "LINK_MOI": 0.9, "dt": 0.1},
            {"link_length_1": 1.3, "link_mass_1": 0.8, "link_mass_2": 1.4}
            | {"link_com_1": 0.6, "link_com_2": 0.4, "link_moi": 0.9, "dt": 0.1},
        ),
    ],
)
def test_changed_physics(env_id, theirs, ours):
    env, state_type = ENVIRONMENTS[env_id]
    rows = gymnasium_steps(env_id, **theirs)
    params = type(env.default_params)(**ours)
    state, *_ = our_steps(env, state_type, rows, params)
    scale = 1.0 + np.abs(rows["next"])
    assert np.max(distance(env_id, state, rows["next"]) / scale) < TOLERANCE[env_id]
    unchanged, *_ = our_steps(env, state_type, rows, env.default_params)
    assert np.max(distance(env_id, unchanged, rows["next"]) / scale) > 1e-2  # The test can fail.


@pytest.mark.parametrize(("env_id", "horizon"), [("CartPole-v1", 500), ("Acrobot-v1", 50)])
def test_whole_trajectories(env_id, horizon):
    """Without correction: float32 errors stay small until the episode ends.

    Acrobot is chaotic, so it is compared over ten seconds of random torque.
    """
    env, state_type = ENVIRONMENTS[env_id]
    step = jax.jit(env.step)
    reference = gym.make(env_id)
    rng = np.random.default_rng(1)
    for seed in range(20):
        reference.reset(seed=seed)
        base = reference.unwrapped
        base.state = np.asarray(base.state, np.float32).astype(np.float64)
        state = state_type(*jnp.asarray(base.state, jnp.float32))
        for _ in range(horizon):
            action = int(rng.integers(reference.action_space.n))
            _, reward, terminated, truncated, _ = reference.step(action)
            state, r, ended = step(state, jnp.int32(action), env.default_params)
            if margin(env_id, base.state) > 1e-3:
                assert (bool(ended), float(r)) == (terminated, reward)
            if terminated or truncated:
                break
        np.testing.assert_array_less(distance(env_id, np.array(state), np.array(base.state)), 2e-3)


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_reset_has_gymnasiums_range(env_id):
    env = make(env_id)
    uniforms = jax.random.uniform(jax.random.key(0), (4000, env.reset_size))
    states = np.stack(jax.vmap(env.reset, (0, None))(uniforms, env.default_params), axis=1)
    base = gym.make(env_id).unwrapped
    theirs = []
    for seed in range(1000):
        base.reset(seed=seed)
        theirs.append(base.state)
    bound = np.abs(theirs).max(axis=0)
    assert np.all(np.abs(states) <= 1.01 * bound)
    np.testing.assert_allclose(np.abs(states).max(axis=0), bound, rtol=0.01)
    np.testing.assert_allclose(states.std(axis=0), np.std(theirs, axis=0), rtol=0.08)


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_thousands_of_variants_under_vmap(env_id):
    """Physics are traced: one compiled program, each environment with its own gravity."""
    env = make(env_id)
    gravities = jnp.linspace(5.0, 15.0, 2000)
    defaults = jax.tree.map(lambda x: jnp.full((2000,), x, jnp.float32), env.default_params)
    params = type(env.default_params)(
        **{**{f: getattr(defaults, f) for f in vars(defaults)}, "gravity": gravities}
    )
    uniforms = jnp.full((env.reset_size,), 0.9)

    @jax.jit
    def first_step(params):
        state, _, _ = env.step(env.reset(uniforms, params), jnp.int32(0), params)
        return jnp.stack(state)

    batched = jax.vmap(first_step)(params)
    for i in (0, 777, 1999):
        single = first_step(jax.tree.map(lambda x, i=i: x[i], params))
        np.testing.assert_allclose(batched[i], single, rtol=1e-5)
    assert np.std(batched[:, 3]) > 0


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_limits_and_spaces_are_gymnasiums(env_id):
    env, theirs = make(env_id), gym.make(env_id)
    assert env.max_episode_steps == theirs.spec.max_episode_steps
    assert (env.observation_size,) == theirs.observation_space.shape
    assert env.action.n == theirs.action_space.n
    assert len(env.observation_scale) == env.observation_size
