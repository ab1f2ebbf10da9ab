"""Teachers: whoever answers a student's observations with rows of probabilities.

A student needs no more than the `Teacher` protocol. `ExactTeacher` answers with its own rows and
protects nobody; `LocalTeacher` answers through a ledger, in the same process; a teacher on another
machine is `sotto.serving.client.RemoteTeacher`.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Int

RowsFunction = Callable[
    [Float[np.ndarray, "rows obs"]],
    Float[np.ndarray, "rows actions"],
]
"""A teacher's own rows at each observation, in float64."""


class Answers(NamedTuple):
    """What a teacher says of some observations."""

    policies: Float[np.ndarray, "rows actions"]
    """Rows of probabilities; uniform where the teacher is silent."""
    levels: Int[np.ndarray, " rows"]
    """Which step of its schedule each answer belongs to, which says how much noise is in it."""
    released: bool
    """False where the teacher is silent: the rows then depend on no data and say nothing."""


class Teacher(Protocol):
    """Whoever answers."""

    actions: int
    observation_size: int

    def answer(self, observations: Float[np.ndarray, "rows obs"]) -> Answers:
        """One row for each observation, all of them charged before they are returned.

        A teacher that may not answer all of them answers none, and charges nothing.
        """


class ExactTeacher:
    """A teacher that answers with its own rows. Nothing about it is private."""

    def __init__(self, rows: RowsFunction, actions: int, observation_size: int) -> None:
        self._rows = rows
        self.actions = actions
        self.observation_size = observation_size

    def answer(self, observations: Float[np.ndarray, "rows obs"]) -> Answers:
        """The rows themselves."""
        rows = self._rows(observations)
        return Answers(rows, np.zeros(len(rows), int), True)


def silence(rows: int, actions: int) -> Answers:
    """What a teacher says that has nothing to say: the uniform row, whatever it was asked."""
    return Answers(np.full((rows, actions), 1 / actions), np.zeros(rows, int), False)
