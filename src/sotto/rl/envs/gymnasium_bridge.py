"""Users of any Gymnasium environment with Box observations and Discrete or Box actions.

Gymnasium's environments run in Python, so a batch of users is collected outside `jit`, into the
same `Trajectory` that JAX rollouts produce, with a leading user axis. Each user has
a seed and a lane of their own: nothing in one lane depends on when another lane's episode ends.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.rl.envs.base import ActionSpace, Box, Discrete, Environment
from sotto.rl.rollout import Trajectory

Act = Callable[[Float[Array, "users obs"], PRNGKeyArray], Array]
"""A batched policy: observations of all users and a key to actions [users] or [users, a]."""


class Described(Environment[Any, Any]):
    """The public facts of an environment that runs outside JAX; stepping it here is refused."""

    def reset(self, *_inputs: Any) -> Any:
        """Refused."""
        raise NotImplementedError(f"{self.id} runs in Gymnasium; collect its data through it")

    step = observe = reset  # type: ignore[assignment]


class GymnasiumUsers:
    """`num_users` lanes of one Gymnasium environment.

    Use it as a context manager, or call `close`. Observations of any shape are flattened; so are
    the actions of a Box. Observations are multiplied by `observation_scale`, a public constant. The
    environment's own time limit truncates episodes; `gym.make` options such as `max_episode_steps`
    pass through `**options`.

    Raises:
        ValueError: an unknown environment, or one with other spaces.
    """

    def __init__(
        self,
        env_id: str,
        num_users: int,
        vectorization: Literal["sync", "async"] = "sync",
        observation_scale: float = 1.0,
        **options: Any,
    ):
        try:
            self._envs = gym.make_vec(
                env_id,
                num_users,
                vectorization_mode=vectorization,
                # Resetting is ours: Gymnasium's default would insert a step that is not one.
                vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
                **options,
            )
        except gym.error.UnregisteredEnv as error:
            raise ValueError(f"Gymnasium cannot make {env_id!r}: {error}") from error
        self.num_users = num_users
        self._scale = np.float32(observation_scale)
        try:
            self.observation_size = _observation_size(env_id, self._envs.single_observation_space)
            self.action: ActionSpace = _action_space(env_id, self._envs.single_action_space)
            given = options.get("max_episode_steps")
            self.max_episode_steps = given or _time_limit(env_id, self._envs.spec)
        except ValueError:
            self.close()
            raise

    def collect(
        self,
        act: Act,
        key: PRNGKeyArray,
        seeds: Sequence[int],
        num_steps: int,
        one_episode: bool,
    ) -> Trajectory:
        """`num_steps` steps of every user, each from a reset with the user's own seed.

        With `one_episode` a user's data ends with their first episode: later steps repeat the last
        observation with reward zero and `alive` False. Without, the lane is reset when an episode
        ends, continuing the random stream of the user's seed.

        Args:
            act: the policy, best jitted; its actions are clipped to the box before they are
                executed, and recorded as chosen.
            key: randomness of the actions.
            seeds: one per user.
            num_steps: T.
            one_episode: see above.
        """
        observations = self.begin(seeds)
        return self._steps(observations, act, key, num_steps, one_episode)[0]

    def begin(self, seeds: Sequence[int]) -> Float[np.ndarray, "users obs"]:
        """Resets every lane with its own seed; the observations from which `advance` goes on."""
        if len(seeds) != self.num_users:
            raise ValueError(f"Give one seed per user: {self.num_users}, not {len(seeds)}.")
        return self._flat(self._envs.reset(seed=[int(seed) for seed in seeds])[0])

    def advance(
        self,
        observations: Float[np.ndarray, "users obs"],
        act: Act,
        key: PRNGKeyArray,
        num_steps: int,
    ) -> tuple[Trajectory, Float[np.ndarray, "users obs"]]:
        """`num_steps` more steps of every lane, reset whenever an episode ends, and where that led.

        Args:
            observations: what `begin` or the last `advance` returned.
            act: as for `collect`.
            key: randomness of the actions.
            num_steps: T.
        """
        return self._steps(observations, act, key, num_steps, one_episode=False)

    def _steps(
        self,
        observations: Float[np.ndarray, "users obs"],
        act: Act,
        key: PRNGKeyArray,
        num_steps: int,
        one_episode: bool,
    ) -> tuple[Trajectory, Float[np.ndarray, "users obs"]]:
        alive = np.ones(self.num_users, bool)
        steps: list[dict[str, np.ndarray]] = []
        for step_key in jax.random.split(key, num_steps):
            actions = np.asarray(act(jnp.asarray(observations), step_key))
            raw, rewards, terminated, truncated, _ = self._envs.step(self._executed(actions))
            ended = terminated | truncated
            # One call steps all lanes, also those whose data has ended; none of that is kept.
            following = np.where(alive[:, None], self._flat(raw), observations)
            steps.append(
                {
                    "observations": observations,
                    "actions": actions,
                    "rewards": np.where(alive, rewards, 0.0).astype(np.float32),
                    "next_observations": following,
                    "terminated": terminated & alive,
                    "truncated": truncated & ~terminated & alive,
                    "alive": alive,
                }
            )
            observations = following
            if ended.any():
                fresh = self._flat(self._envs.reset(options={"reset_mask": ended})[0])
                if one_episode:
                    alive = alive & ~ended
                else:
                    observations = np.where(ended[:, None], fresh, following)
            if not alive.any():
                break
        ended_step = {name: np.zeros_like(value) for name, value in steps[-1].items()}
        ended_step |= {"observations": observations, "next_observations": observations}
        steps += [ended_step] * (num_steps - len(steps))
        trajectory = Trajectory(
            **{
                name: jnp.asarray(np.stack([step[name] for step in steps], axis=1))
                for name in Trajectory._fields
            }
        )
        return trajectory, observations

    def described(self) -> "Described":
        """What algorithms need to know about the environment, without being able to run it."""
        return Described(
            id=self._envs.spec.id if self._envs.spec else "unregistered",
            observation_size=self.observation_size,
            action=self.action,
            default_params=(),
            reset_size=0,
            max_episode_steps=self.max_episode_steps,
            observation_scale=(1.0,) * self.observation_size,
            reward_per_step=0.0,
        )

    def close(self) -> None:
        """Release the environments."""
        self._envs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _flat(self, observations: Any) -> np.ndarray:
        flat = np.asarray(observations, np.float32).reshape(self.num_users, -1)
        return flat * self._scale

    def _executed(self, actions: np.ndarray) -> np.ndarray:
        space = self._envs.single_action_space
        if isinstance(space, gym.spaces.Discrete):
            return np.asarray(actions + space.start, space.dtype)
        boxed = np.asarray(actions, space.dtype).reshape(self.num_users, *space.shape)
        clipped: np.ndarray = np.clip(boxed, space.low, space.high)
        return clipped


def _time_limit(env_id: str, spec: Any) -> int:
    if spec is None or spec.max_episode_steps is None:
        raise ValueError(
            f"{env_id} has no time limit; give it one with max_episode_steps, so that a person's "
            "data has a bounded length."
        )
    return int(spec.max_episode_steps)


def _observation_size(env_id: str, space: gym.Space[Any]) -> int:
    if not isinstance(space, gym.spaces.Box):
        raise ValueError(
            f"{env_id} observes a {type(space).__name__}; choose an environment with Box "
            "observations, or wrap it with gymnasium.wrappers.FlattenObservation."
        )
    return int(np.prod(space.shape))


def _action_space(env_id: str, space: gym.Space[Any]) -> ActionSpace:
    if isinstance(space, gym.spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low.ravel(), space.high.ravel()
        return Box(tuple(map(float, low)), tuple(map(float, high)))
    raise ValueError(
        f"{env_id} takes actions from {space}; choose an environment with Discrete or "
        "floating-point Box actions."
    )
