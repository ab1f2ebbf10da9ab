"""Experiments: what is kept is not trained again, and figures, data and summaries are whole."""

import json
import math

import jax
import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import printed, refused, run_json

from sotto.experiments.engine import Result
from sotto.experiments.gohari2021 import training
from sotto.experiments.gohari2021.arms import CONSTANT, EXACT, STUDENT, TEACHER, vanishing
from sotto.experiments.gohari2021.figures import Reproduction, make_figure
from sotto.experiments.gohari2021.tradeoff import Tradeoff, make_tradeoff
from sotto.experiments.gohari2021.training import blank_policy
from sotto.files import strict_json

COST = {
    **{"answered": 512, "epsilon": 3.5, "epsilon_nearby": 1.5, "delta": 1e-5},
    **{"distance": 0.01, "paper_epsilon": 2283.52, "paper_delta": 1.0},
}


def a_curve(arm, seeds, slow=3, cost=None):
    points = 12
    rising = np.minimum(1.0, np.arange(points) / slow) * 480 + 20
    returns = np.array([rising - seed % 7 for seed in seeds])
    answered = np.minimum(np.arange(points), 5)[None] * np.full((len(seeds), 1), 100 * bool(cost))
    steps = 512 * np.arange(points)
    kinds = {"greedy": returns, "sampled": returns - 5, "answered": answered}
    if arm.name == TEACHER.name:
        kinds["sampled"][:, 0] = math.nan  # no episode ended
    return Result(arm, tuple(seeds), steps, kinds, more={"cost": cost} if cost else {})


@pytest.fixture
def trainings(monkeypatch):
    """Trainings that take no time; the list of those that were made."""
    made = []

    def train(arm, seeds, teachers, folder, report):
        config = arm.settings
        made.append((arm.name, tuple(seeds), len(teachers), teachers))
        report(1.0)
        policies = jax.tree.map(
            lambda x: np.full(x.shape, seeds[0] % 1000, x.dtype),
            blank_policy(config.env_id, config.hidden, len(seeds)),
        )
        asks = bool(arm.needs)
        private = asks and config.teacher_mechanism != "exact"
        curve = a_curve(arm, seeds, 2 if asks else 6, COST if private else None)
        return curve, policies

    monkeypatch.setattr(training, "train", train)
    return made


def experiment(folder, seeds=(0, 1, 2), env_id="CartPole-v1", scale=1.0):
    return Reproduction(env_id, scale, seeds, folder)


# --- keeping -------------------------------------------------------------------------------------


def test_nothing_is_trained_twice_and_figures_share_curves(tmp_path, trainings):
    said = []
    make_figure(experiment(tmp_path), "fig2b", 1, said.append)
    assert [name for name, *_ in trainings] == ["teacher", "student", "exact"]
    make_figure(experiment(tmp_path), "fig2a", 1, said.append)
    assert len(trainings) == 3
    assert said[-1] == "nothing to train (2 kept from before)"
    make_figure(experiment(tmp_path), "fig2c", 1, said.append)
    assert [name for name, *_ in trainings[3:]] == [
        "aware-vanishing-0.1-lambda-0.5",
        "aware-vanishing-0.3-lambda-0.5",
        "aware-constant",
    ]
    make_figure(experiment(tmp_path), "supp-vanishing", 1, said.append)
    assert len(trainings) == 6 + 7
    summary = make_figure(experiment(tmp_path), "supp-lambda", 1, said.append)
    assert len(trainings) == 13 + 4
    labels = [arm["label"] for arm in summary["arms"]]
    assert labels[1:] == [f"lambda {one}" for one in ("0", "0.1", "0.5", "1", "2")]


def test_other_seeds_or_lengths_are_other_trainings(tmp_path, trainings):
    for one in (
        experiment(tmp_path),
        experiment(tmp_path, seeds=(0, 1)),
        experiment(tmp_path, scale=0.5),
        experiment(tmp_path, env_id="Acrobot-v1"),
    ):
        make_figure(one, "fig2a", 1, lambda _: None)
    assert len(trainings) == 8


def test_student_i_asks_teacher_i(tmp_path, trainings):
    make_figure(experiment(tmp_path), "fig2c", 1, lambda _: None)
    name, seeds, count, ensembles = trainings[1]
    assert (name, seeds, count) == ("aware-vanishing-0.1-lambda-0.5", (0, 1, 2), 3)
    assert [one.teachers for one in ensembles] == [1, 1, 1]


def test_seeds_of_airraid_are_trained_alone(tmp_path, trainings):
    jobs = experiment(tmp_path, env_id="AirRaid").arms(vanishing(0.3))
    assert [job.seeds for job in jobs] == [(0,), (1,), (2,)]
    assert [job.needs[0].seeds for job in jobs] == [(0,), (1,), (2,)]
    assert len({job.file for job in jobs} | {job.needs[0].file for job in jobs}) == 6


