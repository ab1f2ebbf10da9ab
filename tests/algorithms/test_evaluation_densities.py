"""Values of policies for real actions: densities against numerical integrals, bounds, refusals."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from evaluated import declared, parts_of, without_noise
from scipy import stats

from sotto.algorithms.evaluation import densities
from sotto.algorithms.evaluation.analysis import Asked, settings_of
from sotto.algorithms.evaluation.persons import Bounds, PersonLog, Public
from sotto.keys import new_key
from sotto.rl.envs.base import Box
from sotto.rl.networks import Policy

REAL = {
    "action": [{"column": "a", "low": -1, "high": 3}],
    "propensity": None,
    "density": {"column": "p", "low": 0.01},
}
GRID = 4001
ACTIONS = np.linspace(-1, 3, GRID)
NORMAL = densities.LinearGaussian(jnp.array([[0.5]]), jnp.array([1.2]), jnp.log(jnp.array([0.4])))


def every_action():
    """A log with one step in which the logged actions fill a grid, and their masses.

    They are drawn from a triangular and an even density. The reward is 1 + cos(a). The observation
    is 0.4.
    """
    drawn = (stats.triang(0.5, -1, 4).pdf(ACTIONS) + 0.25) / 2
    shape = (GRID, 1)
    people = PersonLog(
        jnp.full((*shape, 1), 0.4),
        jnp.asarray(ACTIONS[:, None, None], jnp.float32),
        jnp.asarray(1 + np.cos(ACTIONS)[:, None], jnp.float32),
        jnp.asarray(drawn[:, None], jnp.float32),
        jnp.ones(shape, bool),
    )
    return people, drawn * (ACTIONS[1] - ACTIONS[0])


def set_up(policies, estimator="importance", clips=(50.0,), horizon=1):
    asked = Asked(estimator, largest_weights=clips)
    evaluation, least, actions = settings_of(declared(100, horizon, **REAL), asked, len(policies))
    public = Public(policies)
    return evaluation, Bounds.of(evaluation, public, least, actions), public


@pytest.mark.parametrize("estimator", ["self-normalised", "importance", "per-decision"])
def test_values_are_integrals_over_actions(estimator):
    people, masses = every_action()
    given = set_up((NORMAL, densities.named("uniform", declared(9, 1, **REAL))), estimator)
    parts = parts_of(*given, people)
    found = without_noise(given[0], given[1], parts, 1e6 * masses)
    mean = 1.2 + 0.5 * 0.4
    truths = [1 + math.cos(mean) * math.exp(-0.08), 1 + (math.sin(3) + math.sin(1)) / 4]
    for one, truth in zip(found, truths, strict=True):
        assert one.mean_weight == pytest.approx(1, abs=1e-3)
        assert one.value == pytest.approx(truth, abs=1e-3)


def test_actions_outside_of_the_bounds_are_lost_weight():
    wide = densities.LinearGaussian(jnp.zeros((1, 1)), jnp.array([3.0]), jnp.zeros(1))
    people, masses = every_action()
    given = set_up((wide,))
    (found,) = without_noise(*given[:2], parts_of(*given, people), 1e6 * masses)
    assert found.mean_weight == pytest.approx(0.5, abs=0.02)  # half is above 3
    clipped = np.clip(np.random.default_rng(0).normal(3, 1, 10**6), -1, 3)
    truth = np.mean(1 + np.cos(clipped))
    assert 0.3 < abs(found.value - truth) <= found.bias


def test_a_runs_policy_has_its_density_in_units_of_the_log():
    policy = Policy(1, Box((-1.0,), (3.0,), (1.0,), (2.0,)), (4,), new_key(0))
    found = densities.released(policy, declared(9, 1, **REAL), greedy=False)
    seen, acted = jnp.array([[0.3]]), jnp.array([[1.7]])
    mean = float(policy(seen).mean[0, 0])
    wanted = stats.norm(mean, 2.0).logpdf(1.7)
    assert float(found.log_density(seen, acted)[0]) == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(ValueError, match="--sampled"):
        densities.released(policy, declared(9, 1, **REAL), greedy=True)
    with pytest.raises(ValueError, match="does not fit the log"):
        densities.released(
            Policy(1, Box((-1.0,) * 2, (3.0,) * 2), (4,), new_key(0)),
            declared(9, 1, **REAL),
            greedy=False,
        )
    with pytest.raises(ValueError, match="does not fit the log"):
        densities.released(
            Policy(2, Box((-1.0,), (3.0,)), (4,), new_key(0)), declared(9, 1, **REAL), greedy=False
        )


@pytest.mark.parametrize("estimator", ["self-normalised", "importance", "per-decision"])
def test_no_person_is_longer_than_the_clip_norm(estimator):
    rng = np.random.default_rng(1)
    shape = (300, 3)
    people = PersonLog(
        jnp.asarray(rng.choice([-1, 1], (*shape, 1)), jnp.float32),
        jnp.asarray(rng.choice([-1, 1.4, 3], (*shape, 1)), jnp.float32),
        jnp.asarray(rng.choice([0, 2], shape), jnp.float32),
        jnp.asarray(rng.choice([0.01, 5, 1e30], shape), jnp.float32),
        jnp.asarray(np.sort(rng.random(shape) < 0.8)[:, ::-1].copy()),
    )
    given = set_up((NORMAL, NORMAL), estimator, (4.0, 2.0), horizon=3)
    norms = given[1].clip_norms(estimator)
    for name, part in parts_of(*given, people).items():
        longest = np.linalg.norm(part, axis=1).max()
        assert 0.9 * norms[name] <= longest <= norms[name] * (1 + 1e-6)


def test_a_normal_policy_is_read_from_its_file(tmp_path):
    file = tmp_path / "p.json"
    file.write_text(json.dumps({"weights": [[0.5]], "bias": [1.2], "stddev": [0.4]}))
    found = densities.named(str(file), declared(9, 1, **REAL))
    at = jnp.array([[0.4]]), jnp.array([[2.0]])
    assert float(found.log_density(*at)[0]) == pytest.approx(
        stats.norm(1.4, 0.4).logpdf(2.0), abs=1e-5
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"weights": [[1]], "bias": [0]}, "must hold"),
        ({"weights": [1], "bias": [0], "stddev": [1]}, "needs"),
        ({"weights": [[1]], "bias": [0], "stddev": [0]}, "above 0"),
    ],
)
def test_another_file_is_no_normal_policy(tmp_path, content, said):
    (tmp_path / "p.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=said):
        densities.named(str(tmp_path / "p.json"), declared(9, 1, **REAL))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Asked(learn=True, largest_weights=(3.0,)), "--learn"),
        (Asked("doubly-robust", largest_weights=(3.0,)), "doubly-robust"),
        (Asked(), "--largest-weight"),
    ],
)
def test_what_needs_categories_is_refused(asked, said):
    with pytest.raises(ValueError, match=said):
        settings_of(declared(100, 1, **REAL), asked, 1)
    with pytest.raises(ValueError, match="no policy for real actions"):
        densities.named("always:1", declared(9, 1, **REAL))
    with pytest.raises(ValueError, match=r"a density \(did you mean uniform\?\); give uniform, or"):
        densities.named("unifrom", declared(9, 1, **REAL))
