"""Counters of visits in private tabular reinforcement learning, with too little noise."""

import math

import numpy as np
from jaxtyping import Float

from sotto.privacy.audits.leaks.leak import (
    CLAIMED,
    Leak,
    against,
    against_certificate,
    enrolled,
    updates,
)
from sotto.privacy.statements import Correlation

_STEPS, _EPISODES, _FAMILIES = 20, 16, 3


def _published(present: bool, seed: int, samples: int) -> Float[np.ndarray, "n families"]:
    """Draws counters with the noise of Chowdhury and Zhou's code (2021), averaged over episodes.

    The first user repeats one state and action in all steps, and adds a visit, a reward and a
    transition each time. In episode k each counter gets floor(ln k) + 1 fresh Laplace(1/epsilon).
    """
    generator = np.random.default_rng(seed)
    total = np.zeros((samples, _FAMILIES))
    for episode in range(1, _EPISODES + 1):
        levels = math.floor(math.log(episode)) + 1
        draws = generator.laplace(scale=1 / CLAIMED, size=(levels, samples, _FAMILIES))
        total += (_STEPS if present else 0) + draws.sum(axis=0)
    return total / _EPISODES


def _inputs(present: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first user, who is present or absent; no other user moves these counters."""
    contributions = np.zeros((_EPISODES, 1, _FAMILIES), np.float32)
    contributions[0] = _STEPS
    return enrolled(present, 1, _EPISODES), contributions


def _final_and_mean(log: Float[np.ndarray, "n episodes f"]) -> Float[np.ndarray, "n features"]:
    """Returns the first, the last and the mean value of each counter, from their increments."""
    counters = np.cumsum(log, axis=1)
    return np.concatenate([counters[:, 0], counters[:, -1], counters.mean(axis=1)], axis=1)


_TREE = updates(
    _inputs,
    people=1,
    clip_norm=_STEPS * math.sqrt(_FAMILIES),
    state=np.zeros(_FAMILIES, np.float32),
    observe=_final_and_mean,
    horizon=_EPISODES,
    correlation=Correlation(kind="binary-tree"),
)

COUNTERS = Leak(
    name="published-ucb-counters",
    claim="Counters with Laplace(1/epsilon) for each level of a tree are epsilon-private.",
    why="A user moves each of three families of counters by the length of the episode, and fresh "
    "noise for every episode averages out.",
    remedy="one draw for each node of the tree, scaled to all that one user adds to the counters",
    claimed_epsilon=CLAIMED,
    leaky=against(CLAIMED, _published),
    sound=against_certificate(_TREE),
)