def test_the_time_is_said_beforehand(tmp_path, trainings):
    said = []
    make_figure(experiment(tmp_path), "fig2b", 1, said.append)
    assert said[0].startswith("3 trainings, about ")
    assert "min with 1 process; stop at any time" in said[0]
    full = experiment(tmp_path, env_id="AirRaid", seeds=(0,))
    assert 600 < full.arms(STUDENT)[0].seconds < 3000
    assert full.arms(CONSTANT)[0].seconds > full.arms(STUDENT)[0].seconds
    assert full.arms(EXACT)[0].seconds > 1.3 * full.arms(CONSTANT)[0].seconds  # hears to the end
    unaware = vanishing(0.3, 0.0, heedless=True)
    assert full.arms(unaware)[0].seconds == full.arms(EXACT)[0].seconds


# --- what comes out ------------------------------------------------------------------------------


def test_a_figure_comes_with_data_and_summary(tmp_path, trainings):
    summary = make_figure(experiment(tmp_path), "fig2c", 1, lambda _: None)
    assert (tmp_path / "fig2c-CartPole-v1.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((tmp_path / "fig2c-CartPole-v1.json").read_text())
    assert stored == json.loads(strict_json(summary))
    assert stored["band_percentiles"] == [15.0, 85.0]
    # The rising ends at 500 for seed 0, so the median of three seeds is 499.
    assert stored["teacher_return"] == 499
    teacher, first, *_ = stored["arms"]
    assert teacher["arm"] == TEACHER.name
    greedy = first["returns"]["greedy"]
    assert greedy["steps_to_reach"] == 2 * 512
    assert greedy["faster_than_teacher"] == 3
    assert greedy["faster_than_student"] is None
    assert first["silent_after_steps"] == 5 * 512
    assert first["cost"] == COST
    table = pq.read_table(tmp_path / "fig2c-CartPole-v1.parquet")
    assert table.num_rows == 4 * 3 * 12
    assert table.column_names == [
        *("arm", "seed", "env_steps", "answered", "greedy_return", "sampled_return"),
    ]
    assert table["sampled_return"].null_count == 3
    assert {str(table.schema.field(name).type) for name in ("seed", "env_steps")} == {"int64"}
    assert not [*tmp_path.rglob("*.partial*"), *tmp_path.rglob(".*")]


def test_the_trade_off_reads_all_small_teachers(tmp_path, trainings):
    what = Tradeoff("CartPole-v1", 1.0, (0, 1), 70, (0.01, 8.0), tmp_path)
    said = []
    summary = make_tradeoff(what, 1, said.append)
    shards = [one for one in trainings if one[0] == "shard"]
    assert [len(seeds) for _, seeds, *_ in shards] == [50, 20]
    students = [one for one in trainings if one[0].startswith("gaussian")]
    assert [ensembles[0].teachers for *_, ensembles in students] == [70, 70]
    assert students[0][3][0] is students[0][3][1]
    found = [(row["mechanism"], row["target_epsilon"]) for row in summary["points"]]
    assert ("dirichlet", 8.0) in found
    assert ("dirichlet", 0.01) not in found
    assert any("dirichlet noise cannot bring" in sentence for sentence in said)
    assert (tmp_path / "tradeoff-CartPole-v1.png").exists()


# --- the command ---------------------------------------------------------------------------------


def test_the_command_trains_in_processes_of_its_own(tmp_path, capsys):
    out = str(tmp_path / "out")
    words = ["reproduce", "gohari2021", "fig2a", "--seeds", "1", "--scale", "0.02", "--out", out]
    shown = run_json(capsys, *words, "--workers", "2")
    assert [arm["arm"] for arm in shown["arms"]] == ["teacher", "student"]
    said = printed(capsys, *words, "--workers", "2")
    assert "nothing to train" in said
    # The files of a try have names of their own: it must not replace the whole figure.
    assert "fig2a-CartPole-v1-1000-steps.png" in said
    names = {file.name for file in (tmp_path / "out").glob("fig2a*")}
    assert names == {f"fig2a-CartPole-v1-1000-steps.{one}" for one in ("png", "parquet", "json")}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fig2a", "--seeds", "0"], "--seeds must be at least 1"),
        (["fig2a", "--scale", "0"], "--scale must be positive"),
        (["fig2a", "--workers", "0"], "--workers must be at least 1"),
        (["tradeoff", "--env-id", "AirRaid"], "tradeoff trains hundreds of teachers"),
        (["tradeoff", "--teachers", "1"], "--teachers must be at least 2"),
        (["tradeoff", "--epsilons", "0"], "--epsilons must be positive"),
        (["fig2a", "--teachers", "9"], "fig2a does not use --teachers, which is for tradeoff"),
        (["fig2c", "--epsilons", "1"], "fig2c does not use --epsilons"),
        (["fig3"], "fig3"),
    ],
)
def test_refusals(capsys, tmp_path, words, sentence):
    assert sentence in refused(capsys, "reproduce", "gohari2021", *words, "--out", str(tmp_path))
