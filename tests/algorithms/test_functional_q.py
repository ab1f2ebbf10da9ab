"""Q-learning that protects rewards: its steps, its releases, its learning and its costs."""

import json
import math
import uuid
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.algorithms.baselines.q_learning import EpsilonGreedy
from sotto.algorithms.functional_q import functions
from sotto.algorithms.functional_q import release as functional_q
from sotto.algorithms.functional_q import training as functional_q_training
from sotto.algorithms.functional_q.accounts import RunAccount
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.functions import Averager, planned_epsilon
from sotto.algorithms.functional_q.nodes import averages
from sotto.algorithms.functional_q.release import Dynamics
from sotto.algorithms.functional_q.states import RewardState, action_values, initial_states
from sotto.cli import main
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.mechanisms.functions.calibration import averager_factor
from sotto.privacy.release.functions import FunctionRelease
from sotto.rl.envs.line import Line, LineParams
from sotto.rl.envs.registry import make
from sotto.rl.rollout import evaluate

LINE = FunctionalQConfig(target_epsilon=0.9, delta=1e-4)
SMALL = replace(
    LINE, samples=400, num_envs=4, gradient_steps=50, hidden=(8,), iterations=5, minibatch=16
)
WHOLE = replace(SMALL, unit="reward-function", reward_radius=0.1)
PAPER = replace(WHOLE, mode="paper", noise="process", reward_radius=1.0, batch=64, samples=128)


def uniform(observation):
    return jnp.zeros((*observation.shape[:-1], 2))


def collected(config: FunctionalQConfig, env=None, seed: int = 0):
    lanes = functional_q.start_lanes(config, jax.random.key(seed))
    dynamics = Dynamics(env or config.environment)
    actor = EpsilonGreedy(uniform, 1.0)
    logged, _ = functional_q.collect(
        dynamics, actor, lanes, jax.random.key(seed + 1), config.lane_steps
    )
    return logged


def trained(config: FunctionalQConfig, tmp_path, runs: int = 1):
    ledgers = [
        functional_q_training.create_ledger(config, tmp_path / f"{run}.sqlite")
        for run in range(runs)
    ]
    progress = list(functional_q_training.train(config, list(range(runs)), ledgers))
    return progress, ledgers


def returns(config: FunctionalQConfig, states, episodes: int = 200) -> np.ndarray:
    env = make(config.env_id)
    values = action_values(states)
    score = jax.jit(
        jax.vmap(
            lambda one: evaluate(
                env, env.default_params, EpsilonGreedy(one), jax.random.key(9), episodes, True
            ).mean()
        )
    )
    return np.asarray(score(values))


# --- collected steps -----------------------------------------------------------------------------


def test_steps_do_not_depend_on_rewards() -> None:
    ours = collected(SMALL)
    theirs = collected(SMALL, Line(default_params=LineParams(goal=0.0)))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_steps_are_those_of_the_environment() -> None:
    logged, env = collected(SMALL), SMALL.environment
    step = jax.vmap(lambda s, a: env.step(s, a, env.default_params)[0].position)
    following = np.asarray(logged.next_observations)[:, 0]
    np.testing.assert_array_equal(np.asarray(step(logged.states, logged.actions)), following)
    np.testing.assert_array_equal(logged.states.position, logged.observations[:, 0])
    here = np.asarray(logged.observations)[:, 0].reshape(4, 100)
    goes_on = here[:, 1:] == following.reshape(4, 100)[:, :-1]
    assert goes_on.sum() == 4 * 98  # but where the first of two episodes of 50 steps ends
    assert not goes_on[:, 49].any()


# --- releases ------------------------------------------------------------------------------------


def test_one_transition_adds_at_most_half_the_range_about_the_middle() -> None:
    for variable in ("next-state", "state-action"):
        config = replace(SMALL, node_variable=variable)
        logged = collected(config)
        release = functional_q.reward_release(config, 1)
        rows, _ = jax.vmap(release.local, in_axes=(None, 0, None))(
            jnp.zeros(config.features), (logged.states, logged.actions), jax.random.key(0)
        )
        assert rows["rewards"].shape == (400, config.features)
        assert float(jnp.linalg.norm(rows["rewards"], axis=1).max()) <= 0.25 + 1e-6
        weights = functional_q.reward_weights(config, logged, 400)
        rewards = 0.25 - np.abs(np.asarray(logged.next_observations)[:, 0] - 0.5)
        expected = weights.multiply(rewards[:, None]).toarray()
        np.testing.assert_allclose(np.asarray(rows["rewards"]), expected, atol=1e-6)


