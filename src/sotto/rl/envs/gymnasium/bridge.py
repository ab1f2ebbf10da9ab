"""Users of any Gymnasium environment with Box observations and Discrete or Box actions.

Gymnasium's environments run in Python, so this module collects the data of a batch of users outside
`jit`. The result is the same `Trajectory` that JAX rollouts produce, with a leading user axis. Each
user has a seed and a copy of the environment. Nothing in one copy depends on when an episode ends
in another.
"""

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto import cluster
from sotto.rl.envs.base import ActionSpace, Discrete
from sotto.rl.envs.gymnasium.described import Described, described_by, facts_of
from sotto.rl.envs.gymnasium.parallel import (
    LocalEnvs,
    ParallelEnvs,
    ProcessEnvs,
    Shapes,
    local_envs,
)
from sotto.rl.envs.gymnasium.specs import can_be_sent, remote_spec, spec_of
from sotto.rl.envs.gymnasium.unseen import UnseenError, pickled
from sotto.rl.rollout import Actor, Trajectory

_log = logging.getLogger(__name__)

Act = Callable[[Float[Any, "users obs"], PRNGKeyArray], Array]
"""Batched policy, from the observations of all users and a key to actions [users] or [users, a]."""


@jax.jit
def sampled(policy: Actor, observations: Float[Array, "users obs"], key: PRNGKeyArray) -> Array:
    """Draws an action for each user from the policy; `partial(sampled, policy)` is an `Act`."""
    return policy(observations).sample(policy.noise(key, observations.shape[:1]))


@jax.jit
def greedy(policy: Actor, observations: Float[Array, "users obs"], key: PRNGKeyArray) -> Array:
    """Returns the policy's mode for each user; `partial(greedy, policy)` is an `Act`."""
    del key
    return policy(observations).mode()


def tell_first_update(env_id: str, copies: int, steps: int) -> None:
    """Logs what a training does until its first update, which can take a minute or more.

    Args:
        env_id: the environment's name.
        copies: number of copies of the environment.
        steps: most steps of each copy in an update.
    """
    _log.info(
        f"first update: {copies} copies of {env_id} take up to {steps} steps each in Python, and "
        "then the learning is compiled"
    )


