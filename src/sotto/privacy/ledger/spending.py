"""The account of a ledger: its streams, the people in them, and the rules for both.

An `Account` is the state that a ledger's entries add up to. Its checks change nothing, and its
updates check nothing: the ledger checks, writes the entry durably, and only then updates.

Guarantee:
    `Account.spent` bounds the cost for every person, also where the results of earlier releases
    decide which streams are opened, which of them are charged, and who takes part
    (docs/privacy.md, section 8). Ledgers of earlier versions (`sharing="assumed"`) need the
    assumption that their users decided this before the first release.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

from pydantic import field_validator

from sotto.frozen import FrozenModel
from sotto.privacy.accounting.composition import Gaussian, NoGuarantee, compose
from sotto.privacy.errors import BudgetExceeded, HorizonExceeded, LedgerCorrupt, LedgerMismatch
from sotto.privacy.ledger.costs import (
    SAMPLER_RESERVE,
    Composition,
    Group,
    Spent,
    composed,
    filter_bound,
    groups,
    shift_of,
    worst_of,
)
from sotto.privacy.ledger.persons import PersonBlock, PersonSet
from sotto.privacy.ledger.records import StreamRecord, participations, require_alike, took_part
from sotto.privacy.mechanisms.noise import SAMPLER_SHARE
from sotto.privacy.statements import (
    Once,
    Poisson,
    Returning,
    Sharing,
    StreamStatement,
)
from sotto.privacy.units import Unit

_FILTER = "privacy filter of Gaussian releases, whose bound is the budget (docs/privacy.md, 8)"


class Budget(FrozenModel):
    """The most that the worst person may pay: (epsilon, delta).

    Attributes:
        epsilon: positive; infinity states that there is no target.
        delta: strictly between 0 and 1, and below 1 / (number of persons).
    """

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


# --- the account ---------------------------------------------------------------------------------


@dataclass
class Account:
    """The sum of a ledger's entries.

    Attributes:
        unit, budget: of the ledger.
        streams: in the order they were opened.
        everyone: persons who took part in anything.
        sharing: the rule for streams that share people.
        unplanned: whether such a stream was opened after one of them was charged.
    """

    unit: Unit
    budget: Budget
    streams: list[StreamRecord] = field(default_factory=list)
    everyone: PersonSet = field(default_factory=PersonSet)
    sharing: Sharing = "planned"
    unplanned: bool = False

    def __post_init__(self) -> None:
        if self.sharing == "adaptive" and math.isinf(self.budget.epsilon):
            raise ValueError("an adaptive ledger certifies its budget; give it a finite epsilon")

    @property
    def next_person(self) -> int:
        """The first unused enrolment number, beyond all populations of Poisson streams."""
        populations = (
            record.statement.participation.population
            for record in self.streams
            if isinstance(record.statement.participation, Poisson)
        )
        return max(self.everyone.next_person, *populations, 0)

    def spent(self) -> Spent:
        """Returns the cost of the charged streams for the worst person, each to its horizon.

        A charged stream counts even if all its slots were empty. Once a stream of shared people was
        charged, all that were opened count, or under `adaptive` the budget.
        """
        charged = {i for i, record in enumerate(self.streams) if record.releases}
        sets = groups([record.persons for record in self.streams])
        sets |= {frozenset({i}) for i in charged}
        compositions: list[Composition] = []
        if self.sharing == "adaptive" and (shared := self._shared & charged):
            sets = {one for one in sets if not one & shared}
            compositions.append(self._bound(shared))
        compositions += composed(self._with_plan(sets), self._statements)
        return worst_of(compositions, self.budget.delta, len(self.everyone))

    def check_open(self, statement: StreamStatement, live: Iterable[int]) -> None:
        """Refuses a stream that the budget does not cover to its horizon.

        The worst person took part in everything charged so far, and then takes part in every
        stream that is still `live` and in the new one, each to its horizon. A person of an
        exclusive stream takes part in nothing else. So charging needs no further check of epsilon.

        Raises:
            LedgerMismatch: another unit or adjacency.
            BudgetExceeded: over budget, delta too large, too little noise for the sampler, or
                opened too late under the rule for shared people.
        """
        self.check_order(statement)
        proved = not isinstance(statement.event, NoGuarantee)
        if proved and statement.sampler_delta > self.budget.delta / SAMPLER_SHARE:
            raise BudgetExceeded(
                f"the noise sampler alone costs delta {statement.sampler_delta:.2g}, more than a "
                f"hundredth of the budget's {self.budget.delta:.2g}; use a larger noise_multiplier "
                "or delta"
            )
        if isinstance(rule := statement.participation, Poisson):
            self._check_delta(rule.population)
        self._check_live(statement, live, [statement])

    def check_order(self, statement: StreamStatement) -> None:
        """Refuses a stream of another unit, or one that the rule for shared people forbids now.

        Raises:
            LedgerMismatch: another unit or adjacency, or a stream that `require_alike` refuses.
            BudgetExceeded: it may share people with a stream that was charged already, or, under
                `adaptive`, it is not Gaussian.
        """
        if statement.unit != self.unit:
            raise LedgerMismatch(
                f"this ledger protects one {_unit_name(self.unit)}, and the stream "
                f"{statement.name!r} one {_unit_name(statement.unit)}; use a ledger of its own"
            )
        require_alike([*self._statements, statement])
        if not statement.is_shared:
            return
        if self.sharing == "adaptive" and not isinstance(statement.event, Gaussian):
            raise BudgetExceeded(
                f"a ledger whose streams are opened adaptively adds up Gaussian releases only, and "
                f"{statement.name!r} is of another kind; use a ledger that is not adaptive, and "
                "open all streams before the first is charged"
            )
        if self.sharing != "planned":
            return
        opened = [self.streams[i] for i in sorted(self._shared)]
        charged = self._charged_in_common
        events = [statement.event, *(record.statement.event for record in opened)]
        if charged and not any(isinstance(event, NoGuarantee) for event in events):
            raise BudgetExceeded(
                f"people of {charged[0]!r} may take part in {statement.name!r} too, and "
                f"{charged[0]!r} was charged before {statement.name!r} is opened; open all such "
                "streams before the first charge, make their participation exclusive, or create "
                "the ledger with adaptive=True, so that the certificate states the budget"
            )

    def check_people(self) -> None:
        """Refuses an adaptive ledger in which somebody took part in more than its filter allows.

        Its certificate states the budget. Other rules recompute the cost from all entries.

        Raises:
            LedgerCorrupt: somebody did, so the ledger is not what was written.
        """
        if self.sharing != "adaptive":
            return
        for one in groups([record.persons for record in self.streams]):
            try:
                if one <= self._shared:
                    self._check_filter(self.streams[max(one)].statement, one)
            except BudgetExceeded as error:
                raise LedgerCorrupt(
                    f"people of the ledger took part in more than its filter allows ({error}); "
                    "restore the ledger from a backup"
                ) from error

    def check_resume(self, index: int, live: Iterable[int]) -> None:
        """Refuses to go on with a stream that the budget no longer covers to its horizon.

        Raises:
            BudgetExceeded: streams opened since have taken what it would need.
        """
        self._check_live(self.streams[index].statement, (*live, index), [])

    def unused(self, statement: StreamStatement, live: Iterable[int]) -> int | None:
        """Returns an equal stream of a plan that an earlier process opened and never charged."""
        if self.sharing != "planned":
            return None
        found = self._shared - set(live)
        return next(
            (
                i
                for i in sorted(found)
                if not self.streams[i].releases and self.streams[i].statement == statement
            ),
            None,
        )

    @property
    def _charged_in_common(self) -> list[str]:
        """Names of the charged streams whose people may take part in others."""
        return [
            one.statement.name for one in self.streams if one.statement.is_shared and one.releases
        ]

    @property
    def _statements(self) -> list[StreamStatement]:
        return [record.statement for record in self.streams]

    @property
    def _shared(self) -> Group:
        """Streams whose people may take part in others."""
        return frozenset(i for i, record in enumerate(self.streams) if record.statement.is_shared)

    def _with_plan(self, sets: set[Group]) -> set[Group]:
        """Returns the groups; under `planned`, people of one shared stream pay for all of them."""
        plan = self._shared if self.sharing == "planned" else frozenset[int]()
        return {one | plan if one & plan else one for one in sets}

    def _bound(self, shared: Group) -> Composition:
        """Returns the cost of shared people under a filter, which is the budget."""
        bound = filter_bound(self.budget.epsilon, self.budget.delta)
        reserve = SAMPLER_RESERVE * self.budget.delta
        curve = replace(compose([bound]), method=_FILTER)
        return Composition(tuple(sorted(shared)), (bound,), reserve, curve)

    def _check_live(
        self, statement: StreamStatement, live: Iterable[int], new: list[StreamStatement]
    ) -> None:
        """Refuses `statement` if the live streams and the new ones may exceed the budget."""
        after = replace(self, streams=[*self.streams, *map(StreamRecord, new)])
        shared, going = after._shared, {*live, *range(len(self.streams), len(after.streams))}
        sets = groups([record.persons for record in self.streams])
        sets |= {frozenset({index}) for index in going}
        sets = {one | (going & shared) if one <= shared else one for one in sets}
        if self.sharing == "adaptive":
            for one in [one for one in sets if one <= shared]:
                after._check_filter(statement, one)
                sets.remove(one)
        compositions = composed(after._with_plan(sets), after._statements)
        worst = worst_of(compositions, self.budget.delta, persons=0)
        if worst.epsilon > self.budget.epsilon:
            raise BudgetExceeded(_over_budget(statement, worst, self.budget))

    def _check_filter(self, statement: StreamStatement, group: Group) -> None:
        """Refuses streams of one group that add up to more than the filter's bound."""
        statements = [self._statements[i] for i in group]
        samplers = math.fsum(one.sampler_delta for one in statements)
        if samplers > (reserve := SAMPLER_RESERVE * self.budget.delta):
            raise BudgetExceeded(
                f"the noise samplers of these streams cost delta {samplers:.2g} together, more "
                f"than the {reserve:.2g} that is set aside; use a larger noise_multiplier"
            )
        bound = filter_bound(self.budget.epsilon, self.budget.delta)
        if shift_of(statements) > 1 / bound.noise_multiplier:
            worst = worst_of(composed({group}, self._statements), self.budget.delta, persons=0)
            raise BudgetExceeded(_over_budget(statement, worst, self.budget))

    def taking_part(
        self, index: int, count: int, blocks: Sequence[tuple[PersonBlock, ...]] | None
    ) -> Sequence[tuple[PersonBlock, ...]]:
        """Returns who pays for each of `count` releases: under Poisson sampling, everybody."""
        if blocks is not None:
            return blocks
        participation = self.streams[index].statement.participation
        assert isinstance(participation, Poisson)
        return [(PersonBlock(0, participation.population),)] * count

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
                participations(rule, record.history, first_release, releases)
            case Poisson():
                self._refuse_members(index, blocks[:1], of_all=False)
                blocks = blocks[:1]
        self._check_delta(len(self.everyone) + self.everyone.count_new(blocks))

    def apply_open(self, statement: StreamStatement) -> None:
        """Adds a stream without checks."""
        self.unplanned |= statement.is_shared and bool(self._charged_in_common)
        self.streams.append(StreamRecord(statement))

    def apply_charge(self, index: int, releases: Sequence[tuple[PersonBlock, ...]]) -> None:
        """Adds releases of a stream without checks."""
        record = self.streams[index]
        if isinstance(rule := record.statement.participation, Returning):
            record.history |= participations(rule, record.history, record.releases, releases)
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

    def _check_newcomers(self, blocks: Sequence[PersonBlock]) -> None:
        """Refuses anybody who took part in anything before. `blocks` are sorted."""
        for one, other in pairwise(blocks):
            if other.start < one.stop:
                raise took_part(other.start)
        for block in blocks:
            if (person := self.everyone.first_common(block)) is not None:
                raise took_part(person)

    def _refuse_members(self, index: int, blocks: Sequence[PersonBlock], *, of_all: bool) -> None:
        """Refuses anybody who is in another stream that is exclusive, or in any (`of_all`)."""
        for other, record in enumerate(self.streams):
            if other != index and (of_all or not record.statement.is_shared):
                for block in blocks:
                    if (person := record.persons.first_common(block)) is not None:
                        raise took_part(person)


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
