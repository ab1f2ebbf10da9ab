"""The guide for your own data is true: its program and commands run, and its example is read."""

import json
import random
import re
import shlex
import shutil
from pathlib import Path

import pytest
from commands import blocks

import sotto
from sotto.algorithms.expert_offline import states
from sotto.algorithms.expert_offline.clones import CloneConfig
from sotto.algorithms.offline_people import learning
from sotto.cli import main, summaries
from sotto.data.imports import drafts
from sotto.data.imports.declaration import Declaration
from sotto.data.imports.records import load

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "own_data.md").read_text()
SHORTER = "--gradient-steps 20 --student-hidden 8"


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The log that the guide's program makes."""
    folder = tmp_path_factory.mktemp("log")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(blocks("docs/own_data.md", "python")[0], "make_log.py", "exec"), {})
    return folder / "records.csv"


def test_the_guide_runs(records, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(records, tmp_path)
    _, reading = blocks("docs/own_data.md", "python")
    (commands,) = blocks("docs/own_data.md")
    lines = commands.replace("\\\n", " ").splitlines()
    assert lines[0] == "python make_log.py"
    imports, train, certificate = (shlex.split(line)[1:] for line in lines[1:])
    assert main(imports) == 0
    said = capsys.readouterr().out
    assert "rows read 3,200 or a few more" in said
    assert "people kept 400 or a few more" in said
    shown = []
    exec(compile(reading, "guide", "exec"), {"print": lambda *words: shown.append(words)})
    assert shown == [((500, 8), (-3.0, 3.0))]
    assert load("runs/visits").present.any(axis=1).sum() == 400
    monkeypatch.setattr(states, "_CLONES", CloneConfig(hidden=(4,), steps=20))
    assert main([*train, *SHORTER.split()]) == 0
    assert main(certificate) == 0
    assert "Proved: epsilon 1 at delta 0.0001." in capsys.readouterr().out
    monkeypatch.setattr(
        learning, "learn", lambda config, *given: learning.blank_policy(config, given[-1])
    )
    best, _, several, marginalised = blocks("docs/own_data.md", "sh")
    for line in best.splitlines():
        assert main(shlex.split(line)[1:]) == 0
    assert "epsilon 1 at delta 1e-05" in capsys.readouterr().out
    assert main(shlex.split(several.replace("\\\n", " "))[1:]) == 0
    assert "Estimator doubly-robust" in capsys.readouterr().out
    assert main(shlex.split(marginalised.replace("\\\n", " "))[1:]) == 0
    assert "Half of the people gave tables" in capsys.readouterr().out


def test_the_evaluation_of_the_guide_runs(records, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(records, tmp_path)
    commands = blocks("docs/own_data.md", "sh")[1]
    for line in commands.replace("\\\n", " ").splitlines():
        assert main(shlex.split(line)[1:]) == 0
    said = capsys.readouterr().out
    assert "All 3 intervals hold together with probability 95%" in said
    assert "is verified" in said


def test_the_bandit_of_the_guide_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    rows = ["viewer,comedy,drama,year,stars"]
    for viewer in range(400):
        for _ in range(12):
            comedy, drama = rng.randint(0, 1), rng.randint(0, 1)
            rows.append(f"{viewer},{comedy},{drama},{rng.randint(1950, 2030)},{2 + 2 * comedy}")
    Path("ratings.csv").write_text("\n".join(rows) + "\n")
    (commands,) = blocks("docs/own_data.md", "bash")
    for line in commands.replace("\\\n", " ").splitlines():
        assert main(shlex.split(line)[1:]) == 0
    assert "gain over random choice" in capsys.readouterr().out
    act = sotto.load("runs/taste").act
    assert act([0, 1, 1990, 1, 1, 1990]) == 1  # the comedy


def test_the_declaration_of_the_guide_is_one(tmp_path):
    (text,) = blocks("docs/own_data.md", "json")
    path = tmp_path / "columns.json"
    path.write_text(text)
    declaration = Declaration.of(drafts.read(path))
    assert declaration.observation[1].fill == 5
    assert json.loads(text)["drop"] == declaration.drop == "person"


def test_the_commands_of_the_table_exist():
    table = GUIDE.split("## A log")[0]
    named = re.findall(r"`sotto ((?:train )?[a-z-]+)", table)
    assert len(named) == 11
    for name in named:
        assert any(known == name or known.startswith(f"{name} ") for known in summaries()), name
