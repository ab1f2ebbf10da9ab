"""Networks trained on exact rewards: their bounds, their steps, and the distance of neighbours."""

import math
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from norms import norm_at_points

from sotto.algorithms.functional_q import functions, network, training
from sotto.algorithms.functional_q.accounts import RunAccount
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.functions import network_fit, planned_epsilon
from sotto.algorithms.functional_q.network import Family, Log, NetworkFit, Parameters
from sotto.privacy.audits.audit import audit_mechanism
from sotto.privacy.audits.function_trials import FunctionTrials
from sotto.privacy.certificates.derive import derive
from sotto.privacy.claims.rewards import ONE_REWARD
from sotto.privacy.mechanisms.functions.calibration import multiplier_for
from sotto.privacy.release.functions import FunctionRelease
from sotto.privacy.units import Adjacency, Unit

EPSILON, DELTA = 0.9, 1e-4
FAMILY = Family(width=32, actions=2)
FINE = np.linspace(0.0, 1.0, 201)
NODES = np.linspace(0.0, 1.0, 11)
CONFIG = FunctionalQConfig(
    mode="output-release",
    learner="network",
    noise="process",
    hidden=(32,),
    iterations=2,
    gradient_steps=40,
    samples=400,
    num_envs=4,
    target_epsilon=EPSILON,
    delta=DELTA,
)


def line_log(count: int = 200, seed: int = 0) -> Log:
    rng = np.random.default_rng(seed)
    states, actions = rng.random(count), rng.integers(0, 2, count)
    following = np.clip(states + (1 - 2 * actions) * rng.random(count) / 4, 0, 1)
    return Log(states, actions, 0.5 - np.abs(following - 0.5), following, np.zeros(count, bool))


def far_parameters(rng: np.random.Generator, family: Family = FAMILY) -> Parameters:
    """Draws parameters of the set, mostly on its boundary, sometimes with one kind of weights."""
    sizes = rng.choice([0.0, 1.0, 30.0], 4)
    moved = (
        one + s * rng.normal(size=one.shape) for one, s in zip(family.start, sizes, strict=True)
    )
    return family.project(Parameters(*moved))


def flat(parameters: Parameters) -> np.ndarray:
    return np.concatenate([np.ravel(one) for one in parameters])


def distance(one: Parameters, other: Parameters) -> float:
    return float(np.linalg.norm(flat(one) - flat(other)))


def norm(fit: NetworkFit, one: Parameters, other: Parameters, beta: float) -> float:
    """Returns the norm of a difference at many points, a lower bound on the function's norm."""
    difference = fit.values(one, FINE) - fit.values(other, FINE)
    return math.hypot(*(norm_at_points(FINE, column, beta) for column in difference.T))


# --- the set, and its bounds ---------------------------------------------------------------------


def in_jax(theta, x):
    """Evaluates one action's network, written a second time, with parameters in one vector."""
    c, (v, w, b) = theta[0], theta[1:].reshape(3, -1)
    return c + jnp.sum(v * jnp.tanh(w * x + b)) / math.sqrt(v.size)


def test_bounds_hold_over_the_whole_set() -> None:
    gradient = jax.jit(jax.grad(in_jax))
    hessian = jax.jit(jax.hessian(in_jax))
    slope = jax.jit(jax.grad(jax.grad(in_jax, argnums=1)))
    rng = np.random.default_rng(0)
    largest = np.zeros(3)
    for _ in range(150):
        parameters = far_parameters(rng)
        theta = jnp.asarray(np.concatenate([np.ravel(one[0]) for one in parameters]))
        x = jnp.float32(rng.choice([0.0, rng.random(), 1.0]))
        found = [gradient(theta, x), slope(theta, x)]
        norms = [float(jnp.linalg.norm(one)) for one in found]
        largest = np.maximum(largest, [*norms, np.linalg.norm(hessian(theta, x), 2)])
    bounds = [FAMILY.lipschitz, FAMILY.slope_lipschitz, FAMILY.curvature]
    assert np.all(largest <= bounds)
    assert np.all(largest >= np.array([0.8, 0.4, 0.7]) * bounds)  # and the bounds are not loose


