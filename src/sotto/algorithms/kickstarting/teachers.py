"""Teachers, which answer a student's observations with rows of probabilities.

A student only needs the `Teacher` protocol. `ExactTeacher` answers with its own rows and protects
nobody. `LocalTeacher` answers through a ledger in the same process, and
`sotto.serving.client.RemoteTeacher` asks a teacher on another machine. All of them refuse
observations beyond a public bound.
"""

import math
from functools import cached_property
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Float64, Int

from sotto.privacy.answers.distances import Distance, ObservationDistance
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.answers.observations import LARGEST
from sotto.privacy.answers.rows import TeacherRows, require_proved
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.mechanisms.functions.lipschitz import certified_lipschitz
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.rl.distributions import Categorical
from sotto.rl.networks import MLP, Policy

_UNIT = 2.0**-53  # relative error of an operation in float64
_SAME = 1 + 1e-6  # ratio of two computations of a Lipschitz constant, which is rounded up by more


class Answers(NamedTuple):
    """Answers of a teacher to some observations."""

    policies: Float64[np.ndarray, "rows actions"]
    """Rows of probabilities. They are uniform if the teacher is silent."""
    levels: Int[np.ndarray, " rows"]
    """Step of the schedule that each answer belongs to, which determines its noise."""
    released: bool
    """Whether the teacher answered. A silent teacher's rows depend on no data."""


class Teacher(Protocol):
    """Teacher that a student can ask."""

    actions: int
    observation_size: int

    @property
    def statement(self) -> AnswerStatement | None:
        """Statement that the answers keep. None: the answers are exact."""

    def answer(self, observations: Float[np.ndarray, "rows obs"]) -> Answers:
        """Returns one row for each observation. All rows are charged before they are returned.

        A teacher that may not answer all observations answers none of them, and charges nothing.

        Raises:
            ValueError: an observation is not within `observations.LARGEST`. Nothing is charged.
        """


class TeacherFacts(Protocol):
    """Public facts about a teacher from which its statement is made."""

    @property
    def actions(self) -> int:
        """Length of a row."""

    @property
    def observation_size(self) -> int:
        """Length of an observation."""

    @property
    def teachers(self) -> int:
        """Number of policies over which the mean is taken."""

    @property
    def lipschitz(self) -> float:
        """Certified L2 Lipschitz constant of the mean row, input scaling included."""

    @property
    def rounding(self) -> float:
        """Bound on the distance by which rounding moves a row, for accepted observations."""


class ExactTeacher:
    """Teacher that answers with its own rows, and protects nobody."""

    statement = None

    def __init__(self, rows: TeacherRows) -> None:
        self._rows = rows
        self.actions = rows.actions
        self.observation_size = rows.observation_size

    def answer(self, observations: Float[np.ndarray, "rows obs"]) -> Answers:
        """Returns the rows themselves."""
        rows = self._rows(observations)
        return Answers(rows, np.zeros(len(rows), int), True)


class LocalTeacher:
    """Teacher in this process, which charges its ledger before it answers.

    Guarantee:
        Every row that is returned comes from `AnswerLedger.answer`, which adds noise and charges
        (docs/privacy.md, section 12), or is uniform.

    Args:
        rows: the teacher's own rows.
        ledger: the statement, and the charges so far.
        student: name of the student in the ledger.
        noise: for tests only. A fixed seed must be stated in the ledger, and voids the certificate.

    Raises:
        ValueError, TypeError: the noise is not of the stated kind, or the teacher's rows move
            further than stated (`rows.require_proved`).
    """

    def __init__(
        self,
        rows: TeacherRows,
        ledger: AnswerLedger,
        student: str,
        noise: GeneratorSource | None = None,
    ) -> None:
        self._rows = rows
        self._ledger = ledger
        self._student = student
        self._noise = noise or GeneratorSource()
        require_proved(rows, self._noise, ledger.statement)
        self.statement = ledger.statement
        self.actions = self.statement.mechanism.actions
        self.observation_size = self.statement.observation_size

    def answer(self, observations: Float[np.ndarray, "rows obs"]) -> Answers:
        """Returns private rows, or silence once budget, schedule or queries are spent."""
        try:
            answered = self._ledger.answer(self._student, observations, self._rows, self._noise)
        except BudgetExceeded:
            return silent_answers(len(observations), self.actions)
        return Answers(answered.policies, np.asarray(answered.levels, int), True)


def silent_answers(rows: int, actions: int) -> Answers:
    """Returns the answers of a silent teacher: the uniform row for every observation."""
    return Answers(np.full((rows, actions), 1 / actions), np.zeros(rows, int), False)


