"""`sotto evaluate` from an imported log to values and a certificate."""

import csv
import json
import random
from types import SimpleNamespace

import pytest
from small_runs import SMALL_PPO

from sotto.cli import evaluate, main
from sotto.errors import RunError
from sotto.runs.agents import agent
from sotto.runs.evaluations import open_evaluation

IMPORT = [
    *("--person", "who", "--observation", "x=-1..1", "--action", "a=no,yes"),
    *("--reward", "r=0..1", "--propensity", "p=0.25", "--people", "700", "--horizon", "1"),
    *("--source", "made up", "--licence", "CC0"),
]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A trial with 600 people, imported; action yes helps."""
    folder, rng = tmp_path_factory.mktemp("logs"), random.Random(3)
    with (folder / "log.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["who", "x", "y", "z", "w", "a", "r", "p"])
        for who in range(600):
            yes = rng.random() < 0.75
            reward = int(rng.random() < (0.8 if yes else 0.3))
            chance = 0.75 if yes else 0.25
            seen = [rng.uniform(-1, 1) for _ in range(4)]
            rows.writerow([f"p{who}", *seen, ["no", "yes"][yes], reward, chance])
    for name, more in (("trial", []), ("wide", ["y=-1..1", "z=-1..1", "w=-1..1"])):
        words = [*IMPORT[:4], *more, *IMPORT[4:], "--out", str(folder / name), "--json"]
        assert main(["import", str(folder / "log.csv"), *words]) == 0
    return folder / "trial"


def run(*words):
    return main(["evaluate", *map(str, words)])


def test_values_as_json_and_a_verified_certificate(log, tmp_path, capsys):
    out, words = tmp_path / "out", ["--policy", "always:0", "always:1", "--learn"]
    code = run(*words, "--on", log, "--epsilon", "3", "--out", out, "--json")
    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [one["policy"] for one in answer["policies"]] == ["always:0", "always:1", "linear"]
    assert answer["best"] in ("always:1", "linear")
    assert {answer["best"], *answer["may_be_as_good"]} >= {"always:1", "linear"}
    assert (answer["source"], answer["licence"], answer["already_public"]) == (
        *("made up", "CC0"),
        False,
    )
    for one, value in zip(answer["policies"], (0.3, 0.8, 0.8), strict=True):
        assert one["low"] <= one["value"] <= one["high"]
        assert one["low"] - 0.1 < value < one["high"] + 0.1
    assert json.loads(open_evaluation(out).values.read_text()) == answer
    assert main(["certificate", str(out), "--verify"]) == 0
    assert main(["certificate", str(out), "--json"]) == 0
    said = capsys.readouterr().out
    assert "gave each person one id" in said
    assert "origin: made up" in said
    # The learnt policy can be evaluated again, on other people.
    file = out / "linear.json"
    again = tmp_path / "again"
    assert run("--policy", file, "--on", log, "--epsilon", "3", "--out", again, "--json") == 0


def test_marginalised_values_have_a_verified_certificate(log, tmp_path, capsys):
    out, words = tmp_path / "out", ["--estimator", "marginalised", "--cells", "2"]
    words += ["--policy", "always:1", "--on", log, "--epsilon", "3", "--out", out]
    assert run(*words, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    (one,) = answer["policies"]
    assert answer["certificate"] == "proved"
    assert one["low"] < 0.8 < one["high"]
    assert one["added_for_tables"] >= 0
    assert main(["certificate", str(out), "--verify"]) == 0


def test_a_table_states_what_it_assumes(log, tmp_path, capsys):
    out = tmp_path / "out"
    assert run("--policy", "always:1", "uniform", "--on", log, "--epsilon", "3", "--out", out) == 0
    said = capsys.readouterr().out
    for words in ("95% interval", "hold together", "Largest value", "Certificate proved"):
        assert words in said
    assert main(["report", str(out)]) == 2  # there is none of an evaluation
    error = capsys.readouterr().err
    assert "give the --out of a training, or read its certificate with: sotto certificate" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "always:7"], "names no action"),
        (["--policy", "unifrom"], "'unifrom' is no policy (did you mean uniform?); give uniform,"),
        (["--policy", "alwyas:1"], "(did you mean always:1?)"),
        (["--policy", "best"], "'best' is no policy; give uniform, always:K with K from 0 to 1,"),
        (["--policy", "always:1", "always:1"], "named twice"),
        ([], "no policy"),
        (
            ["--policy", "always:1", "--largest-weight", "1", "2"],
            "has 2 numbers, and there is 1 policy; give one",
        ),
        (["--policy", "always:1", "--estimator", "doubly-robust"], "--model"),
        (["--policy", "always:1", "--epsilon", "0.01"], "would suffice"),
        (["--policy", "always:1", "--level", "2"], "level"),
        (["--policy", "always:1", "--estimator", "marginalised"], "--cells must be one whole"),
        (["--policy", "always:1", "--cells", "2"], "--cells is for"),
        (["--policy", "always:1", "--delta", "0.1"], "delta"),
    ],
)
def test_a_refused_evaluation_leaves_nothing(log, tmp_path, capsys, words, said):
    out = tmp_path / "out"
    assert run("--on", log, "--epsilon", "3", *words, "--out", out) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_misspelt_policy_is_refused_before_runs_are_loaded(log, capsys, monkeypatch):
    monkeypatch.setattr(evaluate, "_refuse_unpaid", lambda *_: None)
    monkeypatch.setattr(agent, "load", lambda *_, **__: pytest.fail("a run was loaded"))
    assert run("a-run", "--policy", "unifrom", "--on", log, "--epsilon", "3") == 2
    assert "did you mean uniform?" in capsys.readouterr().err


def test_a_second_evaluation_needs_another_place(log, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    assert run("--policy", "always:1", "--on", log, "--epsilon", "3", "--out", out) == 2
    assert "has its cost" in capsys.readouterr().err


def test_a_run_is_evaluated_on_a_log_that_fits_it(log, tmp_path, capsys):
    """A policy for CartPole needs observations of four numbers and two actions."""
    trained, out = tmp_path / "run", tmp_path / "out"
    assert main(["train", "ppo", *SMALL_PPO, "--out", str(trained), "--json"]) == 0
    wide = log.with_name("wide")
    capsys.readouterr()
    assert run(trained, "--on", wide, "--epsilon", "3", "--sampled", "--out", out, "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["policies"]
    assert one["policy"] == str(trained)
    assert one["low"] < 0.55 < one["high"]  # it is nearly uniform at first
    assert run(trained, "--on", log, "--epsilon", "3", "--out", tmp_path / "other") == 2
    assert "does not fit the log" in capsys.readouterr().err


def test_a_run_that_learned_from_a_log_without_privacy_is_refused(log, tmp_path, capsys):
    """Another import of the same file is another log, so every log counts until the user speaks."""
    trained, out = tmp_path / "run", tmp_path / "out"
    words = ["--method", "bc", "--dataset", str(log), "--gradient-steps", "2", "--env-id", "none"]
    assert main(["train", "expert-offline", *words, "--out", str(trained), "--json"]) == 0
    again = log.with_name("again")
    assert main(["import", str(log.with_name("log.csv")), *IMPORT, "--out", str(again)]) == 0
    capsys.readouterr()
    for one in (log, again):
        assert run(trained, "--on", one, "--epsilon", "3", "--out", out) == 2
        assert "was trained on" in (said := capsys.readouterr().err)
        assert "without privacy" in said
        assert not out.exists()
    said = ["--epsilon", "3", "--other-people"]
    assert run(trained, "--on", log, *said, "--out", out) == 2  # the code sees that it is this log
    assert "evaluate it on a log of other people" in capsys.readouterr().err
    assert run(trained, "--on", again, *said, "--out", out) == 0


def test_a_student_of_such_a_run_is_refused_too(tmp_path, monkeypatch):
    """Its exact teacher learned from the people whose log this is."""

    def settings(**config):
        return SimpleNamespace(settings=SimpleNamespace(ledger=None, config=config))

    teacher, student = tmp_path / "teacher", tmp_path / "student"
    teacher.mkdir()
    found = {
        teacher: settings(dataset="log", identity="abc"),
        student: settings(teacher=str(teacher)),
    }
    monkeypatch.setattr(evaluate, "open_experiment", found.__getitem__)
    with pytest.raises(RunError, match=r"teacher was trained on log without privacy"):
        evaluate._refuse_unpaid(student, "abc", other_people=True)
    evaluate._refuse_unpaid(student, "other", other_people=True)
    teacher.rmdir()
    with pytest.raises(RunError, match=r"teacher, which is not there; put it back"):
        evaluate._refuse_unpaid(student, "other", other_people=False)
    evaluate._refuse_unpaid(student, "other", other_people=True)
    found[student] = settings(teacher="https://teacher.example")  # it has a ledger of answers
    evaluate._refuse_unpaid(student, "abc", other_people=False)


def test_a_model_that_does_not_fit_is_refused(log, tmp_path, capsys):
    given = ["--on", log, "--epsilon", "3", "--policy", "always:1", "--estimator", "doubly-robust"]
    file, out = tmp_path / "m.json", tmp_path / "out"
    file.write_text('{"weights": [[0, 0], [0, 0]], "bias": [0.3, 0.8]}')
    assert run(*given, "--model", file, "--out", out) == 2
    assert "needs (1, 2, 1)" in capsys.readouterr().err
    assert run(*given, "--model", tmp_path / "no.json", "--out", out) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert run(*given, "--model", tmp_path, "--out", out) == 2
    assert not out.exists()
