import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.rl.distributions import Categorical, DiagonalGaussian
from sotto.rl.envs.base import Box, Discrete
from sotto.rl.networks import MLP, Policy, Value


def test_orthogonal_weights_with_the_given_gains():
    net = MLP(6, 3, (16, 8), jax.random.key(0), last_gain=0.01)
    for weight, gain in zip(net.weights, (2**0.5, 2**0.5, 0.01), strict=True):
        singular = np.linalg.svd(np.array(weight), compute_uv=False)
        np.testing.assert_allclose(singular, gain, rtol=1e-4)
    assert all(not np.any(bias) for bias in net.biases)


def test_many_networks_at_once_are_the_networks_one_by_one_without_a_batched_qr():
    def make(key):
        return MLP(6, 3, (16, 8), key)

    keys = jax.random.split(jax.random.key(3), 4)
    together = jax.vmap(make)(keys)
    for index, key in enumerate(keys):
        for ours, alone in zip(together.weights, make(key).weights, strict=True):
            np.testing.assert_allclose(ours[index], alone, rtol=1e-6)
    # Two batched QR factorisations at once hang on two cores (see `_orthogonal`).
    program = str(jax.make_jaxpr(jax.vmap(make))(keys))
    shapes = re.findall(r"f32\[([\d,]+)\] = qr\[", program)
    assert shapes == ["6,6", "8,8", "3,3"]


def test_forward_pass_against_numpy():
    net = MLP(3, 2, (5,), jax.random.key(1))
    x = np.random.default_rng(0).normal(size=(7, 4, 3)).astype(np.float32)
    (w1, w2), (b1, b2) = net.weights, net.biases
    expected = np.tanh(x @ np.array(w1) + np.array(b1)) @ np.array(w2) + np.array(b2)
    np.testing.assert_allclose(net(x), expected, rtol=1e-4, atol=1e-5)


def test_no_hidden_layer_is_linear():
    policy = Policy(4, Discrete(2), (), jax.random.key(0))
    x, y = jnp.ones(4), jnp.array([1.0, -2.0, 0.5, 3.0])
    np.testing.assert_allclose(policy(x + y).logits, policy(x).logits + policy(y).logits, atol=1e-5)


def test_policies_for_both_action_spaces():
    discrete = Policy(4, Discrete(3), (8,), jax.random.key(0))
    assert isinstance(discrete(jnp.ones((5, 4))), Categorical)
    assert discrete.noise(jax.random.key(0), (5,)).shape == (5, 1)
    box = Policy(4, Box((-1.0, -1.0), (1.0, 1.0)), (8,), jax.random.key(0), initial_log_std=-0.5)
    distribution = box(jnp.ones((5, 4)))
    assert isinstance(distribution, DiagonalGaussian)
    np.testing.assert_allclose(distribution.log_std, np.full((5, 2), -0.5))
    assert box.noise(jax.random.key(0), (5,)).shape == (5, 2)


def test_observation_scale_multiplies():
    key = jax.random.key(2)
    plain = Policy(4, Discrete(2), (8,), key)
    scaled = Policy(4, Discrete(2), (8,), key, observation_scale=(1, 1, 10, 1))
    x = jnp.array([0.1, 0.2, 0.3, 0.4])
    y = x * jnp.array([1, 1, 10, 1])
    np.testing.assert_allclose(scaled(x).logits, plain(y).logits, rtol=1e-5)
    with pytest.raises(ValueError, match="give one each"):
        Policy(4, Discrete(2), (8,), key, observation_scale=(1.0,))


def test_observation_centre_is_subtracted_before_scaling():
    key, centre, scale = jax.random.key(2), (80.0, -1.0), (0.1, 2.0)
    x = jnp.array([[90.0, 0.5], [80.0, -1.0]])
    y = (x - jnp.array(centre)) * jnp.array(scale)
    for network in (Value, lambda size, *rest, **how: Policy(size, Discrete(2), *rest, **how)):
        plain = network(2, (8,), key)
        moved = network(2, (8,), key, observation_centre=centre, observation_scale=scale)
        for ours, expected in zip(
            jax.tree.leaves(moved(x)), jax.tree.leaves(plain(y)), strict=True
        ):
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(ValueError, match="give one each"):
            network(2, (8,), key, observation_centre=(1.0,))


def test_a_box_has_a_centre_and_units():
    key, x = jax.random.key(4), jnp.array([[0.3, -2.0]])
    low, high = (0.0, -1.0), (10.0, 1.0)
    plain = Policy(2, Box(low, high), (8,), key, last_gain=1.0)(x)
    box = Box(low, high, centre=(5.0, 0.0), scale=(2.0, 0.5))
    policy = Policy(2, box, (8,), key, last_gain=1.0)
    moved = policy(x)
    np.testing.assert_allclose(
        moved.mode(), np.array([5.0, 0.0]) + plain.mode() * np.array([2.0, 0.5])
    )
    np.testing.assert_allclose(jnp.exp(moved.log_std), [[2.0, 0.5]], rtol=1e-6)
    # Densities and entropies are those of the action itself: a change of variables.
    noise = policy.noise(key, (1,))
    action, before = moved.sample(noise), plain.sample(noise)
    np.testing.assert_allclose(
        action, np.array([5.0, 0.0]) + before * np.array([2.0, 0.5]), rtol=1e-5
    )
    change = np.log(2.0) + np.log(0.5)
    np.testing.assert_allclose(moved.log_prob(action), plain.log_prob(before) - change, rtol=1e-4)
    np.testing.assert_allclose(moved.entropy(), plain.entropy() + change, rtol=1e-5)


def test_value_scale_and_offset():
    key = jax.random.key(3)
    plain, other = Value(4, (8,), key), Value(4, (8,), key, scale=50.0, offset=-7.0)
    x = jax.random.normal(key, (6, 4))
    assert plain(x).shape == (6,)
    np.testing.assert_allclose(other(x), -7.0 + 50.0 * plain(x), rtol=1e-5)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_observations_of_another_length_are_refused(length):
    """JAX alone would read the last number twice, or leave out a number."""
    key, box = jax.random.key(0), Box((-1.0,), (1.0,))
    networks = (
        *(Policy(2, action, (4,), key) for action in (Discrete(3), box)),
        Policy(2, Discrete(3), (4,), key, observation_scale=(1.0, 2.0)),
        Policy(2, Discrete(3), (4,), key, observation_centre=(1.0, 2.0)),
        *(Value(2, (4,), key), Value(2, (4,), key, observation_scale=(1.0, 2.0))),
        *(MLP(2, 3, (), key), MLP(2, 3, (4,), key)),
    )
    for network in networks:
        jax.tree.leaves(network(jnp.ones(2)))
        for call in (network, jax.vmap(network), lambda seen, one=network: one(seen[0])):
            with pytest.raises(
                ValueError, match=rf"^an observation must have 2 numbers, got {length}\b"
            ):
                call(jnp.ones((5, length)))


def test_one_number_is_not_several():
    with pytest.raises(ValueError, match=r"^an observation must have 1 number, got 2$"):
        MLP(1, 3, (), jax.random.key(0))(jnp.ones(2))