def test_values_are_those_of_the_network() -> None:
    parameters = far_parameters(np.random.default_rng(1))
    theta = np.concatenate([np.ravel(one[1]) for one in parameters])
    expected = jax.vmap(lambda x: in_jax(jnp.asarray(theta), x))(jnp.asarray(NODES))
    np.testing.assert_allclose(FAMILY.values(parameters, NODES)[:, 1], expected, atol=1e-5)


def test_projection_keeps_parameters_in_the_set_and_brings_none_further_apart() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        points = [
            Parameters(*(one + 3 * rng.normal(size=one.shape) for one in FAMILY.start))
            for _ in range(2)
        ]
        there, other = map(FAMILY.project, points)
        assert distance(there, other) <= distance(*points)
        np.testing.assert_allclose(flat(FAMILY.project(there)), flat(there), atol=1e-12)
        assert np.abs(there.v).max() <= 0.5
        for action in range(2):
            moved = [
                one[action] - start[action] for one, start in zip(there, FAMILY.start, strict=True)
            ]
            assert np.linalg.norm(np.concatenate([np.ravel(m) for m in moved])) <= 2 + 1e-12
    inside = Parameters(*(one + 0.01 for one in FAMILY.start))
    np.testing.assert_array_equal(flat(FAMILY.project(inside)), flat(inside))


def test_a_step_descends_the_gradient_of_the_stated_loss() -> None:
    fit, log = NetworkFit(FAMILY, 200, 1, 1, 0.9, 0.25, 0.5), line_log()
    start = FAMILY.project(
        Parameters(
            *(one + 0.01 * np.random.default_rng(3).normal(size=one.shape) for one in FAMILY.start)
        )
    )
    goals = np.random.default_rng(4).uniform(-1, 1, 200)

    def loss(parameters: Parameters):
        thetas = jnp.stack(
            [jnp.concatenate([jnp.ravel(p[a]) for p in parameters]) for a in range(2)]
        )
        values = jax.vmap(in_jax)(thetas[log.actions], jnp.asarray(log.states))
        kappa = network._KAPPA
        return jnp.mean(kappa**2 * (jnp.sqrt(1 + ((values - goals) / kappa) ** 2) - 1))

    gradients = jax.grad(loss)(jax.tree.map(jnp.asarray, start))
    stepped = fit._step(start, log, goals)
    expected = flat(start) - fit.step_size * flat(gradients)
    np.testing.assert_allclose(flat(stepped), expected, atol=1e-6)
    assert fit.step_size * FAMILY.lipschitz**2 <= 1  # as the proof asks


# --- neighbours ----------------------------------------------------------------------------------


def flipped(rewards: np.ndarray) -> np.ndarray:
    changed = rewards.copy()
    changed[np.argmin(changed)] = 0.5
    return changed


PAIRS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, bool]] = {
    "shifted": (lambda r: r + 1.0, 1.0, False),
    "mirrored": (lambda r: 0.5 - r, 0.5, False),
    "near": (lambda r: r + 0.01 * np.sign(np.sin(9 * r)), 0.01, False),
    "one": (flipped, 0.5, True),
}


@pytest.mark.parametrize("pair", list(PAIRS))
@pytest.mark.parametrize(("iterations", "steps"), [(1, 1), (1, 60), (2, 20), (3, 60)])
def test_trainings_on_neighbours_stay_within_the_bound(
    pair: str, iterations: int, steps: int
) -> None:
    change, radius, one_reward = PAIRS[pair]
    log = line_log()
    wide = 1.5 if pair == "shifted" else 0.5
    fit = NetworkFit(FAMILY, 200, iterations, steps, 0.9, wide / 2, wide)
    one, other = (fit.train(log._replace(rewards=r)) for r in (log.rewards, change(log.rewards)))
    sensitivity = fit.sensitivity(radius, one_reward=one_reward)
    assert 0 < distance(one, other) <= fit.moved(radius, one_reward=one_reward)
    assert sensitivity.beta is not None
    assert norm(fit, one, other, sensitivity.beta) <= sensitivity.value


