"""Users of any Gymnasium environment with Box observations and Discrete or Box actions.

Gymnasium's environments run in Python, so a batch of users is collected outside `jit`, into the
same `Trajectory` that JAX rollouts produce, with a leading user axis. Each user has
a seed and a lane of their own: nothing in one lane depends on when another lane's episode ends.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.extras import EXTRAS
from sotto.rl.envs.base import ActionSpace, Box, Discrete, Environment
from sotto.rl.envs.gymnasium import mujoco_facts
from sotto.rl.envs.gymnasium.lanes import Lanes, LocalLanes, ProcessLanes, Shapes, local_lanes
from sotto.rl.envs.gymnasium.specs import can_be_sent, spec_of, told
from sotto.rl.envs.gymnasium.unseen import (
    Facts,
    UnseenError,
    carried,
    facts,
    require_real,
    unseen_facts,
)
from sotto.rl.rollout import Actor, Trajectory

Act = Callable[[Float[Any, "users obs"], PRNGKeyArray], Array]
"""A batched policy: observations of all users and a key to actions [users] or [users, a]."""


@jax.jit
def sampled(policy: Actor, observations: Float[Array, "users obs"], key: PRNGKeyArray) -> Array:
    """An action for each user, drawn from the policy; an `Act` once the policy is given."""
    return policy(observations).sample(policy.noise(key, observations.shape[:1]))


@jax.jit
def greedy(policy: Actor, observations: Float[Array, "users obs"], key: PRNGKeyArray) -> Array:
    """The policy's mode for each user; an `Act` once the policy is given."""
    del key
    return policy(observations).mode()


