"""People on several devices: the release stays the same, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sotto.cli import main
from sotto.privacy.release.devices import over_devices
from sotto.runs import start
from sotto.runs.registry import algorithm_named

PROGRAM = Path(__file__).with_name("released_on_devices.py")


def digests(*arguments: str) -> dict[str, list[str]]:
    """What the program prints, in a process that has eight devices."""
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_a_release_is_the_same_on_any_number_of_devices() -> None:
    """For people who come by themselves and who are drawn, factored sums, and any number."""
    found = digests()
    assert len(found) == 9
    assert {kind: len(set(seen)) for kind, seen in found.items()} == dict.fromkeys(found, 1)
    assert len({seen[0] for seen in found.values()}) == 9


@pytest.mark.parametrize("mistake", ["sum-of-one-device", "noise-of-each-device"])
def test_a_mistake_is_noticed(mistake: str) -> None:
    (seen,) = digests(mistake).values()
    assert len(set(seen)) == 4


def test_devices_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match=r"999 devices were asked for, and JAX has \d+ \(cpu\)"):
        over_devices(999).__enter__()
    with pytest.raises(ValueError, match="at least 1, got 0"):
        over_devices(0).__enter__()


def test_a_training_without_people_is_refused(tmp_path: Path, capsys) -> None:
    assert main(["train", "ppo", "--devices", "2", "--out", str(tmp_path / "run")]) == 2
    assert "ppo with these settings releases no sums over people" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_student_of_a_teacher_has_no_sums_to_share() -> None:
    student = algorithm_named("kickstart")
    with pytest.raises(ValueError, match="kickstart with these settings releases no sums"):
        start.on_machines(student, student.config_type(teacher="runs/teacher"), 2, None).__enter__()


def test_a_training_on_two_devices_is_certified(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    small = ["--total-steps", "2048", "--users-per-update", "5", "--steps-per-user", "32"]
    call = ["train", "dppg", *small, "--target-epsilon", "2", "--evaluation-episodes", "0"]
    for command in (
        [*call, "--devices", "2", "--out", run],
        ["train", "dppg", "--resume", "--out", run, "--total-steps", "4096"],
        ["certificate", run, "--verify"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "sotto", *command],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
