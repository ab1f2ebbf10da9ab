"""What a ledger answers: the mean of the stated teachers, of whom none moves it by more than 1/n.

The attack is by an author's own teachers, one of whom returns rows that are no probabilities.
"""

import math
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from asking import Unasked
from small import answers

from sotto.algorithms.kickstarting.teachers import Ensemble
from sotto.privacy.answers.distances import (
    AnyTwoTeachers,
    Distance,
    ObservationDistance,
    PolicyDistance,
    TrainingShards,
)
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.answers.rows import RowsOf, TeacherRows
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.mechanisms.policies import GaussianPolicy
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy

SHARDS = 50
ASKED = np.zeros((2, 4))


def shards(last: Callable[[np.ndarray], Any], count: int = SHARDS) -> RowsOf:
    """An author's own teachers, of whom the last one returns anything."""
    return RowsOf([always([0.0, 1.0]) for _ in range(count - 1)] + [last], 2, 4)


def always(row: list[float]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda observations: np.tile(row, (len(observations), 1))


def ledger_about(path: Path, distance: Distance, **changes: Any) -> AnswerLedger:
    statement = answers(distance=distance, **changes)
    budget = Budget(epsilon=math.inf, delta=1e-5)
    ledger = AnswerLedger.create(path / "ledger", statement=statement, budget=budget)
    ledger.add_student("ann")
    return ledger


def almost_exact(path: Path) -> AnswerLedger:
    """A ledger with noise of 1e-9, so that answers show the mean that they are about."""
    quiet = GaussianPolicy(actions=2, noise_stddev=1e-9)
    return ledger_about(path, TrainingShards(teachers=SHARDS), mechanism=quiet)


@pytest.mark.parametrize(
    ("last", "share"),
    [
        ([1e6, 0.0], 1.0),
        ([1.0, 0.0], 1.0),
        ([0.0, 1e6], 0.0),
        ([-1e6, 0.0], 0.0),
        ([1e6, -1e6], 1.0),
        ([-1e-9, 1.0], 0.0),
        ([math.nan, 0.0], 0.5),
        ([math.inf, 0.0], 1.0),
        ([0.0, -math.inf], 1.0),
        ([1e308, 1e308], 0.5),
        ([5e-324, 0.0], 0.5),
    ],
)
def test_one_of_n_teachers_moves_the_mean_by_a_share_at_most(
    tmp_path: Path, last: list[float], share: float
) -> None:
    ledger = almost_exact(tmp_path)
    with np.errstate(all="raise"):
        honest, other = (
            ledger.answer("ann", ASKED, shards(always(row)), GeneratorSource()).policies
            for row in ([0.0, 1.0], last)
        )
    moved = np.linalg.norm(honest - other, axis=1)
    np.testing.assert_allclose(moved, share * math.sqrt(2) / SHARDS, atol=1e-7)
    assert ledger.spent().answered == 4


def test_an_answer_is_the_noisy_mean(tmp_path: Path) -> None:
    distance = TrainingShards(teachers=SHARDS)
    mechanism = GaussianPolicy(actions=2, noise_stddev=0.1)
    ledger = ledger_about(tmp_path, distance, mechanism=mechanism, entropy="fixed-seed")
    answered = ledger.answer("ann", ASKED, shards(always([1.0, 0.0])), GeneratorSource(7))
    mean = np.tile([1 / SHARDS, 1 - 1 / SHARDS], (2, 1))
    expected = mechanism.answer(mean, GeneratorSource(7).next())
    np.testing.assert_allclose(answered.policies, expected, atol=1e-8)


def network() -> Policy:
    one = Policy(4, Discrete(3), (8,), jax.random.key(0))
    return jax.tree.map(lambda x: x[None], one)


def test_of_an_own_teacher_no_distance_of_observations_is_proved(tmp_path: Path) -> None:
    ensemble = Ensemble(network())
    constants = {"lipschitz": ensemble.lipschitz, "rounding": ensemble.rounding}
    ledger = ledger_about(tmp_path, ObservationDistance(radius=0.1, **constants))
    with pytest.raises(ValueError, match="not proved of this teacher's network"):
        ledger.answer("ann", ASKED, RowsOf(Unasked(3), 3, 4), GeneratorSource())
    assert ledger.spent().answered == 0
    assert ledger.answer("ann", ASKED, ensemble, GeneratorSource()).remaining == 58


@pytest.mark.parametrize("kind", [TeacherRows, RowsOf, Ensemble])
def test_nobody_proves_a_distance_by_a_class_of_their_own(kind: type[TeacherRows]) -> None:
    """Such as rows of another network, or a `moves_within` that is always True."""
    with pytest.raises(TypeError, match="Own must not be a class of teachers; give functions"):
        type("Own", (kind,), {"moves_within": lambda self, distance: True})


class Registered:
    """A class that has all of a teacher's methods."""

    actions, observation_size, teachers = 2, 4, SHARDS

    def moves_within(self, distance: Any) -> bool:
        return True

    def __call__(self, asked: np.ndarray) -> np.ndarray:
        return np.ones((len(asked), 2))


def test_nobody_registers_a_class_or_calls_it_sottos(tmp_path: Path) -> None:
    TeacherRows.register(Registered)
    said = type("Said", (TeacherRows,), {"__module__": "sotto.said", "each": None, "teachers": 1})
    ledger = almost_exact(tmp_path)
    for teacher in (Registered(), object.__new__(said)):
        with pytest.raises(TypeError, match="give a function of yours to `RowsOf`"):
            ledger.answer("ann", ASKED, teacher, GeneratorSource())


def test_no_object_has_noise_or_a_constant_of_its_own() -> None:
    noise, ensemble = GeneratorSource(), Ensemble(network())
    with pytest.raises(AttributeError):
        noise.next = lambda: np.random.default_rng(0)  # type: ignore[method-assign]
    with pytest.raises(AttributeError):
        ensemble.lipschitz = 1e-4  # type: ignore[misc]


def test_a_later_change_of_the_policies_changes_no_proved_rows() -> None:
    """Arrays of numpy, which somebody goes on training in place."""
    policies = jax.tree.map(lambda x: np.array(x, np.float64), network())
    ensemble, asked = Ensemble(policies), np.ones((1, 4))
    rows, lipschitz = ensemble(asked), ensemble.lipschitz
    for weight in policies.network.weights:
        weight *= 1e3
    assert ensemble.lipschitz == lipschitz
    np.testing.assert_array_equal(ensemble(asked), rows)


@pytest.mark.parametrize("teachers", [1, 49, 51])
def test_the_ledger_refuses_fewer_or_more_teachers_than_stated(
    tmp_path: Path, teachers: int
) -> None:
    ledger = almost_exact(tmp_path)
    own = shards(always([1.0, 0.0]), teachers)
    with pytest.raises(ValueError, match=f"mean of 50 teachers, and here are {teachers};"):
        ledger.answer("ann", ASKED, own, GeneratorSource())
    assert ledger.spent().answered == 0


def test_the_ledger_refuses_noise_of_another_kind(tmp_path: Path) -> None:
    class Silent(GeneratorSource):
        def next(self) -> np.random.Generator:
            return np.random.default_rng(0)

    ledger = almost_exact(tmp_path)
    with pytest.raises(ValueError, match="promises noise from operating-system"):
        ledger.answer("ann", ASKED, shards(always([1.0, 0.0])), GeneratorSource(0))
    with pytest.raises(TypeError, match="noise from a `GeneratorSource`"):
        ledger.answer("ann", ASKED, shards(always([1.0, 0.0])), Silent())
    assert ledger.spent().answered == 0


def test_no_function_and_nothing_that_looks_like_rows_is_answered(tmp_path: Path) -> None:
    ledger = ledger_about(tmp_path, AnyTwoTeachers())
    looks: Any = SimpleNamespace(teachers=1, actions=3, moves_within=lambda distance: True)
    for own in (Unasked(3), looks):
        with pytest.raises(TypeError, match="answers from `TeacherRows`"):
            ledger.answer("ann", ASKED, own, GeneratorSource())
    assert ledger.spent().answered == 0


def of_two(row: Any) -> Callable[[np.ndarray], Any]:
    """A function that returns this where it is asked about two observations, as nobody is first."""
    return lambda asked: row if len(asked) == 2 else np.ones((1, 2))


LAST = np.array([[0.0], [1.0]])


def broken(asked: np.ndarray) -> np.ndarray:
    return np.stack([{0.0: np.array([1.0, 0.0])}[one] for one in asked[:, 0]])


@pytest.mark.parametrize(
    "last",
    [
        of_two(np.ones((2, 3))),
        of_two(np.ones((1, 2))),
        of_two(np.ones(2)),
        of_two(np.ones((2, 2), np.float32)),
        of_two(np.ones((2, 2), int)),
        of_two("no row"),
        of_two(None),
        broken,
    ],
)
def test_a_teacher_that_fails_has_uniform_rows_and_moves_the_mean_by_a_share(
    tmp_path: Path, last: Callable[[np.ndarray], Any]
) -> None:
    """An error would tell what the teacher learnt, for nothing and as often as somebody asks."""
    ledger = almost_exact(tmp_path)
    answered = ledger.answer("ann", ASKED + LAST, shards(last), GeneratorSource())
    expected = np.tile([0.5 / SHARDS, 1 - 0.5 / SHARDS], (2, 1))
    if last is broken:  # it has a row at the first observation
        expected[0] = [1 / SHARDS, 1 - 1 / SHARDS]
    np.testing.assert_allclose(answered.policies, expected, atol=1e-7)
    assert ledger.spent().answered == 2


def test_a_failing_row_is_found_by_halves() -> None:
    asked, sizes = np.arange(256.0)[:, None], []

    def one_fails(points: np.ndarray) -> np.ndarray:
        sizes.append(len(points))
        if 77.0 in points:
            raise KeyError
        return np.tile([1.0, 0.0], (len(points), 1))

    rows = RowsOf(one_fails, 2, 1)(asked)
    assert rows[77].tolist() == [0.5, 0.5]
    assert rows[:, 1].sum() == 0.5
    assert len(sizes) == 2 + 17  # twice at the start


class Panic(BaseException):
    """Libraries in Rust raise such ones."""


@pytest.mark.parametrize("failure", [MemoryError, SystemExit, Panic])
def test_nothing_that_a_teacher_raises_passes(failure: type[BaseException]) -> None:
    """Of numpy's MemoryError the message has a shape, which may follow from what was learnt."""

    def fails(points: np.ndarray) -> np.ndarray:
        if points.any():
            raise failure("the secret")
        return np.tile([1.0, 0.0], (len(points), 1))

    rows = RowsOf(fails, 2, 1)(np.array([[0.0], [1.0]]))
    assert rows.tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_a_teacher_is_interrupted_by_its_operator() -> None:
    def interrupted(points: np.ndarray) -> np.ndarray:
        if points.any():
            raise KeyboardInterrupt
        return np.tile([1.0, 0.0], (len(points), 1))

    with pytest.raises(KeyboardInterrupt):
        RowsOf(interrupted, 2, 1)(np.ones((1, 1)))


def test_no_warning_of_a_teacher_is_shown_in_any_thread() -> None:
    """Filters are those of all threads: who ends first would show the warnings of the others."""
    first_is_in, second_ended = threading.Event(), threading.Event()

    def slow(asked: np.ndarray) -> np.ndarray:
        if len(asked) == 1:  # at the start
            return asked[:, :2]
        first_is_in.set()
        second_ended.wait(0.5)
        warnings.warn("what the teacher learnt", stacklevel=1)
        return np.exp(asked[:, :2] + 1e6)

    def quick(asked: np.ndarray) -> np.ndarray:
        return asked[:, :2]

    rows, others = RowsOf(slow, 2, 4), RowsOf(quick, 2, 4)
    with warnings.catch_warnings(record=True) as shown, np.errstate(all="warn"):
        warnings.simplefilter("always")
        one = threading.Thread(target=rows.each, args=(ASKED,))
        one.start()
        first_is_in.wait()
        others.each(ASKED)
        second_ended.set()
        one.join()
    assert not shown


def test_no_object_has_more_teachers_or_a_proof_of_its_own(tmp_path: Path) -> None:
    own = RowsOf(always([1.0, 0.0]), 2, 4)
    with pytest.raises(AttributeError):
        own.teachers = SHARDS  # type: ignore[misc]
    own.each = lambda asked: np.ones((SHARDS, len(asked), 2))  # type: ignore[method-assign]
    own.moves_within = lambda distance: True  # type: ignore[method-assign]
    assert own(ASKED).tolist() == [[1.0, 0.0]] * 2
    near = ObservationDistance(radius=0.1, lipschitz=1e-9, rounding=1e-9)
    mechanism = GaussianPolicy(actions=2, noise_stddev=0.1)
    ledger = ledger_about(tmp_path, near, mechanism=mechanism)
    with pytest.raises(ValueError, match="not proved of this teacher's network"):
        ledger.answer("ann", ASKED, own, GeneratorSource())


def test_a_function_that_writes_into_the_question_changes_no_other_teacher() -> None:
    def wild(asked: np.ndarray) -> np.ndarray:
        asked[:] = 7
        return np.full((len(asked), 2), 0.5)

    def honest(asked: np.ndarray) -> np.ndarray:
        return np.stack([asked[:, 0], 1 - asked[:, 0]], axis=1)

    found = RowsOf([wild, honest], 2, 4)(np.zeros((1, 4)))
    np.testing.assert_array_equal(found, [[0.25, 0.75]])


@pytest.mark.parametrize("row", [np.ones((1, 3)), np.ones(2), np.ones((1, 2), np.float32), 1.0])
def test_mistakes_of_a_function_are_noticed_before_anybody_asks(row: Any) -> None:
    with pytest.raises(ValueError, match=r"must return float64 of shape \(1, 2\) at zero"):
        RowsOf(lambda asked: row, 2, 4)
    with pytest.raises(ValueError, match="at least one function"):
        RowsOf([], 2, 4)
    with pytest.raises(KeyError):  # of the function itself, to whoever wrote it
        RowsOf(lambda asked: {}[1], 2, 4)


def test_rows_of_another_number_of_actions_than_stated_cost_nothing(tmp_path: Path) -> None:
    ledger = ledger_about(tmp_path, TrainingShards(teachers=SHARDS))
    with pytest.raises(ValueError, match=r"policies must be an array \[rows, 3\]"):
        ledger.answer("ann", ASKED, shards(always([1.0, 0.0])), GeneratorSource())
    assert ledger.spent().answered == 0


def test_observations_of_another_size_or_beyond_the_bound_cost_nothing(tmp_path: Path) -> None:
    ledger = ledger_about(tmp_path, PolicyDistance(l2=0.1))
    for asked in (np.zeros((2, 5)), np.full((2, 4), 1e7), np.full((2, 4), math.nan)):
        with pytest.raises(ValueError, match="every entry a number between"):
            ledger.answer("ann", asked, RowsOf(Unasked(3), 3, 4), GeneratorSource())
    assert ledger.spent().answered == 0


def test_many_rows_are_those_of_each_alone() -> None:
    asked = np.random.default_rng(0).normal(size=(600, 3))
    sizes = []

    def sigmoid(observations: np.ndarray) -> np.ndarray:
        sizes.append(len(observations))
        first = 1 / (1 + np.exp(-observations[:, :1]))
        return np.concatenate([first, 1 - first], axis=1)

    own = RowsOf(sigmoid, 2, 3)
    first = 1 / (1 + np.exp(-asked[:, :1]))
    np.testing.assert_allclose(own(asked), np.concatenate([first, 1 - first], axis=1), rtol=1e-14)
    assert sizes == [1, 1, 256, 256, 88]
    assert own(asked[:0]).shape == (0, 2)