def a_single_transition(reward: float) -> Log:
    here = np.array([0.5])
    return Log(here, np.array([0]), np.array([reward]), here, np.array([False]))


def test_half_the_bound_is_too_little() -> None:
    """One step on one transition nearly attains the bound, so half of the bound is exceeded."""
    for one_reward in (True, False):
        fit = NetworkFit(Family(256, 1), 1, 1, 1, 0.9, 0.25, 0.5)
        one, other = (fit.train(a_single_transition(reward)) for reward in (0.0, 0.5))
        bound = fit.moved(0.5, one_reward=one_reward)
        assert bound / 2 < distance(one, other) <= bound
        sensitivity = fit.sensitivity(0.5, one_reward=True)
        assert sensitivity.beta is not None
        found = norm(fit, one, other, sensitivity.beta)
        assert sensitivity.value / 2 < found <= sensitivity.value


def test_the_share_of_one_reward_in_every_step_is_not_enough() -> None:
    """From the second iteration on the targets of other transitions move too."""
    family = Family(32, 4)
    actions = np.array([0, *[1] * 9, *[2] * 9, *[3] * 9])
    here = np.full(28, 0.5)
    log = Log(here, actions, np.where(actions == 0, 0.5, 0.2), here, np.zeros(28, bool))
    fit = NetworkFit(family, 28, 2, 150, 0.9, 0.25, 0.5)
    changed = log._replace(rewards=np.where(actions == 0, 0.0, log.rewards))
    moved = distance(fit.train(log), fit.train(changed))
    kappa = network._KAPPA
    share = fit.steps * fit.step_size * 2 * kappa * family.lipschitz / 28
    assert share < moved <= fit.moved(0.5, one_reward=True)


def test_the_bound_is_the_printed_recursion() -> None:
    """One iteration is computed by hand, and the diameter of the set caps the bound."""
    fit = NetworkFit(FAMILY, 200, 1, 3, 0.9, 0.25, 0.5)
    slope, alpha, kappa = FAMILY.lipschitz, fit.step_size, network._KAPPA
    share = alpha * slope * 2 * kappa / 200
    growth = 1 + alpha * kappa * FAMILY.curvature
    assert fit.moved(0.5, one_reward=True) == pytest.approx(share * (1 + growth + growth**2))
    single = replace(fit, steps=1)
    assert single.moved(1e-3, one_reward=False) == pytest.approx(
        min(alpha * slope * 4e-3, math.sqrt(alpha / 1.5) * 4e-3)
    )
    assert single.moved(0.5, one_reward=False) == pytest.approx(2 * alpha * kappa * slope)
    many = replace(fit, iterations=30, steps=200)
    assert many.moved(0.5, one_reward=True) == FAMILY.diameter
    assert fit.moved(1e-3, one_reward=True) < fit.moved(0.5, one_reward=True)


def trials(sensitivity_share: float) -> FunctionTrials:
    """The training and its release are attacked on neighbours that are nearly farthest apart."""
    fit = NetworkFit(Family(256, 1), 1, 1, 1, 0.9, 0.25, 0.5)
    stated = fit.sensitivity(0.5, one_reward=True)
    release = FunctionRelease(
        name="action values",
        unit=Unit(kind="transition", adjacency=Adjacency.REPLACE_ONE),
        sensitivity=replace(stated, value=sensitivity_share * stated.value),
        noise_multiplier=multiplier_for(EPSILON, DELTA),
        population="simulated",
        size=len(NODES),
        units=1,
        protects=(ONE_REWARD(low="0", high="0.5"),),
    )
    worlds = {
        present: fit.values(fit.train(a_single_transition(0.5 * present)), NODES)
        for present in (True, False)
    }
    return FunctionTrials(release, (len(NODES), 1), lambda present, _: worlds[present], (NODES,))


