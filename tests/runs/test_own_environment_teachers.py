"""Teachers from an environment of the user's own, whose people nobody else can know."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import refused
from small_runs import SMALL_PPO

import sotto
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.teachers import ExactTeacher
from sotto.cli import main
from sotto.cli.evaluate import _models
from sotto.errors import RunError
from sotto.privacy.certificates.derive import verify
from sotto.privacy.units import whose_people
from sotto.rl.envs.gymnasium.described import described
from sotto.runs import metrics
from sotto.runs.agents.teachers import teacher_policies
from sotto.runs.directory import Named, open_experiment
from sotto.serving.directory import open_service
from sotto.serving.kickstart import Kickstart
from sotto.serving.promise import Promise, promised

WARD = """
import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Ward(CartPoleEnv):
    '''Two actions, four numbers to see.'''

class Nurse(gym.Wrapper):
    '''Could let people answer in place of the simulator.'''

def rated(_reward):
    return 0.25

def made(render_mode=None):
    return CartPoleEnv()

def answered(render_mode=None):
    return gym.wrappers.TransformReward(CartPoleEnv(), rated)

gym.register("Ward-v0", "ward_of_tests:Ward", max_episode_steps=20)
gym.register("Made-v0", made, max_episode_steps=20)
gym.register("Answered-v0", answered, max_episode_steps=20)
gym.register("Named-v0", "ward_of_tests:answered", max_episode_steps=20)

def each(render_mode=None):
    return gym.wrappers.TransformReward(CartPoleEnv(), np.vectorize(rated))

gym.register("Each-v0", "ward_of_tests:each", max_episode_steps=20)
"""
ENV = "ward_of_tests:Ward-v0"
NAMED = Named(env_id=ENV)
SMALL = ("--num-envs", "2", "--num-steps", "16", "--json")
# 3 updates of 32 steps, 8 questions each.
ASKING = (
    *("--total-steps", "96", "--hidden", "4", "--num-minibatches", "2"),
    *("--queries-per-update", "8", "--teacher-mechanism", "gaussian-policy"),
    *("--target-epsilon", "50", *SMALL),
)

DPPG = (
    *("--users-per-update", "4", "--steps-per-user", "8", "--total-steps", "64"),
    *("--hidden", "4", "--evaluation-episodes", "0", "--target-epsilon", "1.3", "--json"),
    *("--env-id", ENV),
)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of ppo, trained in the ward, whose module lies in a folder of its own."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "ward_of_tests.py").write_text(WARD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        words = ["--env-id", ENV, "--seeds", "2", "--json"]
        out = folder / "shards"
        assert main(["train", "ppo", *SMALL_PPO, *words, "--out", str(out)]) == 0
    return out


@pytest.fixture(autouse=True)
def importable(teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(teacher.parent))


@pytest.fixture(scope="module")
def finished(teacher: Path) -> Path:
    out = teacher.parent / "student"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(teacher.parent))
        words = ["--env-id", ENV, "--population", "simulated", "--seeds", "2", *ASKING]
        given = ["train", "kickstart", "--teacher", str(teacher), "--out", str(out), *words]
        assert main(given) == 0
    return out


def kickstart(teacher: Path, out: Path, *words: str) -> list[str | Path]:
    return ["train", "kickstart", "--teacher", teacher, "--out", out, *words, *ASKING]


def test_students_ask_a_teacher_of_the_environment_that_the_user_names(finished: Path) -> None:
    experiment = open_experiment(finished)
    assert {run.settings.population for run in experiment.runs} == {"simulated"}
    for run in experiment.runs:
        assert verify(run.certificate, run.open_ledger()).status == "verified"
        found = json.loads(run.certificate.read_text())
        assert (found["status"], found["answers"]["answered"]) == ("proved", 24)
        assert "simulated" in run.certificate.read_text()
        lines = metrics.read(run.metrics)
        assert lines[-1].released["answered"] == [24]
        assert 0 < lines[-1].evaluation["last"] <= 20


def test_it_is_evaluated_reported_and_resumed_with_the_name(capsys, finished, tmp_path) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    named = ("--env-id", ENV)
    assert f"give --env-id {ENV}" in refused(capsys, "eval", copy)
    assert main(["eval", str(copy), "--episodes", "2", *named]) == 0
    assert main(["report", str(copy)]) == 0
    assert main(["certificate", str(copy), "--verify"]) == 0
    for run in open_experiment(copy).runs:
        shutil.rmtree(run.checkpoints / f"{3:08d}")
    resume = ("train", "kickstart", "--out", str(copy), "--resume", "--json")
    assert f"give --env-id {ENV}" in refused(capsys, *resume)
    assert main([*resume, *named]) == 0
    assert metrics.read(open_experiment(copy).runs[0].metrics)[-1].updates == 3


def test_nothing_is_imported_that_the_user_has_not_named(capsys, teacher, tmp_path) -> None:
    out = tmp_path / "x"
    for words in ((), ("--env-id", "Acrobot-v1")):
        said = refused(capsys, *kickstart(teacher, out, *words))
        assert f"give --env-id {ENV} if you trust it" in said
    given = ("--queries", "9", "--target-epsilon", "9", "--out", out)
    assert f"give --env-id {ENV}" in refused(capsys, "serve", "teacher", teacher, *given)
    assert not out.exists()


def test_only_the_user_knows_whether_people_are_real(capsys, teacher, tmp_path) -> None:
    out, named = tmp_path / "x", ("--env-id", ENV)
    said = refused(capsys, *kickstart(teacher, out, *named))
    assert said.endswith("say so with --population simulated or --population real")
    said = refused(capsys, *kickstart(teacher, out, *named, "--population", "real"))
    assert "serve the teacher with sotto serve teacher" in said
    given = ("--queries", "9", "--target-epsilon", "9", "--out", out, *named)
    assert "--population real" in refused(capsys, "serve", "teacher", teacher, *given)
    assert not out.exists()


def test_whose_people_they_are_follows_from_what_is_known_and_said() -> None:
    assert (
        whose_people("here", "simulated", None)
        == whose_people("here", None, "simulated")
        == "simulated"
    )
    assert whose_people("here", "real", "real") == whose_people("here", None, "real") == "real"
    with pytest.raises(ValueError, match="the people here are real; leave out"):
        whose_people("here", "real", "simulated")
    with pytest.raises(ValueError, match="only you can know"):
        whose_people("here", None, None)


def test_a_simulator_in_a_wrapper_of_the_user_may_meet_people() -> None:
    assert described("CartPole-v1+gymnasium.wrappers:FlattenObservation").simulator
    assert not described("CartPole-v1+ward_of_tests:Nurse").simulator
    inside = "CartPole-v1+ward_of_tests:Nurse+gymnasium.wrappers:FlattenObservation"
    assert not described(inside).simulator


@pytest.mark.parametrize("name", ["Made", "Answered", "Named", "Each"])
def test_a_function_of_the_user_may_let_people_answer(name: str) -> None:
    """`TransformReward` is Gymnasium's class, and the function that it calls is not."""
    assert not described(f"ward_of_tests:{name}-v0").simulator


