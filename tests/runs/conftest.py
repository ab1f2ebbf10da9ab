"""A finished experiment of two seeds, which tests of several files read."""

import shutil
from pathlib import Path

import pytest
from small_runs import SMALL_DPPG

from sotto.cli import main


@pytest.fixture(scope="session")
def trained_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds with the settings `SMALL_DPPG`. A test that changes them takes a copy."""
    out = tmp_path_factory.mktemp("trained") / "pair"
    assert main(["train", "dppg", "--out", str(out), "--json", *SMALL_DPPG, "--seeds", "2"]) == 0
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy, for one test to change, of the run that a file of tests calls `finished`."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))
