"""Teachers in this process: exact rows in float64, charges before answers, silence at the end."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_teacher

from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.promises import promise
from sotto.algorithms.kickstarting.teachers import (
    Ensemble,
    ExactTeacher,
    LocalTeacher,
    silent_answers,
)
from sotto.privacy.answers.digests import DigestKey
from sotto.privacy.answers.distances import AnyTwoTeachers, TrainingShards
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.mechanisms.policies import Dirichlet, GaussianPolicy, TruncatedDirichlet
from sotto.rl.envs.base import Box, Discrete
from sotto.rl.networks import Policy
from sotto.serving.app import create_app

SCALE = (1.0, 0.5, 2.0, 1.0)
OBSERVATIONS = np.random.default_rng(0).normal(size=(300, 4))


def policies(count, actions=3, hidden=(8, 8), centre=None):
    def one(key):
        scales = {"observation_scale": SCALE, "observation_centre": centre}
        return Policy(4, Discrete(actions), hidden, key, last_gain=2.0, **scales)

    return jax.vmap(one)(jax.random.split(jax.random.key(1), count))


def settings(**changes):
    small = {"total_steps": 4096, "teacher": "x", "protect": "any-two-teachers"}
    return KickstartConfig(**{"teacher_mechanism": "dirichlet", **small, **changes})


def ledger(path, queries=100, entropy="operating-system"):
    statement = small_teacher.statement(queries, distance=AnyTwoTeachers(), entropy=entropy)
    budget = Budget(epsilon=math.inf, delta=1e-5)
    made = AnswerLedger.create(path / "ledger.sqlite", "r", statement=statement, budget=budget)
    made.add_student("student")
    return made


# --- an ensemble ---------------------------------------------------------------------------------


def test_rows_are_the_mean_of_softmax_networks_in_float64():
    many = policies(5)
    rows = Ensemble(many)(OBSERVATIONS)
    total = np.zeros((300, 3))
    for i in range(5):
        values = OBSERVATIONS * np.array(SCALE)
        layers = list(zip(many.network.weights, many.network.biases, strict=True))
        for number, (weight, bias) in enumerate(layers):
            values = values @ np.asarray(weight[i], np.float64) + np.asarray(bias[i], np.float64)
            values = np.tanh(values) if number < len(layers) - 1 else values
        exponentials = np.exp(values)
        total += exponentials / exponentials.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(rows, total / 5, atol=1e-14)
    assert rows.dtype == np.float64


def test_a_policy_that_is_not_finite_moves_the_mean_by_one_share_at_most():
    many = policies(4)
    broken = jax.tree.map(lambda x: x.at[2].set(jnp.nan), many)
    with np.errstate(all="raise"):
        apart = Ensemble(many)(OBSERVATIONS) - Ensemble(broken)(OBSERVATIONS)
    assert np.isfinite(apart).all()
    assert np.linalg.norm(apart, axis=1).max() <= math.sqrt(2) / 4 + 1e-12


@pytest.mark.parametrize("centre", [None, (0.5, -1.0, 0.2, 3.0)])
def test_the_policy_to_evaluate_has_the_same_rows(centre):
    plain, ensemble = policies(3), Ensemble(policies(3, centre=centre))
    moved = not np.allclose(ensemble(OBSERVATIONS), Ensemble(plain)(OBSERVATIONS))
    assert moved == (centre is not None)
    distribution = ensemble.policy(jnp.asarray(OBSERVATIONS, jnp.float32))
    np.testing.assert_allclose(
        jax.nn.softmax(distribution.logits), ensemble(OBSERVATIONS), atol=1e-5
    )


def test_the_lipschitz_constant_holds_between_random_pairs():
    ensemble = Ensemble(policies(3))
    rng = np.random.default_rng(3)
    other = OBSERVATIONS + 1e-3 * rng.normal(size=OBSERVATIONS.shape)
    moved = np.linalg.norm(ensemble(OBSERVATIONS) - ensemble(other), axis=1)
    steepest = (moved / np.linalg.norm(OBSERVATIONS - other, axis=1)).max()
    assert 0.02 * ensemble.lipschitz < steepest <= ensemble.lipschitz


def test_box_actions_are_refused():
    box = Policy(4, Box((-1.0,), (1.0,)), (8,), jax.random.key(0))
    with pytest.raises(ValueError, match="finite set of actions"):
        Ensemble(jax.tree.map(lambda x: x[None], box))


# --- answering -----------------------------------------------------------------------------------


def test_an_exact_teacher_gives_its_rows():
    ensemble = Ensemble(policies(1))
    answers = ExactTeacher(ensemble).answer(OBSERVATIONS)
    np.testing.assert_array_equal(answers.policies, ensemble(OBSERVATIONS))
    assert answers.released


def test_a_local_teacher_charges_and_then_falls_silent(tmp_path):
    account = ledger(tmp_path, queries=100)
    teacher = LocalTeacher(Ensemble(policies(2)), account, "student")
    first = teacher.answer(OBSERVATIONS[:60])
    assert first.released
    assert account.spent().answered == 60
    spent = account.spent().epsilon
    second = teacher.answer(OBSERVATIONS[:60])  # 40 are left: all or none
    assert not second.released
    np.testing.assert_array_equal(second.policies, silent_answers(60, 3).policies)
    assert account.spent().answered == 60
    assert account.spent().epsilon == spent > 0
    assert teacher.answer(OBSERVATIONS[:40]).released


@pytest.mark.parametrize("answering", [2, 19, 21, None])
def test_fewer_or_more_teachers_than_promised_do_not_answer(answering, tmp_path):
    """Each of fewer teachers would move the mean further than the statement says."""
    statement = AnswerStatement(
        name="t",
        mechanism=GaussianPolicy(actions=3, noise_stddev=0.05),
        distance=TrainingShards(teachers=20),
        queries=20,
        queries_per_student=20,
        observation_size=4,
        population="real",
    )
    budget = Budget(epsilon=50.0, delta=1e-5)
    made = AnswerLedger.create(tmp_path / "l.sqlite", "r", statement=statement, budget=budget)
    made.add_student("student")
    LocalTeacher(Ensemble(policies(20)), made, "student")
    # A function of which nothing is known counts as one teacher.
    rows = Ensemble(policies(answering)) if answering else small_teacher.teacher()
    with pytest.raises(ValueError, match=f"mean of 20 teachers, and here are {answering or 1};"):
        LocalTeacher(rows, made, "student")
    with pytest.raises(ValueError, match="mean of 20 teachers"):
        create_app(rows, made, DigestKey.create(tmp_path / "key"), env_id="x")


def test_answers_are_noisy_fresh_and_about_the_restricted_rows(tmp_path):
    account = ledger(tmp_path, queries=20_000)
    ensemble = Ensemble(policies(2))
    teacher = LocalTeacher(ensemble, account, "student")
    repeated = np.repeat(OBSERVATIONS[:1], 5000, axis=0)
    one, two = teacher.answer(repeated).policies, teacher.answer(repeated).policies
    assert not np.any(np.all(one == two, axis=1))
    row = account.statement.mechanism.restrict(ensemble(OBSERVATIONS[:1]))[0]
    deviation = np.sqrt(row * (1 - row) / 6)  # of Dirichlet at concentration 5
    np.testing.assert_allclose(one.mean(axis=0), row, atol=5 * deviation.max() / math.sqrt(5000))
    np.testing.assert_allclose(one.std(axis=0), deviation, rtol=0.1)


def test_rows_are_not_computed_when_nothing_may_be_answered(tmp_path):
    asked = []

    def rows(observations):
        asked.append(len(observations))
        return np.full((len(observations), 3), 1 / 3)

    teacher = LocalTeacher(small_teacher.teacher(rows), ledger(tmp_path, queries=10), "student")
    asked.clear()
    assert not teacher.answer(OBSERVATIONS[:11]).released
    assert asked == []


def test_rows_in_float32_are_refused_and_cost_nothing(tmp_path):
    account = ledger(tmp_path, queries=10)

    def rows(observations):
        return np.full((len(observations), 3), 1 / 3, np.float32)

    with pytest.raises(ValueError, match=r"must return float64 of shape .* returned float32"):
        LocalTeacher(small_teacher.teacher(rows), account, "student").answer(OBSERVATIONS[:2])
    assert account.spent().answered == 0


def test_fixed_noise_must_be_stated(tmp_path):
    account = ledger(tmp_path)
    with pytest.raises(ValueError, match="promises noise from operating-system"):
        LocalTeacher(Ensemble(policies(1)), account, "student", GeneratorSource(3))


# --- promises ------------------------------------------------------------------------------------


def test_the_paper_s_noise_without_a_target():
    statement, budget = promise(settings(), Ensemble(policies(1)))
    assert statement.mechanism == Dirichlet(actions=3, concentration=5.0, floor=0.05)
    assert budget.epsilon == math.inf
    assert statement.queries == 4 * 256
    assert statement.distance == AnyTwoTeachers()


@pytest.mark.parametrize(
    ("mechanism", "changes", "parameter"),
    [
        ("gaussian-policy", {}, "noise_stddev"),
        ("dirichlet", {"floor": 0.2}, "concentration"),
        ("truncated-dirichlet", {"floor": 0.2, "threshold": 0.1}, "concentration"),
    ],
)
def test_noise_is_calibrated_and_not_by_more_than_needed(mechanism, changes, parameter):
    config = settings(
        teacher_mechanism=mechanism,
        protect="training-shards",
        target_epsilon=4.0,
        queries=500,
        **changes,
    )
    ensemble = Ensemble(policies(100, hidden=(4,)))
    statement, budget = promise(config, ensemble)
    assert statement.distance == TrainingShards(teachers=100)
    assert 0.99 * 4 < statement.planned_epsilon(1e-5) <= budget.epsilon == 4.0
    noise = getattr(statement.mechanism, parameter)
    louder = noise * (0.98 if parameter == "noise_stddev" else 1.02)
    less = replace(config, target_epsilon=None, **{parameter: louder})
    assert promise(less, ensemble)[0].planned_epsilon(1e-5) > 4.0


def test_kinds_of_mechanisms():
    ensemble = Ensemble(policies(1))
    gaussian = settings(teacher_mechanism="gaussian-policy", noise_stddev=0.3, floor=0.0)
    assert promise(gaussian, ensemble)[0].mechanism == GaussianPolicy(actions=3, noise_stddev=0.3)
    truncated = promise(settings(teacher_mechanism="truncated-dirichlet"), ensemble)[0].mechanism
    assert isinstance(truncated, TruncatedDirichlet)
    assert truncated.threshold == 0.01


def test_an_impossible_target_says_what_helps():
    with pytest.raises(ValueError, match="no noise brings 1024 answers to epsilon 0"):
        promise(settings(target_epsilon=0.1), Ensemble(policies(1)))


def test_distances():
    ensemble = Ensemble(policies(2))
    seen = settings(protect="observation", observation_radius=0.01)
    statement, _ = promise(seen, ensemble)
    assert statement.distance.lipschitz == pytest.approx(ensemble.lipschitz)
    near = settings(protect="policy", policy_distance=0.02)
    assert promise(near, ensemble)[0].distance.l2 == 0.02


def test_the_vanishing_schedule_stops_in_public():
    vanishing = settings(schedule="vanishing", vanishing_coefficient=0.1, rollouts=3)
    statement, _ = promise(vanishing, Ensemble(policies(1)))
    assert statement.schedule.levels == 3
    assert statement.queries == 3 * 256
    assert statement.mechanism_at(2).concentration == pytest.approx(0.05)
