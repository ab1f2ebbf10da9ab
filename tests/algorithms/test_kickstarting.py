"""The student: the hinge and its gradient, PPO underneath, radii, silence, and that it learns."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.kickstarting import student
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.student import Rows, hinge
from sotto.algorithms.kickstarting.teachers import Answers, ExactTeacher, silent_answers
from sotto.algorithms.kickstarting.training import StudentTraining, radius
from sotto.keys import keys_of
from sotto.privacy.answers.distances import AnyTwoTeachers
from sotto.privacy.answers.rows import RowsOf
from sotto.privacy.answers.statement import AnswerStatement, Schedule
from sotto.privacy.mechanisms.policies import Dirichlet, GaussianPolicy, TruncatedDirichlet
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy

SMALL = KickstartConfig(
    teacher="x",
    total_steps=1024,
    num_envs=4,
    num_steps=64,
    hidden=(8,),
    queries_per_update=64,
    remember_updates=1,
    keep_floor=True,
)


def balance(observations):
    """A CartPole policy by hand: push to where the pole falls."""
    right = 1 / (1 + np.exp(-10 * (4 * observations[:, 2] + observations[:, 3])))
    return np.stack([1 - right, right], axis=1)


EXACT = ExactTeacher(RowsOf(balance, 2, 4))


class Scripted:
    """A teacher that answers so many times, then is silent; it counts how often it is asked."""

    actions, observation_size = 2, 4
    statement = AnswerStatement(
        name="scripted",
        mechanism=Dirichlet(actions=2, concentration=5.0, floor=0.1),
        distance=AnyTwoTeachers(),
        schedule=Schedule(kind="vanishing", coefficient=0.5, queries_per_rollout=64, rollouts=4),
        queries=256,
        queries_per_student=256,
        observation_size=4,
        population="simulated",
    )

    def __init__(self, times):
        self.times, self.asked = times, 0

    def answer(self, observations):
        self.asked += 1
        if self.asked > self.times:
            return silent_answers(len(observations), 2)
        levels = np.full(len(observations), self.asked - 1)
        return Answers(balance(observations), levels, True)


def rows(observations, answers, thresholds):
    ones = np.ones(len(observations))
    columns = (observations, answers, thresholds, ones, ones)
    return Rows(*(jnp.asarray(column, jnp.float32) for column in columns))


def policy(actions=3, seed=0):
    return Policy(4, Discrete(actions), (8,), jax.random.key(seed), last_gain=1.0)


def probabilities(one, observations):
    """The policy's rows by hand, in float64."""
    values = np.asarray(observations, np.float64)
    layers = list(zip(one.network.weights, one.network.biases, strict=True))
    for weight, bias in layers[:-1]:
        values = np.tanh(values @ np.asarray(weight, np.float64) + np.asarray(bias))
    weight, bias = layers[-1]
    logits = values @ np.asarray(weight, np.float64) + np.asarray(bias)
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


# --- the hinge -----------------------------------------------------------------------------------


def test_hinge_is_equation_16():
    rng = np.random.default_rng(0)
    observations, answers = rng.normal(size=(50, 4)), rng.dirichlet(np.ones(3), size=50)
    one = policy()
    distance = np.linalg.norm(probabilities(one, observations) - answers, axis=1)
    thresholds = np.full(50, np.median(distance))
    expected = np.where(distance > thresholds, distance, 0.0)
    got = hinge(one, rows(observations, answers, thresholds))
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert 20 < np.count_nonzero(got) < 30


def gradient(one, which):
    grads = jax.grad(lambda p: jnp.sum(hinge(p, which)))(one)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(grads)])


