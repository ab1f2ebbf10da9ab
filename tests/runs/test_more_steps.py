"""A finished training goes on with more steps: under its budget, and with nothing else changed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from people_logs import write_visits
from rated_logs import write_ratings

import sotto
from sotto.cli import main
from sotto.errors import RunError
from sotto.runs import training

SMALL = ["--users-per-update", "4", "--steps-per-user", "4", "--hidden", "4"]
SMALL += ["--evaluation-episodes", "1"]


def train(name: str, out: Path, *words: str) -> int:
    return main(["train", name, "--out", str(out), *words, "--json"])


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory) -> Path:
    """Two finished seeds of 4 releases of 4 people."""
    out = tmp_path_factory.mktemp("finished") / "run"
    words = ("--total-steps", "64", "--seeds", "2", "--target-epsilon", "1")
    assert train("dppg", out, *SMALL, *words) == 0
    return out


@pytest.fixture
def finished(two_seeds, tmp_path) -> Path:
    return Path(shutil.copytree(two_seeds, tmp_path / "run"))


def stored(out: Path) -> list[int]:
    files = [out / "config.json", *sorted(out.glob("seed-*/config.json"))]
    return [json.loads(file.read_text())["config"]["total_steps"] for file in files]


def test_more_people_under_the_same_epsilon(finished, capsys):
    first = [(finished / f"seed-{seed}" / "metrics.jsonl").read_text() for seed in (0, 1)]
    capsys.readouterr()
    assert train("dppg", finished, "--resume", "--total-steps", "112") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["updates"], said["total_updates"], said["persons"]) == (7, 7, 28)
    assert said["status"] == "proved"
    assert 0.99 < said["epsilon"] <= 1.0
    assert stored(finished) == [112, 112, 112]
    for seed, before in enumerate(first):
        after = (finished / f"seed-{seed}" / "metrics.jsonl").read_text()
        assert after.startswith(before)
        numbers = [json.loads(line)["updates"] for line in after.splitlines()]
        assert numbers == [*range(1, 8)]
        assert max(map(int, (one.name for one in finished.glob(f"seed-{seed}/checkpoints/*")))) == 7
    assert {one.status for one in sotto.verify(finished).values()} == {"verified"}
    assert main(["report", str(finished)]) == 0
    capsys.readouterr()
    assert train("dppg", finished, "--resume") == 2
    assert "has made all of its 7 updates" in capsys.readouterr().err


def test_nothing_is_stored_before_it_was_charged(finished, monkeypatch, capsys):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(training, "store", killed)
        assert train("dppg", finished, "--resume", "--total-steps", "112") == 130
    assert stored(finished) == [64, 64, 64]
    with monkeypatch.context() as patched:
        patched.setattr(training, "_save", killed)
        assert train("dppg", finished, "--resume", "--total-steps", "112") == 130
    assert stored(finished) == [112, 112, 112]
    capsys.readouterr()
    assert train("dppg", finished, "--resume") == 0
    said = json.loads(capsys.readouterr().out)
    # 16 people at first, 4 lost in each of the two interruptions, and the 12 of the rest.
    assert (said["updates"], said["persons"]) == (7, 16 + 4 + 4 + 12)
    assert said["epsilon"] <= 1.0
    assert {one.status for one in sotto.verify(finished).values()} == {"verified"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--total-steps", "32"], "was started with 64 steps and cannot have fewer"),
        (
            ["--total-steps", "112", "--clip-norm", "1"],
            "with the settings with which it was started",
        ),
        (["--total-steps", "112", "--seeds", "3"], "with the settings with which it was started"),
    ],
)
def test_only_more_steps(finished, capsys, words, sentence):
    capsys.readouterr()
    assert train("dppg", finished, "--resume", *words) == 2
    assert sentence in capsys.readouterr().err
    assert stored(finished) == [64, 64, 64]


def test_seeds_stay_alike(finished, capsys):
    capsys.readouterr()
    assert train("dppg", finished / "seed-0", "--resume", "--total-steps", "112") == 2
    assert f"with --out {finished}" in capsys.readouterr().err


def test_a_population_that_was_paid_for_is_not_drawn_from_more_often(tmp_path, capsys):
    out = tmp_path / "drawn"
    words = ("--total-steps", "64", "--population-size", "16", "--no-correlated-noise")
    assert train("dppg", out, *SMALL, *words, "--target-epsilon", "0.5") == 0
    before = (out / "config.json").read_bytes(), (out / "certificate.json").read_bytes()
    capsys.readouterr()
    assert train("dppg", out, "--resume", "--total-steps", "112") == 2
    assert "the budget covers 4 releases about this population" in capsys.readouterr().err
    assert ((out / "config.json").read_bytes(), (out / "certificate.json").read_bytes()) == before
    assert {one.status for one in sotto.verify(out).values()} == {"verified"}


def test_what_is_kept_must_fit(tmp_path, capsys):
    out = tmp_path / "dqn"
    words = ("--env-id", "Line-v0", "--hidden", "4", "--total-steps")
    assert train("dqn", out, *words, "512") == 0
    capsys.readouterr()
    assert train("dqn", out, "--resume", "--total-steps", "1024") == 2
    assert "depends on the number of steps" in capsys.readouterr().err


def test_from_python(tmp_path):
    short = sotto.PPO(total_steps=64, num_envs=2, num_steps=16, num_minibatches=2, hidden=(4,))
    sotto.train(short, out=tmp_path / "ppo")
    seen = []
    longer = replace(short, total_steps=96)
    run = sotto.train(longer, out=tmp_path / "ppo", resume=True, callbacks=[seen.append])
    assert run.finished
    assert [one.updates for one in seen] == [3]
    assert run.load().updates == 3


def test_from_python_settings_that_a_log_fills_in_are_the_same(tmp_path):
    """A run stores them, and whoever resumes it gives them as open as at first."""
    visits, ratings = write_visits(tmp_path, 60), write_ratings(tmp_path, 30)
    given = {"target_epsilon": 8.0, "delta": 1e-3}
    for name, settings in (
        ("offline", sotto.Offline(on=str(visits), method="cloning", steps=2, **given)),
        ("bandit", sotto.Bandit(on=str(ratings), candidates=2, **given)),
    ):
        out = tmp_path / name
        sotto.train(settings, out=out)
        with pytest.raises(RunError, match="has made all of its"):
            sotto.train(settings, out=out, resume=True)
        with pytest.raises(RunError, match="with the settings with which it was started"):
            sotto.train(replace(settings, seed=7), out=out, resume=True)
