"""Run directories that version 0.1.0 wrote still open, verify, evaluate, report and go on.

`kept/version_0_1_0.tar.xz` was made by that version, before the code was moved into folders.
"""

import tarfile
from pathlib import Path

import jax
import numpy as np
import pytest

from sotto.cli import main
from sotto.privacy.errors import LedgerMismatch
from sotto.privacy.ledger.ledger import Ledger
from sotto.runs import checkpoints, start
from sotto.runs.api import verify
from sotto.runs.directory import open_experiment
from sotto.runs.registry import algorithm_named

KEPT = Path(__file__).parent / "kept" / "version_0_1_0.tar.xz"
CERTIFIED = ("dppg", "dppg-parts", "killed", "tuned", "votes")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    with tarfile.open(KEPT) as archive:
        archive.extractall(folder, filter="data")
    return folder / "version_0_1_0"


@pytest.mark.parametrize("name", CERTIFIED)
def test_their_certificates_stay_verified(runs: Path, name: str) -> None:
    (found,) = verify(runs / name).values()
    assert (found.status, found.mismatches) == ("verified", ())
    assert any("numpy's SeedSequence" in line for line in found.corrections)


@pytest.mark.parametrize("name", [*CERTIFIED, "killed-ppo"])
def test_their_checkpoints_hold_what_is_evaluated_and_gone_on_with(runs: Path, name: str) -> None:
    path = runs / name
    experiment = open_experiment(path)
    algorithm, config = algorithm_named(experiment.settings.algorithm), start.config_of(experiment)
    assert start.go_on(algorithm, config, path).settings == experiment.settings
    updates = checkpoints.last_checkpoint(experiment)
    assert 0 < updates <= algorithm.num_updates(config)
    found = checkpoints.load_all(algorithm, config, experiment, updates)
    policies = algorithm.policies(found)
    assert algorithm.default_policy in policies
    numbers = [np.asarray(leaf) for leaf in jax.tree.leaves(policies[algorithm.default_policy])]
    assert all(np.isfinite(one).all() for one in numbers)
    assert max(np.abs(one).max() for one in numbers) > 0


def test_they_are_reported_and_evaluated(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("dppg-parts", "killed-ppo"):
        assert main(["report", str(runs / name)]) == 0
        assert (runs / name / "report.html").stat().st_size > 10_000
    assert main(["eval", str(runs / "dppg-parts"), "--episodes", "2", "--json"]) == 0
    assert '"mean"' in capsys.readouterr().out


def test_a_stream_that_drew_by_another_law_is_not_gone_on_with(runs: Path) -> None:
    """A training goes on with new people in a new stream; nothing of the old one is drawn again."""
    (run,) = open_experiment(runs / "killed").runs
    ledger = run.open_ledger()
    assert isinstance(ledger, Ledger)
    (stored,) = (stream.statement for stream in ledger.streams)
    assert stored.noise_law == "scaled-float64"
    today = stored.model_copy(update={"noise_law": "on-grid"})
    with pytest.raises(LedgerMismatch, match="by another law"):
        ledger.resume_stream(today)
