"""Environments in which real people are met: what they say and raise stays in their own process.

The environment's code, and the module that registers it, run in processes whose output goes
nowhere and whose failures are one byte. What comes back of its public facts are numbers, put into
Gymnasium's own classes. This process sees neither the words of an exception nor its class.
"""

import base64
import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from sotto.rl.envs.gymnasium import specs
from sotto.rl.envs.gymnasium.lanes import MAIN

SIMULATORS = ("sotto", "gymnasium", "ale_py")
"""Packages whose environments are simulators, in which nobody real can be met."""


def require_real(env_id: str, package: str = "sotto") -> None:
    """Refuses an environment in which nobody real can be met.

    Args:
        env_id: its name.
        package: where its class comes from; of one written in JAX, ours.

    Raises:
        ValueError: it is a simulator.
    """
    if package in SIMULATORS:
        raise ValueError(
            f"{env_id} is a simulator that comes with {package}, where no real people are met; "
            "leave out --population real, or give --env-id an environment of your own that meets "
            "them (module:Name-v0, registered with Gymnasium)"
        )


class UnseenError(ValueError):
    """An environment in which real people are met failed. Nothing else is said of it, ever.

    Args:
        env_id: as the user wrote it.
    """

    def __init__(self, env_id: str) -> None:
        super().__init__(
            f"{env_id} failed where real people are met; what it says is not shown, since it may "
            "be about them: try the environment without them"
        )


class Facts(NamedTuple):
    """An environment's public facts."""

    observed: gym.Space[Any] | None
    """None: a space of another kind than Box and Discrete, where real people are met."""
    action: gym.Space[Any] | None
    time_limit: int | None
    normalisers: tuple[str, ...]
    """Wrappers that keep running statistics."""
    package: str
    """Where its class comes from."""


def facts(environment: Any, options: dict[str, Any]) -> Facts:
    """Makes the environment here, and looks at it.

    Args:
        environment: what `specs.make` takes.
        options: of `gymnasium.make`.
    """
    env = specs.make(environment, options)
    env.close()
    spec, layer, normalisers = env.spec, env, []
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, NormalizeObservation | NormalizeReward):
            normalisers.append(type(layer).__name__)
        layer = layer.env
    return Facts(
        env.observation_space,
        env.action_space,
        None if spec is None else spec.max_episode_steps,
        tuple(normalisers),
        type(layer).__module__.partition(".")[0],
    )


def unseen_facts(env_id: str, options: dict[str, Any]) -> Facts:
    """Makes the environment in a process of its own, which says nothing but its public facts.

    Raises:
        UnseenError: it failed.
        ValueError: there is none of this name, or no other process can make it.
    """
    told = specs.told(env_id)
    return _asked(env_id, carried(env_id, (sys.path, told, options)))


def carried(env_id: str, plan: Any) -> bytes:
    """What another process is told.

    Raises:
        ValueError: the environment is registered with something that has no name elsewhere.
    """
    try:
        return pickle.dumps(plan)
    except (pickle.PicklingError, AttributeError, TypeError):
        pass
    raise ValueError(
        f"{env_id} is registered with a function that no other process can import, and real "
        "people are met in one that shows nothing; register it as 'module:Class'"
    )


@functools.lru_cache(16)  # public facts do not change
def _asked(env_id: str, plan: bytes) -> Facts:
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as answer:
        words = (str(theirs), base64.b64encode(plan).decode())
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", MAIN.format(path=sys.path, name=__name__), *words],
                pass_fds=(theirs,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        finally:
            os.close(theirs)
        said = answer.read()
        process.wait()
    if not said:
        raise UnseenError(env_id)
    found: Facts = pickle.loads(said)
    return found


def serve(words: Sequence[str]) -> None:
    """What such a process does."""
    try:
        _, environment, options = pickle.loads(base64.b64decode(words[2]))
        found = facts(environment, options)
        plain = found._replace(observed=_plain(found.observed), action=_plain(found.action))
        with os.fdopen(int(words[1]), "wb") as answer:
            answer.write(pickle.dumps(plain))
    finally:
        os._exit(0)  # whatever was raised, and whatever is still to be said at a tidy exit


def _plain(space: gym.Space[Any] | None) -> gym.Space[Any] | None:
    """The space in Gymnasium's own class, without anything else that hangs on it."""
    if isinstance(space, gym.spaces.Box):
        return gym.spaces.Box(space.low, space.high, dtype=space.dtype.type)
    if isinstance(space, gym.spaces.Discrete):
        return gym.spaces.Discrete(int(space.n), start=int(space.start))
    return None
