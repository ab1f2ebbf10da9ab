"""What a teacher promises before it answers anybody: mechanism, distance, schedule, how many.

Students ask a teacher for rows of probabilities and get noisy ones. The statement holds everything
the privacy analysis needs and nothing private: the student gets it too. How noisy a student's j-th
answer is depends on j alone, so nobody chooses a parameter after having seen an answer.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Literal, Self

import numpy as np
from jaxtyping import Float, Float64
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sotto.privacy.accounting.composition import compose
from sotto.privacy.accounting.events import ApproximateDP, Event, Gaussian, NoGuarantee, Renyi
from sotto.privacy.answers.distances import (
    Distance,
    ObservationDistance,
    PolicyDistance,
    TrainingShards,
)
from sotto.privacy.mechanisms.policies import GaussianPolicy, PolicyMechanism
from sotto.privacy.statements import Gap

_FROZEN = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Schedule(BaseModel):
    """How the concentration of a student's answers goes down, by the number of the answer.

    Attributes:
        kind: "constant", or "vanishing": times `coefficient` after every roll-out (Gohari et al.
            2021, Section 4). The cost of an answer falls, but not to zero.
        coefficient: rho, at most 1.
        queries_per_rollout: answers to one student at one level.
        rollouts: levels; after the last one the student gets no answer. This stop is public.
    """

    model_config = _FROZEN
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
        """Of a student's query number `query`, counted from 0."""
        return query // self.queries_per_rollout if self.queries_per_rollout else 0

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return self.rollouts or 1

    @property
    def queries(self) -> float:
        """How many answers a student can get; infinity where the schedule does not say."""
        if self.queries_per_rollout is None or self.rollouts is None:
            return math.inf
        return self.queries_per_rollout * self.rollouts


class AnswerStatement(BaseModel):
    """Everything the privacy analysis of a teacher's answers needs, fixed before the first one.

    Attributes:
        name: of the teacher, for people.
        mechanism: makes rows private; its concentration is that of level 0.
        distance: what neighbouring inputs are, and so what an answer protects.
        schedule: levels of a student's answers.
        queries: answered rows of all students together, who may collude: the public hard stop.
        queries_per_student: answered rows of any one student.
        observation_size: length of an observation.
        population: whether the people behind the teacher are simulated.
        one_student: whether there is one student only, so that the level of every answer is known
            in advance.
        entropy: where the noise comes from.
        gaps: steps that are not private; one makes every answer a paper claim.
        accounting: 2 where answers are charged for what is known of their L1 distance too, 1 for
            the L2 distance alone. What was stated before there was a choice says nothing, and keeps
            the cost it was stated with.
    """

    model_config = _FROZEN

    name: str = Field(min_length=1)
    mechanism: PolicyMechanism
    distance: Distance
    schedule: Schedule = Schedule()
    queries: int = Field(ge=1)
    queries_per_student: int = Field(ge=1)
    observation_size: int = Field(ge=1)
    one_student: bool = Field(default=False, exclude_if=lambda value: not value)
    population: Literal["simulated", "real"]
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
        self.mechanism_at(self.schedule.levels - 1)  # a concentration above 0 at every level
        return self

    # --- answering -------------------------------------------------------------------------------

    def level(self, query: int) -> int:
        """Level of a student's query number `query`, counted from 0: known in advance."""
        return self.schedule.level(query)

    def mechanism_at(self, level: int) -> PolicyMechanism:
        """The mechanism of one level: concentration * coefficient^level."""
        return _mechanism_at(self.mechanism, self.schedule.coefficient, level)

    def randomize(
        self,
        policies: Float[np.ndarray, "rows actions"],
        levels: Sequence[int],
        generator: np.random.Generator,
    ) -> Float64[np.ndarray, "rows actions"]:
        """Private answers from the teacher's own rows, each at its level.

        Args:
            policies: the teacher's rows; they never leave this function.
            levels: one for each row, as the ledger gives them.
            generator: fresh, from `noise.GeneratorSource`.
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
        """How many of a student's first `answered` queries lie in each level."""
        length = self.schedule.queries_per_rollout or max(answered, 1)
        whole, rest = divmod(answered, length)
        return dict.fromkeys(range(whole), length) | ({whole: rest} if rest else {})

    def events(self, counts: Mapping[int, int]) -> tuple[Event, ...]:
        """What so many answered rows of each level cost together, for one unit.

        Every one of them counts in full: all may touch the same unit.
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
        """Events that cost at least what any `queries` answers cost, whoever asks for them.

        Which levels are asked for is the students' choice, made as they see answers. So this takes
        the largest divergence over all levels at every order, not the divergence of one level: the
        sum over the answers is then below it on every path, which is what composition with
        adaptively chosen mechanisms needs (Feldman and Zrnic 2021, Theorem 3.1). One student alone
        chooses nothing: the levels are those of their first `queries` answers.
        """
        if self.one_student:
            return self.events(self.level_counts(queries))
        return tuple(_repeated(event, queries) for event in _worst_answer(self))

    def planned_epsilon(self, delta: float) -> float:
        """What all `queries` answers cost at most, at delta; infinite where nothing is proved."""
        return compose(self.largest_cost(self.queries)).epsilon(delta)

    # --- in words --------------------------------------------------------------------------------

    @property
    def unit_sentence(self) -> str:
        """The unit, its adjacency and its distance, for a person."""
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
    """What one answer costs. Renyi curves take a while, and there are few of them."""
    simplex = mechanism.actions, mechanism.floor
    l1 = distance.l1_between(*simplex) if accounting == 2 else math.inf
    return mechanism.events(distance.between(*simplex), 1, l1)


@functools.lru_cache(maxsize=64)
def _worst_answer(statement: AnswerStatement) -> tuple[Event, ...]:
    """Events that cost at least what one answer at any level costs."""
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
    """`count` answers that cost `event` each."""
    if isinstance(event, NoGuarantee):
        return event
    if isinstance(event, Gaussian):
        return Gaussian(noise_multiplier=event.noise_multiplier / math.sqrt(count))
    return event.model_copy(update={"count": count * event.count})
