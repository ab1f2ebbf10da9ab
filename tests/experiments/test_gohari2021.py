"""Gohari et al. 2021: the arms are the paper's, trained as said, and charged what they cost."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.teachers import Ensemble
from sotto.experiments.gohari2021 import tradeoff
from sotto.experiments.gohari2021.arms import (
    CONSTANT,
    EXACT,
    FIGURES,
    STUDENT,
    TEACHER,
    ppo_config,
    settings,
    vanishing,
)
from sotto.experiments.gohari2021.figures import silent_after
from sotto.experiments.gohari2021.training import arm, blank_policy, points_every, train
from sotto.experiments.statistics import without_gaps
from sotto.privacy.accounting.composition import compose
from sotto.privacy.accounting.events import Gaussian, Renyi
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.certificates.derive import verify
from sotto.privacy.mechanisms.dirichlet.cost import ORDERS, renyi_curve

TINY = 0.05


def quiet(share):
    assert 0 < share <= 1


def trained(learner, config, seeds, folder, teachers=()):
    """The result and the policies; ledgers and certificates are in the folder."""
    for seed in seeds:
        (folder / f"seed-{seed}").mkdir(parents=True)
    return train(arm(learner, config, seeds), seeds, teachers, folder, quiet)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    config = settings("CartPole-v1", TEACHER, TINY)
    _, policies = trained(TEACHER, config, (0, 1), tmp_path_factory.mktemp("teachers"))
    return policies


def ensembles(policies):
    count = policies.network.weights[0].shape[0]
    return [Ensemble(jax.tree.map(lambda x, i=i: x[i : i + 1], policies)) for i in range(count)]


def test_figure_2_is_the_papers():
    assert [arm.role for arm in FIGURES["fig2a"].learners] == ["teacher", "student"]
    assert settings("AirRaid", TEACHER).hidden == (64, 64)
    assert settings("AirRaid", STUDENT).hidden == (32, 32)
    exact = settings("AirRaid", EXACT)
    assert (exact.teacher_mechanism, exact.radius_factor) == ("exact", 0)

    def asked(figure):
        arms = [settings("AirRaid", arm) for arm in FIGURES[figure].learners]
        return [one for one in arms if isinstance(one, KickstartConfig)]

    aware = asked("fig2c")
    assert [one.vanishing_coefficient for one in aware[:2]] == [0.1, 0.3]
    assert aware[2].schedule == "constant"
    assert {one.radius_factor for one in aware} == {0.5}
    unaware = asked("fig2d")
    assert [one.vanishing_coefficient for one in unaware] == [0.1, 0.3, 0.9]
    assert {(one.radius_factor, one.heedless) for one in unaware} == {(0.0, True)}
    assert {one.concentration for one in aware + unaware} == {5.0}
    assert [one.radius_factor for one in asked("supp-lambda")] == [0, 0.1, 0.5, 1, 2]
    coefficients = [one.vanishing_coefficient for one in asked("supp-vanishing")]
    np.testing.assert_allclose(coefficients, np.arange(1, 10) / 10)


def test_airraid_has_the_papers_length():
    config = ppo_config("AirRaid")
    assert config.total_steps == 4_000_000
    assert config.steps_per_update == 1024
    assert (config.clip_ratio, config.discount, config.gae_lambda) == (0.2, 0.99, 0.97)
    assert ppo_config("AirRaid", 0.1).total_steps == 400_000


@pytest.mark.parametrize("learner", [vanishing(0.1), CONSTANT])
def test_the_teacher_stops_in_public_long_before_the_end(learner):
    for env_id in ("CartPole-v1", "AirRaid"):
        config = settings(env_id, learner)
        rollouts = config.total_queries / config.steps_per_update
        assert rollouts == max(5, round(config.num_updates / 40))


@pytest.mark.parametrize(("env_id", "silent"), [("Acrobot-v1", 5), ("AirRaid", 98)])
def test_students_that_know_of_the_noise_let_go_of_old_answers(env_id, silent):
    """The weight falls to zero by twice the updates in which the teacher answers."""
    for learner in (vanishing(0.1), vanishing(0.3, 0.0), CONSTANT):
        config = settings(env_id, learner)
        weights = [config.weight(updates) for updates in (0, silent, 2 * silent)]
        assert weights == pytest.approx([5.0, 2.5, 0.0])
    for learner in (EXACT, vanishing(0.1, 0.0, heedless=True)):  # the paper's
        assert settings(env_id, learner).weight(3000) == 5.0


def test_a_curve_begins_before_training_and_ends_with_it(tmp_path):
    config = settings("CartPole-v1", STUDENT, TINY)
    curve, policies = trained(STUDENT, config, (4, 5), tmp_path)
    assert curve.seeds == (4, 5)
    assert curve.points[0] == 0
    assert curve.points[-1] == config.num_updates * config.steps_per_update
    assert set(np.diff(curve.points)) == {points_every(config) * config.steps_per_update}
    assert list(curve.curves) == ["greedy", "sampled", "answered"]
    values = without_gaps(curve, "greedy")
    assert np.all((values >= 1) & (values <= 500))
    assert curve.more == {}
    assert not curve.curves["answered"].any()
    blank = blank_policy("CartPole-v1", (32, 32), 2)
    shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(blank)]
    assert shapes == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(policies)]
    assert jax.tree.structure(blank) == jax.tree.structure(policies)


def test_a_student_asks_its_own_teacher_and_is_charged(teachers, tmp_path, monkeypatch):
    config = dataclasses.replace(
        settings("CartPole-v1", vanishing(0.3), TINY), rollouts=2, queries_per_update=64
    )
    own, asked, each = ensembles(teachers), [0, 0], Ensemble.each

    def counted(teacher, observations):
        asked[own.index(teacher)] += len(observations)
        return each(teacher, observations)

    monkeypatch.setattr(Ensemble, "each", counted)
    curve, _ = trained(vanishing(0.3), config, (0, 1), tmp_path, own)
    assert asked == [128, 128]
    np.testing.assert_array_equal(curve.curves["answered"][:, -1], [128, 128])
    assert silent_after(curve) == 2 * config.steps_per_update
    cost = curve.more["cost"]
    assert cost["answered"] == 128
    assert cost["paper_epsilon"] == pytest.approx(128 * 4.46)
    assert cost["paper_delta"] == 1
    assert (curve.status, curve.epsilon) == ("proved", pytest.approx(cost["epsilon"]))
    for seed in (0, 1):
        ledger = AnswerLedger.open(tmp_path / f"seed-{seed}" / "answers.sqlite")
        assert verify(tmp_path / f"seed-{seed}" / "certificate.json", ledger).status == "verified"
    # 64 answers at k = 5 and 64 at k = 1.5, of rows at most sqrt(2) (1 - 2 * 0.05) apart, and of
    # rows 0.01 (1 - 2 * 0.05) apart.
    for distance, kind in ((math.sqrt(2) * 0.9, "epsilon"), (0.009, "epsilon_nearby")):
        curves = [np.array(renyi_curve(2, k, 0.05, distance)) for k in (5.0, 1.5)]
        known = np.isfinite(curves[0]) & np.isfinite(curves[1])
        event = Renyi(
            orders=tuple(np.array(ORDERS)[known].tolist()),
            divergences=tuple((64 * (curves[0] + curves[1])[known]).tolist()),
            count=1,
        )
        assert cost[kind] == pytest.approx(compose([event]).epsilon(1e-5), rel=1e-3)


def test_exact_answers_never_end_and_have_no_certificate(teachers, tmp_path):
    config = settings("CartPole-v1", EXACT, TINY)
    curve, _ = trained(EXACT, config, (0, 1), tmp_path, ensembles(teachers))
    assert curve.more == {}
    assert silent_after(curve) is None
    assert curve.curves["answered"][0, -1] == config.num_updates * config.steps_per_update


def test_one_seed_of_airraid_plays(tmp_path):
    scale = 12 * 1024 / 4e6
    config = dataclasses.replace(settings("AirRaid", STUDENT, scale), num_epochs=1)
    curve, policies = trained(STUDENT, config, (0,), tmp_path)
    assert list(curve.curves) == ["training", "answered"]
    assert curve.points[-1] == 12 * 1024
    assert math.isnan(curve.curves["training"][0, 0])
    assert without_gaps(curve, "training")[0, -1] > 50
    blank = blank_policy("AirRaid", (32, 32), 1)
    assert jax.tree.structure(blank) == jax.tree.structure(policies)


# --- the trade-off -------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", tradeoff.MECHANISMS)
def test_certificates_of_the_trade_off_meet_their_epsilon(mechanism):
    policies = blank_policy("CartPole-v1", (4,), 200)
    many = Ensemble(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), policies))
    point = tradeoff.Point(mechanism, 8.0)
    config = tradeoff.student_config("CartPole-v1", 1.0, point)
    statement, budget = tradeoff.promise(config, many)
    assert statement.distance.kind == "training-shards"
    assert statement.distance.teachers == 200
    assert budget.epsilon == 8.0
    assert 7.5 < statement.planned_epsilon(1e-5) <= 8.0
    assert tradeoff.least_epsilon("CartPole-v1", 1.0, mechanism, 200) < 8.0


def test_gaussian_certificate_is_that_of_the_mean():
    """One person moves the mean of 200 rows by sqrt(2) / 200, in each of 512 answers."""
    policies = blank_policy("CartPole-v1", (4,), 200)
    many = Ensemble(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), policies))
    config = tradeoff.student_config("CartPole-v1", 1.0, tradeoff.Point("gaussian-policy", 2.0))
    statement, _ = tradeoff.promise(config, many)
    multiplier = statement.mechanism.noise_stddev / (math.sqrt(2) / 200 * math.sqrt(512))
    expected = compose([Gaussian(noise_multiplier=multiplier)]).epsilon(1e-5)
    assert statement.planned_epsilon(1e-5) == pytest.approx(expected, rel=1e-3)


def test_dirichlet_noise_has_a_floor_that_fewer_teachers_do_not_meet():
    few = tradeoff.least_epsilon("CartPole-v1", 1.0, "dirichlet", 20)
    many = tradeoff.least_epsilon("CartPole-v1", 1.0, "dirichlet", 200)
    assert few > 2.0 > many > 0.1
    assert tradeoff.least_epsilon("CartPole-v1", 1.0, "gaussian-policy", 20) < 0.01


def test_small_teachers_and_students_share_no_seed():
    assert tradeoff.SHARD_SEED > 100_000
