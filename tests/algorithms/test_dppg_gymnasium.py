"""Users in Gymnasium's environments: what is refused, and what is never said of real ones."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.gymnasium_users import Collector
from sotto.algorithms.dppg.training import DPPGTraining, create_ledger
from sotto.cli import main
from sotto.errors import EnvironmentFailed
from sotto.privacy.certificates.derive import derive
from sotto.privacy.ledger.ledger import Ledger

SETTINGS: dict[str, Any] = {
    "noise_multiplier": 5.0,
    "total_steps": 4 * 3 * 8,
    "users_per_update": 3,
    "steps_per_user": 8,
    "hidden": (),
    "delta": 1e-4,
}
WORDS = "Ada L.: creatinine 9.7 mg/dL"
SAID = rf"FailingClinic-v0 raised LookupError in .*test_dppg_gymnasium\.py, line \d+: {WORDS}"


class Clinic(gym.Env[np.ndarray, int]):
    """Fails on its third step, and says whom it was about."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, failing: bool = False, reward: float = 1e300) -> None:
        self.failing, self.reward, self.step_number = failing, reward, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.step_number = 0
        return self._seen(), {}

    def step(self, action: int):
        self.step_number += 1
        if self.failing and self.step_number == 3:
            raise LookupError(WORDS)
        return self._seen(), self.reward, False, False, {}

    def _seen(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


@pytest.fixture(autouse=True)
def clinics() -> Iterator[None]:
    made = {
        "Clinic-v0": Clinic,
        "FailingClinic-v0": lambda: Clinic(failing=True),
        "NanClinic-v0": lambda: Clinic(reward=math.nan),
        "NormalisedClinic-v0": lambda: gym.wrappers.NormalizeObservation(Clinic()),
    }
    for name, entry_point in made.items():
        gym.register(name, entry_point=entry_point, max_episode_steps=8)
    yield
    for name in made:
        del gym.registry[name]


def training(env_id: str, folder: Path, **changes: Any) -> DPPGTraining:
    config = DPPGConfig(env_id=env_id, **(SETTINGS | changes))
    return DPPGTraining(config, [0], [create_ledger(config, folder / "ledger.sqlite", "run")])


def test_what_an_environment_says_of_simulated_people_is_shown(tmp_path: Path) -> None:
    """Of real ones it is not: tests/attacks/test_real_people_errors.py."""
    with pytest.raises(EnvironmentFailed, match=SAID):
        training("FailingClinic-v0", tmp_path, population="simulated").advance()


def trained_by_command(env_id: str, folder: Path) -> int:
    words = "--population simulated --total-steps 24 --users-per-update 3 --steps-per-user 8"
    where = ["--env-id", env_id, "--out", str(folder / "run")]
    return main(["train", "dppg", *where, *words.split(), "--noise-multiplier", "5"])


def test_the_command_says_where_an_environment_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained_by_command("FailingClinic-v0", tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(f"sotto: {SAID}", line)


@pytest.mark.parametrize(("env_id", "warns"), [("Clinic-v0", False), ("NanClinic-v0", True)])
def test_the_command_warns_of_rewards_that_are_not_finite(
    env_id: str, warns: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained_by_command(env_id, tmp_path) == 0
    said = capsys.readouterr()
    assert ("all observations and rewards of NanClinic-v0" in said.err) == warns
    begun = said.out[: said.out.index("1/1 updates")]  # it can take a minute until then
    assert begun.count(f"first update: 3 copies of {env_id} take up to 8 steps each in Python") == 1


def test_real_people_are_met_in_a_process_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="function that no other process can import"):
        training("FailingClinic-v0", tmp_path, population="real")


def test_a_wrapper_in_which_earlier_users_live_on_is_refused() -> None:
    config = DPPGConfig(env_id="NormalisedClinic-v0", **SETTINGS)
    with pytest.raises(ValueError, match="NormalizeObservation, whose statistics are made of ear"):
        Collector(config)


@pytest.mark.filterwarnings("error")
def test_rewards_that_float32_has_not_warn_of_nothing(tmp_path: Path) -> None:
    trained = training("Clinic-v0", tmp_path, population="simulated")
    trained.advance()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained.states.policy))
    said = derive(Ledger.open(tmp_path / "ledger.sqlite")).assumptions
    assert any("keeps no memory of earlier users" in one.statement for one in said)
