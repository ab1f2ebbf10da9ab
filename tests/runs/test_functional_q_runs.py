"""Q-learning through the command line: run directories, resuming, and what is said."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import printed, refused, run_json

from sotto.cli import main
from sotto.privacy.certificates.derive import verify
from sotto.privacy.release.released import ReleasedFunction, ReleasedValues
from sotto.runs import checkpoints, metrics
from sotto.runs.directory import open_experiment
from sotto.runs.training import load_states

TINY = (
    *("--samples", "400", "--num-envs", "4", "--gradient-steps", "50", "--minibatch", "16"),
    *("--hidden", "8", "--evaluation-episodes", "4", "--delta", "1e-4"),
)
TARGET = ("--target-epsilon", "0.9")


def words(out: Path, *more: str) -> list[str]:
    return ["train", "functional-q", "--out", str(out), "--json", *TINY, *more]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "two"
    assert main(words(out, *TARGET, "--seeds", "2")) == 0
    return out


def test_a_run_directory_holds_everything(capsys, finished: Path) -> None:
    for run in open_experiment(finished).runs:
        names = {path.name for path in run.path.iterdir()}
        assert {"config.json", "ledger.sqlite", "certificate.json", "metrics.jsonl"} <= names
        ledger = run.open_ledger()
        assert verify(run.certificate, ledger).status == "verified"
        assert ledger.persons == 400
        lines = metrics.read(run.metrics)
        assert [line.updates for line in lines] == list(range(1, 12))
        assert {line.env_steps for line in lines} == {400}
        assert lines[0].evaluation == {}  # nothing is learned yet
        assert "last" in lines[-1].evaluation
    assert main(["certificate", str(finished), "--verify"]) == 0
    assert run_json(capsys, "eval", str(finished), "--episodes", "5")["policy"] == "last"


def test_report(capsys, copied: Path) -> None:
    assert main(["report", str(copied)]) == 0
    page = (copied / "report.html").read_text()
    assert "FUNCTIONAL-Q on Line-v0" in page
    assert "transitions per seed" in page
    assert (copied / "figures" / "learning.png").is_file()


def test_resuming_reads_the_release_back(copied: Path) -> None:
    """As if killed after the first part of learning: nothing is released a second time."""
    experiment = open_experiment(copied)
    released = np.asarray(load_states(experiment, 11).rewards)
    for run in experiment.runs:
        assert checkpoints.steps(run.checkpoints) == [10, 11]
        shutil.rmtree(run.checkpoints / f"{11:08d}")
    assert main(["train", "functional-q", "--out", str(copied), "--resume", "--json"]) == 0
    np.testing.assert_array_equal(np.asarray(load_states(experiment, 11).rewards), released)
    for run in experiment.runs:
        ledger = run.open_ledger()
        assert [stream.releases for stream in ledger.streams] == [1]
        assert ledger.spent().epsilon <= 0.9
        assert verify(run.certificate, ledger).status == "verified"


KILLED = """
import os, signal, sys
from sotto.cli import main
from sotto.privacy.release.released import ReleasedFunction
from sotto.runs import checkpoints
place = {
    "checkpoint": (checkpoints, "save"),
    "grid": (ReleasedFunction, "close"),
}[sys.argv.pop(1)]
setattr(*place, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
main(sys.argv[1:])
"""
WHOLE = ("--unit", "reward-function", "--reward-radius", "0.1")
NETWORK = ("--learner", "network", "--noise", "process", "--iterations", "1")


def kill(where: str, *given: str) -> None:
    """Trains in a process of its own, which is killed (-9) where it would write the named thing."""
    process = subprocess.run(
        [sys.executable, "-c", KILLED, where, *given], env=dict(os.environ), check=False, timeout=90
    )
    assert process.returncode == -signal.SIGKILL


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("where", "mode"),
    [
        ("checkpoint", ("--mode", "output-release", *WHOLE)),
        ("grid", ("--mode", "output-release", *NETWORK)),
    ],
)
def test_killed_between_release_and_checkpoint_it_pays_once(
    tmp_path: Path, where: str, mode: tuple[str, ...]
) -> None:
    out = tmp_path / "run"
    kill(where, *words(out, *TARGET, *mode))
    (run,) = open_experiment(out).runs
    assert checkpoints.steps(run.checkpoints) == []
    (kept,) = (run.path / "released").glob("*.values")
    before = kept.read_bytes()
    assert main(["train", "functional-q", "--out", str(out), "--resume", "--json"]) == 0
    ledger = run.open_ledger()
    assert [stream.releases for stream in ledger.streams] == [1]
    assert ledger.spent().epsilon <= 0.9
    assert verify(run.certificate, ledger).status == "verified"
    table = np.asarray(load_states(open_experiment(out), 1).values.table)[0]
    if where == "checkpoint":
        assert kept.read_bytes() == before
        released = np.clip(ReleasedValues.open(kept).values, 0.0, 5.0)
    else:
        centre = 2.5  # is public, and added after the release
        function = ReleasedFunction.open(kept)
        released = np.clip(centre + function(np.linspace(0, 1, 11)), 0.0, 5.0)
    np.testing.assert_array_equal(table, released.astype(np.float32))


def test_a_reward_function_and_what_is_said_of_it(capsys, tmp_path: Path) -> None:
    out = tmp_path / "run"
    whole = ("--unit", "reward-function", "--reward-radius", "0.5")
    assert main(words(out, *TARGET, *whole, "--mode", "output-release", "--seeds", "2")) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["status"] == "proved"
    assert "1 times the public range [0, 0.5]" in said.err
    assert "Impossible" in said.err
    assert "the costs add up" in " ".join(printed(capsys, "certificate", str(out)).split())
    assert main(["report", str(out)]) == 0
    assert "the same reward function" in (out / "report.html").read_text()
    (run, _) = open_experiment(out).runs
    shutil.rmtree(run.checkpoints)
    shutil.rmtree(run.path / "released")  # the release is lost, and stays charged
    error = refused(capsys, "train", "functional-q", "--out", str(run.path), "--resume")
    assert "nothing was released" in error


def test_paper_mode_and_its_report(capsys, tmp_path: Path) -> None:
    out = tmp_path / "run"
    paper = ("--mode", "paper", "--unit", "reward-function", "--reward-radius", "1")
    more = ("--noise", "process", "--sigma", "0.4", "--batch", "100")
    assert json.loads(printed(capsys, *words(out, *paper, *more)))["status"] == "paper-claim"
    assert main(["certificate", str(out), "--verify"]) == 0
    assert main(["report", str(out)]) == 0
    assert "Not proved" in (out / "report.html").read_text()


def test_dqn_runs_resumes_and_has_no_certificate(capsys, tmp_path: Path) -> None:
    out = tmp_path / "run"
    small = ("--total-steps", "512", "--num-steps", "4", "--hidden", "8", "--gradient-steps", "2")
    given = ["train", "dqn", "--env-id", "Line-v0", "--discount", "0.9", "--out", str(out)]
    assert main([*given, "--json", "--seeds", "2", *small]) == 0
    lines = metrics.read(out / "seed-0" / "metrics.jsonl")
    assert lines[-1].env_steps == 512
    before = jax.tree.leaves(load_states(open_experiment(out), 16))
    for run in open_experiment(out).runs:
        shutil.rmtree(run.checkpoints / f"{16:08d}")
    assert main(["train", "dqn", "--out", str(out), "--resume", "--json"]) == 0
    after = jax.tree.leaves(load_states(open_experiment(out), 16))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5)
    assert "protects nobody" in refused(capsys, "certificate", str(out))
    assert main(["report", str(out)]) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "either --target-epsilon or --sigma"),
        ((*TARGET, "--unit", "reward-function"), "needs --reward-radius"),
        ((*TARGET, "--env-id", "Acrobot-v1"), "the range of Acrobot-v1's"),
        ((*TARGET, "--samples", "20000"), "vacuous"),
    ],
)
def test_settings_that_cannot_run_leave_nothing(
    capsys, tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    out = tmp_path / "run"
    assert main(words(out, *more)) == 2
    said = capsys.readouterr().err.splitlines()[-1]  # behind what is protected, if that is said
    assert said.startswith("sotto: ")
    assert message in said
    assert not out.exists()
