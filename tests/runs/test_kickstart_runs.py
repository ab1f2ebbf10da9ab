"""Students as runs: their teachers, ledgers and certificates, and what resuming charges."""

import json
import shutil
from html import escape
from pathlib import Path

import numpy as np
import pytest
from commands import refused
from pydantic_core import to_json
from small_runs import SMALL_DPPG, SMALL_PPO

import sotto
from sotto.algorithms.kickstarting.teachers import ExactTeacher
from sotto.cli import main
from sotto.errors import RunError
from sotto.privacy.accounting.composition import compose
from sotto.privacy.bounds import at_most
from sotto.privacy.certificates.derive import verify
from sotto.runs import checkpoints, metrics
from sotto.runs.agents import teachers
from sotto.runs.agents.teachers import rows_to_serve, teacher_policies
from sotto.runs.directory import open_experiment
from sotto.runs.report.comparison import write_comparison
from sotto.runs.summaries import summarise
from sotto.serving.kickstart import Kickstart

# 4 updates of 128 steps, 32 questions each.
STUDENT = (
    *("--total-steps", "512", "--num-envs", "2", "--num-steps", "64", "--hidden", "4"),
    *("--queries-per-update", "32", "--json"),
)


def student(out: Path, teacher: Path | str, *words: str) -> list[str]:
    return ["train", "kickstart", "--teacher", str(teacher), "--out", str(out), *STUDENT, *words]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "shards"
    assert main(["train", "ppo", "--seeds", "3", "--out", str(out), "--json", *SMALL_PPO]) == 0
    return out


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "dppg"
    words = (*SMALL_DPPG, "--total-steps", "128")
    assert main(["train", "dppg", "--out", str(out), "--json", *words]) == 0
    return out


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "student"
    words = ("--teacher-mechanism", "gaussian-policy", "--target-epsilon", "50")
    assert main(student(out, shards, "--seeds", "2", *words)) == 0
    return out


# --- a run as a teacher --------------------------------------------------------------------------


def test_an_experiment_is_an_ensemble_and_each_seed_a_teacher(shards: Path) -> None:
    together = teacher_policies(shards)
    alone = [teacher_policies(shards / f"seed-{seed}") for seed in range(3)]
    observations = np.random.default_rng(0).normal(size=(20, 4))
    mean = np.mean([rows_to_serve(one)(observations) for one in alone], axis=0)
    np.testing.assert_allclose(rows_to_serve(together)(observations), mean, atol=1e-12)
    assert (together.teachers, together.shards) == (3, True)
    assert (alone[0].teachers, alone[0].shards) == (1, False)
    assert (together.actions, together.observation_size, together.env_id) == (2, 4, "CartPole-v1")
    assert together.lipschitz == pytest.approx(np.mean([one.lipschitz for one in alone]))


def test_a_dppg_run_is_a_teacher_while_its_certificate_is_true(private: Path, tmp_path) -> None:
    assert teacher_policies(private).private_training
    copy = Path(shutil.copytree(private, tmp_path / "copy"))
    certificate = json.loads((copy / "certificate.json").read_text())
    edited = to_json(certificate | {"epsilon": 0.1}, indent=2) + b"\n"
    (copy / "certificate.json").write_bytes(edited)
    with pytest.raises(RunError, match="is not true: epsilon"):
        teacher_policies(copy)


@pytest.mark.parametrize("command", ["certificate", "report"])
def test_a_false_certificate_beside_its_ledger_is_said(
    command: str, capsys, private: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(private, tmp_path / "copy"))
    assert main([command, str(copy)]) == 0
    assert "warning" not in capsys.readouterr().err
    certificate = json.loads((copy / "certificate.json").read_text())
    (copy / "certificate.json").write_bytes(to_json(certificate | {"epsilon": 0.1}, indent=2))
    assert main([command, str(copy)]) == 0
    assert "certificate.json is false" in capsys.readouterr().err


def test_a_dppg_run_without_a_proof_is_no_free_teacher(monkeypatch, private: Path) -> None:
    class Claim:
        status = "paper-claim"

    monkeypatch.setattr(teachers, "derive", lambda _ledger: Claim)
    with pytest.raises(RunError, match="'paper-claim', so its answers are not free"):
        teacher_policies(private)


def test_a_student_is_no_teacher(finished: Path) -> None:
    with pytest.raises(RunError, match="cannot teach; give one of ppo or dppg"):
        teacher_policies(finished)