def test_gradient_flows_only_where_the_hinge_is_active():
    rng = np.random.default_rng(1)
    observations, answers = rng.normal(size=(8, 4)), rng.dirichlet(np.ones(3), size=8)
    one = policy()
    distance = np.linalg.norm(probabilities(one, observations) - answers, axis=1)
    assert np.any(gradient(one, rows(observations, answers, distance * 0.99)))
    assert not np.any(gradient(one, rows(observations, answers, distance * 1.01)))
    half = np.where(np.arange(8) < 4, distance * 0.99, distance * 1.01)
    first = rows(observations[:4], answers[:4], np.zeros(4))
    np.testing.assert_allclose(
        gradient(one, rows(observations, answers, half)), gradient(one, first), atol=1e-6
    )


def test_gradient_at_distance_zero_is_zero_and_finite():
    one = policy()
    observations = np.zeros((2, 4), np.float32)
    exact = jax.nn.softmax(one(jnp.asarray(observations)).logits)
    assert not np.any(gradient(one, rows(observations, exact, np.zeros(2))))
    assert np.isfinite(gradient(one, rows(observations, exact + 1e-20, np.zeros(2)))).all()


def test_the_penalty_is_the_mean_over_answered_rows_alone():
    """One Adam step with a quarter of the rows answered is one with these rows only."""
    config = PPOConfig(num_envs=4, num_steps=8, num_epochs=1, num_minibatches=1, hidden=(8,))
    keys = jax.random.split(jax.random.key(0), 1)
    rng = np.random.default_rng(2)
    observations, answers = rng.normal(size=(1, 16, 4)), rng.dirichlet(np.ones(2), size=(1, 16))

    def learnt(count, weights):
        states = student.init(config, count, keys)
        collected, _ = student.collect(config, 4, states, keys)
        columns = (
            observations[:, :count],
            answers[:, :count],
            np.zeros((1, count)),
            weights,
            weights,
        )
        new = Rows(*(jnp.asarray(column, jnp.float32) for column in columns))
        after, metrics = student.optimise(config, states, collected, new, jnp.float32(3.0), keys)
        return after, metrics

    some = np.where(np.arange(16) < 4, 1.0, 0.0)[None]
    many, metrics = learnt(16, some)
    few, alone = learnt(4, np.ones((1, 4)))
    none, silent = learnt(16, np.zeros((1, 16)))
    for a, b in zip(
        jax.tree.leaves(many.ppo.networks), jax.tree.leaves(few.ppo.networks), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-5)
    np.testing.assert_allclose(metrics.hinge, alone.hinge, rtol=1e-4)
    assert int(many.answered[0]) == 4
    assert float(silent.hinge[0]) == 0.0
    assert not np.allclose(
        many.ppo.networks.policy.network.weights[0], none.ppo.networks.policy.network.weights[0]
    )


# --- updates -------------------------------------------------------------------------------------


def test_without_an_answer_the_student_is_ppo():
    teacher = Scripted(times=0)
    *_, last = StudentTraining(SMALL, [3], [teacher])
    key = jax.random.key(3)
    state = ppo.init(SMALL.ppo, jax.random.fold_in(key, student.STARTING))
    training = jax.random.fold_in(key, student.TRAINING)
    state, _ = ppo.train_chunk(SMALL.ppo, state, training, SMALL.num_updates)
    assert teacher.asked == 1  # a silent teacher is not asked again
    for a, b in zip(
        jax.tree.leaves(last.states.ppo.networks), jax.tree.leaves(state.networks), strict=True
    ):
        np.testing.assert_allclose(a[0], b, rtol=1e-4, atol=1e-5)
    assert np.all(last.simulated["hinge"] == 0)


def test_a_student_shares_no_random_numbers_with_a_teacher_of_its_seed():
    """A student would otherwise become its teacher, without a single answer."""
    *_, silent = StudentTraining(SMALL, [3], [Scripted(times=0)])
    key = jax.random.key(3)
    teacher = ppo.init(SMALL.ppo, jax.random.fold_in(key, 0))
    begun = student.init(SMALL.ppo, SMALL.steps_per_update, keys_of([3], student.STARTING))
    trained, _ = ppo.train_chunk(SMALL.ppo, teacher, jax.random.fold_in(key, 1), SMALL.num_updates)
    for theirs, ours in ((teacher, begun.ppo), (trained, silent.states.ppo)):
        a, b = (np.ravel(one.networks.policy.network.weights[0]) for one in (theirs, ours))
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.5


