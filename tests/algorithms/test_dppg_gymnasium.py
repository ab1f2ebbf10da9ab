"""Users in Gymnasium's environments: what is refused, and what is never said of real ones."""

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


class Clinic(gym.Env[np.ndarray, int]):
    """Fails on its third step, and says whom it was about."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, failing: bool = False) -> None:
        self.failing, self.step_number = failing, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.step_number = 0
        return self._seen(), {}

    def step(self, action: int):
        self.step_number += 1
        if self.failing and self.step_number == 3:
            raise LookupError(WORDS)
        return self._seen(), 1e300, False, False, {}

    def _seen(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


@pytest.fixture(autouse=True)
def clinics() -> Iterator[None]:
    made = {
        "Clinic-v0": Clinic,
        "FailingClinic-v0": lambda: Clinic(failing=True),
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
    with pytest.raises(LookupError, match="creatinine"):
        training("FailingClinic-v0", tmp_path, population="simulated").advance()


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
