"""The rows of one or several teachers, from which a ledger makes answers.

Guarantee:
    The mean is taken over probability vectors in float64, so that one of n teachers moves it by at
    most sqrt(2) / n in L2 norm, whatever its row is (docs/privacy.md, section 12). No subclass
    changes this. `AnswerLedger.answer` takes `TeacherRows` only, and refuses those that the
    statement is not about.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import numpy as np
from jaxtyping import Float, Float64

from sotto.privacy.answers.distances import Distance, ObservationDistance, TrainingShards
from sotto.privacy.answers.observations import checked
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.mechanisms.dirichlet.simplex import as_policies
from sotto.privacy.mechanisms.noise import GeneratorSource

_BLOCK = 256  # rows computed at once, because hidden layers of several teachers are large


class TeacherRows(ABC):
    """Teachers whose mean row is what an answer is about. A subclass defines `each`.

    Attributes:
        teachers: number of teachers.
        actions: length of a row.
        observation_size: length of an observation.
    """

    teachers: int
    actions: int
    observation_size: int

    def __init_subclass__(cls) -> None:
        """Refuses a subclass that takes the mean in another way."""
        if cls.__call__ is not TeacherRows.__call__:
            raise TypeError(
                f"{cls.__name__} must not change how the mean is taken; define `each` instead of "
                "`__call__`"
            )
        super().__init_subclass__()

    @abstractmethod
    def each(
        self, observations: Float64[np.ndarray, "rows obs"]
    ) -> Float64[np.ndarray, "teachers rows actions"]:
        """Returns each teacher's own row at each observation, computed in float64.

        A row that is not a probability vector counts as the uniform one.
        """

    @final
    def __call__(
        self, observations: Float[np.ndarray, "rows obs"]
    ) -> Float64[np.ndarray, "rows actions"]:
        """Returns the mean of the teachers' policies at each observation.

        Raises:
            ValueError: an observation is not within `observations.LARGEST`, or the teachers' rows
                are not in float64, or not one for each teacher and observation.
        """
        observations = checked(observations, self.observation_size)
        mean = np.empty((len(observations), self.actions))
        for start in range(0, len(observations), _BLOCK):
            asked = observations[start : start + _BLOCK]
            shape = (self.teachers, len(asked), self.actions)
            with np.errstate(all="ignore"):  # a warning would tell that a teacher is not finite
                rows = np.asarray(self.each(asked))
            if rows.dtype != np.float64:
                raise ValueError(
                    "certificates say that the teacher's rows are computed in float64, and these "
                    f"are in {rows.dtype}; compute them in float64"
                )
            if rows.shape != shape:
                raise ValueError(
                    f"the teachers' rows are an array of shape {shape}, and one of shape "
                    f"{rows.shape} was computed"
                )
            valid = as_policies(rows.reshape(-1, self.actions)).reshape(shape)
            mean[start : start + _BLOCK] = valid.mean(axis=0)
        return mean

    def moves_within(self, distance: Distance) -> bool:
        """Returns whether rows of neighbouring observations are proved to be as near as stated.

        It is True where neighbours are not observations. Otherwise a subclass has to prove it.
        """
        return not isinstance(distance, ObservationDistance)


class RowsOf(TeacherRows):
    """One teacher, whose rows a function returns.

    Args:
        function: returns the row at each observation, in float64.
        actions: length of a row.
        observation_size: length of an observation.
    """

    teachers = 1

    def __init__(
        self,
        function: Callable[[Float64[np.ndarray, "rows obs"]], Float64[np.ndarray, "rows actions"]],
        actions: int,
        observation_size: int,
    ) -> None:
        self._function = function
        self.actions = actions
        self.observation_size = observation_size

    def each(
        self, observations: Float64[np.ndarray, "rows obs"]
    ) -> Float64[np.ndarray, "teachers rows actions"]:
        """Returns the rows of the only teacher."""
        return np.asarray(self._function(observations))[None]


def require_proved(
    teacher: TeacherRows, noise: GeneratorSource, statement: AnswerStatement
) -> None:
    """Refuses rows that may move further than the statement says, and noise of another kind.

    Raises:
        TypeError: the teacher is not `TeacherRows`, or the noise is not a `GeneratorSource`.
        ValueError: the noise is not of the stated kind; the distance is one of observations, and
            is not proved for these rows; or it is that of one of several teachers, and the rows are
            not their mean.
    """
    if not isinstance(teacher, TeacherRows) or type(noise) is not GeneratorSource:
        raise TypeError(
            "a ledger answers from `TeacherRows` with noise from a `GeneratorSource`; make a "
            "function of yours `RowsOf` it"
        )
    if noise.entropy != statement.entropy:
        raise ValueError(
            f"the statement promises noise from {statement.entropy} entropy, not {noise.entropy}"
        )
    distance = statement.distance
    if isinstance(distance, TrainingShards) and teacher.teachers != distance.teachers:
        raise ValueError(
            f"answers are promised to be the mean of {distance.teachers} teachers, and here "
            f"are {teacher.teachers}; restore the teacher that the promise was made for"
        )
    if not teacher.moves_within(distance):
        raise ValueError(
            "the statement's Lipschitz constant and rounding are not proved of this teacher's "
            "network; make a new statement for it"
        )
