"""An environment of the user's, where real people are met, that tells of them wherever it can.

SOTTO_CLINIC says when it fails (never, import, make, reset, step) and how. It is imported by the
processes that meet people, and by nobody else.
"""

import os
import signal
import subprocess
import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np

WORDS = "Ada-Lovelace-creatinine-9.7"
WHEN, _, HOW = os.environ.get("SOTTO_CLINIC", "never:").partition(":")


class AdaLovelaceCreatinine97(RuntimeError):
    """A class whose name is the secret."""


def tell() -> None:
    """Whatever can be said without failing."""
    print(WORDS)
    print(WORDS, file=sys.stderr)
    os.write(1, WORDS.encode())
    os.write(2, WORDS.encode())
    warnings.warn(WORDS, stacklevel=1)
    subprocess.run([sys.executable, "-c", f"print({WORDS!r})"], check=True)


def fail(when: str) -> None:
    if when != WHEN:
        return
    match HOW:
        case "exception":
            raise LookupError(WORDS)
        case "class":
            raise AdaLovelaceCreatinine97
        case "chain":
            try:
                raise KeyError(WORDS)
            except KeyError as error:
                raise ValueError(WORDS) from error
        case "exit":
            raise SystemExit(WORDS)
        case "code":
            sys.exit(97)
        case "interrupt":
            raise KeyboardInterrupt(WORDS)
        case "memory":
            raise MemoryError(WORDS)
        case "died":
            os._exit(97)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "tell":
            tell()


class Clinic(gym.Env[np.ndarray, int]):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        fail("make")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        fail("reset")
        return self._seen(), {}

    def step(self, action: int):
        fail("step")
        return self._seen(), 1e300, False, False, {}

    def _seen(self) -> np.ndarray:
        seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return np.full(97, 9.7, np.float32) if HOW == "shape" else seen


fail("import")
gym.register("TalkingClinic-v0", entry_point="clinic_that_talks:Clinic", max_episode_steps=8)
gym.register(
    "BorrowedClinic-v0",
    entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv",
    max_episode_steps=8,
)
