"""Teachers that are one and the same in secret, so that one person moves the mean by all of it.

Nobody means to: rows are written into one array, functions of a loop read its last value, and a
model that is loaded again answers in the place of all.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.privacy.answers.rows import RowsOf


def always(row: list[float]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda observations: np.tile(row, (len(observations), 1))


def test_teachers_that_write_into_one_array_have_their_own_rows() -> None:
    """The rows of all were the last one's, who then moved the mean by all of it."""
    shared = np.zeros((300, 2))

    def writes(row: list[float]) -> Callable[[np.ndarray], np.ndarray]:
        def into(observations: np.ndarray) -> np.ndarray:
            shared[: len(observations)] = row
            return shared[: len(observations)]

        return into

    rows = RowsOf([writes([0.0, 1.0]), writes([0.0, 1.0]), writes([1.0, 0.0])], 2, 4)
    np.testing.assert_allclose(rows(np.zeros((300, 4))), [[1 / 3, 2 / 3]] * 300)


class Float64:
    """An object around a function."""

    def __init__(self, function: Callable[[np.ndarray], Any]) -> None:
        self._function = function

    def rows(self, asked: np.ndarray) -> np.ndarray:
        return np.asarray(self._function(asked), np.float64)

    __call__ = rows


def test_no_two_teachers_have_the_same_function() -> None:
    """All functions of a loop read its last value, so that one teacher was all of them."""
    models = [[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]
    late = [lambda asked: np.tile(models[i], (len(asked), 1)) for i in range(3)]  # noqa: B023
    in_jax = [
        jax.jit(lambda asked: jnp.tile(jnp.asarray(models[i]), (len(asked), 1)))  # noqa: B023
        for i in (0, 1)
    ]
    same, one = always([0.0, 1.0]), Float64(late[0])
    for functions in (
        late,
        [same, always([0.0, 1.0]), same],
        [partial(each) for each in late],
        [Float64(each) for each in late],
        [Float64(each) for each in in_jax],
        [lambda asked, each=each: np.asarray(each(asked), np.float64) for each in in_jax],
        [one.rows, one.rows],
        [partial(one.rows), partial(one.rows)],
    ):
        with pytest.raises(ValueError, match="two teachers have the same function"):
            RowsOf(functions, 2, 4)


def test_teachers_whose_functions_differ_are_different() -> None:
    models = [[0.0, 1.0], [1.0, 0.0]]
    early = [lambda asked, i=i: np.tile(models[i], (len(asked), 1)) for i in range(2)]
    own = [*early, *map(always, models), *map(partial, early), *map(Float64, early)]
    own += [Float64(each).rows for each in early]

    def itself(asked: np.ndarray) -> np.ndarray:
        return itself(asked[1:]) if len(asked) > 1 else np.array([[0.0, 1.0]])

    assert RowsOf([*own, itself], 2, 4).teachers == 11
