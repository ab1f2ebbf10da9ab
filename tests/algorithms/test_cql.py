"""Offline learners: losses computed by hand, factored gradients, and learning."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.algorithms.offline import learner as offline
from sotto.algorithms.offline.behaviour_cloning import BehaviourCloning
from sotto.algorithms.offline.cql import CQL
from sotto.algorithms.offline.learner import OfflineConfig
from sotto.data.trajectories import Transitions
from sotto.privacy.release.factored import Factored
from sotto.privacy.release.purity import require_pure
from sotto.rl.networks import Policy

CONFIG = OfflineConfig(3, 4, (1.0, 10.0, 0.5), hidden=(16, 8), minibatch=32)
LEARNERS = [CQL(), CQL(alpha=0.1, reward_scale=1.0, double=False), BehaviourCloning()]


def networks(seed: int = 0) -> tuple[Policy, Policy]:
    """Returns different networks with values large enough for both parts of the Huber loss."""

    def one(key: jax.Array) -> Policy:
        leaves, structure = jax.tree.flatten(offline.initial_state(CONFIG, key).network)
        noisy = [
            x + jax.random.normal(k, x.shape)
            for x, k in zip(leaves, jax.random.split(key, len(leaves)), strict=True)
        ]
        return jax.tree.unflatten(structure, noisy)

    first, second = jax.random.split(jax.random.key(seed))
    return one(first), one(second)


def logged(count: int, seed: int = 0) -> Transitions:
    rng = np.random.default_rng(seed)
    return Transitions(
        rng.standard_normal((count, 3)).astype(np.float32),
        rng.integers(0, 4, count).astype(np.int32),
        rng.uniform(-3, 3, count).astype(np.float32),
        rng.standard_normal((count, 3)).astype(np.float32),
        rng.random(count) < 0.3,
    )


def outputs(policy: Policy, observation: np.ndarray) -> np.ndarray:
    """Evaluates the network in float64 numpy."""
    x = observation.astype(np.float64) * np.array(CONFIG.observation_scale)
    layers = list(zip(policy.network.weights, policy.network.biases, strict=True))
    for index, (weight, bias) in enumerate(layers):
        x = x @ np.asarray(weight, np.float64) + np.asarray(bias, np.float64)
        x = np.tanh(x) if index < len(layers) - 1 else x
    return x


# --- losses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("double", [True, False])
def test_cql_is_huber_and_the_conservative_term(double: bool) -> None:
    learner = CQL(alpha=0.7, discount=0.9, reward_scale=0.5, double=double)
    network, target = networks()
    batch = logged(200)
    expected, arms = [], set()
    for i in range(200):
        following = outputs(target, batch.next_observations[i])
        chooser = outputs(network, batch.next_observations[i]) if double else following
        later = 0.0 if batch.terminated[i] else following[chooser.argmax()]
        values = outputs(network, batch.observations[i])
        error = abs(values[batch.actions[i]] - (0.5 * batch.rewards[i] + 0.9 * later))
        arms.add(error > 1)
        huber = error - 0.5 if error > 1 else 0.5 * error**2
        gap = math.log(np.exp(values - values.max()).sum()) + values.max()
        expected.append(huber + 0.7 * (gap - values[batch.actions[i]]))
    assert arms == {True, False}
    found = offline.batch_loss(learner, network, target, batch)
    assert found == pytest.approx(np.mean(expected), rel=1e-4)


def test_behaviour_cloning_is_cross_entropy() -> None:
    network, target = networks()
    batch = logged(50)
    logits = np.stack([outputs(network, o) for o in batch.observations])
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.log(shares[np.arange(50), batch.actions]).mean()
    found = offline.batch_loss(BehaviourCloning(), network, target, batch)
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_truncated_episode_goes_on() -> None:
    network, target = networks()
    ends = logged(20)._replace(terminated=np.ones(20, bool))
    goes_on = ends._replace(terminated=np.zeros(20, bool))
    goal = jax.vmap(CQL(reward_scale=1.0).goal, in_axes=(None, None, 0))
    np.testing.assert_allclose(goal(network, target, ends), ends.rewards, rtol=1e-6)
    assert np.all(np.abs(goal(network, target, goes_on) - goes_on.rewards) > 1e-3)


# --- factored gradients --------------------------------------------------------------------------


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_factored_gradients_are_the_gradients(learner: offline.OfflineLearner) -> None:
    network, target = networks()
    batch = logged(30)
    for i in range(30):
        row = jax.tree.map(lambda x, i=i: x[i : i + 1], batch)
        expected = jax.grad(lambda n, row=row: offline.batch_loss(learner, n, target, row))(network)
        found = offline.factored_gradient(
            learner, network, target, jax.tree.map(lambda x: x[0], row)
        )
        assert all(isinstance(weight, Factored) for weight in found.network.weights)
        for factors, matrix in zip(found.network.weights, expected.network.weights, strict=True):
            outer = np.outer(factors.left, factors.right)
            np.testing.assert_allclose(outer, matrix, rtol=1e-4, atol=1e-5)
        for one, other in zip(found.network.biases, expected.network.biases, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_the_door_accepts_factored_gradients(learner: offline.OfflineLearner) -> None:
    row = jax.tree.map(lambda x: jnp.asarray(x[0]), logged(1))

    def gradient(network: Policy, target: Policy, transition: Transitions) -> Policy:
        return offline.factored_gradient(learner, network, target, transition)

    require_pure("local", gradient, *networks(), row)


# --- training ------------------------------------------------------------------------------------


def test_chunks_change_nothing_and_seeds_run_side_by_side() -> None:
    data = jax.tree.map(jnp.asarray, logged(300))
    keys = jax.random.split(jax.random.key(0), 2)
    states = jax.vmap(lambda k: offline.initial_state(CONFIG, k))(keys)

    def train(states: offline.OfflineState, steps: int) -> offline.OfflineState:
        def one(state: offline.OfflineState, key: jax.Array) -> offline.OfflineState:
            return offline.train_chunk(CONFIG, CQL(), state, state.network, data, key, steps)[0]

        return jax.vmap(one)(states, keys)

    whole, cut = train(states, 12), train(train(states, 7), 5)
    assert whole.steps.tolist() == cut.steps.tolist() == [12, 12]
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(cut), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    weights = whole.network.network.weights[0]
    assert np.abs(weights[0] - weights[1]).max() > 1e-3


def test_the_target_follows_at_its_rate() -> None:
    data = jax.tree.map(jnp.asarray, logged(10))
    before = offline.initial_state(CONFIG, jax.random.key(0))
    for learner in (CQL(target_rate=0.25), BehaviourCloning()):
        after, _ = offline.gradient_step(CONFIG, learner, before, data)
        expected = jax.tree.map(
            lambda old, new, rate=learner.target_rate: old + rate * (new - old),
            before.target,
            after.network,
        )
        assert eqx.tree_equal(after.target, expected, rtol=1e-5, atol=1e-6)


def chain(count: int) -> Transitions:
    """Three states in a row. Action 0 moves right and earns 1 at the end, and action 1 stays."""
    rng = np.random.default_rng(1)
    place = rng.integers(0, 3, count)
    action = rng.choice([0, 1], count)
    following = np.where(action == 0, np.minimum(place + 1, 2), place)
    ends = (place == 2) & (action == 0)
    eye = np.eye(3, dtype=np.float32)
    return Transitions(
        eye[place], action.astype(np.int32), ends.astype(np.float32), eye[following], ends
    )


def test_without_the_conservative_term_values_are_those_of_dynamic_programming() -> None:
    config = OfflineConfig(3, 2, (1.0,) * 3, hidden=(32,), learning_rate=3e-3, minibatch=64)
    learner = CQL(alpha=0.0, discount=0.9, reward_scale=1.0, target_rate=0.05)
    data = jax.tree.map(jnp.asarray, chain(500))
    state = offline.initial_state(config, jax.random.key(0))
    state, *_ = offline.train_chunk(
        config, learner, state, state.network, data, jax.random.key(1), 2000
    )
    values = state.network(jnp.eye(3)).logits
    expected = [[0.81, 0.729], [0.9, 0.81], [1.0, 0.9]]
    np.testing.assert_allclose(values, expected, atol=0.03)


def test_what_was_not_logged_is_pushed_down_and_cloning_copies() -> None:
    config = OfflineConfig(3, 2, (1.0,) * 3, hidden=(32,), learning_rate=3e-3, minibatch=64)
    data = chain(500)
    data = jax.tree.map(lambda x: jnp.asarray(x[data.actions == 0]), data)
    for learner in (CQL(discount=0.9, reward_scale=1.0), BehaviourCloning()):
        state = offline.initial_state(config, jax.random.key(0))
        state, _, loss = offline.train_chunk(
            config, learner, state, state.network, data, jax.random.key(1), 500
        )
        values = state.network(jnp.eye(3)).logits
        assert np.all(values[:, 0] > values[:, 1] + 1)
        assert state.network(jnp.eye(3)).mode().tolist() == [0, 0, 0]
        assert np.isfinite(loss)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CQL(alpha=-1.0), "alpha"),
        (lambda: CQL(target_rate=0.0), "target_rate"),
        (lambda: OfflineConfig(3, 1, (1.0,) * 3), "actions"),
        (lambda: OfflineConfig(3, 2, (1.0,) * 3, learning_rate=0.0), "learning_rate must be in"),
    ],
)
def test_settings_that_cannot_learn_are_refused(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()
