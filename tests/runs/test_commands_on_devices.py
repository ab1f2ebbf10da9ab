"""Trainings whose people are on two devices, by the commands: only rounding changes the states."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from padded_logs import of_padded
from tiny_language import TINY, install_films

from sotto.data import minari_files

PROGRAM = Path(__file__).with_name("commands_on_devices.py")
RATERS = (
    *("train", "rlhf", *TINY, "--no-judge", "--target-epsilon", "8"),
    *("--evaluation-prompts", "2", "--microbatch", "8"),
)
EXPERTS, CAP = 9, 6
OFFLINE = (
    *("train", "expert-offline", "--hidden", "4", "--student-hidden", "4", "--gradient-steps"),
    *("4", "--minibatch", "4", "--evaluation-episodes", "1"),
    *("--evaluation-cap", "5"),
)
VOTES = (
    *("--target-epsilon", "50", "--queries", "4", "--rounds", "2", "--lanes", "2"),
    *("--rollout-cap", "5"),
)
# Accounting of drawn experts takes a tenth of the time at a small epsilon.
DP_SGD = ("--target-epsilon", "1", "--method", "dp-sgd", "--batch", "3", "--noisy-steps", "4")


def check(largest: float, folder: Path, *words: str) -> None:
    """Two devices store what one does, and a sum that lacks the second device is noticed."""
    done = subprocess.run(
        [sys.executable, PROGRAM, str(folder), *words],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "2", "SOTTO_DATA": str(folder / "data")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {*found["two"]["devices"], *found["mistake"]["devices"]} == {2}
    assert found["two"]["distance"] <= largest
    assert found["mistake"]["distance"] > 1e-2


def dataset(path: Path) -> Path:
    """A log of experts who push where the pole falls, except the first three of them.

    The first device has five experts, so its own majority is the opposite of the true one.
    """
    rng, shape = np.random.default_rng(0), (EXPERTS, 1)
    observations = rng.normal(0, 0.1, (*shape, CAP + 1, 4)).astype(np.float32)
    falls = observations[:, :, :CAP, 2] > 0
    falls[:3] ^= True
    log = of_padded(
        observations=observations,
        actions=falls.astype(np.int32),
        rewards=np.ones((*shape, CAP), np.float32),
        lengths=np.full(shape, CAP, np.int32),
        terminated=np.zeros(shape, bool),
    )
    minari_files.save(log, path, env_id="CartPole-v1", actions=2, floor=0.05, policies="a rule")
    return path


def test_votes_on_two_devices(tmp_path: Path) -> None:
    check(0.0, tmp_path, *OFFLINE, "--dataset", str(dataset(tmp_path / "log-v0")), *VOTES)


def test_gradients_of_experts_on_two_devices(tmp_path: Path) -> None:
    """They are sums of float32 products, so a device rounds its own."""
    check(1e-5, tmp_path, *OFFLINE, "--dataset", str(dataset(tmp_path / "log-v0")), *DP_SGD)


def test_raters_on_two_devices(tmp_path: Path) -> None:
    """XLA may round a contribution otherwise for two devices. Sums were seen to differ by a step of
    the grid, which is 6e-8 of the largest weight, and what is computed of them by more."""
    install_films(tmp_path / "data")
    check(2e-6, tmp_path, *RATERS)
