"""The example package: one short file against public names, which trains like any algorithm."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import refused, run_json

import sotto
from sotto.cli import main
from sotto.runs import registry

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "bandit"
CODE = (EXAMPLE / "sotto_bandit.py").read_text()
TUTORIAL = (ROOT / "docs" / "own_algorithm.md").read_text()


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder into which pip has installed the package, with its entry point."""
    work = tmp_path_factory.mktemp("bandit")
    shutil.copytree(EXAMPLE, work / "source")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options]
    subprocess.run([*pip, work / "site", work / "source"], check=True)
    return work / "site"


@pytest.fixture
def bandit(installed, monkeypatch):
    """This process finds the package, too."""
    monkeypatch.syspath_prepend(str(installed))
    registry.entries.cache_clear()
    yield
    registry.entries.cache_clear()
    sys.modules.pop("sotto_bandit", None)


def start(installed: Path, *words: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(installed), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-m", "sotto", "train", "offers", *words],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def saved(run: Path) -> list[int]:
    return sorted(int(one.name) for one in run.glob("checkpoints/*") if one.name.isdecimal())


def test_it_is_one_short_file_against_public_names():
    assert len(CODE.splitlines()) <= 60
    nodes = [*ast.walk(ast.parse(CODE))]
    modules = {alias.name for one in nodes if isinstance(one, ast.Import) for alias in one.names}
    modules |= {one.module for one in nodes if isinstance(one, ast.ImportFrom)}
    assert modules == {"dataclasses", "jax", "jax.numpy", "sotto"}
    used = {
        one.attr
        for one in nodes
        if isinstance(one, ast.Attribute) and getattr(one.value, "id", "") == "sotto"
    }
    assert used
    assert used <= set(sotto.__all__)


def test_the_tutorial_quotes_both_files():
    assert f"```python\n{CODE}```" in TUTORIAL
    assert f"```toml\n{(EXAMPLE / 'pyproject.toml').read_text()}```" in TUTORIAL
    assert "docs/own_algorithm.md" in (ROOT / "README.md").read_text()


def test_it_trains_is_killed_resumes_and_is_certified(installed, bandit, tmp_path, capsys):
    out = tmp_path / "run"
    words = ("--people-per-update", "100", "--num-updates", "2000", "--delta", "1e-6")
    process = start(installed, "--out", str(out), *words)
    end = time.monotonic() + 120
    while not saved(out):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    reached = saved(out)[-1]
    assert 0 < reached < 2000

    resumed = start(installed, "--out", str(out), "--resume", "--json")
    said = json.loads(resumed.communicate()[0])
    assert (resumed.returncode, said["updates"], said["status"]) == (0, 2000, "proved")
    assert 0.99 < said["epsilon"] <= 1.0
    # What was charged and lost with the killed process stays charged, to other people.
    assert said["persons"] >= 2000 * 100
    assert main(["certificate", str(out), "--verify"]) == 0
    assert main(["report", str(out)]) == 0
    capsys.readouterr()
    page = (out / "report.html").read_text()
    assert "offers" in page
    assert main(["eval", str(out), "--episodes", "500", "--json"]) == 0
    # Choosing at random earns 0 on average, and the best choice 0.57 (by simulation).
    assert json.loads(capsys.readouterr().out)["mean"] > 0.4
    assert {one.status for one in sotto.verify(out).values()} == {"verified"}
    assert sotto.load(out).act([0.9, -0.9, -0.9, 0.0]) == 0
    with pytest.raises(ValueError, match="must have 4 numbers, got 3"):
        sotto.load(out).act([0.9, -0.9, -0.9])


def test_two_seeds_have_their_own_people(bandit, tmp_path, capsys):
    out = tmp_path / "two"
    words = ["train", "offers", "--out", str(out), "--seeds", "2", "--num-updates", "40"]
    said = run_json(capsys, *words, "--people-per-update", "50", "--delta", "1e-5")
    assert (said["seeds"], said["persons"]) == ([0, 1], 2000)
    assert "epsilon_of_all_seeds" not in said
    import sotto_bandit  # what pip installed

    settings = sotto_bandit.BanditConfig(people_per_update=50, num_updates=40, delta=1e-5)
    alone = sotto.train(settings, out=tmp_path / "alone")
    assert alone.finished
    assert 0.99 < alone.certificate.epsilon <= 1.0
    assert {one.status for one in sotto.verify(out).values()} == {"verified"}


def test_without_the_package_there_is_no_such_command(capsys):
    assert "offers" not in registry.entries()
    assert "there is no command 'train offers'" in refused(capsys, "train", "offers")
