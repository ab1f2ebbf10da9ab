"""The rows of one or several teachers, from which a ledger makes answers.

Guarantee:
    The mean is taken over probability vectors in float64. So one of n teachers moves it by at most
    sqrt(2) / n in L2 norm, whatever its row is, and where it fails (docs/privacy.md, section 12).
    `AnswerLedger.answer` takes `TeacherRows` only, and refuses those that the statement is not
    about.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
from jaxtyping import Float, Float64

from sotto.modules import is_defined_in
from sotto.privacy.answers.distances import Distance, ObservationDistance, TrainingShards
from sotto.privacy.answers.observations import checked
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.mechanisms.dirichlet.simplex import as_policies
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.mechanisms.secret_functions import SecretFunction, require_rows, values_of

_BLOCK = 256  # rows computed at once, because hidden layers of several teachers are large


class TeacherRows(ABC):
    """Teachers whose mean row is what an answer is about: `RowsOf` functions, or an `Ensemble`.

    Attributes:
        actions: length of a row.
        observation_size: length of an observation.
    """

    actions: int
    observation_size: int

    @property
    @abstractmethod
    def teachers(self) -> int:
        """Number of teachers."""

    def __init_subclass__(cls) -> None:
        """Refuses a class that is not one of sotto's, since nothing is proved of it."""
        if cls.__module__.partition(".")[0] != "sotto":
            raise TypeError(
                f"{cls.__name__} must not be a class of teachers; give functions to `RowsOf`, one "
                "for each teacher"
            )
        super().__init_subclass__()

    @abstractmethod
    def each(
        self, observations: Float64[np.ndarray, "rows obs"]
    ) -> Float64[np.ndarray, "teachers rows actions"]:
        """Returns each teacher's own row at each observation, and raises no error.

        `simplex.as_policies` makes probability vectors of them, which are uniform where they are
        NaN.
        """

    def __call__(
        self, observations: Float[np.ndarray, "rows obs"]
    ) -> Float64[np.ndarray, "rows actions"]:
        """Returns the mean of the teachers' policies at each observation.

        Raises:
            ValueError: an observation is not within `observations.LARGEST`.
        """
        observations = checked(observations, self.observation_size)
        mean = np.empty((len(observations), self.actions))
        for start in range(0, len(observations), _BLOCK):
            asked = observations[start : start + _BLOCK]
            with np.errstate(all="ignore"):  # a warning would tell that a teacher is not finite
                rows = type(self).each(self, asked)  # no object has another one
                valid = as_policies(rows.reshape(-1, self.actions)).reshape(rows.shape)
            mean[start : start + _BLOCK] = valid.mean(axis=0)
        return mean

    def moves_within(self, distance: Distance) -> bool:
        """Returns whether rows of neighbouring observations are proved to be as near as stated.

        It is True where neighbours are not observations.
        """
        return not isinstance(distance, ObservationDistance)


class RowsOf(TeacherRows):
    """Teachers whose rows are computed by functions.

    Where a function raises an error, or returns another shape or type, its row is the uniform one,
    which is charged as any: an error would tell what the teacher learnt, and would cost nothing.
    Ctrl-C alone passes through. To notice mistakes, each function is asked about the observation
    zero at the start.

    Args:
        functions: the function of the only teacher, or one for each teacher, which reads what this
            teacher learnt and no other. It returns the row at each observation in float64.
        actions: length of a row.
        observation_size: length of an observation.

    Raises:
        ValueError: there is no function, one is there twice, or its row at zero has another shape
            or type. An error of a function passes through here, and only here.

    Example:
        >>> one = RowsOf(lambda asked: np.tile([0.25, 0.75], (len(asked), 1)), 2, 4)
        >>> one(np.zeros((1, 4)))
        array([[0.25, 0.75]])
    """

    def __init__(
        self,
        functions: SecretFunction | Sequence[SecretFunction],
        actions: int,
        observation_size: int,
    ) -> None:
        self._functions = (functions,) if callable(functions) else tuple(functions)
        if not self._functions:
            raise ValueError("a teacher has at least one function")
        if len(set(map(_identity, self._functions))) < len(self._functions):
            raise ValueError(
                "two teachers have the same function, so that one person would move both; give "
                "each its own model (in a loop, write `lambda asked, i=i: ...`, since a function "
                "reads the loop's last value otherwise)"
            )
        self.actions = actions
        self.observation_size = observation_size
        for function in self._functions:
            require_rows(function, observation_size, actions, float64=True)

    @property
    def teachers(self) -> int:
        """Number of functions."""
        return len(self._functions)

    def each(
        self, observations: Float64[np.ndarray, "rows obs"]
    ) -> Float64[np.ndarray, "teachers rows actions"]:
        """Returns the rows of each function, and NaN where it fails."""
        return np.stack(
            [values_of(function, observations, self.actions) for function in self._functions]
        )


def _identity(value: Any, within: frozenset[int] = frozenset()) -> Hashable:
    """Returns what two functions have in common if they are the same one, however it is wrapped.

    Functions that Python makes in a loop are several objects with the same code and variables, as
    are bound methods, partial functions and objects that are made of the same functions.

    Args:
        value: a function, or what it is made of. What cannot be called is known by its `id`.
        within: ids of the functions that it is a part of, for one may refer to itself.
    """
    if not callable(value) or isinstance(value, type) or id(value) in within:
        return id(value)
    inside = within | {id(value)}
    kind: Hashable
    made_of: Iterable[Any]
    if isinstance(value, FunctionType):
        cells = [_contents(cell) for cell in value.__closure__ or ()]
        named = value.__kwdefaults__ or {}
        kind, made_of = value.__code__, (*cells, *(value.__defaults__ or ()), *named.values())
    elif isinstance(value, MethodType):
        return value.__func__, id(value.__self__)
    elif isinstance(value, partial):
        kind, made_of = "partial", (value.func, *value.args, *value.keywords.values())
    elif hasattr(value, "__wrapped__"):
        kind, made_of = id(type(value)), (value.__wrapped__,)
    elif getattr(value, "__dict__", None):
        kind, made_of = id(type(value)), vars(value).values()
    else:
        return id(value)
    return kind, tuple(_identity(one, inside) for one in made_of)


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is still empty
        return cell


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
    # Any class can be registered with an abstract one, or say that it comes from here.
    ours = isinstance(teacher, TeacherRows) and is_defined_in(type(teacher), "sotto")
    if not ours or type(noise) is not GeneratorSource:
        raise TypeError(
            "a ledger answers from `TeacherRows` with noise from a `GeneratorSource`; give a "
            "function of yours to `RowsOf`"
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
    if not type(teacher).moves_within(teacher, distance):  # no object has another one
        raise ValueError(
            "the statement's Lipschitz constant and rounding are not proved of this teacher's "
            "network; make a new statement for it"
        )
