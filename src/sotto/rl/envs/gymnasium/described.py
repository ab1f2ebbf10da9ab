"""Public facts about an environment that Gymnasium runs: all that algorithms see of it."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from sotto.errors import failures_of
from sotto.extras import EXTRAS
from sotto.rl.envs.base import ActionSpace, Box, Discrete, Environment
from sotto.rl.envs.gymnasium.specs import spec_of
from sotto.rl.envs.gymnasium.unseen import EnvironmentFacts, facts, meets_nobody, unseen_facts
from sotto.rl.envs.own import is_own
from sotto.rl.envs.registry import is_native

# One over the standard deviation under uniformly random actions: ten resets, 500 steps each.
_HALF_CHEETAH = (
    *(6.0, 0.9, 4.0, 3.7, 3.7, 3.0, 3.2, 3.5, 1.3, 1.3, 0.6, 0.18, 0.15, 0.14, 0.16, 0.15, 0.16),
)
SCALES: dict[str, tuple[tuple[float, ...] | None, float]] = {
    f"{name}-{version}": (scale, 1.0)
    for name, scale in (("HalfCheetah", _HALF_CHEETAH), ("Hopper", None))
    for version in ("v4", "v5")
}
"""Factors that bring each observation to order one (None: 1), and the size of a step's reward."""


@dataclass(frozen=True, kw_only=True)
class Described(Environment[Any, Any]):
    """Public facts about an environment that runs outside JAX; its pure functions raise."""

    normalisers: tuple[str, ...] = ()
    """Names of its wrappers that keep running statistics over all users."""
    simulator: bool = False
    """Whether it and its wrappers come with sotto or Gymnasium: then people are simulated."""
    meets_person: bool = False
    """Whether `reset` takes the person's enrolment number in `options["person"]`."""

    def reset(self, *_inputs: Any) -> Any:
        """Raises NotImplementedError: Gymnasium runs this environment."""
        raise NotImplementedError(f"{self.id} runs in Gymnasium; collect its data through it")

    step = observe = reset  # type: ignore[assignment]


def described(env_id: str, action_repeat: int = 1, unseen: bool = False) -> Described:
    """Returns the public facts about an environment that Gymnasium runs.

    The arguments and errors are those of `GymnasiumUsers`.
    """
    return described_by(env_id, facts_of(env_id, {}, unseen), {}, action_repeat)


def is_simulator(env_id: str) -> bool:
    """Returns whether nobody is met in an environment, as far as its code tells.

    The errors are those of `described`.
    """
    return is_native(env_id) or described(env_id).simulator


def evaluation_notes(env_id: str) -> tuple[str, ...]:
    """Returns what to know before policies are evaluated in an environment of the user's own.

    One in JAX meets nobody, but its numbers may have been computed from people's data.
    """
    if is_simulator(env_id) and not is_own(env_id):
        return ()
    return (
        f"Policies are evaluated in {env_id} and their returns are shown, so it must be a public "
        "simulator, in which nobody is met.",
    )


def facts_of(env_id: str, options: dict[str, Any], unseen: bool) -> EnvironmentFacts:
    """Returns the environment's public facts, with one-sentence errors."""
    if unseen:
        found = unseen_facts(env_id, options)
        if found.simulator:
            raise meets_nobody(env_id, found.package)
        return found
    try:
        return facts(spec_of(env_id), options)
    except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        known = EXTRAS.get(getattr(error, "name", None) or "")
        if known is None and isinstance(error, ModuleNotFoundError):  # the user's own module
            raise ValueError(f"Gymnasium cannot make {env_id!r}: {error}") from error
        extra = known or ("mujoco" if "mujoco" in str(error).lower() else "experts")
        raise ValueError(
            f"{env_id} needs a package that is not installed: pip install 'sotto[{extra}]'"
        ) from error
    except gym.error.Error as error:
        raise ValueError(f"Gymnasium cannot make {env_id!r}: {error}") from error
    except ValueError:
        raise
    except Exception:
        with failures_of(env_id):
            raise


def described_by(
    env_id: str, found: EnvironmentFacts, options: dict[str, Any], action_repeat: int
) -> Described:
    """Returns what algorithms need of the facts.

    Raises:
        ValueError: the environment has other spaces, or no time limit.
    """
    scale, reward = SCALES.get(env_id, (None, 0.0))
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
        observation_scale=scale or (1.0,) * size,
        reward_per_step=reward,
        normalisers=found.normalisers,
        simulator=found.simulator,
        meets_person=found.meets_person,
    )


def _observation_size(env_id: str, space: gym.Space[Any] | None) -> int:
    if not isinstance(space, gym.spaces.Box):
        raise ValueError(
            f"{env_id} observes {_kind(space)}; choose an environment with Box "
            "observations, or wrap it with gymnasium.wrappers.FlattenObservation."
        )
    return int(np.prod(space.shape))


def _kind(space: gym.Space[Any] | None) -> str:
    """Names a space for an error; None, for an environment that meets real people, has no name."""
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