class GymnasiumUsers:
    """Parallel copies of one Gymnasium environment, one for each user.

    Use it as a context manager, or call `close`. Observations of any shape are flattened, and so
    are the actions of a Box. Observations are multiplied by `observation_scale`, a public constant.
    The environment's own time limit truncates episodes.

    Args:
        env_id: the environment's name, as in `sotto.rl.envs.gymnasium.specs`.
        num_users: number of parallel environments.
        processes: number of worker processes that step them. With 1, or if other processes cannot
            import the environment's class, this process steps them.
        observation_scale: factor of the observations.
        action_repeat: environment steps for which each action is applied; their rewards are added.
        unseen: whether the environment meets real people. It then runs in other processes whose
            output is discarded, and every failure is one fixed sentence
            (`sotto.rl.envs.gymnasium.unseen`).
        **options: keyword arguments of `gymnasium.make`, such as `max_episode_steps`.

    Raises:
        ValueError: the environment is unknown, is not installed or has other spaces; or it is a
            simulator although `unseen` is set.
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
        found = facts_of(env_id, options, unseen)
        self._described = described_by(env_id, found, options, action_repeat)
        action, self.normalisers = found.action, found.normalisers
        assert action is not None
        self.num_users = num_users
        self._space = action
        self._scale = np.float32(observation_scale)
        self.observation_size = self._described.observation_size
        self.action: ActionSpace = self._described.action
        self.max_episode_steps = self._described.max_episode_steps
        shapes = Shapes(num_users, self.observation_size, action.shape or (), str(action.dtype))
        self._envs: ParallelEnvs
        spec = remote_spec(env_id) if unseen else spec_of(env_id)
        if unseen:
            failed = UnseenError(env_id)
            pickled(env_id, spec)  # refuses an environment that workers cannot import
            self._envs = ProcessEnvs(
                spec, options, action_repeat, shapes, min(processes, num_users), failed
            )
        elif processes == 1 or not can_be_sent(spec):
            self._envs = local_envs(spec, options, action_repeat, shapes)
        else:
            self._envs = ProcessEnvs(
                spec, options, action_repeat, shapes, min(processes, num_users)
            )

    def collect(
        self,
        act: Act,
        key: PRNGKeyArray,
        seeds: Sequence[int],
        num_steps: int,
        one_episode: bool,
        persons: Sequence[int] | None = None,
    ) -> Trajectory:
        """Collects `num_steps` steps of every user, each from a reset with the user's own seed.

        Args:
            act: the policy, preferably jitted. Its actions are clipped to the box before they are
                executed, and recorded as chosen.
            key: randomness of the actions.
            seeds: one for each user.
            num_steps: T.
            one_episode: whether a user's data end with their first episode. Later steps then repeat
                the last observation, with action and reward zero and `alive` False. Otherwise the
                environment is reset when an episode ends, and continues the random stream of the
                user's seed.
            persons: enrolment number of each user, which all resets of an environment get that
                asks for them. None: there are none.
        """
        self.begin(seeds, persons)
        return self._steps(act, key, num_steps, one_episode)

    def begin(
        self, seeds: Sequence[int], persons: Sequence[int] | None = None
    ) -> Float[np.ndarray, "users obs"]:
        """Resets every environment with its own seed and returns the first observations.

        The arguments are those of `collect`.
        """
        if len(seeds) != self.num_users:
            raise ValueError(f"Give one seed per user: {self.num_users}, not {len(seeds)}.")
        buffers = self._envs.buffers
        buffers.seeds[:] = seeds
        buffers.persons[:] = persons if persons and self._described.meets_person else -1
        buffers.playing[:] = True
        self._envs.reset()
        return self._seen(buffers.observations)

    def advance(
        self,
        act: Act,
        key: PRNGKeyArray,
        num_steps: int,
    ) -> Trajectory:
        """Collects `num_steps` more steps of every user; the arguments are those of `collect`.

        An environment is reset whenever an episode ends.
        """
        return self._steps(act, key, num_steps, one_episode=False)

    def returns(
        self,
        act: Act,
        key: PRNGKeyArray,
        seeds: Sequence[int],
        num_steps: int,
        persons: Sequence[int] | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Plays one episode of each user, of at most `num_steps` steps.

        The arguments are those of `collect`.

        Returns:
            Undiscounted returns, numbers of steps, and whether the episode ended within
            `num_steps`; [users] each.
        """
        observations = self.begin(seeds, persons)
        buffers = self._envs.buffers
        totals, steps = np.zeros(self.num_users), np.zeros(self.num_users, int)
        for step_key in jax.random.split(key, num_steps):
            self._step(act, observations, step_key, reset=False)
            totals += np.where(buffers.playing, buffers.rewards, 0.0)
            steps += buffers.playing
            observations = self._seen(buffers.observations)
            buffers.playing[buffers.terminated | buffers.truncated] = False
            if not buffers.playing.any():
                break
        return totals, steps, ~buffers.playing

    def film(self, act: Act, key: PRNGKeyArray, seed: int) -> Iterator[tuple[np.ndarray, float]]:
        """Plays one episode of the first environment and yields its pictures [height, width, 3].

        Each picture comes with the reward of the step that led to it, and the first one with 0.

        Args:
            act: the policy, as for `collect`.
            key: randomness of the actions.
            seed: seed of the reset.
        """
        assert isinstance(self._envs, LocalEnvs)
        observations, buffers = self.begin([seed] * self.num_users), self._envs.buffers
        yield self._envs.picture(0), 0.0
        for step_key in jax.random.split(key, self.max_episode_steps):
            self._step(act, observations, step_key, reset=False)
            observations = self._seen(buffers.observations)
            yield self._envs.picture(0), float(buffers.rewards[0])
            if buffers.terminated[0] or buffers.truncated[0]:
                return

    def described(self) -> Described:
        """Returns the public facts about the environment that algorithms need."""
        return self._described

    def close(self) -> None:
        """Releases the environments."""
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

    def _steps(self, act: Act, key: PRNGKeyArray, num_steps: int, one_episode: bool) -> Trajectory:
        buffers = self._envs.buffers
        observations = self._seen(buffers.observations)
        taken = self._nothing(num_steps)
        for t, step_key in enumerate(jax.random.split(key, num_steps)):
            if not buffers.playing.any():
                for name in ("observations", "next_observations"):
                    taken[name][:, t:] = observations[:, None]
                break
            playing = buffers.playing
            taken["observations"][:, t] = observations
            actions = self._step(act, observations, step_key, reset=not one_episode)
            taken["actions"][playing, t] = actions[playing]
            # Users whose data have ended are not stepped, and repeat their last observation.
            following = np.where(playing[:, None], self._seen(buffers.following), observations)
            taken["next_observations"][:, t] = following
            taken["rewards"][:, t] = np.where(playing, buffers.rewards, 0.0)
            taken["terminated"][:, t] = buffers.terminated & playing
            taken["truncated"][:, t] = buffers.truncated & playing
            taken["alive"][:, t] = playing
            observations = following if one_episode else self._seen(buffers.observations)
            if one_episode:
                playing[buffers.terminated | buffers.truncated] = False
        return Trajectory(**{name: jnp.asarray(array) for name, array in taken.items()})

    def _nothing(self, num_steps: int) -> dict[str, np.ndarray]:
        """Returns zeros for the trajectory of every user."""
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
        """Steps the environments that are playing and returns the actions as chosen."""
        actions = np.asarray(act(observations, key))
        self._envs.buffers.actions[:] = self._executed(actions)
        self._envs.step(reset)
        return actions

    def _seen(self, observations: np.ndarray) -> np.ndarray:
        """Returns a scaled copy of observations from the buffers."""
        return observations * self._scale

    def _executed(self, actions: np.ndarray) -> np.ndarray:
        space = self._space
        if isinstance(space, gym.spaces.Discrete):
            return np.asarray(actions + space.start, space.dtype)
        boxed = np.asarray(actions, space.dtype).reshape(self.num_users, *(space.shape or ()))
        assert isinstance(space, gym.spaces.Box)
        clipped: np.ndarray = np.clip(boxed, space.low, space.high)
        return clipped


def processes_for(environments: int) -> int:
    """Returns how many worker processes are fastest for so many parallel environments.

    There is at most one for each available core, and each has at least four environments. A process
    that runs one of several trainings starts no workers: the other trainings use the other cores,
    and waiting for workers at every step takes longer than stepping.
    """
    if multiprocessing.parent_process() is not None or cluster.in_task():
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, environments // 4))
