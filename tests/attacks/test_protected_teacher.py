"""Nothing of a protected teacher leaves but answers: no return of it, and no row without noise."""

import ast
from pathlib import Path

import jax
import numpy as np
import pytest

import sotto
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.kickstarting.teachers import Ensemble
from sotto.cli import main
from sotto.errors import RunError
from sotto.runs import checkpoints, metrics
from sotto.runs.agents.teachers import rows_to_serve, teacher_policies
from sotto.runs.directory import create_experiment, new_settings, open_experiment
from sotto.runs.registry import algorithm_named, config_to_json

SOURCE = Path(sotto.__file__).parent
TRAINED = {  # by whom a teacher's own rows may be seen
    "rows_to_serve": {"cli/live/serve.py"},
    "_ensemble": {"algorithms/kickstarting/teacher_run.py", "runs/agents/teachers.py"},
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    """Three seeds of ppo whose networks are still those of the beginning."""
    path, config = tmp_path_factory.mktemp("runs") / "shards", PPOConfig(hidden=(8,))
    settings = new_settings(
        algorithm="ppo",
        config=config_to_json(algorithm_named("ppo"), config),
        preset=None,
        seeds=(0, 1, 2),
        population="simulated",
        ledger=None,
        command="test",
    )
    experiment = create_experiment(path, settings, lambda _run: None)
    states = algorithm_named("ppo").initial_states(config, range(3))
    for index, run in enumerate(experiment.runs):
        checkpoints.save(run.checkpoints, 1, jax.tree.map(lambda x, i=index: x[i], states))
    return path


def student(teacher: Path, out: Path, *words: str) -> list[str]:
    settings = "--hidden 8 --num-envs 2 --num-steps 32 --total-steps 128 --queries-per-update 32"
    command = ["train", "kickstart", "--teacher", str(teacher), "--out", str(out), "--json"]
    return [*command, *settings.split(), *words]


def test_a_protected_teacher_is_never_evaluated(shards, tmp_path, monkeypatch):
    def seen(_ensemble: Ensemble) -> None:
        raise AssertionError("somebody looked at the exact policy")

    monkeypatch.setattr(Ensemble, "policy", property(seen))
    out = tmp_path / "student"
    words = ("--teacher-mechanism", "gaussian-policy", "--target-epsilon", "50")
    assert main(student(shards, out, *words)) == 0
    (run,) = open_experiment(out).runs
    lines = metrics.read(run.metrics)
    assert lines[-1].released["answered"][-1] == 64
    assert {name for line in lines for name in line.simulated if "teacher" in name} == set()
    assert main(["report", str(out)]) == 0
    events = b"".join(path.read_bytes() for path in (out / "tensorboard").iterdir())
    for text in (events, (out / "report.html").read_bytes(), run.metrics.read_bytes()):
        assert b"teacher_return" not in text
        assert b"teacher's return" not in text.replace(b"&#x27;", b"'")


def test_what_an_earlier_version_logged_is_not_reported(shards, tmp_path):
    out = tmp_path / "student"
    words = ("--teacher-mechanism", "gaussian-policy", "--target-epsilon", "50")
    assert main(student(shards, out, *words)) == 0
    file = out / "metrics.jsonl"
    old = [
        line.replace('"simulated": {', '"simulated": {"teacher_return": [123.4, 123.4], ')
        for line in file.read_text().splitlines()
    ]
    assert "123.4" in old[-1]
    file.write_text("\n".join(old) + "\n")
    assert main(["report", str(out)]) == 0
    assert "123.4" not in (out / "report.html").read_text()


def test_the_rows_and_the_policy_of_a_protected_teacher_are_refused(shards):
    teacher = teacher_policies(shards)
    assert teacher.protected
    with pytest.raises(RunError, match="nothing leaves it but answers"):
        teacher.exact()
    public = teacher_policies(shards, protected=False)
    observations = np.zeros((2, 4))
    np.testing.assert_array_equal(
        public.exact()(observations), rows_to_serve(teacher)(observations)
    )


def test_a_teacher_that_protects_nobody_may_be_seen(shards, tmp_path):
    out = tmp_path / "student"
    assert main(student(shards, out, "--teacher-mechanism", "exact")) == 0
    (run,) = open_experiment(out).runs
    assert "teacher_return" in metrics.read(run.metrics)[-1].simulated


@pytest.mark.parametrize("name", TRAINED)
def test_only_whoever_adds_noise_reaches_the_rows(name):
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == name:
                found.add(str(path.relative_to(SOURCE)))
            if isinstance(node, ast.Name | ast.alias) and _named(node) == name:
                found.add(str(path.relative_to(SOURCE)))
    assert found == TRAINED[name]


def _named(node: ast.Name | ast.alias) -> str:
    return node.id if isinstance(node, ast.Name) else node.name