@pytest.mark.parametrize("name", ["CartPole-v1+ward_of_tests:Nurse", "ward_of_tests:Named-v0"])
def test_people_whom_a_wrapper_lets_answer_can_be_called_real(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    words = ["train", "dppg", "--out", str(run), *DPPG, "--population", "real"]
    assert main([*words, "--env-id", name]) == 0
    assert {line.seconds for line in metrics.read(run / "metrics.jsonl")} == {0.0}


def test_a_run_of_a_version_that_did_not_ask_goes_on(tmp_path: Path) -> None:
    """From Python open settings are filled in, and this version fills in who the people are."""
    teacher = tmp_path / "teacher"
    words = ["--seeds", "2", "--json", "--out", str(teacher)]
    assert main(["train", "ppo", *SMALL_PPO, *words]) == 0
    settings = KickstartConfig(
        teacher=str(teacher),
        env_id="CartPole-v1",
        **{"num_envs": 2, "num_steps": 16, "total_steps": 96, "num_minibatches": 2},
        **{"hidden": (4,), "queries_per_update": 8, "noise_stddev": 1.0},
        teacher_mechanism="gaussian-policy",
    )
    out = tmp_path / "student"
    sotto.train(settings, out)
    stored = json.loads((out / "config.json").read_text())
    del stored["config"]["population"]
    (out / "config.json").write_text(json.dumps(stored))
    shutil.rmtree(out / "checkpoints" / f"{3:08d}")
    assert sotto.train(settings, out, resume=True).finished
    assert open_experiment(out).settings.population == "simulated"


def test_a_served_teacher_of_real_people_never_says_that_they_are_simulated(
    capsys, monkeypatch, teacher: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("sotto.serving.server.serve", lambda _app, _address, ready: ready("x"))
    out, named = tmp_path / "service", ["--env-id", ENV]
    words = ["--queries", "20", "--target-epsilon", "50", "--mechanism", "gaussian-policy"]
    start = ["serve", "teacher", str(teacher), "--out", str(out), *words, *named]
    assert main([*start, "--population", "real"]) == 0
    assert open_service(out).open_ledger().statement.population == "real"
    assert "simulated" not in (out / "certificate.json").read_text()
    assert f"give --env-id {ENV}" in refused(capsys, "serve", "teacher", "--out", out)
    again = ["serve", "teacher", "--out", str(out), *named]
    assert "promised --population real" in refused(capsys, *again, "--population", "simulated")
    assert main(again) == 0


def test_a_student_of_a_service_follows_its_statement(
    capsys, monkeypatch, teacher: Path, tmp_path: Path
) -> None:
    opened = teacher_policies(teacher, named=NAMED, protected=False)
    settings = Promise(queries=99, target_epsilon=50, teacher_mechanism="gaussian-policy")
    with pytest.raises(ValueError, match="only you can know"):
        promised(settings, opened)
    real = Promise(**(vars(settings) | {"population": "real"}))
    statement, _ = promised(real, opened)
    served = ExactTeacher(opened.exact())
    served.statement = statement
    monkeypatch.setattr(Kickstart, "connect", lambda _self, _url: served)
    out = tmp_path / "x"
    url = ["train", "kickstart", "--teacher", "https://teacher.example", "--out", str(out)]
    small = ["--total-steps", "32", "--hidden", "4", "--num-minibatches", "2", *SMALL]
    small += ["--queries-per-update", "8"]
    assert "are simulated; leave out" in refused(capsys, *url, *small, "--population", "real")
    assert main([*url, *small]) == 0
    assert open_experiment(out).settings.population == "real"


def test_a_student_of_a_service_meets_no_real_people(
    capsys, monkeypatch, teacher: Path, tmp_path: Path
) -> None:
    """Nobody asked, and their returns were written as those of simulated people."""
    served = ExactTeacher(teacher_policies(teacher, named=NAMED, protected=False).exact())
    settings = Promise(queries=99, target_epsilon=50, teacher_mechanism="gaussian-policy")
    opened = teacher_policies(teacher, named=NAMED)
    monkeypatch.setattr(Kickstart, "connect", lambda _self, _url: served)
    small = ["--total-steps", "32", "--hidden", "4", "--num-minibatches", "2", *SMALL]
    small += ["--queries-per-update", "8", "--env-id", ENV]
    for behind in ("simulated", "real"):
        promise = Promise(**(vars(settings) | {"population": behind}))
        served.statement, _ = promised(promise, opened)
        out = tmp_path / behind
        url = ["train", "kickstart", "--teacher", "https://teacher.example", "--out", str(out)]
        said = refused(capsys, *url, *small)
        assert f"only you can know whether the people in {ENV} are simulated" in said
        with monkeypatch.context() as patch:  # nobody is met to find that out
            patch.setattr("sotto.serving.kickstart.is_simulator", pytest.fail)
            said = refused(capsys, *url, *small, "--population", "real")
        assert f"the people in {ENV} are real, and a student would learn from those" in said
        assert said.endswith("without privacy; train students in a simulator")
        assert not out.exists()
        assert main([*url, *small, "--population", "simulated"]) == 0
        assert open_experiment(out).settings.population == behind
        shutil.rmtree(out / "checkpoints" / f"{1:08d}")
        again = ["train", "kickstart", "--out", str(out), "--resume", "--json", "--env-id", ENV]
        assert main([*again, "--teacher", "https://teacher.example"]) == 0


def test_a_report_does_not_say_whom_an_environment_of_the_user_meets(teacher: Path) -> None:
    assert main(["report", str(teacher)]) == 0
    page = (teacher / "report.html").read_text()
    assert f"greedy episodes in {ENV}." in page
    assert "fresh simulated people" not in page


def test_an_audit_and_a_model_take_the_name_too(capsys, monkeypatch, tmp_path: Path) -> None:
    """Their refusals asked for a flag that they did not have, or did not pass on."""
    run = tmp_path / "run"
    words = ["train", "dppg", "--out", str(run), *DPPG, "--population", "real"]
    assert main(words) == 0
    assert f"give --env-id {ENV}" in refused(capsys, "audit", run)
    assert "real people, who are not at hand" in refused(capsys, "audit", run, "--env-id", ENV)
    assert "leave it out" in refused(capsys, "audit", "own:audited", "--env-id", ENV)
    named = []

    def last_state(path: Path, *, env_id: str | None) -> None:
        named.append(env_id)
        raise RunError("asked")

    monkeypatch.setattr("sotto.runs.agents.agent.last_state", last_state)
    with pytest.raises(RunError, match="asked"):
        _models(run, SimpleNamespace(horizon=2), 1.0, ENV)
    assert named == [ENV]


def test_a_dppg_teacher_s_people_are_those_of_its_ledger(
    capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asking = [word for word in ASKING if word not in ("--target-epsilon", "50")]
    asking = [word for word in asking if word not in ("--teacher-mechanism", "gaussian-policy")]
    for population in ("simulated", "real"):
        run, out = tmp_path / population, tmp_path / f"student-{population}"
        words = ["train", "dppg", "--out", str(run), *DPPG, "--population", population]
        assert main(words) == 0
        with monkeypatch.context() as patch:  # whoever met people is not made again
            patch.setattr("sotto.runs.agents.teachers.is_simulator", pytest.fail)
            assert teacher_policies(run, named=NAMED).population == population
        given = ["train", "kickstart", "--teacher", str(run), "--out", str(out), "--env-id", ENV]
        if population == "simulated":
            assert main([*given, *asking]) == 0
            assert open_experiment(out).settings.population == "simulated"
        else:
            assert f"use {run} itself" in refused(capsys, *given, *asking)
            assert not out.exists()
