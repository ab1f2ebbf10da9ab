"""RiverSwim for Gymnasium: `gymnasium.make("sotto.rl.envs.gymnasium_river_swim:RiverSwim-v0")`.

RiverSwim-v0 stays at the right bank with probability 0.6, and RiverSwim90-v0 with 0.9.
RiverSwimExchanged-v0 and RiverSwimExchanged90-v0 have exchanged actions in half of the states.
"""

from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Float32

from sotto.rl.envs.registry import make
from sotto.rl.envs.river_swim import RiverSwim

Observation = Float32[np.ndarray, "6"]


class GymnasiumRiverSwim(gymnasium.Env[Observation, np.int64]):  # type: ignore[misc]
    """RiverSwim as in `sotto.rl.envs.river_swim`, with numpy's random numbers.

    Args:
        env_id: the same environment in JAX.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own annotation)

    def __init__(self, env_id: str = "RiverSwim-v0") -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (6,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        env = make(env_id)
        assert isinstance(env, RiverSwim)
        self._mdp = env.mdp(env.default_params)
        self._position = self._mdp.start

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Moves the swimmer to the left bank."""
        super().reset(seed=seed, options=options)
        self._position = self._mdp.start
        return self._observation(), {}

    def step(self, action: int | np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes one step left (0) or right (1)."""
        reward = float(self._mdp.rewards[self._position, action])
        chances = self._mdp.transitions[self._position, action]
        self._position = int(self.np_random.choice(len(chances), p=chances))
        return self._observation(), reward, False, False, {}

    def _observation(self) -> Observation:
        here: Observation = np.eye(len(self._mdp.rewards), dtype=np.float32)[self._position]
        return here


for _id in (
    *("RiverSwim-v0", "RiverSwim90-v0"),
    *("RiverSwimExchanged-v0", "RiverSwimExchanged90-v0"),
):
    if _id not in gymnasium.registry:
        gymnasium.register(
            _id,
            entry_point=GymnasiumRiverSwim,
            max_episode_steps=make(_id).max_episode_steps,
            kwargs={"env_id": _id},
        )
