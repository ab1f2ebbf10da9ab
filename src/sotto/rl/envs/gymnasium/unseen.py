"""Runs environments with real people in subprocesses, whose output and exceptions are discarded.

The environment's code, and the module that registers it, run in other processes. Their output is
discarded, and a failure is reported without its text or its class. Only numbers come back as the
environment's public facts, and this process puts them into Gymnasium's own classes.
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
from sotto.rl.envs.gymnasium.parallel import WORKER_PROGRAM
from sotto.rl.envs.own import is_own

SIMULATORS = ("sotto", "gymnasium", "ale_py")
"""Packages whose environments are simulators, which meet no real people."""
_HARMLESS = (*SIMULATORS, "builtins", "collections", "numpy", "mujoco", "Box2D", "pygame")
"""Packages of the objects that simulators hold. Functions that they hold are from `SIMULATORS`."""


def meets_nobody(env_id: str, package: str = "sotto") -> ValueError:
    """Returns the error of a simulator that is to meet real people.

    Args:
        env_id: its name.
        package: top-level package of its class; the default is that of environments in JAX.
    """
    what = "runs in JAX" if is_own(env_id) else f"is a simulator that comes with {package}"
    return ValueError(
        f"{env_id} {what} and meets no real people; "
        "leave out --population real, or give --env-id your own environment that meets "
        "them (module:Name-v0, registered with Gymnasium)"
    )


class UnseenError(ValueError):
    """Failure of an environment that meets real people. The message never says more than that.

    Args:
        env_id: the name that the user gave.
    """

    def __init__(self, env_id: str) -> None:
        super().__init__(
            f"{env_id} failed where real people are met; its error is not shown, since it may "
            "be about them; test the environment without real people"
        )


class EnvironmentFacts(NamedTuple):
    """An environment's public facts."""

    observed: gym.Space[Any] | None
    """Observation space; None for a space that is neither Box nor Discrete, if `_bare` made it."""
    action: gym.Space[Any] | None
    time_limit: int | None
    normalisers: tuple[str, ...]
    """Names of the wrappers that keep running statistics."""
    package: str
    """Top-level package of the environment's class."""
    simulator: bool
    """Whether that class, those of all wrappers, and the functions and objects that they hold come
    with `SIMULATORS`. Code from elsewhere may let people answer."""
    meets_person: bool
    """Whether it says, by `metadata["meets_person"] = True`, that a reset with `options["person"]`
    meets the person of that enrolment number."""


def facts(environment: Any, options: dict[str, Any]) -> EnvironmentFacts:
    """Makes the environment in this process and returns its public facts.

    Args:
        environment: the first argument of `specs.make`.
        options: keyword arguments of `gymnasium.make`.
    """
    env = specs.make(environment, options)
    env.close()
    spec, layers = env.spec, [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    normalisers = [
        type(layer).__name__
        for layer in layers
        if isinstance(layer, NormalizeObservation | NormalizeReward)
    ]
    return EnvironmentFacts(
        env.observation_space,
        env.action_space,
        None if spec is None else spec.max_episode_steps,
        tuple(normalisers),
        _package(layers[-1]),
        not callable(None if spec is None else spec.entry_point) and all(map(_simulates, layers)),
        env.metadata.get("meets_person") is True,
    )


def _simulates(layer: gym.Env[Any, Any]) -> bool:
    """Returns whether the class of a layer, and all that it holds, are those of simulators.

    `TransformReward` is Gymnasium's, for example, and holds a function of the user's.
    """
    return _package(layer) in SIMULATORS and all(
        _package(one) in (SIMULATORS if callable(one) else _HARMLESS)
        for one in vars(layer).values()
    )


def _package(one: Any) -> str:
    """Returns the top-level package of a function, or else of an object's class."""
    module = getattr(one, "__module__", None) if callable(one) else None
    return str(module or type(one).__module__).partition(".")[0]


def unseen_facts(env_id: str, options: dict[str, Any]) -> EnvironmentFacts:
    """Makes the environment in another process, which returns nothing but its public facts.

    Raises:
        UnseenError: the environment failed.
        ValueError: there is no such environment, or no other process can make it.
    """
    spec = specs.remote_spec(env_id)
    return _asked(env_id, pickled(env_id, (sys.path, spec, options)))


def pickled(env_id: str, plan: Any) -> bytes:
    """Returns the bytes of a plan for another process.

    Raises:
        ValueError: the environment is registered with a function that cannot be pickled.
    """
    try:
        return pickle.dumps(plan)
    except (pickle.PicklingError, AttributeError, TypeError):
        pass
    raise ValueError(
        f"{env_id} is registered with a function that no other process can import, but an "
        "environment that meets real people runs in another process; register it as 'module:Class'"
    )


@functools.lru_cache(16)  # public facts do not change
def _asked(env_id: str, plan: bytes) -> EnvironmentFacts:
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as answer:
        words = (str(theirs), base64.b64encode(plan).decode())
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", WORKER_PROGRAM.format(path=sys.path, name=__name__), *words],
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
    found: EnvironmentFacts = pickle.loads(said)
    return found


def serve(words: Sequence[str]) -> None:
    """Runs in the other process: makes the environment and answers with its public facts."""
    try:
        _, environment, options = pickle.loads(base64.b64decode(words[2]))
        found = facts(environment, options)
        plain = found._replace(observed=_bare(found.observed), action=_bare(found.action))
        with os.fdopen(int(words[1]), "wb") as answer:
            answer.write(pickle.dumps(plain))
    finally:
        os._exit(0)  # also after an exception, and without the messages of a regular exit


def _bare(space: gym.Space[Any] | None) -> gym.Space[Any] | None:
    """Returns a Box or Discrete space as a new object of Gymnasium's class, without attributes."""
    if isinstance(space, gym.spaces.Box):
        return gym.spaces.Box(space.low, space.high, dtype=space.dtype.type)
    if isinstance(space, gym.spaces.Discrete):
        return gym.spaces.Discrete(int(space.n), start=int(space.start))
    return None