def test_a_student_without_answers_to_remember_computes_no_hinge(monkeypatch):
    computed, learn = [], student.optimise

    def spy(config, states, collected, answered, weight, keys):
        after, metrics = learn(config, states, collected, answered, weight, keys)
        computed.append(answered is not None)
        if answered is None:  # the same as with rows of no weight
            nothing = jax.tree.map(jnp.zeros_like, states.rows)
            slow, said = learn(config, states, collected, nothing, weight, keys)
            fast = (after.ppo, after.answered, metrics)
            both = jax.tree.leaves(fast), jax.tree.leaves((slow.ppo, slow.answered, said))
            for a, b in zip(*both, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        return after, metrics

    monkeypatch.setattr(student, "optimise", spy)
    *_, last = StudentTraining(SMALL, [3], [Scripted(times=1)])
    assert SMALL.num_updates == 4
    assert computed == [True, True, False, False]  # the second update forgets the answers
    assert list(last.released["answered"][0]) == [64]


def test_seeds_side_by_side_equal_single_seeds():
    *_, pair = StudentTraining(SMALL, [1, 2], [EXACT, EXACT])
    *_, alone = StudentTraining(SMALL, [2], [EXACT])
    for a, b in zip(jax.tree.leaves(pair.states), jax.tree.leaves(alone.states), strict=True):
        np.testing.assert_allclose(a[1], b[0], rtol=1e-3, atol=1e-4)


def test_going_on_equals_going_through():
    *_, through = StudentTraining(SMALL, [1], [EXACT])
    first = next(iter(StudentTraining(SMALL, [1], [EXACT])))
    *_, on = StudentTraining(SMALL, [1], [EXACT], first.states, first.updates)
    for a, b in zip(jax.tree.leaves(through.states), jax.tree.leaves(on.states), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_asks_about_distinct_states_it_has_met():
    states = student.init(SMALL.ppo, 64, jax.random.split(jax.random.key(0), 2))
    keys = jax.random.split(jax.random.key(1), 2)
    collected, asked = student.collect(SMALL.ppo, 64, states, keys)
    for run in range(2):
        met = {tuple(row) for row in np.asarray(collected.batch.observations[run]).tolist()}
        chosen = [tuple(row) for row in np.asarray(asked[run]).tolist()]
        assert set(chosen) <= met
        assert len(set(chosen)) == 64


def test_the_thresholds_follow_the_levels_of_the_answers():
    config = replace(SMALL, radius="markov", radius_factor=0.7, beta=0.2, remember_updates=2)
    seen = [one.states.rows for one in StudentTraining(config, [0], [Scripted(times=3)])]
    expected = [0.7 * math.sqrt(0.5 / ((5 * 0.5**level + 1) * 0.2)) for level in range(3)]
    newest = [float(one.thresholds[0, -1]) for one in seen]
    np.testing.assert_allclose(newest[:3], expected, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(seen[1].thresholds[0]), np.repeat(expected[:2], 64), 1e-5)
    # The third update's answers are remembered for one more update, and then there are none.
    assert [float(one.weights[0].sum()) for one in seen] == [64, 128, 128, 64]
    assert [int(one) for one in np.ravel([one.answered.sum() for one in seen])] == [
        64,
        128,
        128,
        64,
    ]


def test_the_floor_is_undone_in_answers_and_thresholds_alike():
    class Floored(Scripted):
        def answer(self, observations):
            answers = super().answer(observations)
            return answers._replace(policies=self.statement.mechanism.restrict(answers.policies))

    config = replace(SMALL, radius="markov", keep_floor=False)
    first = next(iter(StudentTraining(config, [0], [Floored(times=1)]))).states.rows
    met = np.asarray(first.observations[0], np.float64)
    np.testing.assert_allclose(first.answers[0], balance(met), atol=1e-5)
    expected = 0.5 * math.sqrt(0.5 / (6 * 0.05)) / 0.8
    np.testing.assert_allclose(first.thresholds[0], expected, rtol=1e-5)


def test_stop_after_and_the_silent_teacher():
    teacher = Scripted(times=9)
    config = replace(SMALL, stop_after=2)
    metrics = [one.released | one.simulated for one in StudentTraining(config, [0], [teacher])]
    assert teacher.asked == 2
    assert [int(one["answered"][0, 0]) for one in metrics] == [64, 128, 128, 128]
    assert [float(one["hinge"][0, 0]) > 0 for one in metrics] == [True, True, False, False]


def test_a_heedless_student_takes_silence_for_answers():
    config = replace(SMALL, heedless=True, radius_factor=0.0, stop_after=3)
    rows_seen = [one.states.rows for one in StudentTraining(config, [0], [Scripted(times=1)])]
    assert [float(one.weights[0].mean()) for one in rows_seen] == [1, 1, 1, 0]
    assert [float(one.answered[0].mean()) for one in rows_seen] == [1, 0, 0, 0]
    np.testing.assert_array_equal(rows_seen[1].answers, 0.5)
    np.testing.assert_array_equal(rows_seen[1].thresholds, 0.0)


def test_the_weight_is_annealed():
    config = replace(SMALL, kickstart_weight=2.0, anneal_kickstart=4)
    assert [config.weight(n) for n in range(6)] == [2.0, 1.5, 1.0, 0.5, 0.0, 0.0]
    assert SMALL.weight(3) == 1.0


def test_a_teacher_of_another_shape_is_refused():
    other = RowsOf(lambda asked: np.zeros((len(asked), 3)), 3, 6)
    with pytest.raises(ValueError, match="takes 6 numbers and has 3 actions"):
        StudentTraining(SMALL, [0], [ExactTeacher(other)])


def test_a_radius_that_is_not_there_is_refused_before_asking():
    teacher = Scripted(times=1)
    config = replace(SMALL, radius="markov", beta=1e-6)
    StudentTraining(config, [0], [teacher])

    class Gaussian(Scripted):
        statement = Scripted.statement.model_copy(
            update={
                "mechanism": GaussianPolicy(actions=2, noise_stddev=0.1),
                "schedule": Schedule(),
            }
        )

    with pytest.raises(ValueError, match="no markov radius"):
        StudentTraining(config, [0], [Gaussian(times=1)])
    assert teacher.asked == 0


# --- radii ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mechanism",
    [
        Dirichlet(actions=2, concentration=5.0, floor=0.1),
        Dirichlet(actions=3, concentration=0.05, floor=0.05),
        TruncatedDirichlet.sized(actions=2, concentration=5.0, floor=0.2, threshold=0.05),
        GaussianPolicy(actions=3, noise_stddev=0.1),
    ],
)
def test_radii_cover_the_answers(mechanism):
    generator = np.random.default_rng(5)
    corner = np.eye(mechanism.actions)[:1]
    for pure in (corner, np.full_like(corner, 1 / mechanism.actions)):
        answers = mechanism.answer(np.repeat(pure, 2000, axis=0), generator)
        distance = np.linalg.norm(answers - mechanism.restrict(pure), axis=1)
        for name in ("valid", "monte-carlo"):
            assert np.mean(distance > radius(mechanism, name, 0.2)) < 0.2 + 0.03


def test_radii_by_name():
    dirichlet = Dirichlet(actions=6, concentration=5.0, floor=0.05)
    assert radius(dirichlet, "paper", 0.05) == pytest.approx(0.4996, abs=1e-4)
    assert radius(dirichlet, "chi-square", 0.05) == pytest.approx(1.25, abs=0.01)
    assert radius(dirichlet, "markov", 0.5) == pytest.approx(0.527, abs=1e-3)
    assert radius(dirichlet, "monte-carlo", 0.05) == pytest.approx(0.556, rel=0.06)
    gaussian = GaussianPolicy(actions=2, noise_stddev=0.1)
    assert radius(gaussian, "chi-square", 0.05) == pytest.approx(0.196, abs=1e-3)
    with pytest.raises(ValueError, match="no paper radius for gaussian-policy"):
        radius(gaussian, "paper", 0.05)


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"teacher": ""}, "give --teacher"),
        ({"queries_per_update": 257}, "at most num_envs"),
        ({"queries_per_update": 30}, "num_minibatches must divide queries_per_update"),
        ({"stop_after": 0}, "stop_after"),
        ({"remember_updates": 0}, "remember_updates"),
        ({"radius_factor": -1.0}, "radius_factor"),
        ({"kickstart_weight": math.nan}, "kickstart_weight"),
        ({"heedless": True}, "--radius-factor 0"),
        ({"beta": 1.0}, "beta"),
        ({"queries": 0}, "queries"),
        ({"noise_stddev": 0.1}, "belongs to --teacher-mechanism gaussian-policy"),
        ({"teacher_mechanism": "gaussian-policy"}, "--noise-stddev or --target-epsilon"),
        (
            {
                "teacher_mechanism": "gaussian-policy",
                "noise_stddev": 0.1,
                "schedule": "vanishing",
            },
            "Dirichlet's concentration",
        ),
        ({"teacher_mechanism": "exact", "concentration": 5.0}, "have no concentration"),
        ({"teacher_mechanism": "exact", "schedule": "vanishing"}, "no noise to schedule"),
        ({"teacher_mechanism": "exact", "protect": "policy"}, "do not protect policy"),
        ({"rollouts": 3}, "belong to --schedule vanishing"),
        ({"vanishing_coefficient": 0.0}, "vanishing_coefficient"),
        ({"protect": "dppg", "teacher_mechanism": "dirichlet"}, "free"),
        ({"protect": "observation"}, "needs --observation-radius"),
        ({"policy_distance": 0.1}, "belongs to --protect policy"),
        ({"protect": "policy", "policy_distance": -1.0}, "policy_distance must be"),
        ({"delta": 0.0}, "delta"),
        ({"target_epsilon": -1.0}, "target_epsilon"),
        ({"teacher": "https://teacher.example.org", "protect": "policy"}, "sets --protect itself"),
        ({"teacher": "https://teacher.example.org", "schedule": "vanishing"}, "--schedule itself"),
        ({"total_steps": 10}, "total_steps"),
    ],
)
def test_refusals(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(SMALL, **settings)


def test_planned_queries():
    assert SMALL.total_queries == 4 * 64
    assert replace(SMALL, stop_after=3).total_queries == 3 * 64
    assert replace(SMALL, queries=100).total_queries == 100
    vanishing = replace(SMALL, schedule="vanishing", queries_per_rollout=20, rollouts=3)
    assert vanishing.total_queries == 60
    assert replace(SMALL, schedule="vanishing").total_queries == 256


# --- learning ------------------------------------------------------------------------------------


def test_a_student_learns_faster_than_alone():
    config = KickstartConfig(teacher="x", total_steps=4 * 1024, queries_per_update=256)
    returns = {}
    for name, weight in (("kickstarted", 1.0), ("alone", 0.0)):
        one = replace(config, kickstart_weight=weight)
        *_, last = StudentTraining(one, [0, 1], [EXACT, EXACT])
        returns[name] = np.nanmean(last.simulated["episode_return"])
    assert returns["kickstarted"] > 1.5 * returns["alone"]
