"""The Lipschitz bound of a policy network is above every slope that a search finds."""

import itertools

import numpy as np
import pytest

from sotto.privacy.mechanisms.functions.lipschitz import certified_lipschitz


def network(rng, sizes):
    return [rng.uniform(-1, 1, shape) / np.sqrt(shape[0]) for shape in itertools.pairwise(sizes)]


def row(x, weights, scale, activation):
    x = x * scale
    for weight in weights[:-1]:
        x = activation(x @ weight)
    logits = x @ weights[-1]
    e = np.exp(logits - logits.max())
    return e / e.sum()


@pytest.mark.parametrize("activation", [np.tanh, lambda x: np.maximum(x, 0)], ids=["tanh", "relu"])
def test_no_two_observations_are_told_apart_by_more_than_the_bound(activation) -> None:
    rng = np.random.default_rng(0)
    for _ in range(3):
        weights, scale = network(rng, (5, 16, 16, 4)), rng.uniform(0.1, 3, 5)
        bound = certified_lipschitz(weights, scale)
        for size in (1e-4, 0.1, 3.0):
            for _ in range(200):
                x = rng.normal(size=5)
                y = x + size * rng.normal(size=5)
                apart = row(x, weights, scale, activation) - row(y, weights, scale, activation)
                assert np.linalg.norm(apart) <= bound * np.linalg.norm(x - y)


def test_the_bound_is_attained_by_a_linear_policy_with_two_actions() -> None:
    weights, scale = [np.array([[1.0, -1.0], [0.5, -0.5]])], np.array([2.0, 1.0])
    bound = certified_lipschitz(weights, scale)
    direction = np.array([2.0, 0.5]) / np.hypot(2.0, 0.5)
    h = 1e-5
    slope = np.linalg.norm(
        row(h * direction, weights, scale, np.tanh) - row(-h * direction, weights, scale, np.tanh)
    ) / (2 * h)
    assert slope <= bound <= slope * (1 + 1e-5)


def test_it_is_the_product_of_spectral_norms_from_above() -> None:
    rng = np.random.default_rng(1)
    weights = network(rng, (8, 6, 3))
    product = 0.5 * np.prod([np.sqrt(np.linalg.eigvalsh(w @ w.T).max()) for w in weights])
    bound = certified_lipschitz(weights, np.ones(8))
    assert product < bound < product * (1 + 1e-5)
    # Power iteration is below the norm after a few steps, so it is not used.
    v = rng.normal(size=8)
    for _ in range(3):
        v = weights[0] @ (weights[0].T @ v)
        v /= np.linalg.norm(v)
    assert np.linalg.norm(v @ weights[0]) < np.linalg.svd(weights[0], compute_uv=False)[0]


def test_the_scaling_of_the_observation_counts() -> None:
    weights = network(np.random.default_rng(2), (4, 8, 3))
    assert certified_lipschitz(weights, [10.0] * 4) == pytest.approx(
        10 * certified_lipschitz(weights, [1.0] * 4)
    )


@pytest.mark.parametrize(
    ("weights", "scale"),
    [
        ([], [1.0]),
        ([np.ones((3, 2))], [1.0, 1.0]),
        ([np.ones((3, 2)), np.ones((3, 2))], [1.0] * 3),
        ([np.full((3, 2), np.nan)], [1.0] * 3),
        ([np.ones((3, 2))], [1.0, np.inf, 1.0]),
    ],
)
def test_networks_that_make_no_sense_are_refused(weights, scale) -> None:
    with pytest.raises(ValueError, match=r"weight|Lipschitz"):
        certified_lipschitz(weights, scale)
