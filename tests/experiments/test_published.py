"""Results of long experiments that the repository holds, so that nobody must train them again."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from sotto.experiments.engine import Arm, ResultFolder
from sotto.experiments.gohari2021.arms import FIGURES, TEACHER
from sotto.experiments.gohari2021.figures import Reproduction

PUBLISHED = Path(__file__).parents[2] / "docs" / "kept" / "airraid"
SEEDS = range(5)


def wanted(folder: Path) -> dict[str, Arm]:
    """Every arm of figure 2 on AirRaid, by the name of its folder."""
    learners = {one for figure in FIGURES.values() for one in (TEACHER, *figure.learners)}
    experiment = Reproduction("AirRaid", 1.0, tuple(SEEDS), folder)
    return {arm.file: arm for one in learners for arm in experiment.arms(one)}


@pytest.mark.parametrize("place", sorted((PUBLISHED / "arms").iterdir()), ids=lambda one: one.name)
def test_a_published_result_is_one_that_the_command_looks_for(place: Path, tmp_path: Path) -> None:
    copied = tmp_path / "airraid"
    shutil.copytree(PUBLISHED, copied)
    arm = wanted(copied)[place.name]
    store = ResultFolder(copied / "arms")
    assert not store.missing(arm)
    result = store.read(arm)
    assert result.seeds == arm.seeds
    assert result.points[-1] > 3.9e6
    assert all(np.isfinite(curve[:, 1:]).all() for curve in result.curves.values())
    assert (place / "policies.eqx").exists() == (arm.name == TEACHER.name)
