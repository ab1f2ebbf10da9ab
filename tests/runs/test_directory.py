"""Run directories: who makes one, and what is said of one that is damaged."""

import re
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from sotto.algorithms.base import Algorithm
from sotto.algorithms.settings import as_first_named
from sotto.errors import RunError
from sotto.runs import start
from sotto.runs.directory import Run, create_experiment, new_settings, open_experiment
from sotto.runs.registry import (
    algorithm_named,
    config_from_json,
    config_to_json,
    entries,
    former_names,
)


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
        with pytest.raises(RunError, match="exists and is not a run"):
            create_experiment(out, settings, lambda _run: None)
        (run.path / "ledger.sqlite").write_bytes(b"the first one's")

    made = create_experiment(out, settings, ledger)
    with pytest.raises(RunError, match="--resume to continue"):
        create_experiment(out, settings, ledger)
    assert open_experiment(out, made.named) == made
    for run in made.runs:
        assert (run.path / "ledger.sqlite").read_bytes() == b"the first one's"


def test_a_run_whose_ledger_cannot_be_read_is_not_removed(
    trained_pair: Path, tmp_path: Path
) -> None:
    """It may have charges, and a training that fails removes only what made nothing."""
    run = Path(shutil.copytree(trained_pair / "seed-0", tmp_path / "run"))
    shutil.rmtree(run / "checkpoints")
    (run / "ledger.sqlite").write_bytes(b"damaged")
    start.discard_if_unused(open_experiment(run))
    assert run.exists()


@pytest.mark.parametrize("contents", ["{", '{"format": 2}', "[]"])
def test_a_damaged_config_is_said_to_be(tmp_path: Path, contents: str) -> None:
    (tmp_path / "config.json").write_text(contents)
    with pytest.raises(RunError, match=r"config\.json cannot be read"):
        open_experiment(tmp_path)


@pytest.fixture
def dppg() -> tuple[Algorithm[Any], dict[str, Any]]:
    """DPPG, and settings that differ from the default where an earlier version had another name."""
    algorithm = algorithm_named("dppg")
    config = algorithm.config_type(noise_multiplier=1.0, clip_ratio=0.25, delta=1e-9)
    return algorithm, config_to_json(algorithm, config)


def test_settings_under_former_names_are_read(tmp_path: Path, dppg: Any) -> None:
    algorithm, present = dppg
    stored = as_first_named(algorithm.config_type, present)
    assert (stored["ratio_clip"], stored.keys() - present.keys()) == (0.25, {"ratio_clip"})
    config = config_from_json(algorithm, stored)
    assert (config.clip_ratio, config_to_json(algorithm, config)) == (0.25, present)
    assert "ratio_clip=0.25" in config.first_repr()
    first = repr(config)
    for name in algorithm.config_type.later_names:  # which earlier versions did not have
        first = re.sub(rf"\b{name}=(None|0\.0|True), ", "", first)
    assert config.first_repr().replace("ratio_clip", "clip_ratio") == first
    assert "action_repeat_half_life" in present.keys() - stored.keys()
    halved = replace(config, action_repeat=2, action_repeat_half_life=3)
    assert "action_repeat_half_life=3" in halved.first_repr()
    assert as_first_named(algorithm.config_type, config_to_json(algorithm, halved)) == (
        stored | {"action_repeat": 2, "action_repeat_half_life": 3}
    )
    settings = new_settings(
        algorithm="dppg",
        config=stored,
        preset=None,
        seeds=(0,),
        population="simulated",
        ledger=None,
        command="test",
    )
    create_experiment(tmp_path / "run", settings, lambda _run: None)
    assert start.go_on(algorithm, config, tmp_path / "run").settings == settings
    with pytest.raises(RunError, match="leave out --clip-ratio"):
        start.go_on(algorithm, replace(config, clip_ratio=0.5), tmp_path / "run")


def test_what_is_no_setting_is_refused_and_not_left_out(dppg: Any) -> None:
    algorithm, present = dppg
    with pytest.raises(RunError, match="has clip_rato, which is not a setting of dppg"):
        config_from_json(algorithm, present | {"clip_rato": 0.1})
    with pytest.raises(RunError, match="under both its former and its present name"):
        config_from_json(algorithm, present | {"ratio_clip": 0.1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden", [4.0]),
        ("hidden", [1e300]),  # an integer of 300 digits, were it read as on the command line
        ("hidden", [2**17]),
        ("total_steps", 1e6),
        ("total_steps", "1000000"),
        ("total_steps", True),
        ("clip_norm", "1"),
    ],
)
def test_settings_in_a_file_are_of_their_types(dppg: Any, name: str, value: Any) -> None:
    algorithm, present = dppg
    with pytest.raises(RunError, match=name):
        config_from_json(algorithm, present | {name: value})


def test_every_former_name_stands_for_a_setting() -> None:
    for name in entries():
        algorithm = algorithm_named(name)
        known = {field.name for field in fields(algorithm.config_type)}
        for former, present in former_names(algorithm).items():
            assert former not in known
            assert present in known
