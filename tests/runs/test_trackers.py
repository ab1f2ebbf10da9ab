"""Trackers are told what metrics.jsonl is told, and nothing else."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from sotto.cli import main
from sotto.runs.metrics import Line
from sotto.runs.trackers import tracker
from sotto.runs.training import Update, train

CLINIC = "clinic_that_talks:TalkingClinic-v0"
LINES = tuple(
    Line(
        updates=4,
        first_update=2,
        env_steps=400,
        seconds=1.0,
        epsilon=0.5,
        released={"private_return": [1.0 + seed, 2.0 + seed]},
        evaluation={"ema": 9.0 + seed},
        simulated={"steps": [3.0, float("nan")]},
    )
    for seed in (0, 1)
)


class Told(list):
    """Stands in for wandb's run and mlflow's run."""

    opened = closed = False

    def __enter__(self):
        self.opened = True
        return self

    def __exit__(self, *_):
        self.closed = True

    def log(self, values, step):
        self.append((step, values))


class Failed(Exception):
    """Stands in for the base class of the packages' own exceptions."""


@pytest.fixture
def told(monkeypatch):
    told = Told()
    wandb, mlflow = ModuleType("wandb"), ModuleType("mlflow")
    wandb.init = lambda **given: told.append(given) or told
    mlflow.set_experiment = lambda name: told.append(name)
    mlflow.start_run = lambda **given: told.append(given) or told
    mlflow.log_metrics = lambda values, step: told.log(values, step)
    wandb.Error = mlflow.MlflowException = Failed
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    return told


FIRST = {"released/private_return": 1.0, "simulated/steps": 3.0}
LAST = {"released/private_return": 2.0, "evaluation/ema": 9.0, "epsilon": 0.5, "env_steps": 400.0}


@pytest.mark.parametrize(("name", "function"), [("wandb", "init"), ("mlflow", "start_run")])
def test_a_tracker_that_fails_is_one_sentence(told, name, function, monkeypatch, capsys, tmp_path):
    def fail(**_given):
        raise Failed("api_key not configured.\nCall login first")

    monkeypatch.setattr(sys.modules[name], function, fail)
    words = ["--target-epsilon", "1", "--tracker", name, "--out", str(tmp_path / "run")]
    given = ["train", "dppg", "--population", "simulated", *words]
    assert main(given) == 2
    said = capsys.readouterr().err
    assert said == (
        f"sotto: {name} failed: api_key not configured; set it up, or leave out --tracker\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "opening"),
    [
        ("wandb", [{"project": "sotto", "name": "x", "settings": {"console": "off"}}]),
        ("mlflow", ["sotto", {"run_name": "x"}]),
    ],
)
def test_every_update_is_told_once(told, name, opening):
    with tracker(name, "x") as tell:
        assert told.opened
        assert not told.closed
        tell(Update(4, 10, LINES[:1]))
    assert told.closed
    assert told == [*opening, (3, FIRST), (4, LAST)]


ABOUT_REAL = Update(4, 10, (replace(LINES[0], seconds=0.0),))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_how_long_real_people_take_does_not_show_in_when_a_tracker_is_told(told, name):
    """A tracker stamps every update with the time at which it is told, and watches the machine."""
    with tracker(name, "x", maybe_real=True) as tell:
        tell(ABOUT_REAL)
        assert not told.opened
        assert told == []
    assert told.closed
    assert told[-2:] == [(3, FIRST), (4, LAST)]


def test_updates_without_a_time_wait_for_the_end(told):
    """Only a release said that people are real, after the tracker was opened."""
    with tracker("wandb", "x") as tell:
        tell(ABOUT_REAL)
        assert len(told) == 1
    assert told[1:] == [(3, FIRST), (4, LAST)]


def test_people_who_turn_out_to_be_simulated_do_not_wait(told):
    with tracker("wandb", "x", maybe_real=True) as tell:
        assert not told.opened
        tell(Update(4, 10, LINES[:1]))
        assert told[1:] == [(3, FIRST), (4, LAST)]


def test_what_was_made_is_told_after_a_failure_too(told):
    def fails():
        with tracker("wandb", "x", maybe_real=True) as tell:
            tell(ABOUT_REAL)
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fails()
    assert told[1:] == [(3, FIRST), (4, LAST)]


def test_seeds_have_headings_of_their_own(told):
    with tracker("wandb", "x") as tell:
        tell(Update(4, 10, LINES))
    step, values = told[1]
    assert step == 3
    assert values == {f"seed-0/{n}": x for n, x in FIRST.items()} | {
        "seed-1/released/private_return": 2.0,
        "seed-1/simulated/steps": 3.0,
    }


@pytest.mark.parametrize("population", ["simulated", "real"])
def test_it_hears_what_is_logged_and_nothing_of_real_people(
    told, tmp_path, population, capsys, monkeypatch
):
    out = tmp_path / "run"
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "attacks")
    words = ["--users-per-update", "4", "--steps-per-user", "4", "--total-steps", "32"]
    words += ["--hidden", "4", "--evaluation-episodes", "1", "--population", population]
    words += ["--env-id", "CartPole-v1" if population == "simulated" else CLINIC]
    words += ["--private-return", "0", "4", "--tracker", "wandb", "--json"]
    meanwhile = []

    def watched(*given):
        finished = train(*given)
        meanwhile.append(len(told))
        return finished

    monkeypatch.setattr("sotto.cli.train.train", watched)
    assert main(["train", "dppg", "--out", str(out), *words]) == 0
    capsys.readouterr()
    assert meanwhile == [3 if population == "simulated" else 0]
    logged = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    opening, *heard = told
    assert opening == {"project": "sotto", "name": "run", "settings": {"console": "off"}}
    assert [step for step, _ in heard] == [1, 2]
    assert [values["epsilon"] for _, values in heard] == [line["epsilon"] for line in logged]
    headings = {name.split("/")[0] for _, values in heard for name in values}
    about_people = {"simulated", "evaluation"} if population == "simulated" else set()
    assert headings == {"released", "epsilon", "env_steps"} | about_people


def test_a_missing_package_is_noticed_before_the_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = tmp_path / "run"
    assert main(["train", "ppo", "--out", str(out), "--tracker", "wandb"]) == 2
    assert "--tracker wandb needs the package wandb: pip install wandb" in capsys.readouterr().err
    assert not out.exists()
