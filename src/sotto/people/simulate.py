"""Simulated people who take part in a campaign over HTTP, to try it before real people come."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

from sotto.people import recipe
from sotto.people.client import CampaignRefused, OwnWorld, Person
from sotto.people.policy import NumpyPolicy
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.registry import make

_OVER = ("took-part", "withdrew", "finished")
_WAIT_SECONDS = 0.2


@dataclass(frozen=True)
class Habits:
    """Habits of simulated people, as probabilities for each trajectory.

    Attributes:
        drop_out: the person takes a place and gives nothing.
        straggle: the person gives after the place has expired.
        repeat: the person gives the same trajectory twice.
        withdraw: the person withdraws after giving.
    """

    drop_out: float = 0.0
    straggle: float = 0.0
    repeat: float = 0.0
    withdraw: float = 0.0

    def __post_init__(self) -> None:
        """Refuses numbers that are no probabilities."""
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is a probability, got {value}")


class Slow:
    """A world in which the first observation takes longer than a place lasts.

    Args:
        world: the world.
        seconds: time until the first observation.
    """

    def __init__(self, world: OwnWorld, seconds: float) -> None:
        self._world, self._seconds = world, seconds
        self.step = world.step

    def reset(self) -> Sequence[float]:
        """Returns the first observation of a new trajectory, late."""
        time.sleep(self._seconds)
        return self._world.reset()


class Simulated:
    """A world of one simulated person, in an environment of sotto.

    Args:
        env: the environment.
        seed: seed of its first states.
    """

    def __init__(self, env: AnyEnvironment, seed: int) -> None:
        self._env, self._rng = env, np.random.default_rng(seed)
        self._reset, self._step = _programs(env)
        self._state: Any = None

    def reset(self) -> Sequence[float]:
        """Returns the first observation of a new trajectory."""
        uniforms = self._rng.random(self._env.reset_size, np.float32)
        self._state, seen = self._reset(uniforms)
        return list(np.asarray(seen, float))

    def step(self, action: Any) -> tuple[Sequence[float], float, bool]:
        """Returns the next observation, the reward, and whether the trajectory ended there."""
        discrete = isinstance(action, int)
        chosen = np.asarray(action, np.int32 if discrete else np.float32)
        self._state, seen, reward, ended = self._step(self._state, chosen)
        return list(np.asarray(seen, float)), float(reward), bool(ended)


@cache
def _programs(env: AnyEnvironment) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns the compiled programs of an environment, which all people share."""

    def reset(uniforms: Any) -> Any:
        state = env.reset(uniforms, env.default_params)
        return state, env.observe(state, env.default_params)

    def step(state: Any, action: Any) -> Any:
        state, reward, ended = env.step(state, env.action.clip(action), env.default_params)
        return state, env.observe(state, env.default_params), reward, ended

    return jax.jit(reset), jax.jit(step)


def drive(
    url: str,
    tokens: Sequence[str],
    env_id: str,
    *,
    habits: Habits = Habits(),  # it is frozen
    at_once: int = 8,
    seed: int = 0,
    say: Callable[[str], None] = lambda _text: None,
) -> dict[str, int]:
    """Lets people take part until the campaign ends or nobody may take part again.

    Args:
        url: address of the service.
        tokens: one token for each person.
        env_id: environment in which they live, with the repeated actions of its recipe.
        habits: how reliable they are.
        at_once: number of people who are active at once.
        seed: seed of the people.
        say: shows the progress.

    Returns:
        Counts of what happened: given, dropped, late, repeated, withdrawn.
    """
    env, counts, lock = recipe.world(env_id), Counter[str](), threading.Lock()
    finished = threading.Event()

    def one(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        world = Simulated(env, rng.randrange(2**31))
        with Person(url, tokens[number], seed=rng.randrange(2**31)) as person:
            while not finished.is_set():
                happened = _part(person, world, habits, rng)
                with lock:
                    counts.update(happened)
                    if "given" in happened and counts["given"] % 100 == 0:
                        say(f"{counts['given']} trajectories were given")
                if "finished" in happened:
                    finished.set()
                if set(happened) & {*_OVER, "withdrawn"}:
                    return
                if "waits" in happened:
                    time.sleep(_WAIT_SECONDS * rng.random())

    with ThreadPoolExecutor(at_once) as workers:
        for result in [workers.submit(one, number) for number in range(len(tokens))]:
            result.result()
    return {name: counts[name] for name in ("given", "dropped", "late", "repeated", "withdrawn")}


def _part(person: Person, world: OwnWorld, habits: Habits, rng: random.Random) -> list[str]:
    """Lets a person take part once; returns what happened."""
    try:
        if rng.random() < habits.drop_out:
            person.take_place()
            return ["dropped", "took-part"]
        if rng.random() < habits.straggle:
            world = Slow(world, person.take_place()["seconds_left"] + _WAIT_SECONDS)
        person.live(world)
        happened = ["given"]
        if rng.random() < habits.repeat:
            person.give_again()
            happened.append("repeated")
        if rng.random() < habits.withdraw:
            person.withdraw()
            happened.append("withdrawn")
        return happened
    except CampaignRefused as error:
        if error.code in _OVER:
            return [error.code]
        if error.code == "no-place":
            return ["waits"]
        if error.code == "place-closed":
            return ["late"]
        raise


def mean_return(policy: NumpyPolicy, env_id: str, episodes: int, seed: int = 0) -> float:
    """Returns the mean return of a policy that takes its most likely actions.

    Args:
        policy: the policy.
        env_id: environment, in which actions are not repeated.
        episodes: number of episodes.
        seed: seed of the first states.
    """
    env = make(env_id)
    world = Simulated(env, seed)
    total = 0.0
    for _ in range(episodes):
        seen, ended = world.reset(), False
        for _step in range(env.max_episode_steps):
            action = policy.most_likely(np.asarray(seen))
            seen, reward, ended = world.step(action)
            total += reward
            if ended:
                break
    return total / episodes
