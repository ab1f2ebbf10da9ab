"""Our environments for Gymnasium: `gymnasium.make("sotto.rl.envs.for_gymnasium:HIV-v0")`.

Gymnasium takes "Dosing-0", which is the paper's name, for one without a version such as "-v0".
"""

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import jax
import numpy as np
from jaxtyping import Array, Float32

from sotto.rl.envs.base import AnyEnvironment, Discrete
from sotto.rl.envs.registry import make

Observation = Float32[np.ndarray, " obs"]

# The smallest and the largest number in an observation.
_BOUNDS = {
    "Line-v0": (0.0, 1.0),
    "HIV-v0": (-5.0, 8.0),
    **dict.fromkeys(("Dosing-0", "Dosing-1"), (0.0, np.inf)),
    **dict.fromkeys(("RiverSwim-v0", "RiverSwim90-v0"), (0.0, 1.0)),
    **dict.fromkeys(("RiverSwimExchanged-v0", "RiverSwimExchanged90-v0"), (0.0, 1.0)),
}


class ForGymnasium(gymnasium.Env[Observation, Any]):  # type: ignore[misc]
    """An environment in JAX, whose random numbers are functions of uniforms that numpy draws.

    Actions are clipped to the action space.

    Args:
        env_id: its name.
        params: parameters in the place of default ones, such as HIV-v0's `rti_penalty`.
    """

    def __init__(self, env_id: str, **params: float) -> None:
        self._env = make(env_id)
        self._params = replace(self._env.default_params, **params)
        low, high = _BOUNDS[env_id]
        self.observation_space = gymnasium.spaces.Box(
            low, high, (self._env.observation_size,), np.float32
        )
        actions = self._env.action
        self.action_space = (
            gymnasium.spaces.Discrete(actions.n)
            if isinstance(actions, Discrete)
            else gymnasium.spaces.Box(*np.array((actions.low, actions.high), np.float32))
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode."""
        super().reset(seed=seed, options=options)
        uniforms = self.np_random.random(self._env.reset_size, np.float32)
        self._state, observation = _reset(self._env, uniforms, self._params)
        return np.asarray(observation), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes one step."""
        kind = np.int32 if isinstance(self._env.action, Discrete) else np.float32
        self._state, observation, reward, terminated = _step(
            self._env, self._state, np.asarray(action, kind), self._params
        )
        return np.asarray(observation), float(reward), bool(terminated), False, {}


@partial(jax.jit, static_argnums=0)
def _reset(env: AnyEnvironment, uniforms: Array, params: Any) -> tuple[Any, Array]:
    """Returns the first state and its observation."""
    state = env.reset(uniforms, params)
    return state, env.observe(state, params)


@partial(jax.jit, static_argnums=0)
def _step(
    env: AnyEnvironment, state: Any, action: Array, params: Any
) -> tuple[Any, Array, Array, Array]:
    """Returns the next state, its observation and reward, and whether the episode terminated."""
    state, reward, terminated = env.step(state, env.action.clip(action), params)
    return state, env.observe(state, params), reward, terminated


for _id in _BOUNDS:
    if _id not in gymnasium.registry:
        gymnasium.register(
            _id,
            entry_point=ForGymnasium,
            max_episode_steps=make(_id).max_episode_steps,
            kwargs={"env_id": _id},
        )
