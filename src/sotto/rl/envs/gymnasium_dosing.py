"""Dosing-0 and Dosing-1 for Gymnasium: `make("sotto.rl.envs.gymnasium_dosing:Dosing-0")`.

The names are the paper's. Gymnasium takes "Dosing-0" for a name without a version such as "-v0".
"""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32

from sotto.rl.envs.dosing import MOST_INSULIN, Dosing

Observation = Float32[np.ndarray, "9"]
Action = Float[np.ndarray, "1"]

_ENVS = {env.id: env for env in (Dosing(), Dosing.with_random_meals())}
_reset = jax.jit(Dosing.reset, static_argnums=0)
_step = jax.jit(Dosing.step, static_argnums=0)
_observe = jax.jit(Dosing.observe, static_argnums=0)


class GymnasiumDosing(gymnasium.Env[Observation, Action]):  # type: ignore[misc]
    """Dosing-0 or Dosing-1, run by `sotto.rl.envs.dosing`. Doses are clipped to the action box."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own annotation)

    def __init__(self, name: str = "Dosing-0") -> None:
        self._env = _ENVS[name]
        self._params = self._env.default_params
        self.observation_space = gymnasium.spaces.Box(0.0, np.inf, (9,), np.float32)
        self.action_space = gymnasium.spaces.Box(0.0, MOST_INSULIN, (1,), np.float32)
        middle = jnp.full(self._env.reset_size, 0.5, jnp.float32)
        self._state = _reset(self._env, middle, self._params)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draws another person, ten minutes after the first dose."""
        super().reset(seed=seed, options=options)
        uniforms = jnp.asarray(self.np_random.random(self._env.reset_size, np.float32))
        self._state = _reset(self._env, uniforms, self._params)
        return self._observation(), {}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Simulates ten minutes at one rate of insulin."""
        dose = jnp.clip(jnp.asarray(action, jnp.float32), 0.0, MOST_INSULIN)
        self._state, reward, _ = _step(self._env, self._state, dose, self._params)
        return self._observation(), float(reward), False, False, {}

    def _observation(self) -> Observation:
        return np.asarray(_observe(self._env, self._state, self._params))


for _name, _env in _ENVS.items():
    if _name not in gymnasium.registry:
        gymnasium.register(
            _name,
            entry_point=GymnasiumDosing,
            max_episode_steps=_env.max_episode_steps,
            kwargs={"name": _name},
        )