class Ensemble(TeacherRows):
    """Policies of one shape as teachers, computed in float64.

    Args:
        policies: policies over discrete actions, with a leading axis of policies, which may be 1.

    Raises:
        ValueError: the actions are not discrete.
    """

    def __init__(self, policies: Policy) -> None:
        if policies.log_std is not None:
            raise ValueError("a teacher must have a finite set of actions; choose another run")
        network = policies.network
        self._policies = policies
        # Copies, so that whoever changes the policies leaves the constants below true.
        self._scale = np.array(policies.observation_scale, np.float64)
        centre = policies.observation_centre
        self._centre = np.zeros_like(self._scale) if centre is None else np.array(centre)
        self._weights = [np.array(one, np.float64) for one in network.weights]
        self._biases = [np.array(one, np.float64)[:, None, :] for one in network.biases]
        self.observation_size: int = self._weights[0].shape[1]
        self.actions: int = self._weights[-1].shape[-1]

    @property
    def teachers(self) -> int:
        """Number of policies."""
        return len(self._weights[0])

    def each(
        self, observations: Float64[np.ndarray, "rows obs"]
    ) -> Float64[np.ndarray, "teachers rows actions"]:
        """Returns each policy's row at each observation."""
        values = ((observations - self._centre) * self._scale)[None]
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            values = np.tanh(values @ weight + bias)
        logits = values @ self._weights[-1] + self._biases[-1]
        rows: Float64[np.ndarray, "teachers rows actions"]
        rows = np.exp(logits - logits.max(axis=-1, keepdims=True))
        rows /= rows.sum(axis=-1, keepdims=True)
        return rows

    @property
    def lipschitz(self) -> float:
        """Certified L2 Lipschitz constant of the mean row: the mean of the policies' constants."""
        return self._lipschitz

    @cached_property
    def _lipschitz(self) -> float:
        constants = [
            certified_lipschitz([weight[i] for weight in self._weights], self._scale.tolist())
            for i in range(self.teachers)
        ]
        return float(np.mean(constants))

    @property
    def rounding(self) -> float:
        """Bound on the L2 error of a computed mean row, after it was mixed with the uniform row.

        It comes from a forward error analysis of this network in float64, for observations within
        `observations.LARGEST` (docs/privacy.md, section 12). It has two decimal digits, rounded up.
        """
        return float(f"{1.06 * self._rounding:.1e}")

    def moves_within(self, distance: Distance) -> bool:
        """Returns whether rows of neighbouring observations are as near as stated."""
        return not isinstance(distance, ObservationDistance) or (
            self.lipschitz <= distance.lipschitz * _SAME and self._rounding <= distance.off
        )

    @cached_property
    def _rounding(self) -> float:
        largest = (LARGEST + np.abs(self._centre)) * np.abs(self._scale)
        size, off = largest[None, None], 4 * _UNIT * largest[None, None]
        last = len(self._weights) - 1
        with np.errstate(over="ignore", invalid="ignore"):
            for layer, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
                gain, roundings = np.abs(weight), (weight.shape[1] + 4) * _UNIT
                off = off @ gain + roundings * ((size + off) @ gain + np.abs(bias))
                if layer < last:  # tanh: slope and values at most 1, computed to 4 units
                    off = np.fmin(off, 2.0) + 8 * _UNIT
                    size = np.ones_like(off)
            moved = np.fmin(0.5 * np.linalg.norm(off, axis=-1), math.sqrt(2.0))
        return float(moved.mean()) + (5 * self.actions + self.teachers + 36) * _UNIT

    @property
    def policy(self) -> Policy:
        """Policy in JAX that is the mean, for evaluation in an environment."""
        return _Mean(self._policies)


class _Mean(Policy):
    """Policy whose probabilities are the mean of several policies' probabilities."""

    def __init__(self, policies: Policy) -> None:
        self.network, self.log_std = policies.network, None
        self.observation_scale = policies.observation_scale
        self.observation_centre = policies.observation_centre
        self.action_scale = self.action_centre = None

    def __call__(self, observation: Float[Array, "*batch obs"]) -> Categorical:
        """Returns the mean at each observation."""

        def one(network: MLP) -> Float[Array, "*batch n"]:
            alone = eqx.tree_at(lambda policy: policy.network, self, network)
            distribution = Policy.__call__(alone, observation)
            assert isinstance(distribution, Categorical)
            return jax.nn.log_softmax(distribution.logits)

        return Categorical(jax.nn.logsumexp(jax.vmap(one)(self.network), axis=0))
