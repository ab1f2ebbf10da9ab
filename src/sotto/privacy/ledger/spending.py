"""Who took part in what, and what it costs the worst person: the arithmetic of the ledger.

An `Account` is the state that a ledger's entries add up to. Its checks change nothing, and its
updates check nothing: the ledger checks, writes the entry durably, and only then updates.

Guarantee:
    People are grouped by the set of streams they took part in; a person pays for their own streams
    and nobody else's, and the answer is the maximum over people. This parallel composition of
    disjoint people is sound (theory notes, Theorem 2) because who takes part in a release is fixed
    in advance or by earlier releases, and every state that is carried on is a function of
    releases: given those, a release in which somebody has no part does not depend on them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from pydantic import BaseModel, ConfigDict, field_validator

from sotto.privacy.accounting.composition import Event, NoGuarantee, PrivacyCurve, compose
from sotto.privacy.errors import (
    BudgetExceeded,
    HorizonExceeded,
    LedgerMismatch,
    ParticipationViolation,
)
from sotto.privacy.ledger.persons import PersonBlock, PersonSet
from sotto.privacy.mechanisms.noise import SAMPLER_SHARE
from sotto.privacy.statements import Once, Poisson, Returning, StreamStatement, is_exclusive
from sotto.privacy.units import Unit


class Budget(BaseModel):
    """What the worst person may pay: (epsilon, delta).

    Attributes:
        epsilon: positive; infinity states that there is no target.
        delta: strictly between 0 and 1, and below 1 / (number of persons).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
    epsilon: float
    delta: float

    @field_validator("epsilon")
    @classmethod
    def _epsilon(cls, value: float) -> float:
        if not value > 0:
            raise ValueError(f"a budget's epsilon must be positive (inf: no target), got {value}")
        return value

    @field_validator("delta")
    @classmethod
    def _delta(cls, value: float) -> float:
        if not 0 < value < 1:
            raise ValueError(f"a budget's delta must be strictly between 0 and 1, got {value}")
        return value


# --- cost ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Composition:
    """What one group of persons pays: the streams they took part in, composed.

    Attributes:
        streams: indices of the streams, in the order they were opened.
        events: one event per stream.
        sampler_delta: delta that the noise samplers of these streams cost together.
    """

    streams: tuple[int, ...]
    events: tuple[Event, ...]
    sampler_delta: float
    curve: PrivacyCurve

    def epsilon(self, delta: float) -> float:
        """Epsilon at delta, of which the samplers take their share first."""
        left = delta - self.sampler_delta
        return self.curve.epsilon(left) if left > 0 else math.inf


@dataclass(frozen=True)
class Spent:
    """What has been spent on the worst person, as a function of delta.

    Attributes:
        epsilon: at `delta`; infinite where nothing is proved.
        delta: the budget's.
        worst: the composition that costs `epsilon`.
        compositions: of every group of persons whose streams are not all another group's.
        persons: how many persons took part, or may have.
    """

    epsilon: float
    delta: float
    worst: Composition
    compositions: tuple[Composition, ...]
    persons: int

    def epsilon_at(self, delta: float) -> float:
        """The worst person's epsilon at another delta.

        Raises:
            ValueError: if delta is not in (0, 1), or is finer than the accountant resolves.
        """
        return max(composition.epsilon(delta) for composition in self.compositions)


def groups(streams: Sequence[PersonSet]) -> set[frozenset[int]]:
    """The distinct sets of streams (by index) in which some person is a member.

    A sweep over the ends of all blocks: between two of them everybody is in the same streams.
    """
    ends = sorted(
        (end, index) for index, people in enumerate(streams) for b in people.blocks for end in b
    )
    found: set[int] = set()
    inside, position = 0, -1
    for end, index in ends:
        if end > position and inside:
            found.add(inside)
        inside ^= 1 << index
        position = end
    return {frozenset(i for i in range(len(streams)) if bits >> i & 1) for bits in found}


def _worst(
    sets: set[frozenset[int]],
    statements: Sequence[StreamStatement],
    delta: float,
    persons: int,
) -> Spent:
    largest = [one for one in sets if not any(one < other for other in sets)] or [frozenset()]
    # Groups that pay for equal events, such as the streams of a resumed run, are composed once.
    distinct: dict[tuple[tuple[str, ...], float], Composition] = {}
    for indices in sorted(tuple(sorted(one)) for one in largest):
        events = tuple(statements[i].event for i in indices)
        samplers = math.fsum(statements[i].sampler_delta for i in indices)
        key = (tuple(sorted(event.model_dump_json() for event in events)), samplers)
        if key not in distinct:
            distinct[key] = Composition(indices, events, samplers, compose(events))
    compositions = tuple(distinct.values())
    worst = max(compositions, key=lambda composition: composition.epsilon(delta))
    return Spent(worst.epsilon(delta), delta, worst, compositions, persons)


