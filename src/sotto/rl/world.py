"""Batches of fresh rollouts whose actions are chosen in Python, outside `jit`.

Noisy votes of experts and stable-prefix releases choose actions outside `jit`; they act in a
`World`. A world returns only what its own fresh rollouts observe, so a fixed log is not a world.

Every rollout begins at a reset and has one episode. After the episode has terminated, steps repeat
the last observation with reward zero, whatever the action, and `terminated` stays true. `cap` is
the largest number of steps; reaching it truncates the episode and does not terminate it.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from sotto.errors import EnvironmentFailed, failures_of
from sotto.rl.envs.base import AnyEnvironment, Discrete
from sotto.rl.envs.gymnasium.shapes import flattened
from sotto.rl.envs.gymnasium.specs import spec_of

Seen = tuple[
    Float[np.ndarray, "count obs"], Float[np.ndarray, " count"], Bool[np.ndarray, " count"]
]
"""Observations after a step, its rewards, and whether each episode has terminated so far."""


@runtime_checkable
class World(Protocol):
    """Fresh rollouts of one environment with discrete actions."""

    @property
    def observation_size(self) -> int:
        """Length of one observation."""

    @property
    def num_actions(self) -> int:
        """Number of actions; they are 0, 1, ..., num_actions - 1."""

    @property
    def cap(self) -> int:
        """Number of steps after which every rollout ends."""

    def reset(self, count: int) -> Float[np.ndarray, "count obs"]:
        """Begins `count` new, independent rollouts and returns their first observations."""

    def step(self, actions: Int[np.ndarray, " count"]) -> Seen:
        """Takes one step of every rollout.

        Raises:
            ValueError: the number of actions is not the number of rollouts, an action does not
                exist, or the rollouts have reached the cap.
        """


class JaxWorld:
    """Rollouts of an environment written in JAX.

    Args:
        env: the environment; its actions must be Discrete.
        params: its physics parameters, of one variant.
        key: randomness of the first states.
        cap: largest number of steps of a rollout.

    Raises:
        ValueError: the environment has other actions, or the cap is not positive.
    """

    def __init__(self, env: AnyEnvironment, params: Any, key: PRNGKeyArray, cap: int) -> None:
        if not isinstance(env.action, Discrete):
            raise ValueError(f"{env.id} has no discrete actions; choose one with Discrete actions.")
        self.observation_size = env.observation_size
        self.num_actions = env.action.n
        self.cap = _checked_cap(cap)
        self._key = key
        self._reset_size = env.reset_size
        self._states: Any = None
        self._ended = np.zeros(0, bool)
        self._elapsed = 0

        def begin(uniforms: Float[Array, " reset_size"]) -> tuple[Any, Array]:
            state = env.reset(uniforms, params)
            return state, env.observe(state, params)

        def advance(state: Any, ended: Array, action: Array) -> tuple[Any, tuple[Array, ...]]:
            after, reward, terminated = env.step(state, action, params)
            state = jax.tree.map(lambda old, new: jnp.where(ended, old, new), state, after)
            reward = jnp.where(ended, 0.0, reward)
            return state, (env.observe(state, params), reward, ended | terminated)

        self._begin = jax.jit(jax.vmap(begin))
        self._advance = jax.jit(jax.vmap(advance))

    def reset(self, count: int) -> Float[np.ndarray, "count obs"]:
        """Begins rollouts as `World.reset` says."""
        self._key, key = jax.random.split(self._key)
        uniforms = jax.random.uniform(key, (_checked_count(count), self._reset_size), jnp.float32)
        self._states, observations = self._begin(uniforms)
        self._ended, self._elapsed = np.zeros(count, bool), 0
        return np.asarray(observations)

    def step(self, actions: Int[np.ndarray, " count"]) -> Seen:
        """Takes a step as `World.step` says."""
        chosen = _checked_actions(self, actions, len(self._ended), self._elapsed)
        self._elapsed += 1
        self._states, seen = self._advance(self._states, self._ended, jnp.asarray(chosen))
        observations, rewards, self._ended = (np.asarray(array) for array in seen)
        return observations, rewards, self._ended


class GymnasiumWorld:
    """Rollouts of any Gymnasium environment with Box observations and Discrete actions.

    Observations of any shape are flattened. Use it as a context manager, or call `close`.

    Args:
        env_id: the environment's name, as in `sotto.rl.envs.gymnasium.specs`.
        seed: randomness of the environments.
        cap: largest number of steps of a rollout; it replaces the environment's own time limit.
        **options: keyword arguments of `gymnasium.make`, such as a variant's physics.

    Raises:
        ValueError: the environment is unknown or has other spaces, or the cap is not positive.
    """

    def __init__(self, env_id: str, seed: int, cap: int, **options: Any) -> None:
        self._id, self._spec, self._options = env_id, spec_of(env_id), options
        self.cap = _checked_cap(cap)
        self._seeds = np.random.SeedSequence(seed)
        self._envs: list[gym.Env[Any, Any]] = []
        self._grow(1)
        observed, action = self._envs[0].observation_space, self._envs[0].action_space
        if not isinstance(observed, gym.spaces.Box) or not isinstance(action, gym.spaces.Discrete):
            self.close()
            raise ValueError(
                f"{env_id} has observations in {observed} and actions in {action}; choose an "
                "environment with Box observations and Discrete actions."
            )
        self._shape = observed.shape
        self.observation_size = int(np.prod(observed.shape))
        self.num_actions = int(action.n)
        self._first_action = int(action.start)
        self._observations = np.zeros((0, self.observation_size), np.float32)
        self._ended = np.zeros(0, bool)
        self._elapsed = 0

    def reset(self, count: int) -> Float[np.ndarray, "count obs"]:
        """Begins rollouts as `World.reset` says."""
        self._grow(_checked_count(count))
        # Every rollout has a separate seed, so it does not depend on earlier rollouts.
        seeds = [int(child.generate_state(1)[0]) for child in self._seeds.spawn(count)]
        with failures_of(self._id):
            first = [
                env.reset(seed=seed)[0] for env, seed in zip(self._envs[:count], seeds, strict=True)
            ]
        self._observations = self._flat(first)
        self._ended, self._elapsed = np.zeros(count, bool), 0
        return self._observations.copy()

    def step(self, actions: Int[np.ndarray, " count"]) -> Seen:
        """Takes a step as `World.step` says."""
        chosen = _checked_actions(self, actions, len(self._ended), self._elapsed)
        self._elapsed += 1
        rewards = np.zeros(len(chosen), np.float32)
        ended = self._ended.copy()
        for i in np.flatnonzero(~ended):
            with failures_of(self._id):
                seen, rewards[i], ended[i], truncated, _ = self._envs[i].step(
                    self._first_action + int(chosen[i])
                )
            if truncated and not ended[i] and self._elapsed < self.cap:
                raise EnvironmentFailed(
                    f"{self._id} truncated an episode after {self._elapsed} of {self.cap} steps; "
                    "give a cap that the environment allows."
                )
            self._observations[i] = self._flat([seen])[0]
        self._ended = ended
        return self._observations.copy(), rewards, ended.copy()

    def close(self) -> None:
        """Releases the environments."""
        for env in self._envs:
            env.close()

    def __enter__(self) -> "GymnasiumWorld":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _grow(self, count: int) -> None:
        for _ in range(count - len(self._envs)):
            made = gym.make(self._spec, max_episode_steps=self.cap, **self._options)
            self._envs.append(made)

    def _flat(self, observations: Sequence[Any]) -> Float[np.ndarray, "count obs"]:
        rows = [flattened(self._id, self._shape, seen) for seen in observations]
        return np.stack(rows).astype(np.float32)


def _checked_cap(cap: int) -> int:
    if cap < 1:
        raise ValueError(f"the cap on a rollout's steps must be positive, got {cap}")
    return cap


def _checked_count(count: int) -> int:
    if count < 1:
        raise ValueError(f"reset begins at least one rollout, got {count}")
    return count


def _checked_actions(
    world: World, actions: Int[np.ndarray, " count"], count: int, elapsed: int
) -> Int[np.ndarray, " count"]:
    if count == 0:
        raise ValueError("there are no rollouts yet; call reset before the first step")
    if elapsed >= world.cap:
        raise ValueError(f"the rollouts have reached their {world.cap} steps; reset them")
    chosen = np.asarray(actions)
    if chosen.shape != (count,) or not np.issubdtype(chosen.dtype, np.integer):
        raise ValueError(f"give one integer action for each of the {count} rollouts")
    if chosen.min() < 0 or chosen.max() >= world.num_actions:
        raise ValueError(f"actions are 0 to {world.num_actions - 1}; give no others")
    return chosen.astype(np.int32)
