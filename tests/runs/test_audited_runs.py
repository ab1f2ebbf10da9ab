"""`sotto audit RUN` makes a finished training again with canaries, or says why it cannot."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import refused

from sotto import modules
from sotto.algorithms.audits import auditable
from sotto.algorithms.dppg.algorithm import DPPG
from sotto.algorithms.dppg.presets import preset
from sotto.cli import main
from sotto.privacy.accounting.gaussian import gaussian_epsilon
from sotto.privacy.audits import noise_size, own
from sotto.privacy.audits.replay import Replay
from sotto.runs import directory
from sotto.runs.registry import algorithm_named
from sotto.runs.start import begin

RELEASES = 10
CONFIG = replace(
    preset("sotto", "CartPole-v1"),
    users_per_update=128,
    steps_per_user=4,
    total_steps=RELEASES * 128 * 4,
    hidden=(4,),
    target_epsilon=None,
    noise_multiplier=2.0,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose ledger is charged for all of its releases, as after a training."""
    out = tmp_path_factory.mktemp("runs") / "one"
    experiment = begin(DPPG(), CONFIG, out, command="a test")
    release, _ = DPPG().on_devices(CONFIG, RELEASES)
    ledger = experiment.runs[0].open_ledger()
    statement = release.statement({"policy": 30}, "operating-system")
    ledger.open_stream(statement).charge(0, RELEASES, list(np.arange(1280).reshape(RELEASES, 128)))
    return out


def test_bounds_stand_beside_the_certificate(run, capsys, monkeypatch):
    replayed = Replay(0, 0.5, 1.9, (), False)  # `replay` has tests of its own
    monkeypatch.setattr(own, "replay", lambda *_: replayed)
    assert main(["audit", str(run), "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert "10 releases of dppg are made again" in said.err
    certified = found["epsilon"]
    assert certified == pytest.approx(gaussian_epsilon(2.0, 1e-5), rel=0.01)
    bounds = {one["presumes"]: one["epsilon_lower"] for one in found["findings"]}
    assert list(bounds) == ["the door's noise", "nothing", "Gaussian DP", "Gaussian noise"]
    assert certified / 2 < bounds["Gaussian noise"] <= certified


def test_a_refuted_claim_may_be_true(run, capsys, monkeypatch):
    """It tells what to do; a true claim of an odd seed was refuted again and again."""
    monkeypatch.setattr(own, "replay", lambda *_: Replay(0, 9.0, 1.9, (), True))
    assert main(["audit", str(run)]) == 3
    said = capsys.readouterr().out
    assert "REFUTES THE CLAIM" in said
    assert "Up to 5 of 100 audits refute a true claim: repeat with another --seed" in said


def test_what_cannot_be_audited_is_refused_by_name(run, tmp_path, capsys):
    assert "leave out --samples" in refused(capsys, "audit", str(run), "--samples", "100")
    assert "has no config.json" in refused(capsys, "audit", str(tmp_path))
    assert "or the directory of a training" in refused(capsys, "audit", str(tmp_path / "nothing"))
    settings = json.loads((run / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"seeds": [1, 2]}))
    assert "give one seed" in refused(capsys, "audit", str(tmp_path))


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [("--confidence", "2", "below 1, got 2"), ("--people", "0", "at least 1, got 0")],
)
def test_impossible_numbers_are_refused_before_anything_is_opened(
    run, capsys, monkeypatch, flag, value, why
):
    monkeypatch.setattr(modules, "named", lambda *_: pytest.fail("the module was imported"))
    monkeypatch.setattr(directory, "open_experiment", lambda *_: pytest.fail("the run was opened"))
    for target in ((str(run),), ("own:audited",), ()):
        assert why in refused(capsys, "audit", *target, flag, value)
    assert "at least 16, got 0" in refused(capsys, "audit", "own:audited", "--samples", "0")


def test_a_training_of_too_few_people_is_refused_before_it_is_said_to_begin():
    config = replace(CONFIG, users_per_update=2, total_steps=2 * 2 * 4)
    with pytest.raises(ValueError, match="has 4 people; one run tells nothing about fewer than 32"):
        auditable(DPPG(), config, 0, 1.0, 1e-5)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"population": "real"}, "real people, who are not at hand"),
        ({"population_size": 5000, "correlated_noise": False}, "people are drawn in secret"),
        ({"critic": "paper"}, "no finite epsilon"),
    ],
)
def test_trainings_that_cannot_be_made_again(changed, why):
    config = replace(CONFIG, **changed)
    claim = np.inf if config.critic == "paper" else 1.0
    with pytest.raises(ValueError, match=why):
        auditable(DPPG(), config, 0, claim, 1e-5)


def test_an_algorithm_without_single_releases_is_refused_by_name():
    algorithm = algorithm_named("functional-q")
    with pytest.raises(ValueError, match="cannot make a training of functional-q again"):
        auditable(algorithm, None, 0, 1.0, 1e-5)


def test_people_come_back_in_the_order_of_the_training():
    config = replace(CONFIG, participations=3)
    made = auditable(DPPG(), config, 0, 1.0, 1e-5)
    persons, units = made.door.enrol(made.people, np.ones(made.size, bool))
    groups = config.groups(np.arange(config.num_updates))
    size = config.users_per_update
    assert (persons == groups[:, None] * size + np.arange(size)).all()
    assert made.size == config.users
    assert units == ()
    assert noise_size.can_measure(made)
