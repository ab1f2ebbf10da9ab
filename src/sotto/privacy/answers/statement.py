"""The statement of a teacher, fixed before it answers: mechanism, distance, schedule and limits.

Students ask a teacher for rows of probabilities and get noisy ones. The statement contains
everything that the privacy analysis needs and nothing private, and students get it too. The noise
of a student's j-th answer depends on j alone, so nobody chooses a parameter after seeing an answer.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Literal, Self

import numpy as np
from jaxtyping import Float64
from pydantic import Field, model_validator

from sotto.frozen import FrozenModel
from sotto.privacy.accounting.composition import compose
from sotto.privacy.accounting.events import ApproximateDP, Event, Gaussian, NoGuarantee, Renyi
from sotto.privacy.answers.distances import (
    Distance,
    ObservationDistance,
    PolicyDistance,
    TrainingShards,
)
from sotto.privacy.mechanisms.gaussian_policy import LEFT_OUT
from sotto.privacy.mechanisms.policies import GaussianPolicy, PolicyMechanism
from sotto.privacy.statements import Gap
from sotto.privacy.units import PopulationKind

MOST_LEVELS = 10_000
"""Most levels of a schedule: the account of each takes up to an eighth of a second."""


class Schedule(FrozenModel):
    """A schedule of the concentration of a student's answers, by the number of the answer.

    Attributes:
        kind: "constant", or "vanishing": times `coefficient` after every rollout (Gohari et al.
            2021, Section 4). The cost of an answer then falls, but not to zero.
        coefficient: rho, at most 1.
        queries_per_rollout: number of answers to one student at one level.
        rollouts: number of levels. After the last one the student gets no answer; this is public.
    """

    kind: Literal["constant", "vanishing"] = "constant"
    coefficient: float = Field(default=1.0, gt=0, le=1)
    queries_per_rollout: int | None = Field(default=None, ge=1)
    rollouts: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        stops = (self.queries_per_rollout, self.rollouts)
        if self.kind == "vanishing" and None in stops:
            raise ValueError("a vanishing schedule states its queries_per_rollout and its rollouts")
        if self.kind == "constant" and (self.coefficient != 1 or stops != (None, None)):
            raise ValueError("a constant schedule has no coefficient, rollouts or their length")
        return self

    def level(self, query: int) -> int:
        """Returns the level of a student's query number `query`, counted from 0."""
        return query // self.queries_per_rollout if self.queries_per_rollout else 0

    @property
    def levels(self) -> int:
        """Number of levels."""
        return self.rollouts or 1

    @property
    def queries(self) -> float:
        """Number of answers a student can get; infinite where the schedule sets no limit."""
        if self.queries_per_rollout is None or self.rollouts is None:
            return math.inf
        return self.queries_per_rollout * self.rollouts


