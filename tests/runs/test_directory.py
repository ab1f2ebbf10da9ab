"""Run directories: who makes one, and what is said of one that is damaged."""

from pathlib import Path

import pytest

from sotto.errors import RunError
from sotto.runs.directory import Run, create_experiment, new_settings, open_experiment


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_of_two_trainings_in_one_place_the_first_wins(
    tmp_path: Path, seeds: tuple[int, ...]
) -> None:
    """The second starts while the first has made its directory and nothing in it yet."""
    out = tmp_path / "run"
    settings = new_settings(
        algorithm="dppg",
        config={},
        preset=None,
        seeds=seeds,
        population="simulated",
        ledger="ledger.sqlite",
        command="test",
    )

    def ledger(run: Run) -> None:
        with pytest.raises(RunError, match="exists and is no run"):
            create_experiment(out, settings, lambda _run: None)
        (run.path / "ledger.sqlite").write_bytes(b"the first one's")

    made = create_experiment(out, settings, ledger)
    with pytest.raises(RunError, match="--resume to go on"):
        create_experiment(out, settings, ledger)
    assert open_experiment(out, made.named) == made
    for run in made.runs:
        assert (run.path / "ledger.sqlite").read_bytes() == b"the first one's"


@pytest.mark.parametrize("contents", ["{", '{"format": 2}', "[]"])
def test_a_damaged_config_is_said_to_be(tmp_path: Path, contents: str) -> None:
    (tmp_path / "config.json").write_text(contents)
    with pytest.raises(RunError, match=r"config\.json cannot be read"):
        open_experiment(tmp_path)
