"""Counters of visits in private tabular reinforcement learning, with too little noise."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.audits.audit import ReleaseTrials
from sotto.privacy.audits.leaks.leak import DELTA, PERSON, Leak, against, against_certificate
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Correlation, Part

_Z, _STEPS, _EPISODES, _FAMILIES = 5.0, 20, 16, 3
_CLAIMED = gaussian_epsilon(_Z, DELTA)


def _published(present: bool, seed: int, samples: int) -> Float[np.ndarray, "n families"]:
    """Draws counters with the noise of Chowdhury and Zhou's code (2021), averaged over episodes.

    The first user repeats one state and action in all steps, and adds a visit, a reward and a
    transition each time. In episode k each counter gets floor(ln k) + 1 fresh Laplace(1/epsilon).
    """
    generator = np.random.default_rng(seed)
    total = np.zeros((samples, _FAMILIES))
    for episode in range(1, _EPISODES + 1):
        levels = math.floor(math.log(episode)) + 1
        draws = generator.laplace(scale=1 / _CLAIMED, size=(levels, samples, _FAMILIES))
        total += (_STEPS if present else 0) + draws.sum(axis=0)
    return total / _EPISODES


def _local(_state: Any, unit: Any, _key: Array) -> tuple[Any, Any]:
    return {"counters": unit}, ()


def _server(state: Any, released: Any) -> tuple[Any, Any]:
    return state + released["counters"], state + released["counters"]


def _inputs(present: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first user, who is present or absent; no other user moves these counters."""
    persons = np.arange(_EPISODES)[:, None]
    if not present:
        persons[0] = -1
    contributions = np.zeros((_EPISODES, 1, _FAMILIES), np.float32)
    contributions[0] = _STEPS
    return persons, contributions


def _final_and_mean(log: Float[np.ndarray, "n episodes f"]) -> Float[np.ndarray, "n features"]:
    """Returns the first, the last and the mean value of each counter."""
    return np.concatenate([log[:, 0], log[:, -1], log.mean(axis=1)], axis=1)


def _certified(noise_multiplier: float) -> ReleaseTrials:
    release = Release(
        name="counters",
        local=_local,
        server=_server,
        unit=PERSON,
        parts={
            "counters": Part(
                clip_norm=_STEPS * math.sqrt(_FAMILIES), noise_multiplier=noise_multiplier
            )
        },
        slots=1,
        divisor=1.0,
        horizon=_EPISODES,
        population="simulated",
        correlation=Correlation(kind="binary-tree"),
    )
    return ReleaseTrials(release, jnp.zeros(_FAMILIES), _inputs, _final_and_mean)


COUNTERS = Leak(
    name="published-ucb-counters",
    claim="Counters with Laplace(1/epsilon) for each level of a tree are epsilon-private.",
    why="A user moves each of three families of counters by the length of the episode, and fresh "
    "noise for every episode averages out.",
    remedy="one draw for each node of the tree, scaled to all that one user adds to the counters",
    claimed_epsilon=_CLAIMED,
    leaky=against(_CLAIMED, _published),
    sound=against_certificate(_certified(_Z)),
)
