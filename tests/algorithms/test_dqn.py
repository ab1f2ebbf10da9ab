"""DQN: pure functions of a state and a key, and what they learn."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.algorithms.baselines import dqn
from sotto.algorithms.baselines.dqn import DQNConfig
from sotto.algorithms.baselines.q_learning import (
    EpsilonGreedy,
    QNetwork,
    Transitions,
    learn,
    start_learner,
)
from sotto.rl.envs.registry import make
from sotto.rl.rollout import evaluate

SMALL = DQNConfig(
    env_id="Line-v0",
    total_steps=256,
    num_envs=4,
    num_steps=4,
    gradient_steps=2,
    learning_starts=32,
    buffer_size=100,
    hidden=(8,),
    discount=0.9,
)


def test_the_result_does_not_depend_on_chunks() -> None:
    key, state = jax.random.key(1), dqn.init(SMALL, jax.random.key(0))
    whole, metrics = dqn.train_chunk(SMALL, state, key, 6)
    first, _ = dqn.train_chunk(SMALL, state, key, 2)
    parts, _ = dqn.train_chunk(SMALL, first, key, 4)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-6)
    assert np.isnan(np.asarray(metrics.loss[:2])).all()  # learning starts after 32 steps
    assert np.isfinite(np.asarray(metrics.loss[2:])).all()
    assert metrics.exploration[0] == 1


def test_the_buffer_is_a_ring_of_whole_updates() -> None:
    assert SMALL.buffer_updates == 7  # 100 transitions, rounded up to updates of 16
    state, key = dqn.init(SMALL, jax.random.key(0)), jax.random.key(1)
    seven, _ = dqn.train_chunk(SMALL, state, key, 7)
    eight, _ = dqn.train_chunk(SMALL, seven, key, 1)
    before, after = (np.asarray(one.buffer.observations) for one in (seven, eight))
    assert not np.array_equal(before[:16], after[:16])
    np.testing.assert_array_equal(before[16:], after[16:])
    buffer = eight.buffer
    expected = 0.5 - np.abs(np.asarray(buffer.next_observations)[:, 0] - 0.5)
    np.testing.assert_allclose(np.asarray(buffer.rewards), expected, atol=1e-6)


def test_epsilon_greedy() -> None:
    values = lambda x: jnp.concatenate([x, 1 - x, 0.5 + 0 * x], axis=-1)  # noqa: E731
    x = jnp.array([[0.9], [0.1]])
    probabilities = np.exp(np.asarray(EpsilonGreedy(values, 0.3)(x).logits))
    np.testing.assert_allclose(probabilities, [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]], atol=1e-6)
    np.testing.assert_array_equal(EpsilonGreedy(values)(x).mode(), [0, 1])
    actor = EpsilonGreedy(values)
    noise = actor.noise(jax.random.key(0), (2,))
    np.testing.assert_array_equal(actor(x).sample(noise), [0, 1])  # never another one


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("huber", [False, True])
def test_values_of_a_known_problem(double: bool, huber: bool) -> None:
    """One state; action 0 ends it with reward 1, action 1 with reward 0 or not at all."""
    settings = replace(
        SMALL, double=double, huber=huber, target_period=10, learning_rate=1e-2
    ).learner
    settings = replace(settings, anneal_steps=None)
    env = make("Line-v0")
    network = QNetwork(env, (8,), jax.random.key(0), 1.0)
    zeros = jnp.zeros((4, 1))
    logged = Transitions(
        observations=zeros,
        actions=jnp.array([0, 0, 1, 1]),
        rewards=jnp.array([1.0, 1.0, 0.0, 0.0]),
        next_observations=zeros,
        terminated=jnp.array([True, True, True, False]),
    )
    learner, _ = jax.jit(lambda one, key: learn(settings, one, logged, 4, key, 1500))(
        start_learner(settings.optimizer, network), jax.random.key(1)
    )
    # Q(1) = (0 + 0.9 max Q) / 2
    np.testing.assert_allclose(learner.values(zeros[0]), [1.0, 0.45], atol=0.1)
    assert int(learner.steps) == 1500


def test_it_finds_the_middle_of_the_line() -> None:
    config = DQNConfig(env_id="Line-v0", total_steps=8_192, discount=0.9, learning_starts=512)
    keys = jax.vmap(jax.random.key)(jnp.arange(3, dtype=jnp.uint32))
    states = jax.vmap(partial(dqn.init, config))(keys)
    states, _ = jax.vmap(dqn.train_chunk, in_axes=(None, 0, 0, None))(
        config, states, keys, config.num_updates
    )
    env = make("Line-v0")
    returns = jax.jit(
        jax.vmap(
            lambda values: evaluate(
                env, env.default_params, EpsilonGreedy(values), jax.random.key(9), 200, True
            ).mean()
        )
    )(states.learner.values)
    assert float(returns.min()) >= 20.3  # of 20.71


@pytest.mark.parametrize("length", [2, 1, 7])
def test_values_are_of_observations_of_the_environments_length(length: int) -> None:
    acrobot = make("Acrobot-v1")
    values = QNetwork(acrobot, (4,), jax.random.key(0), 1.0)
    assert values(jnp.ones(6)).shape == (3,)
    with pytest.raises(ValueError, match=f"must have 6 numbers, got {length}"):
        EpsilonGreedy(values)(jnp.ones((3, length)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total_steps": 8}, "total_steps"),
        ({"num_envs": 0}, "num_envs"),
        ({"discount": 1.0}, "discount"),
        ({"exploration": 1.5}, "exploration"),
        ({"exploration_fraction": 0.0}, "exploration_fraction"),
        ({"minibatch": 0}, "minibatch"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_settings_that_cannot_run(changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)