@dataclass(frozen=True, kw_only=True)
class Described(Environment[Any, Any]):
    """The public facts of an environment that runs outside JAX; stepping it here is refused."""

    normalisers: tuple[str, ...] = ()
    """Its wrappers that keep running statistics of whoever played before."""

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

    Args:
        env_id: the environment's name, as in `sotto.rl.envs.gymnasium.specs`.
        num_users: lanes.
        processes: that step the lanes; 1 steps them in this one, and so does an environment whose
            class other processes cannot import.
        observation_scale: see above.
        action_repeat: environment steps for which each action is applied; their rewards are added.
        unseen: real people are met: the environment runs in other processes, which show nothing of
            what it says, and every failure is one sentence (`sotto.rl.envs.gymnasium.unseen`).
        **options: of `gymnasium.make`.

    Raises:
        ValueError: an unknown environment, one with other spaces, one that is not installed, or a
            simulator where real people are to be met.
    """

    def __init__(
        self,
        env_id: str,
        num_users: int,
        processes: int = 1,
        observation_scale: float = 1.0,
        action_repeat: int = 1,
        unseen: bool = False,
        **options: Any,
    ):
        found = _facts(env_id, options, unseen)
        self._described = _described(env_id, found, options, action_repeat)
        action, self.normalisers = found.action, found.normalisers
        assert action is not None
        self.num_users = num_users
        self._space = action
        self._scale = np.float32(observation_scale)
        self.observation_size = self._described.observation_size
        self.action: ActionSpace = self._described.action
        self.max_episode_steps = self._described.max_episode_steps
        shapes = Shapes(num_users, self.observation_size, action.shape or (), str(action.dtype))
        self._lanes: Lanes
        spec = told(env_id) if unseen else spec_of(env_id)
        if unseen:
            failed = UnseenError(env_id)
            carried(env_id, spec)
            self._lanes = ProcessLanes(
                spec, options, action_repeat, shapes, min(processes, num_users), failed
            )
        elif processes == 1 or not can_be_sent(spec):
            self._lanes = local_lanes(spec, options, action_repeat, shapes)
        else:
            self._lanes = ProcessLanes(
                spec, options, action_repeat, shapes, min(processes, num_users)
            )

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
        observation with action and reward zero and `alive` False, whoever else still plays.
        Without, the lane is reset when an episode ends, continuing the random stream of the user's
        seed.

        Args:
            act: the policy, best jitted; its actions are clipped to the box before they are
                executed, and recorded as chosen.
            key: randomness of the actions.
            seeds: one per user.
            num_steps: T.
            one_episode: see above.
        """
        self.begin(seeds)
        return self._steps(act, key, num_steps, one_episode)

    def begin(self, seeds: Sequence[int]) -> Float[np.ndarray, "users obs"]:
        """Resets every lane with its own seed; the observations from which `advance` goes on."""
        if len(seeds) != self.num_users:
            raise ValueError(f"Give one seed per user: {self.num_users}, not {len(seeds)}.")
        board = self._lanes.board
        board.seeds[:] = seeds
        board.playing[:] = True
        self._lanes.reset()
        return self._seen(board.observations)

    def advance(
        self,
        act: Act,
        key: PRNGKeyArray,
        num_steps: int,
    ) -> Trajectory:
        """`num_steps` more steps of every lane, reset whenever an episode ends.

        Args:
            act: as for `collect`.
            key: randomness of the actions.
            num_steps: T.
        """
        return self._steps(act, key, num_steps, one_episode=False)

    def returns(
        self, act: Act, key: PRNGKeyArray, seeds: Sequence[int], num_steps: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Each user's first episode, or its first `num_steps`, in three numbers.

        Args:
            act, key, seeds: as for `collect`.
            num_steps: most steps.

        Returns:
            Undiscounted returns, steps, and whether the episode ended by itself; [users] each.
        """
        observations = self.begin(seeds)
        board = self._lanes.board
        totals, steps = np.zeros(self.num_users), np.zeros(self.num_users, int)
        for step_key in jax.random.split(key, num_steps):
            self._step(act, observations, step_key, reset=False)
            totals += np.where(board.playing, board.rewards, 0.0)
            steps += board.playing
            observations = self._seen(board.observations)
            board.playing[board.terminated | board.truncated] = False
            if not board.playing.any():
                break
        return totals, steps, ~board.playing

    def film(self, act: Act, key: PRNGKeyArray, seed: int) -> Iterator[tuple[np.ndarray, float]]:
        """One episode of the first lane: its pictures [height, width, 3], each with the reward of
        the step that led to it; the first one is the reset's.

        Args:
            act, key: as for `collect`.
            seed: of the reset.
        """
        assert isinstance(self._lanes, LocalLanes)
        observations, board = self.begin([seed] * self.num_users), self._lanes.board
        yield self._lanes.picture(0), 0.0
        for step_key in jax.random.split(key, self.max_episode_steps):
            self._step(act, observations, step_key, reset=False)
            observations = self._seen(board.observations)
            yield self._lanes.picture(0), float(board.rewards[0])
            if board.terminated[0] or board.truncated[0]:
                return

    def described(self) -> "Described":
        """What algorithms need to know about the environment, without being able to run it."""
        return self._described

    def close(self) -> None:
        """Release the environments."""
        self._lanes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _steps(self, act: Act, key: PRNGKeyArray, num_steps: int, one_episode: bool) -> Trajectory:
        board = self._lanes.board
        observations = self._seen(board.observations)
        taken = self._nothing(num_steps)
        for t, step_key in enumerate(jax.random.split(key, num_steps)):
            if not board.playing.any():
                for name in ("observations", "next_observations"):
                    taken[name][:, t:] = observations[:, None]
                break
            playing = board.playing
            taken["observations"][:, t] = observations
            actions = self._step(act, observations, step_key, reset=not one_episode)
            taken["actions"][playing, t] = actions[playing]
            # Lanes whose data has ended are not stepped, and repeat their last observation.
            following = np.where(playing[:, None], self._seen(board.following), observations)
            taken["next_observations"][:, t] = following
            taken["rewards"][:, t] = np.where(playing, board.rewards, 0.0)
            taken["terminated"][:, t] = board.terminated & playing
            taken["truncated"][:, t] = board.truncated & playing
            taken["alive"][:, t] = playing
            observations = following if one_episode else self._seen(board.observations)
            if one_episode:
                playing[board.terminated | board.truncated] = False
        return Trajectory(**{name: jnp.asarray(array) for name, array in taken.items()})

    def _nothing(self, num_steps: int) -> dict[str, np.ndarray]:
        """Arrays for a trajectory of every lane."""
        size = (self.num_users, num_steps)
        seen, flag = ((self.observation_size,), np.float32), ((), np.bool_)
        action = (getattr(self.action, "shape", ()), np.float32)
        kinds: dict[str, tuple[tuple[int, ...], Any]] = {
            "observations": seen,
            "actions": ((), np.int32) if isinstance(self.action, Discrete) else action,
            "rewards": ((), np.float32),
            "next_observations": seen,
            "terminated": flag,
            "truncated": flag,
            "alive": flag,
        }
        return {name: np.zeros((*size, *shape), kind) for name, (shape, kind) in kinds.items()}

    def _step(
        self, act: Act, observations: np.ndarray, key: PRNGKeyArray, *, reset: bool
    ) -> np.ndarray:
        """One step of the lanes that are playing; the actions as chosen."""
        actions = np.asarray(act(observations, key))
        self._lanes.board.actions[:] = self._executed(actions)
        self._lanes.step(reset)
        return actions

    def _seen(self, observations: np.ndarray) -> np.ndarray:
        """A copy of some of the board, scaled."""
        return observations * self._scale

    def _executed(self, actions: np.ndarray) -> np.ndarray:
        space = self._space
        if isinstance(space, gym.spaces.Discrete):
            return np.asarray(actions + space.start, space.dtype)
        boxed = np.asarray(actions, space.dtype).reshape(self.num_users, *(space.shape or ()))
        assert isinstance(space, gym.spaces.Box)
        clipped: np.ndarray = np.clip(boxed, space.low, space.high)
        return clipped


def described(env_id: str, action_repeat: int = 1, unseen: bool = False) -> Described:
    """The public facts of an environment that Gymnasium runs.

    Raises:
        ValueError: as for `GymnasiumUsers`.
    """
    return _described(env_id, _facts(env_id, {}, unseen), {}, action_repeat)


def processes_for(lanes: int) -> int:
    """Processes that are worth their while: one for each core we may use, with several lanes.

    A process that was started for one of several trainings steps its own lanes: the others have the
    other cores, and waiting for one another at every step takes longer than stepping.
    """
    if multiprocessing.parent_process() is not None:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, lanes // 4))


def _facts(env_id: str, options: dict[str, Any], unseen: bool) -> Facts:
    """The environment's public facts."""
    if unseen:
        found = unseen_facts(env_id, options)
        require_real(env_id, found.package)
        return found
    try:
        return facts(spec_of(env_id), options)
    except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        known = EXTRAS.get(getattr(error, "name", None) or "")
        if known is None and isinstance(error, ModuleNotFoundError):  # a module of the user's
            raise ValueError(f"Gymnasium cannot make {env_id!r}: {error}") from error
        extra = known or ("mujoco" if "mujoco" in str(error).lower() else "experts")
        raise ValueError(
            f"{env_id} needs a package that is not installed: pip install 'sotto[{extra}]'"
        ) from error
    except gym.error.Error as error:
        raise ValueError(f"Gymnasium cannot make {env_id!r}: {error}") from error


def _described(env_id: str, found: Facts, options: dict[str, Any], action_repeat: int) -> Described:
    known = mujoco_facts.FACTS.get(env_id, mujoco_facts.NOTHING)
    size, action = _observation_size(env_id, found.observed), _action_space(env_id, found.action)
    limit = options.get("max_episode_steps") or found.time_limit
    if limit is None:
        raise ValueError(
            f"{env_id} has no time limit; give it one with max_episode_steps, so that a person's "
            "data has a bounded length."
        )
    return Described(
        id=env_id,
        observation_size=size,
        action=action,
        default_params=(),
        reset_size=0,
        max_episode_steps=-(-int(limit) // action_repeat),
        observation_scale=known.observation_scale or (1.0,) * size,
        reward_per_step=known.reward_per_step,
        normalisers=found.normalisers,
    )


def _observation_size(env_id: str, space: gym.Space[Any] | None) -> int:
    if not isinstance(space, gym.spaces.Box):
        raise ValueError(
            f"{env_id} observes {_kind(space)}; choose an environment with Box "
            "observations, or wrap it with gymnasium.wrappers.FlattenObservation."
        )
    return int(np.prod(space.shape))


def _kind(space: gym.Space[Any] | None) -> str:
    """What there is instead; of an environment that is not seen, nothing is said."""
    return "another space" if space is None else f"a {type(space).__name__}"


def _action_space(env_id: str, space: gym.Space[Any] | None) -> ActionSpace:
    if isinstance(space, gym.spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low.ravel(), space.high.ravel()
        return Box(tuple(map(float, low)), tuple(map(float, high)))
    raise ValueError(
        f"{env_id} takes actions from {'another space' if space is None else space}; choose an "
        "environment with Discrete or floating-point Box actions."
    )