def test_noise_of_sums_is_that_of_the_target() -> None:
    from sotto.privacy.mechanisms.functions.calibration import multiplier_for

    assert functional_q.noise_of_sums(LINE, 1) == pytest.approx(
        multiplier_for(0.9, 1e-4) * 0.5, rel=1e-4
    )
    rounds = replace(LINE, rounds=10)
    independent = functional_q.noise_of_sums(LINE, 1) * math.sqrt(10)
    assert functional_q.noise_of_sums(LINE, 1) < functional_q.noise_of_sums(rounds, 10)
    assert functional_q.noise_of_sums(rounds, 10) < 0.7 * independent
    given = replace(LINE, target_epsilon=None, sigma=0.7)
    assert functional_q.noise_of_sums(given, 1) == pytest.approx(0.7)


def test_released_sums_have_the_stated_noise(tmp_path) -> None:
    """Sums over many runs of the same steps have no bias and the stated standard deviation."""
    config = replace(SMALL, samples=40, gradient_steps=1, learner="averager")
    progress, _ = trained(config, tmp_path, runs=60)
    states = progress[0].states
    assert isinstance(states, RewardState)
    errors = []
    for run in range(60):
        logged = jax.tree.map(lambda x, i=run: x[i], states.logged)
        weights = functional_q.reward_weights(config, logged, 40)
        rewards = 0.25 - np.abs(np.asarray(logged.next_observations)[:, 0] - 0.5)
        errors.append(np.asarray(states.sums[run]) - weights.T @ rewards)
    sigma = functional_q.noise_of_sums(config, 1)
    assert np.std(errors) == pytest.approx(sigma, rel=4 / math.sqrt(2 * 60 * 11))
    assert abs(np.mean(errors)) < 4 * sigma / math.sqrt(60 * 11)


def secrets_of(monkeypatch, config: FunctionalQConfig, logged, rewards, tmp_path, name: str):
    """Returns the secret that a mode releases, and the sensitivity that it states."""
    seen = []

    class Opened:
        def __init__(self, release) -> None:
            self.release_of = release
            self.released = 0

        def release(self, values, axes=None):
            seen.append((np.array(values), self.release_of.sensitivity))
            return type("Released", (), {"values": np.zeros_like(values)})

    monkeypatch.setattr(FunctionRelease, "open", lambda self, ledger, folder: Opened(self))
    monkeypatch.setattr(functions, "secret_rewards", lambda *_: rewards)
    ledger = functional_q_training.create_ledger(config, tmp_path / f"{uuid.uuid4()}.sqlite")
    modes = {
        "reward-release": functions.release_rewards,
        "output-release": functions.release_output,
        "per-iteration": functions.release_iterations,
    }
    modes[config.mode](config, logged, RunAccount(ledger))
    return seen


@pytest.mark.parametrize("unit", ["transition", "reward-function"])
@pytest.mark.parametrize("mode", ["reward-release", "output-release", "per-iteration"])
def test_neighbours_are_never_further_apart_than_stated(
    monkeypatch, tmp_path, mode: str, unit: str
) -> None:
    if unit == "transition" and mode == "reward-release":
        pytest.skip("goes through the door, whose clipping bounds it")
    config = replace(
        WHOLE if unit == "reward-function" else SMALL, mode=mode, unit=unit, iterations=12
    )
    logged = collected(config)
    rng = np.random.default_rng(0)
    rewards = 0.2 + 0.1 * rng.random(400)
    largest = 0.0
    for trial in range(12):
        if unit == "transition":
            changed = rewards.copy()
            row = rng.integers(400)
            rewards[row], changed[row] = 0.0, 0.5
        else:
            signs = rng.choice([-1, 1], 400) if trial else np.ones(400)
            changed = rewards + 0.1 * signs
        ours = secrets_of(monkeypatch, config, logged, rewards, tmp_path, "one")
        theirs = secrets_of(monkeypatch, config, logged, changed, tmp_path, "other")
        for (one, sensitivity), (other, _) in zip(ours, theirs, strict=True):
            distance = float(np.linalg.norm(one - other))
            assert distance <= sensitivity.value
            largest = max(largest, distance / sensitivity.value)
    if unit == "reward-function":
        assert largest > 0.99  # r and r + radius attain it