class AnswerStatement(FrozenModel):
    """All that the privacy analysis of a teacher's answers needs, fixed before the first answer.

    Attributes:
        name: name of the teacher, for people.
        mechanism: mechanism that makes rows private; its concentration is that of level 0.
        distance: definition of neighbouring inputs, and so of what an answer protects.
        schedule: levels of a student's answers.
        queries: public limit on answered rows of all students together, who may collude.
        queries_per_student: limit on answered rows of any one student.
        observation_size: length of an observation.
        population: whether the people behind the teacher are simulated.
        one_student: whether there is one student only, so that the level of every answer is known
            in advance.
        entropy: source of the noise.
        gaps: steps that are not private; one of them makes every answer a paper claim.
        accounting: 2 if a known L1 distance lowers the cost of answers, 1 if only the L2 distance
            counts. Statements of earlier versions do not have this field and keep the cost of 1.
    """

    name: str = Field(min_length=1)
    mechanism: PolicyMechanism
    distance: Distance
    schedule: Schedule = Schedule()
    queries: int = Field(ge=1)
    queries_per_student: int = Field(ge=1)
    observation_size: int = Field(ge=1)
    one_student: bool = Field(default=False, exclude_if=lambda value: not value)
    population: PopulationKind
    entropy: Literal["operating-system", "fixed-seed"] = "operating-system"
    gaps: tuple[Gap, ...] = ()
    accounting: Literal[1, 2] = Field(default=1, exclude_if=lambda value: value == 1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.queries_per_student > self.queries:
            raise ValueError(
                f"queries_per_student ({self.queries_per_student}) must be at most queries "
                f"({self.queries}), those of all students together"
            )
        if self.queries_per_student > self.schedule.queries:
            raise ValueError(
                f"queries_per_student ({self.queries_per_student}) must be at most "
                f"queries_per_rollout * rollouts ({self.schedule.queries}), its end"
            )
        if self.schedule.kind == "vanishing" and isinstance(self.mechanism, GaussianPolicy):
            raise ValueError("Gaussian answers have no concentration; use a constant schedule")
        self.mechanism_at(self.schedule.levels - 1)  # refuses a concentration that reaches 0
        return self

    # --- answering -------------------------------------------------------------------------------

    def level(self, query: int) -> int:
        """Returns the level of a student's query number `query`, which is known in advance."""
        return self.schedule.level(query)

    def mechanism_at(self, level: int) -> PolicyMechanism:
        """Returns the mechanism of one level: concentration * coefficient^level."""
        return _mechanism_at(self.mechanism, self.schedule.coefficient, level)

    def randomize(
        self,
        policies: Float64[np.ndarray, "rows actions"],
        levels: Sequence[int],
        generator: np.random.Generator,
    ) -> Float64[np.ndarray, "rows actions"]:
        """Returns private answers from the teacher's own rows, each at its level.

        Args:
            policies: the teachers' mean rows (`rows.TeacherRows`); they never leave this function.
            levels: level of each row, as the ledger gives it.
            generator: fresh, from `noise.GeneratorSource`.

        Raises:
            ValueError: there is not one row for each level.
        """
        chosen = np.asarray(levels)
        if len(chosen) != len(policies):
            raise ValueError(f"{len(policies)} rows need as many levels, got {len(chosen)}")
        answers = np.empty((len(policies), self.mechanism.actions))
        for level in np.unique(chosen).tolist():
            rows = chosen == level
            answers[rows] = self.mechanism_at(level).answer(policies[rows], generator)
        return answers

    # --- cost ------------------------------------------------------------------------------------

    def level_counts(self, answered: int) -> dict[int, int]:
        """Returns how many of a student's first `answered` queries lie in each level."""
        length = self.schedule.queries_per_rollout or max(answered, 1)
        whole, rest = divmod(answered, length)
        return dict.fromkeys(range(whole), length) | ({whole: rest} if rest else {})

    def events(self, counts: Mapping[int, int]) -> tuple[Event, ...]:
        """Returns the joint cost, for one unit, of so many answered rows of each level.

        Every row counts in full, because all of them may depend on the same unit.
        """
        if not any(counts.values()):
            return ()
        if self.gaps:
            return (NoGuarantee(reason="; ".join(gap.name for gap in self.gaps)),)
        if self.entropy == "fixed-seed":
            return (NoGuarantee(reason="the noise came from a fixed seed"),)
        return tuple(
            _repeated(event, count)
            for level, count in sorted(counts.items())
            if count
            for event in _one_answer(self.mechanism_at(level), self.distance, self.accounting)
        )

    def largest_cost(self, queries: int) -> tuple[Event, ...]:
        """Returns events that cost at least what any `queries` answers cost, whoever asks.

        Students choose which levels are asked for, and see answers before they choose. So this
        takes the largest divergence over all levels at every order, not the divergence of one
        level. The sum over the answers is then below it on every path, which composition with
        adaptively chosen mechanisms needs (Feldman and Zrnic 2021, Theorem 3.1). One student alone
        has no choice: the levels are those of their first `queries` answers.
        """
        if self.one_student:
            return self.events(self.level_counts(queries))
        return tuple(_repeated(event, queries) for event in _worst_answer(self))

    @property
    def least_delta(self) -> float:
        """Smallest delta of a budget, a hundred times the part that the noise leaves out of it."""
        if not isinstance(self.mechanism, GaussianPolicy):
            return 0.0
        return 100 * LEFT_OUT * max(1.0, self.queries / 1e6)

    def planned_epsilon(self, delta: float) -> float:
        """Returns the largest cost of all `queries` answers at delta; it may be infinite."""
        return compose(self.largest_cost(self.queries)).epsilon(delta)

    # --- in words --------------------------------------------------------------------------------

    @property
    def unit_sentence(self) -> str:
        """Unit, adjacency and distance in words."""
        sentence = self.distance.unit.sentence()
        match self.distance:
            case ObservationDistance(radius=radius):
                return (
                    f"{sentence} The stated distance is b = {radius:g} in L2 norm; epsilon covers "
                    "every answered observation being another one within b, all at once."
                )
            case PolicyDistance(l2=distance):
                return f"{sentence} The stated distance is {distance:g} in L2 norm, at every query."
            case TrainingShards(teachers=teachers):
                return (
                    f"{sentence} Answers are about the mean of {teachers} teachers trained on "
                    "disjoint people, so that one person changes one of them."
                )
            case _:
                return sentence


@functools.lru_cache(maxsize=4096)
def _mechanism_at(mechanism: PolicyMechanism, coefficient: float, level: int) -> PolicyMechanism:
    if level == 0 or isinstance(mechanism, GaussianPolicy):
        return mechanism
    return mechanism.at(mechanism.concentration * coefficient**level)


@functools.lru_cache(maxsize=4096)
def _one_answer(
    mechanism: PolicyMechanism, distance: Distance, accounting: int
) -> tuple[Event, ...]:
    """Returns the cost of one answer, from a cache because Renyi curves take long."""
    simplex = mechanism.actions, mechanism.floor
    l1 = distance.l1_between(*simplex) if accounting == 2 else math.inf
    return mechanism.events(distance.between(*simplex), 1, l1)


@functools.lru_cache(maxsize=64)
def _worst_answer(statement: AnswerStatement) -> tuple[Event, ...]:
    """Returns events that cost at least what one answer at any level costs."""
    levels = [statement.events({level: 1}) for level in range(statement.schedule.levels)]
    for event in chain.from_iterable(levels):
        if isinstance(event, NoGuarantee):
            return (event,)
    if len(levels) == 1:
        return levels[0]
    worst: list[Event] = []
    curves = [[one for one in events if isinstance(one, Renyi)] for events in levels]
    if any(curves):
        every = chain.from_iterable(curves)
        orders = tuple(sorted(set.intersection(*({*one.orders} for one in every))))
        sums = [np.sum([_at(one, orders) for one in events], axis=0) for events in curves if events]
        worst.append(Renyi(orders=orders, divergences=tuple(np.max(sums, axis=0).tolist())))
    pairs = [[one for one in events if isinstance(one, ApproximateDP)] for events in levels]
    if any(pairs):
        epsilon = max(math.fsum(one.count * one.epsilon for one in events) for events in pairs)
        delta = max(math.fsum(one.count * one.delta for one in events) for events in pairs)
        worst.append(ApproximateDP(epsilon=epsilon, delta=delta))
    return tuple(worst)


def _at(curve: Renyi, orders: Sequence[float]) -> list[float]:
    divergence = dict(zip(curve.orders, curve.divergences, strict=True))
    return [curve.count * divergence[order] for order in orders]


def _repeated(event: Event, count: int) -> Event:
    """Returns the event of `count` answers that cost `event` each."""
    if isinstance(event, NoGuarantee):
        return event
    if isinstance(event, Gaussian):
        return Gaussian(noise_multiplier=event.noise_multiplier / math.sqrt(count))
    return event.model_copy(update={"count": count * event.count})