# --- the account ---------------------------------------------------------------------------------


@dataclass
class StreamRecord:
    """One stream: its statement, how many releases were charged, and who took part.

    `history` is of returning persons: participations so far, and the release from which they may
    take part again.
    """

    statement: StreamStatement
    releases: int = 0
    persons: PersonSet = field(default_factory=PersonSet)
    history: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Account:
    """What a ledger's entries add up to."""

    unit: Unit
    budget: Budget
    streams: list[StreamRecord] = field(default_factory=list)
    everyone: PersonSet = field(default_factory=PersonSet)

    @property
    def next_person(self) -> int:
        """The first enrolment number that nobody has, populations of Poisson streams included."""
        populations = (
            record.statement.participation.population
            for record in self.streams
            if isinstance(record.statement.participation, Poisson)
        )
        return max(self.everyone.next_person, *populations, 0)

    def spent(self) -> Spent:
        """What the streams charged so far cost the worst person, each to its horizon.

        A charged stream counts even if all its slots were empty.
        """
        sets = groups([record.persons for record in self.streams])
        sets |= {frozenset({i}) for i, record in enumerate(self.streams) if record.releases}
        statements = [record.statement for record in self.streams]
        return _worst(sets, statements, self.budget.delta, len(self.everyone))

    def check_open(self, statement: StreamStatement, live: Iterable[int]) -> None:
        """Refuses a stream that the budget does not cover to its horizon.

        The worst case is a person who took part in what was charged so far, and then takes part in
        every stream that is still `live` and in the new one, each to its horizon. A person of an
        exclusive stream takes part in nothing else. So charging needs no further look at epsilon.

        Raises:
            LedgerMismatch: another unit or adjacency.
            BudgetExceeded: over budget, delta too large, or too little noise for the sampler.
        """
        if statement.unit != self.unit:
            raise LedgerMismatch(
                f"this ledger protects one {_unit_name(self.unit)}, and the stream "
                f"{statement.name!r} one {_unit_name(statement.unit)}; use a ledger of its own"
            )
        proved = not isinstance(statement.event, NoGuarantee)
        if proved and statement.sampler_delta > self.budget.delta / SAMPLER_SHARE:
            raise BudgetExceeded(
                f"the noise sampler alone costs delta {statement.sampler_delta:.2g}, more than a "
                f"hundredth of the budget's {self.budget.delta:.2g}; use a larger noise_multiplier"
            )
        participation = statement.participation
        if isinstance(participation, Poisson):
            self._check_delta(participation.population)

        self._check_live(statement, live, [statement])

    def check_resume(self, index: int, live: Iterable[int]) -> None:
        """Refuses to go on with a stream that the budget no longer covers to its horizon.

        Raises:
            BudgetExceeded: streams opened since have taken what it would need.
        """
        self._check_live(self.streams[index].statement, (*live, index), [])

    def _check_live(
        self, statement: StreamStatement, live: Iterable[int], new: list[StreamStatement]
    ) -> None:
        """Refuses `statement` if the live streams and the new ones may exceed the budget."""
        sets = groups([record.persons for record in self.streams])
        statements = [record.statement for record in self.streams] + new
        returning: set[int] = set()
        for index in (*live, *range(len(self.streams), len(statements))):
            sets.add(frozenset({index}))
            if not is_exclusive(statements[index].participation):
                returning.add(index)
        sets = {
            one if any(is_exclusive(statements[i].participation) for i in one) else one | returning
            for one in sets
        }
        worst = _worst(sets, statements, self.budget.delta, persons=0)
        if worst.epsilon > self.budget.epsilon:
            raise BudgetExceeded(_over_budget(statement, worst, self.budget))

    def check_charge(
        self, index: int, first_release: int, releases: Sequence[tuple[PersonBlock, ...]]
    ) -> None:
        """Refuses releases that the stream's statement does not cover.

        Args:
            index: the stream.
            first_release: number of the first of these releases; a stream has no holes.
            releases: who takes part in each.

        Raises:
            LedgerMismatch: `first_release` is not the next one.
            HorizonExceeded: more releases than stated.
            ParticipationViolation: somebody takes part too often or too soon.
            BudgetExceeded: too many persons for the budget's delta.
        """
        record = self.streams[index]
        name, horizon = record.statement.name, record.statement.horizon
        if not releases:
            raise ValueError("a charge is for at least one release")
        if first_release != record.releases:
            raise LedgerMismatch(
                f"the next release of {name!r} is number {record.releases}, not {first_release}"
            )
        if first_release + len(releases) > horizon:
            raise HorizonExceeded(
                f"{name!r} was opened for {horizon} releases and {first_release} are made; "
                f"{len(releases)} more are not covered, open a new stream for them"
            )
        blocks = sorted(block for release in releases for block in release)
        match record.statement.participation:
            case Once():
                self._check_newcomers(blocks)
            case Returning() as rule:
                self._refuse_members(index, blocks, of_all=rule.exclusive)
                _participations(rule, record.history, first_release, releases)
            case Poisson():
                self._refuse_members(index, blocks[:1], of_all=False)
                blocks = blocks[:1]
        self._check_delta(len(self.everyone) + self._newcomers(blocks))

    def apply_open(self, statement: StreamStatement) -> None:
        """Adds a stream."""
        self.streams.append(StreamRecord(statement))

    def apply_charge(self, index: int, releases: Sequence[tuple[PersonBlock, ...]]) -> None:
        """Adds releases of a stream."""
        record = self.streams[index]
        if isinstance(rule := record.statement.participation, Returning):
            record.history |= _participations(rule, record.history, record.releases, releases)
        for block in chain.from_iterable(releases):
            record.persons.add(block)
            self.everyone.add(block)
        record.releases += len(releases)

    def _check_delta(self, persons: int) -> None:
        if self.budget.delta * persons >= 1:
            raise BudgetExceeded(
                f"delta {self.budget.delta:.2g} is vacuous for {self.unit.counted(persons)}, since "
                "publishing one of them at random would meet it; use a budget with delta below "
                f"1/{persons}"
            )

    def _newcomers(self, blocks: Sequence[PersonBlock]) -> int:
        people = PersonSet()
        for block in blocks:
            people.add(block)
        return len(people) - sum(map(self.everyone.count_common, people.blocks))

    def _check_newcomers(self, blocks: Sequence[PersonBlock]) -> None:
        """Refuses anybody who took part in anything before. `blocks` are sorted."""
        for one, other in pairwise(blocks):
            if other.start < one.stop:
                raise _once(other.start)
        for block in blocks:
            if (person := self.everyone.first_common(block)) is not None:
                raise _once(person)

    def _refuse_members(self, index: int, blocks: Sequence[PersonBlock], *, of_all: bool) -> None:
        """Refuses anybody who is in another stream that is exclusive, or in any (`of_all`)."""
        for other, record in enumerate(self.streams):
            if other != index and (of_all or is_exclusive(record.statement.participation)):
                for block in blocks:
                    if (person := record.persons.first_common(block)) is not None:
                        raise _once(person)