def test_the_audit_stays_below_the_certificate_and_refutes_too_little_noise() -> None:
    right, wrong = trials(1.0), trials(0.1)
    certified = right.certified_epsilon(DELTA)
    assert certified == pytest.approx(EPSILON, rel=1e-6)
    assert not audit_mechanism(right, 6000, 1, DELTA, certified_epsilon=certified).refuted
    assert audit_mechanism(wrong, 6000, 1, DELTA, certified_epsilon=EPSILON).refuted


# --- as a mode -----------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["transition", "reward-function"])
def test_a_network_is_released_with_a_proof(tmp_path, unit: str) -> None:
    radius = 0.01 if unit == "reward-function" else None
    config = replace(CONFIG, unit=unit, reward_radius=radius)
    ledger = training.create_ledger(config, tmp_path / "l.sqlite")
    (progress,) = training.train(config, [0], [ledger])
    certificate = derive(ledger)
    assert certificate.status == "proved"
    assert certificate.epsilon <= EPSILON
    assert certificate.epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert progress.states.values.table.shape == (1, 11, 2)
    because = certificate.assumptions
    assert any("bounded gradient steps" in one.statement for one in because)
    sensitivity = network_fit(config).sensitivity(radius or 0.5, one_reward=radius is None)
    sigma = multiplier_for(EPSILON, DELTA) * sensitivity.value
    given = replace(config, target_epsilon=None, sigma=sigma)
    assert planned_epsilon(given) == pytest.approx(EPSILON, rel=5e-3)


def test_values_that_the_grid_would_clip_are_refused_before_anything_is_charged(tmp_path) -> None:
    """One transition among very many moves the function by so little that the grid ends early."""
    small = {"iterations": 1, "gradient_steps": 1, "delta": 1e-6}
    config = replace(CONFIG, samples=400_000, discount=0.99, **small)
    ledger = training.create_ledger(config, tmp_path / "l.sqlite")
    with pytest.raises(ValueError, match="the grid of released values ends at"):
        training.check(config)
    with pytest.raises(ValueError, match="the grid of released values ends at"):
        functions._release_network(config, None, RunAccount(ledger, None))  # type: ignore[arg-type]
    assert ledger.streams == ()


def test_the_public_centre_is_not_released() -> None:
    """Values are within a bound that does not grow with the centre; clipping bends a function."""
    rng = np.random.default_rng(2)
    for middle in (0.25, 1e6):
        fit = NetworkFit(FAMILY, 100, 3, 9, 0.9, middle, 0.5)
        values = [fit.values(far_parameters(rng), FINE) for _ in range(50)]
        assert np.abs(values).max() <= fit.largest
        assert fit.largest == pytest.approx(0.25 * 2.71 * math.sqrt(8))


def test_clipping_a_function_moves_neighbours_apart() -> None:
    """The mistake that the two tests above keep out: a kink costs norm that no sensitivity has."""
    slope, difference = 100 * NODES, 1e-3 * np.ones(len(NODES))
    limit = 55.0
    moved = np.clip(slope + difference, -limit, limit) - np.clip(slope, -limit, limit)
    assert norm_at_points(NODES, moved, 1.0) > 1.2 * norm_at_points(NODES, difference, 1.0)


def test_what_it_learns_is_where_the_middle_is() -> None:
    """Without noise one iteration already moves to the centre, which is best on this line."""
    log, fit = line_log(2000), NetworkFit(Family(128, 2), 2000, 1, 100, 0.9, 0.25, 0.5)
    values = fit.values(fit.train(log), np.array([0.1, 0.3, 0.7, 0.9]))
    assert np.argmax(values, axis=1).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "per-iteration"}, "output-release"),
        ({"noise": "vector"}, "--noise process"),
        ({"hidden": (8, 8)}, "one hidden layer"),
        ({"gradient_steps": 1}, "at least iterations"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)


def test_more_dimensions_and_other_logs_are_refused() -> None:
    with pytest.raises(ValueError, match="in one dimension"):
        training.check(replace(CONFIG, env_id="CartPoleCentred-v0"))
    with pytest.raises(ValueError, match="schedule is for 7 transitions"):
        NetworkFit(FAMILY, 7, 1, 1, 0.9, 0.25, 0.5).train(line_log())