def test_a_per_iteration_secret_reads_released_values_only() -> None:
    config = replace(SMALL, mode="per-iteration")
    logged = collected(config)
    averager = Averager(config, logged)
    values = np.random.default_rng(0).random((11, 2))
    one = averager.iterate(values, np.zeros(400))
    other = averager.iterate(values, np.full(400, 0.1))
    moved = averages(averager.weights, np.full(400, 0.1), 0.0).reshape(11, 2)
    visited = moved > 0
    np.testing.assert_allclose((other - one)[visited], 0.1)  # no discount: nothing accumulates


def test_calibrations_agree_with_the_accounting_command(capsys) -> None:
    words = "--nodes 11 --actions 2 --reward-radius 1 --target-epsilon 0.9 --delta 1e-4 --json"
    assert main(["account", "functional-noise", "--mode", "reward-release", *words.split()]) == 0
    sigma = json.loads(capsys.readouterr().out)["sigma"]
    config = replace(
        WHOLE,
        target_epsilon=None,
        sigma=sigma,
        reward_radius=1.0,
        reward_high=2.0,
        node_variable="state-action",
    )
    assert planned_epsilon(config) == pytest.approx(0.9, rel=5e-3)
    assert planned_epsilon(replace(WHOLE, target_epsilon=0.5)) == 0.5
    assert planned_epsilon(replace(SMALL, target_epsilon=None, sigma=1.0)) == math.inf


# --- learning and its cost -----------------------------------------------------------------------


def test_within_5000_samples_it_finds_the_middle_of_the_line(tmp_path) -> None:
    progress, ledgers = trained(LINE, tmp_path, runs=3)
    assert [one.learned for one in progress] == [False] + [True] * 10
    assert {one.env_steps for one in progress} == {5000}
    assert returns(LINE, progress[-1].states).min() >= 20.0  # of 20.71
    for ledger in ledgers:
        certificate = derive(ledger)
        assert certificate.status == "proved"
        assert certificate.epsilon == pytest.approx(0.9, rel=1e-3)
        assert certificate.epsilon <= 0.9
        assert certificate.persons == 5000
        assert [one.releases for one in certificate.streams] == [1]


def test_rounds_act_on_what_was_released_before(tmp_path) -> None:
    config = replace(SMALL, rounds=4)
    progress, (ledger,) = trained(config, tmp_path)
    assert [one.env_steps for one in progress] == sorted(
        step for step in (100, 200, 300, 400) for _ in range(4)
    )
    assert ledger.streams[0].releases == 4
    assert ledger.persons == 400
    assert ledger.spent().epsilon <= 0.9
    filled = np.asarray(progress[0].states.logged.states.coins)[0] != 0
    assert filled[:100].all()
    assert not filled[100:].any()


@pytest.mark.parametrize("mode", ["output-release", "per-iteration"])
@pytest.mark.parametrize("base", [SMALL, WHOLE, replace(WHOLE, noise="process")])
def test_other_sound_modes_are_proved(tmp_path, mode: str, base: FunctionalQConfig) -> None:
    config = replace(base, mode=mode)
    (progress,), (ledger,) = trained(config, tmp_path)
    certificate = derive(ledger)
    assert certificate.status == "proved"
    assert certificate.epsilon <= 0.9
    assert certificate.epsilon == pytest.approx(0.9, rel=1e-2)
    releases = config.iterations if mode == "per-iteration" else 1
    assert certificate.streams[0].releases == releases
    assert certificate.persons == (400 if base is SMALL else 1)
    table = np.asarray(progress.states.values.table)
    assert table.shape == (1, 11, 2)
    assert (table >= 0).all()
    assert (table <= 5.0 + 1e-6).all()


def test_noise_decides_how_much_is_learned(tmp_path) -> None:
    """The averager learns under a small radius of the reward function, and not under the range."""
    config = replace(LINE, unit="reward-function", reward_radius=1e-3, learner="averager")
    (*_, last), _ = trained(config, tmp_path, runs=2)
    assert returns(config, last.states).min() >= 20.3
    ledgers = tmp_path / "more"
    ledgers.mkdir()
    (*_, last), _ = trained(replace(config, reward_radius=0.5), ledgers, runs=2)
    assert np.asarray(last.states.rewards).std() < 0.05  # shrunk to the middle


def test_the_paper_is_no_certificate(tmp_path) -> None:
    progress, (ledger,) = trained(replace(PAPER, target_epsilon=None, sigma=0.4), tmp_path)
    assert progress[-1].updates == 2
    certificate = derive(ledger)
    assert certificate.status == "paper-claim"
    assert certificate.epsilon == math.inf
    assert len(certificate.gaps) == 9


