"""Questions to a teacher's ledger, with teachers that fit what it states."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sotto.algorithms.kickstarting.teachers import Ensemble
from sotto.privacy.answers.distances import ObservationDistance, TrainingShards
from sotto.privacy.answers.ledger import Answered, AnswerLedger
from sotto.privacy.answers.rows import RowsOf, TeacherRows
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy

Rows = Callable[[np.ndarray], np.ndarray]


def alike(statement: AnswerStatement, function: Rows | None = None) -> TeacherRows:
    """Returns as many teachers as are stated, all with these rows, by default uniform ones."""
    size, actions = statement.observation_size, statement.mechanism.actions
    distance = statement.distance
    if isinstance(distance, ObservationDistance):  # of a network only is one proved
        one = Policy(size, Discrete(actions), (2,), jax.random.key(0))
        return Ensemble(jax.tree.map(lambda x: jnp.zeros_like(x)[None], one))

    def uniform(observations: np.ndarray) -> np.ndarray:
        return np.full((len(observations), actions), 1 / actions)

    teachers = distance.teachers if isinstance(distance, TrainingShards) else 1

    def numbered(number: int) -> Rows:
        """Returns the function of one teacher, for no two may have the same."""
        own = Unasked(actions) if function is Unasked else function or uniform
        return lambda points, _=number: own(points)

    return RowsOf([numbered(i) for i in range(teachers)], actions, size)


def ask(
    ledger: AnswerLedger, student: str, rows: int, function: Rows | None = None, **more: Any
) -> Answered:
    """Asks about so many observations of zeros."""
    statement = ledger.statement
    noise = GeneratorSource(0 if statement.entropy == "fixed-seed" else None)
    observations = np.zeros((rows, statement.observation_size))
    return ledger.answer(student, observations, alike(statement, function), noise, **more)


class Unasked:
    """A function that must not be asked, except twice when teachers are made of it."""

    def __init__(self, actions: int = 3) -> None:
        self.actions = actions
        self.asked = 0

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        self.asked += 1
        if self.asked > 2:
            raise ComputedError
        return np.zeros((1, self.actions))


class ComputedError(BaseException):
    """Something was computed that must not be. No answer takes the place of this error."""