# --- a run of a student --------------------------------------------------------------------------


def test_each_seed_has_a_ledger_and_a_true_certificate(finished: Path, shards: Path) -> None:
    experiment = open_experiment(finished)
    assert experiment.settings.config["teacher"] == str(shards)
    assert experiment.settings.config["protect"] == "training-shards"
    for run in experiment.runs:
        ledger = run.open_ledger()
        assert verify(run.certificate, ledger).status == "verified"
        certificate = json.loads(run.certificate.read_text())
        assert certificate["status"] == "proved"
        assert 49 < certificate["epsilon"] <= 50
        assert certificate["unit"]["kind"] == "trajectory"
        assert certificate["answers"]["answered"] == 4 * 32
        assert ledger.statement.distance.teachers == 3
        lines = metrics.read(run.metrics)
        assert [line.released["answered"][-1] for line in lines] == [32, 64, 96, 128]
        assert lines[-1].epsilon == pytest.approx(certificate["epsilon"])
        assert not any("teacher_return" in line.simulated for line in lines)


def test_eval_certificate_and_report(capsys, finished: Path) -> None:
    assert main(["eval", str(finished), "--episodes", "2"]) == 0
    assert main(["certificate", str(finished), "--verify"]) == 0
    assert main(["certificate", str(finished)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    ledgers = [run.open_ledger() for run in open_experiment(finished).runs]
    together = compose([event for one in ledgers for event in one.spent().events])
    assert "2 seeds are students of the same teacher. Each has its own ledger" in said
    assert f"add up, to epsilon {at_most(together.epsilon(ledgers[0].budget.delta))} at" in said
    assert main(["report", str(finished)]) == 0
    page = (finished / "report.html").read_text()
    assert "rows answered" in page
    assert "the teacher&#x27;s return" not in page
    assert "the same teacher" in page
    assert "for all 2 seeds together" in page
    pictures = sorted(path.name for path in (finished / "figures").glob("*.png"))
    assert pictures == ["budget.png", "guarantee.png", "learning.png"]


def test_a_lost_update_asks_and_pays_again(copied: Path) -> None:
    """As if killed between the last answer and its checkpoint."""
    config = json.loads((copied / "config.json").read_text())
    assert config["config"]["queries"] is None
    for seed in (0, 1):
        shutil.rmtree(copied / f"seed-{seed}" / "checkpoints" / f"{4:08d}")
    assert main(["train", "kickstart", "--out", str(copied), "--resume", "--json"]) == 0
    for run in open_experiment(copied).runs:
        ledger = run.open_ledger()
        assert ledger.spent().answered == 128  # all are spent: the update made again gets none
        assert verify(run.certificate, ledger).status == "verified"
        assert checkpoints.steps(run.checkpoints)[-1] == 4
        assert metrics.read(run.metrics)[-1].released["answered"] == [96]


def test_answers_after_the_checkpoint_stay_charged(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ("--teacher-mechanism", "gaussian-policy", "--noise-stddev", "2", "--queries", "500")
    assert main(student(out, shards, *words)) == 0
    (run,) = open_experiment(out).runs
    before = run.open_ledger().spent()
    shutil.rmtree(out / "checkpoints" / f"{4:08d}")
    assert main(["train", "kickstart", "--out", str(out), "--resume", "--json"]) == 0
    after = run.open_ledger().spent()
    assert (before.answered, after.answered) == (128, 160)
    assert after.spent_epsilon > before.spent_epsilon
    assert after.epsilon == before.epsilon  # planned from the first answer on
    assert main(["certificate", str(out), "--verify"]) == 0


def test_resuming_refuses_another_teacher_and_a_finished_run(capsys, copied: Path) -> None:
    resume = ("train", "kickstart", "--out", str(copied), "--resume")
    assert "leave out --teacher" in refused(capsys, *resume, "--teacher", "elsewhere")
    assert "leave out --radius" in refused(capsys, *resume, "--radius-factor", "0.1")
    assert "has made all of its 4 updates" in refused(capsys, *resume)


def test_a_free_teacher_has_no_ledger_of_its_own(capsys, private: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(student(out, private)) == 0
    settings = open_experiment(out).settings
    assert settings.ledger is None
    assert settings.config["protect"] == "dppg"
    assert main(["report", str(out)]) == 0
    assert "See its teacher&#x27;s certificate" in (out / "report.html").read_text()
    found = [summarise(out), summarise(private)]
    assert found[0].guarantee.status == "see its teacher's certificate"
    write_comparison(found, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "not private" not in page
    assert escape(f"See the certificate of its teacher, {private}") in page
    assert f"its teacher, {private}" in refused(capsys, "certificate", str(out))
    words = student(tmp_path / "other", private, "--protect", "policy", "--policy-distance", ".1")
    assert "answers are free" in refused(capsys, *words)


def test_a_students_policy_is_not_proved_to_hide_the_observations(
    capsys, shards: Path, tmp_path: Path
) -> None:
    """An exported policy said "proved, epsilon 2 for one observation". One look at it tells one."""
    out, file = tmp_path / "run", tmp_path / "policy.npz"
    words = ("--protect", "observation", "--observation-radius", "0.01")
    in_words = [one for one in student(out, shards / "seed-0", *words) if one != "--json"]
    assert main(in_words) == 0
    assert "proved of the teacher's answers alone" in capsys.readouterr().out
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert '<div class="status">Proved of the teacher&#x27;s answers alone</div>' in page
    assert "so nothing is proved of its policy" in page
    (run,) = open_experiment(out).runs
    assert json.loads(run.certificate.read_text())["status"] == "proved"
    found = summarise(out).guarantee
    assert (found.status, found.epsilon, found.proved) == ("answers alone", None, False)
    assert "for one observation, replace-one, within 0.01. The epsilon is about" in found.why
    sotto.load(out).export(file)
    with np.load(file) as arrays:
        about = json.loads(str(arrays["header"]))
    assert (about["status"], about["epsilon"], about["unit"]) == ("answers alone", None, None)


def test_exact_answers_protect_nobody(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(student(out, shards, "--teacher-mechanism", "exact")) == 0
    assert open_experiment(out).settings.ledger is None
    assert not (out / "certificate.json").exists()
    assert main(["report", str(out)]) == 0
    assert "protects nobody" in (out / "report.html").read_text()


def test_a_service_as_teacher(capsys, monkeypatch, shards: Path, tmp_path: Path) -> None:
    url, out = "https://teacher.example.org", tmp_path / "run"
    monkeypatch.delenv("SOTTO_TEACHER_TOKEN", raising=False)
    assert "SOTTO_TEACHER_TOKEN" in refused(capsys, *student(out, url))
    assert not out.exists()
    asked = []

    def connect(where: str) -> ExactTeacher:
        asked.append(where)
        return ExactTeacher(teacher_policies(shards, protected=False).exact())

    monkeypatch.setattr(Kickstart, "connect", lambda _self, url: connect(url))
    assert main(student(out, url, "--seeds", "2")) == 0
    assert set(asked) == {url}
    assert open_experiment(out).settings.ledger is None
    (lines, _) = (metrics.read(run.metrics) for run in open_experiment(out).runs)
    assert "teacher_return" not in lines[0].simulated
    assert main(["report", str(out)]) == 0
    assert "keeps the ledger" in (out / "report.html").read_text()
    assert summarise(out).guarantee.status == "see its teacher's certificate"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--env-id Acrobot-v1", "give --env-id CartPole-v1"),
        ("--protect dppg", "would not be true"),
        ("--target-epsilon 0.01", "no noise brings 128 answers"),
        ("--concentration 5 --target-epsilon 1", "over the budget"),
        ("--floor 0.9", "floor must be at most"),
        ("--teacher-mechanism truncated-dirichlet --threshold 0.2", "below the floor"),
        ("--teacher-mechanism exact --ledger x.sqlite", "leave out --ledger"),
        ("--teacher-mechanism exact --target-epsilon 1", "leave out --target-epsilon"),
        ("--protect observation --observation-radius -1", "observation_radius must be"),
        ("--radius paper --teacher-mechanism gaussian-policy --noise-stddev 1", "no paper radius"),
    ],
)
def test_bad_settings_are_one_sentence_and_leave_nothing(
    capsys, tmp_path, shards, words, says
) -> None:
    out = tmp_path / "run"
    assert says in refused(capsys, *student(out, shards, *words.split()))
    assert not out.exists()


def test_one_run_is_no_shards(capsys, tmp_path: Path, shards: Path) -> None:
    words = student(tmp_path / "run", shards / "seed-0", "--protect", "training-shards")
    assert "needs several seeds" in refused(capsys, *words)
