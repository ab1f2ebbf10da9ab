"""What a ledger answers: the mean of the stated teachers, of whom none moves it by more than 1/n.

The attack is by an author's own teachers, one of whom returns rows that are no probabilities.
"""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from asking import Alike, fail
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


class Shards(TeacherRows):
    """An author's own teachers, of whom the last one returns any row."""

    teachers, actions, observation_size = SHARDS, 2, 4

    def __init__(self, last: list[float]) -> None:
        self.last = last

    def each(self, observations: np.ndarray) -> np.ndarray:
        rows = np.tile([0.0, 1.0], (self.teachers, len(observations), 1))
        rows[-1] = self.last
        return rows


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
        ([-1e6, 0.0], 0.5),
        ([1e6, -1e6], 0.5),
        ([-1e-9, 1.0], 0.0),
        ([math.nan, 0.0], 0.5),
        ([math.inf, 0.0], 0.5),
        ([0.0, -math.inf], 0.5),
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
            ledger.answer("ann", ASKED, Shards(row), GeneratorSource()).policies
            for row in ([0.0, 1.0], last)
        )
    moved = np.linalg.norm(honest - other, axis=1)
    np.testing.assert_allclose(moved, share * math.sqrt(2) / SHARDS, atol=1e-7)
    assert ledger.spent().answered == 4


def test_an_answer_is_the_noisy_mean(tmp_path: Path) -> None:
    shards = TrainingShards(teachers=SHARDS)
    mechanism = GaussianPolicy(actions=2, noise_stddev=0.1)
    ledger = ledger_about(tmp_path, shards, mechanism=mechanism, entropy="fixed-seed")
    answered = ledger.answer("ann", ASKED, Shards([1.0, 0.0]), GeneratorSource(7))
    mean = np.tile([1 / SHARDS, 1 - 1 / SHARDS], (2, 1))
    expected = mechanism.answer(mean, GeneratorSource(7).next())
    np.testing.assert_allclose(answered.policies, expected, atol=1e-8)


def network() -> Policy:
    one = Policy(4, Discrete(3), (8,), jax.random.key(0))
    return jax.tree.map(lambda x: x[None], one)


class Steeper(Ensemble):
    """Rows that are not those of which the network's constants are proved."""

    def each(self, observations: np.ndarray) -> np.ndarray:
        return super().each(1e3 * observations)


def test_of_an_own_teacher_no_distance_of_observations_is_proved(tmp_path: Path) -> None:
    ensemble = Ensemble(network())
    constants = {"lipschitz": ensemble.lipschitz, "rounding": ensemble.rounding}
    ledger = ledger_about(tmp_path, ObservationDistance(radius=0.1, **constants))
    for own in (RowsOf(fail, 3, 4), Alike(ledger.statement, fail), Steeper(network())):
        with pytest.raises(ValueError, match="not proved of this teacher's network"):
            ledger.answer("ann", ASKED, own, GeneratorSource())
    assert ledger.spent().answered == 0
    assert ledger.answer("ann", ASKED, ensemble, GeneratorSource()).remaining == 58


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
    own = Shards([1.0, 0.0])
    own.teachers = teachers
    with pytest.raises(ValueError, match=f"mean of 50 teachers, and here are {teachers};"):
        ledger.answer("ann", ASKED, own, GeneratorSource())
    assert ledger.spent().answered == 0


def test_the_ledger_refuses_noise_of_another_kind(tmp_path: Path) -> None:
    class Silent(GeneratorSource):
        def next(self) -> np.random.Generator:
            return np.random.default_rng(0)

    ledger = almost_exact(tmp_path)
    with pytest.raises(ValueError, match="promises noise from operating-system"):
        ledger.answer("ann", ASKED, Shards([1.0, 0.0]), GeneratorSource(0))
    with pytest.raises(TypeError, match="noise from a `GeneratorSource`"):
        ledger.answer("ann", ASKED, Shards([1.0, 0.0]), Silent())
    assert ledger.spent().answered == 0


def test_no_function_and_nothing_that_looks_like_rows_is_answered(tmp_path: Path) -> None:
    ledger = ledger_about(tmp_path, AnyTwoTeachers())
    looks: Any = SimpleNamespace(teachers=1, actions=3, moves_within=lambda distance: True)
    for own in (fail, looks):
        with pytest.raises(TypeError, match="answers from `TeacherRows`"):
            ledger.answer("ann", ASKED, own, GeneratorSource())
    with pytest.raises(TypeError, match="define `each` instead of `__call__`"):

        class Finished(Shards):
            def __call__(self, observations: np.ndarray) -> np.ndarray:
                return np.full((len(observations), 2), 1e6)

    assert ledger.spent().answered == 0


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (lambda asked: np.ones((1, len(asked), 2)), "shape .50, 2, 2., and one of shape .1, 2, 2."),
        (lambda asked: np.ones((50, len(asked), 3)), "and one of shape .50, 2, 3. was computed"),
        (lambda asked: np.ones((50, 2)), "and one of shape .50, 2. was computed"),
        (lambda asked: np.ones((50, 2, 2), np.float32), "and these are in float32"),
        (lambda asked: np.ones((50, 2, 2), int), "and these are in int"),
    ],
)
def test_rows_of_another_shape_or_type_are_refused(
    tmp_path: Path, rows: Callable[[np.ndarray], np.ndarray], words: str
) -> None:
    ledger = almost_exact(tmp_path)
    own = Shards([1.0, 0.0])
    own.each = rows  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=words):
        ledger.answer("ann", ASKED, own, GeneratorSource())
    assert ledger.spent().answered == 0


def test_rows_of_another_number_of_actions_than_stated_cost_nothing(tmp_path: Path) -> None:
    ledger = ledger_about(tmp_path, TrainingShards(teachers=SHARDS))
    with pytest.raises(ValueError, match=r"policies must be an array \[rows, 3\]"):
        ledger.answer("ann", ASKED, Shards([1.0, 0.0]), GeneratorSource())
    assert ledger.spent().answered == 0


def test_observations_of_another_size_or_beyond_the_bound_cost_nothing(tmp_path: Path) -> None:
    ledger = ledger_about(tmp_path, PolicyDistance(l2=0.1))
    for asked in (np.zeros((2, 5)), np.full((2, 4), 1e7), np.full((2, 4), math.nan)):
        with pytest.raises(ValueError, match="every entry a number between"):
            ledger.answer("ann", asked, RowsOf(fail, 3, 4), GeneratorSource())
    assert ledger.spent().answered == 0


def test_many_rows_are_those_of_each_alone() -> None:
    asked = np.random.default_rng(0).normal(size=(600, 3))
    sizes = []

    def softmax(observations: np.ndarray) -> np.ndarray:
        sizes.append(len(observations))
        return np.exp(observations)

    rows = RowsOf(softmax, 3, 3)(asked)
    expected = np.exp(asked) / np.exp(asked).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(rows, expected, rtol=1e-14)
    assert sizes == [256, 256, 88]
    assert RowsOf(softmax, 3, 3)(asked[:0]).shape == (0, 3)