def test_theorem_5_as_printed() -> None:
    from sotto.algorithms.functional_q.paper import noise

    config = replace(PAPER, samples=4992, batch=128, learning_rate=0.01, lipschitz=1.0)
    assert noise(config).sigma == pytest.approx(6.57, abs=0.02)


def test_a_release_that_was_lost_stays_charged(tmp_path) -> None:
    """A training that is killed between charge and checkpoint releases, and pays, again."""
    ledger = functional_q_training.create_ledger(SMALL, tmp_path / "x.sqlite")
    first = next(functional_q_training.train(SMALL, [0], [ledger]))
    again = next(functional_q_training.train(SMALL, [0], [ledger]))
    assert ledger.persons == 800  # new transitions, so that no transition is charged twice
    assert ledger.spent().epsilon <= 0.9
    assert not np.array_equal(first.states.logged.actions, again.states.logged.actions)

    ledger = functional_q_training.create_ledger(WHOLE, tmp_path / "y.sqlite")
    next(functional_q_training.train(WHOLE, [0], [ledger]))
    with pytest.raises(BudgetExceeded):  # there is one reward function
        next(functional_q_training.train(WHOLE, [0], [ledger]))


def test_a_resumed_training_releases_nothing_again(tmp_path) -> None:
    ledger = functional_q_training.create_ledger(WHOLE, tmp_path / "y.sqlite")
    training = functional_q_training.train(WHOLE, [0], [ledger])
    released, learned = next(training), next(training)
    (*_, last) = functional_q_training.train(WHOLE, [0], [ledger], learned.states, learned.updates)
    np.testing.assert_array_equal(last.states.rewards, released.states.rewards)
    assert [one.releases for one in ledger.streams] == [1]
    *_, straight = training
    for one, other in zip(*map(jax.tree.leaves, (last.states, straight.states)), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-6)


# --- settings ------------------------------------------------------------------------------------


def test_what_a_person_must_know_is_said() -> None:
    (said,) = LINE.notes(0.9)
    assert "[0, 0.5]" in said
    radius, warning = replace(WHOLE, reward_radius=0.5).notes(0.9)
    assert "1 times the public range" in radius
    assert "0.711" in warning
    assert len(replace(WHOLE, reward_radius=0.01).notes(0.9)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sigma": 1.0}, "either"),
        ({"target_epsilon": None}, "either"),
        ({"target_epsilon": -1.0}, "target_epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"unit": "reward-function"}, "needs --reward-radius"),
        ({"reward_radius": 0.1}, "belongs to"),
        ({"mode": "paper"}, "--unit reward-function"),
        ({"noise": "process"}, "leave out --noise"),
        ({"samples": 401}, "multiple"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 2, "mode": "per-iteration"}, "rounds"),
        ({"exploration": 2.0}, "exploration"),
        ({"discount": 1.0}, "discount"),
        ({"resets": 99}, "resets"),
    ],
)
def test_settings_that_contradict_each_other(changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delta": 0.01}, "vacuous"),
        ({"nodes": (3, 3)}, "one number for each dimension"),
        ({"reward_low": 0.7}, "below reward_high"),
        ({"env_id": "Acrobot-v1"}, "states is unknown"),
        (
            {
                "env_id": "CartPole-v1",
                "unit": "reward-function",
                "reward_radius": 0.1,
                "noise": "process",
            },
            "one dimension",
        ),
        ({"target_epsilon": 300.0}, "smaller epsilon"),
    ],
)
def test_settings_that_do_not_fit_the_environment(changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        functional_q_training.check(replace(SMALL, **changes))


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Acrobot-v1", "the range of Acrobot-v1's rewards is unknown: give --reward-low and"),
        ("Nope-v0", "this needs an environment written in JAX, and 'Nope-v0' is none"),
    ],
)
def test_rewards_whose_range_is_unknown(env_id: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = replace(SMALL, env_id=env_id, reward_low=None, reward_high=None).rewards


def test_factor_of_the_averager_is_attained() -> None:
    config = replace(WHOLE, mode="output-release", iterations=12)
    averager = Averager(config, collected(config))
    one = other = averager.nothing
    for _ in range(12):
        one = averager.iterate(one, np.zeros(400))
        other = averager.iterate(other, np.ones(400))
    assert np.abs(other - one).max() == pytest.approx(averager_factor(config.discount, 12))


def test_states_hold_no_keys_and_no_rewards() -> None:
    states = initial_states(SMALL, [0, 1])
    for leaf in jax.tree.leaves(states):
        assert leaf.shape[0] == 2
        assert not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
