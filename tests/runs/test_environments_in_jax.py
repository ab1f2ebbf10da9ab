"""Private trainings in an environment in JAX of the user's, as the tutorial has them."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from commands import refused
from test_tutorials import BLOCK, TUTORIALS

import sotto
from sotto.algorithms.baselines import dqn, ppo
from sotto.algorithms.baselines.dqn import DQNConfig
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.dppg.algorithm import DPPG
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.cli import main
from sotto.keys import new_key
from sotto.runs import metrics
from sotto.runs.directory import open_experiment

SMALL = (
    *("--users-per-update", "4", "--steps-per-user", "8", "--hidden", "4"),
    *("--evaluation-episodes", "2", "--target-epsilon", "2", "--json"),
)
"""Settings of a short training; 32 steps are one update."""
HALL = ("--env-id", "halls:Hall")
TUTORIAL = next(one for one in TUTORIALS if one.stem == "own_environment")


def test_the_commands_of_the_tutorial_run(tmp_path: Path, monkeypatch, capsys) -> None:
    """Its Python runs in test_tutorials.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    page = BLOCK.findall(TUTORIAL.read_text())
    Path("hall.py").write_text(next(text for _, title, text in page if title == "hall.py"))
    shorter = {"dppg": [*SMALL, "--total-steps", "64"], "ppo": ["--total-steps", "4096"]}
    lines = [line for language, _, text in page if not language for line in text.splitlines()]
    commands = [shlex.split(line) for line in lines]
    for _, *words in commands:
        if words[0] == "train":
            assert words[words.index("--env-id") + 1] == "hall:Hall"
            given = [one for one in words if one not in ("--total-steps", "200000")]
            if words[1] == "dppg":  # --target-epsilon is given once
                del given[(at := given.index("--target-epsilon")) : at + 2]
            words = [*given, *shorter[words[1]]]
        assert main(words) == 0, (words, capsys.readouterr().err)
    assert len(commands) == 3


def test_people_of_the_compiled_program_are_simulated_and_protected(tmp_path, capsys) -> None:
    out = tmp_path / "run"
    words = ["train", "dppg", *HALL, *SMALL, "--seeds", "2", "--out", str(out)]
    assert main([*words, "--total-steps", "96"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "proved"
    for run in open_experiment(out).runs:
        assert run.settings.population == "simulated"
        stream = json.loads(run.certificate.read_text())["streams"][0]
        assert stream["statement"]["population"] == "simulated"
        assert run.open_ledger().persons == 12
        line = metrics.read(run.metrics)[-1]
        assert line.simulated["steps_per_user"] == [8.0]
    assert "give --env-id halls:Hall" in refused(capsys, "eval", out)
    assert main(["eval", str(out), "--episodes", "2", *HALL]) == 0
    assert main(["certificate", str(out / "seed-0"), "--verify"]) == 0


def test_from_python_it_resumes_and_acts_with_its_name(tmp_path: Path) -> None:
    settings = {"users_per_update": 4, "steps_per_user": 8, "hidden": (4,), "target_epsilon": 2.0}
    config = sotto.DPPG(env_id="halls:Pushed", total_steps=64, evaluation_episodes=2, **settings)
    run = sotto.train(config, tmp_path / "run")
    assert run.certificate.status == "proved"
    with pytest.raises(ValueError, match="give --env-id halls:Pushed"):
        sotto.load(tmp_path / "run")
    action = sotto.load(tmp_path / "run", env_id="halls:Pushed").act([0.2])
    assert action.shape == (1,)
    assert np.isfinite(action).all()


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "dqn"])
def test_baselines_learn_in_it(algorithm: str, tmp_path: Path) -> None:
    small = ("--total-steps", "4096", "--hidden", "4", "--json")
    assert main(["train", algorithm, *HALL, *small, "--out", str(tmp_path / "run")]) == 0
    (run,) = open_experiment(tmp_path / "run").runs
    assert np.isfinite(metrics.read(run.metrics)[-1].evaluation["last"])


def test_values_without_a_known_reward_are_not_zero() -> None:
    """Their scale was the reward of a step, and 0 times a network learns nothing."""
    env_id, key = "halls:Hall", new_key(0)
    assert ppo.init(PPOConfig(env_id=env_id), key).networks.value.scale > 0
    assert dqn.init(DQNConfig(env_id=env_id), key).learner.values.scale > 0


def test_nobody_real_is_met_in_it_and_its_rewards_are_no_secret(capsys, tmp_path) -> None:
    words = ("train", "dppg", *HALL, *SMALL, "--population", "real", "--out", tmp_path / "run")
    assert "halls:Hall runs in JAX and meets no real people; leave out" in refused(capsys, *words)
    # Its name alone says it: the module is not imported where people are real.
    words = ("train", "dppg", "--env-id", "nowhere:Hall", *words[4:])
    assert "nowhere:Hall runs in JAX and meets no real people" in refused(capsys, *words)
    with pytest.raises(ValueError, match=r"halls:Hall is not sotto's own .* tell of rewards"):
        _ = FunctionalQConfig(env_id="halls:Hall", target_epsilon=1.0).environment


def test_a_wrong_environment_leaves_no_run(capsys, tmp_path: Path) -> None:
    for name, says in (
        ("TwoRewards", r"step's reward of halls:TwoRewards has shape \(2,\)"),
        ("Decomposes", "local uses `svd`, which is not among the operations known to be pure"),
    ):
        words = ("train", "dppg", "--env-id", f"halls:{name}", *SMALL, "--total-steps", "64")
        assert re.search(says, refused(capsys, *words, "--out", tmp_path / name))
        assert not (tmp_path / name).exists()


def test_it_needs_no_population_and_takes_the_true_one() -> None:
    for said in (None, "simulated"):
        config = sotto.DPPG(env_id="halls:Hall", target_epsilon=2.0, population=said)
        assert DPPG().resolved(config).population == "simulated"
