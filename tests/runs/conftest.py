"""A finished experiment of two seeds, which tests of several files read."""

from pathlib import Path

import pytest

from sotto.cli import main

# 10 updates of 4 people and 16 steps.
TINY = (
    *("--users-per-update", "4", "--steps-per-user", "16", "--total-steps", "640"),
    *("--hidden", "4", "--evaluation-episodes", "2", "--target-epsilon", "1.3"),
)


@pytest.fixture(scope="session")
def trained_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds with the settings `TINY`. A test that changes them takes a copy."""
    out = tmp_path_factory.mktemp("trained") / "pair"
    assert main(["train", "dppg", "--out", str(out), "--json", *TINY, "--seeds", "2"]) == 0
    return out
