"""Line-v0 for Gymnasium: `gymnasium.make("sotto.rl.envs.gymnasium_line:Line-v0")`."""

from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Float32

Observation = Float32[np.ndarray, "1"]

LONGEST_STEP, GOAL, EPISODE_STEPS = 0.25, 0.5, 50


class GymnasiumLine(gymnasium.Env[Observation, np.int64]):  # type: ignore[misc]
    """Line-v0 as in `sotto.rl.envs.line`, with numpy's random numbers."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own annotation)

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._position = GOAL

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draws a first state that is uniform on [0, 1]."""
        super().reset(seed=seed, options=options)
        self._position = float(self.np_random.uniform())
        return self._observation(), {}

    def step(self, action: int | np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes one step right (0) or left (1)."""
        direction = 1 - 2 * int(action)
        moved = self._position + direction * LONGEST_STEP * self.np_random.uniform()
        self._position = min(max(moved, 0.0), 1.0)
        return self._observation(), 0.5 - abs(self._position - GOAL), False, False, {}

    def _observation(self) -> Observation:
        return np.array([self._position], np.float32)


if "Line-v0" not in gymnasium.registry:
    gymnasium.register("Line-v0", entry_point=GymnasiumLine, max_episode_steps=EPISODE_STEPS)
