"""HIV-v0 for Gymnasium: `gymnasium.make("sotto.rl.envs.gymnasium_hiv:HIV-v0")`."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from sotto.rl.envs.hiv import HIV, HIVParams

Observation = Float32[np.ndarray, "6"]

_ENV = HIV()
_observe = jax.jit(_ENV.observe)
_reset = jax.jit(_ENV.reset)
_step = jax.jit(_ENV.step)


class GymnasiumHIV(gymnasium.Env[Observation, np.int64]):  # type: ignore[misc]
    """HIV-v0, run by `sotto.rl.envs.hiv`; the arguments are those of `HIVParams`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own annotation)

    def __init__(
        self,
        rti_penalty: float = 20_000.0,
        pi_penalty: float = 2_000.0,
        efficacy_noise: float = 0.0,
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(-5.0, 8.0, (6,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._params = HIVParams(rti_penalty, pi_penalty, efficacy_noise)
        self._state = _reset(jnp.zeros(1), self._params)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Returns a new patient at the non-healthy equilibrium."""
        super().reset(seed=seed, options=options)
        uniforms = jnp.asarray(self.np_random.uniform(size=1), jnp.float32)
        self._state = _reset(uniforms, self._params)
        return self._observation(), {}

    def step(self, action: int | np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Simulates twenty days of no drug (0), RTI (1), PI (2) or both (3)."""
        self._state, reward, _ = _step(self._state, jnp.int32(action), self._params)
        return self._observation(), float(reward), False, False, {}

    def _observation(self) -> Observation:
        return np.asarray(_observe(self._state, self._params))


if "HIV-v0" not in gymnasium.registry:
    gymnasium.register("HIV-v0", entry_point=GymnasiumHIV, max_episode_steps=_ENV.max_episode_steps)
