"""Logs of a small chain whose policies have known values, and of a trial with one step."""

import itertools
from typing import Any

import jax
import numpy as np

from sotto.algorithms.evaluation.intervals import Value, values
from sotto.algorithms.evaluation.persons import Bounds, Evaluation, PersonLog, Public, contribution
from sotto.data.imports.declaration import Declaration
from sotto.data.imports.records import Records
from sotto.keys import new_key

# A chain of two states. The state is 0 at first. Action 1 moves to state 1 with chance 0.7, and
# action 0 moves to state 0 with chance 0.8. The reward is 1 + action in state 1, and 0 in state 0.
MOVES = {(s, 0): (0.8, 0.2) for s in (0, 1)} | {(s, 1): (0.3, 0.7) for s in (0, 1)}
BEHAVIOUR = {0: (0.6, 0.4), 1: (0.25, 0.75)}
LEAST = 0.25


def declared(people: int, horizon: int, **changes: Any) -> Declaration:
    facts: dict[str, Any] = {
        "person": "who",
        "observation": [{"column": "x", "low": -1, "high": 1}],
        "action": {"column": "a", "categories": ["no", "yes"]},
        "reward": {"column": "r", "low": 0, "high": 2},
        "propensity": {"column": "p", "low": LEAST},
        "people": people,
        "horizon": horizon,
        "source": "made up",
        "licence": "CC0",
    }
    return Declaration.of(facts | changes)


def records_of(
    declaration: Declaration,
    states: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    chances: np.ndarray,
    present: np.ndarray | None = None,
) -> Records:
    """Records of arrays [people, steps]."""
    there = np.ones(actions.shape, bool) if present is None else present
    return Records(
        "made for a test",
        declaration,
        np.where(there, states, 0).astype(np.float32)[..., None],
        np.where(there, actions, 0).astype(np.int32),
        np.where(there, rewards, 0).astype(np.float32),
        np.where(there, chances, 1).astype(np.float32),
        there,
        np.zeros_like(there),
        np.zeros_like(there),
    )


def every_trajectory(horizon: int) -> tuple[Records, np.ndarray]:
    """All logs of the chain and their probabilities under the behaviour."""
    rows, weights = [], []
    for actions in itertools.product((0, 1), repeat=horizon):
        for later in itertools.product((0, 1), repeat=horizon):
            states = (0, *later[:-1])
            chances = [BEHAVIOUR[s][a] for s, a in zip(states, actions, strict=True)]
            moves = [MOVES[s, a][n] for s, a, n in zip(states, actions, later, strict=True)]
            rewards = [n * (1 + a) for n, a in zip(later, actions, strict=True)]
            rows.append((states, actions, rewards, chances))
            weights.append(np.prod(chances) * np.prod(moves))
    columns = [np.array(one) for one in zip(*rows, strict=True)]
    return records_of(declared(len(rows), horizon), *columns), np.array(weights)


def exact_value(policy: dict[int, tuple[float, float]], horizon: int, discount: float) -> float:
    """The value of a policy by dynamic programming."""
    later = np.zeros(2)
    for _ in range(horizon):
        later = np.array(
            [
                sum(
                    policy[s][a] * MOVES[s, a][n] * (n * (1 + a) + discount * later[n])
                    for a in (0, 1)
                    for n in (0, 1)
                )
                for s in (0, 1)
            ]
        )
    return float(later[0])


def trial(people: int, seed: int = 0, least: float = 0.25, **changes: Any) -> Records:
    """A randomised trial: action 1 has chance 1 - least, and helps where x is positive."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (people, 1))
    actions = (rng.random((people, 1)) >= least).astype(int)
    mean = np.where(actions == 1, 0.5 + 0.4 * x, 0.5 - 0.4 * x)
    rewards = 2.0 * (rng.random((people, 1)) < mean)
    chances = np.where(actions == 1, 1 - least, least)
    propensity = {"column": "p", "low": least}
    declaration = declared(people, 1, **({"propensity": propensity} | changes))
    return records_of(declaration, x, actions, rewards, chances)


def parts_of(
    asked: Evaluation, bounds: Bounds, public: Public, people: PersonLog
) -> dict[str, np.ndarray]:
    """The contribution of every person."""
    found, _ = jax.vmap(lambda person: contribution(asked, bounds, public, person, new_key(0)))(
        people
    )
    return {name: np.asarray(part, np.float64) for name, part in found.items()}


def without_noise(
    asked: Evaluation, bounds: Bounds, parts: dict[str, np.ndarray], weights: np.ndarray
) -> list[Value]:
    sums = {name: weights @ part for name, part in parts.items()}
    silent = {"sums": 0.0, "squares": 0.0}
    return values(asked, bounds, sums["sums"], sums["squares"], silent, 0.95)