def _participations(
    rule: Returning,
    history: Mapping[int, tuple[int, int]],
    first_release: int,
    releases: Sequence[tuple[PersonBlock, ...]],
) -> dict[int, tuple[int, int]]:
    """The new history of everybody in these releases; refuses one too many or too soon."""
    new: dict[int, tuple[int, int]] = {}
    for number, release in enumerate(releases, first_release):
        for person in chain.from_iterable(range(*block) for block in release):
            taken, free_from = new.get(person) or history.get(person, (0, 0))
            if taken == rule.max_participations:
                raise ParticipationViolation(
                    f"person {person} has taken part {taken} times, as often as the stream "
                    f"allows; leave their slot empty in release {number}"
                )
            if number < free_from:
                raise ParticipationViolation(
                    f"person {person} may take part again from release {free_from} on, not in "
                    f"release {number}: participations are {rule.min_separation} releases apart"
                )
            new[person] = (taken + 1, number + rule.min_separation)
    return new


def _once(person: int) -> ParticipationViolation:
    return ParticipationViolation(
        f"person {person} took part before, and whoever takes part in a stream that is once-only "
        "or exclusive does so in nothing else; number new people from `ledger.next_person` on"
    )


def _unit_name(unit: Unit) -> str:
    return f"{unit.kind} under {unit.adjacency.value} adjacency"


def _over_budget(statement: StreamStatement, worst: Spent, budget: Budget) -> str:
    for event in worst.worst.events:
        if isinstance(event, NoGuarantee):
            return (
                f"nothing can be proved about {statement.name!r} or what it adds to "
                f"({event.reason}); only a budget of epsilon infinity covers that"
            )
    return (
        f"{statement.name!r} with its {statement.horizon} releases would bring the worst "
        f"{statement.unit.name} to epsilon {worst.epsilon:.4g} at delta {budget.delta:.2g}, over "
        f"the budget of {budget.epsilon:.4g}; add noise, plan fewer releases, or state a larger "
        "budget"
    )
