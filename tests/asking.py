"""Questions to a teacher's ledger, with teachers that fit what it states."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sotto.privacy.answers.distances import Distance, TrainingShards
from sotto.privacy.answers.ledger import Answered, AnswerLedger
from sotto.privacy.answers.rows import TeacherRows
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.mechanisms.noise import GeneratorSource

Rows = Callable[[np.ndarray], np.ndarray]


class Alike(TeacherRows):
    """As many teachers as are stated, all with the rows of a function, by default uniform ones."""

    def __init__(self, statement: AnswerStatement, function: Rows | None = None) -> None:
        shards = isinstance(statement.distance, TrainingShards)
        self.teachers = statement.distance.teachers if shards else 1
        self.actions = statement.mechanism.actions
        self.observation_size = statement.observation_size
        self._function = function

    def each(self, observations: np.ndarray) -> np.ndarray:
        if self._function is None:
            rows = np.full((len(observations), self.actions), 1 / self.actions)
        else:
            rows = self._function(observations)
        return np.repeat(rows[None], self.teachers, axis=0)

    def moves_within(self, distance: Distance) -> bool:
        """The uniform row does not move."""
        return self._function is None or super().moves_within(distance)


def ask(
    ledger: AnswerLedger, student: str, rows: int, function: Rows | None = None, **more: Any
) -> Answered:
    """Asks about so many observations of zeros."""
    statement = ledger.statement
    noise = GeneratorSource(0 if statement.entropy == "fixed-seed" else None)
    observations = np.zeros((rows, statement.observation_size))
    return ledger.answer(student, observations, Alike(statement, function), noise, **more)


def fail(observations: np.ndarray) -> np.ndarray:
    """Must not be asked."""
    raise AssertionError("this must not be computed")
