"""Who was answered how often, and what it costs: the arithmetic of an answer ledger.

An `AnswerAccount` is the state that the entries of an `AnswerLedger` add up to. Its checks change
nothing and its updates check nothing, as in `spending`.

Guarantee:
    All students may be one. No answer is charged beyond `AnswerStatement.queries`, whose cost at
    the dearest levels the budget covers, so whatever the students ask, in whatever order, and
    whenever they stop, `epsilon` holds: from the first answer on it is what all of them cost
    (Renyi divergences fixed in advance by level; composition with adaptively chosen ones, Feldman
    and Zrnic 2021). Each student's own epsilon is that of all answers they are allowed, alone.
    `spent_epsilon` is of the answers given so far. It is no guarantee where students decide by
    what they were answered whether to ask again, for then the number of answers tells something.
"""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sotto.privacy.accounting.composition import Event, NoGuarantee, PrivacyCurve, compose
from sotto.privacy.answers.distances import TrainingShards
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.errors import BudgetExceeded, StudentExists, UnknownStudent
from sotto.privacy.ledger.spending import Budget

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Student:
    """Somebody who may ask.

    Attributes:
        name: of the student.
        queries: answered rows allowed in all.
        planned: answered rows that the student's own epsilon is of: `queries`, or all that any
            student of this teacher may have, once the allowance was changed.
        answered: answered rows so far.
        revoked: whether the student is answered no longer.
    """

    name: str
    queries: int
    planned: int
    answered: int = 0
    revoked: bool = False


@dataclass(frozen=True)
class StudentSpent(Student):
    """A student, and what they learn alone, at the budget's delta.

    Attributes:
        epsilon: of all rows they may be answered; 0 before the first one.
        spent_epsilon: of the rows they were answered so far; see `AnswersSpent`.
    """

    epsilon: float = 0.0
    spent_epsilon: float = 0.0


@dataclass(frozen=True)
class AnswersSpent:
    """What a teacher's answers cost.

    Attributes:
        epsilon: of all answers that the statement allows, at `delta`; 0 before the first one, and
            infinite where nothing is proved.
        delta: the budget's.
        spent_epsilon: of the answers given so far; it holds only where their number was fixed in
            advance.
        answered: answered rows of all students.
        events: what `epsilon` is composed of.
        curve: epsilon as a function of delta.
        students: in the order they were added.
        head_hash: of the entry up to which this was added up.
    """

    epsilon: float
    delta: float
    spent_epsilon: float
    answered: int
    events: tuple[Event, ...]
    curve: PrivacyCurve
    students: tuple[StudentSpent, ...]
    head_hash: str


@dataclass
class AnswerAccount:
    """What an answer ledger's entries add up to."""

    statement: AnswerStatement
    budget: Budget
    students: dict[str, Student] = field(default_factory=dict)
    answered: int = 0

    def copy(self) -> "AnswerAccount":
        """As it is now."""
        return replace(self, students=dict(self.students))

    def check_create(self) -> None:
        """Refuses a statement whose answers may cost more than the budget.

        Raises:
            BudgetExceeded: with the number of queries that the budget covers; or for a delta that
                shards with one person each would make vacuous already.
        """
        distance = self.statement.distance
        if isinstance(distance, TrainingShards) and self.budget.delta * distance.teachers >= 1:
            raise BudgetExceeded(
                f"delta {self.budget.delta:.2g} is vacuous for {distance.teachers} shards or more "
                "people, since publishing one of them at random would meet it; use a budget with "
                "delta below 1/people"
            )
        planned = _planned(self.statement, self.statement.queries, self.budget.delta)
        if planned <= self.budget.epsilon:
            return
        for event in self.statement.largest_cost(1):
            if isinstance(event, NoGuarantee):
                raise BudgetExceeded(
                    f"nothing can be proved about these answers ({event.reason}); only a budget "
                    "of epsilon infinity covers that"
                )
        raise BudgetExceeded(
            f"{self.statement.queries} answers may cost epsilon {planned:.4g} at delta "
            f"{self.budget.delta:.2g}, over the budget of {self.budget.epsilon:.4g}; it covers "
            f"{self._covered()}: allow fewer queries, make answers noisier, or state a larger "
            "budget"
        )

    def check_add(self, name: str, queries: int) -> None:
        """Refuses a student who is there already, and names and limits that are none.

        Raises:
            ValueError: a name or limit that is none.
            StudentExists: unless revoked; a student who was revoked may be added again.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(
                "a student's name has 1 to 64 letters, digits, dots, dashes and underscores, "
                f"beginning with a letter or digit; got {name!r}"
            )
        if not 1 <= queries <= self.statement.queries_per_student:
            raise ValueError(
                f"a student of this teacher has 1 to {self.statement.queries_per_student} "
                f"queries, not {queries}"
            )
        if self.statement.one_student and any(other != name for other in self.students):
            raise ValueError("this teacher has one student only, as it states; there is no other")
        if name in self.students and not self.students[name].revoked:
            raise StudentExists(
                f"there is a student {name!r} already; choose another name, or revoke them first"
            )

    def student(self, name: str) -> Student:
        """The student of this name.

        Raises:
            UnknownStudent: there is none, or they were revoked.
        """
        student = self.students.get(name)
        if student is None or student.revoked:
            raise UnknownStudent(
                f"the teacher has no student {name!r}; add them, or ask the teacher to"
                if student is None
                else f"the student {name!r} was revoked; ask the teacher for a new token"
            )
        return student

    def remaining(self, name: str) -> int:
        """How many more rows the student can be answered now; other students may take some.

        Raises:
            UnknownStudent: there is none, or they were revoked.
        """
        student = self.student(name)
        left = min(student.queries - student.answered, self.statement.queries - self.answered)
        return max(0, left)

    def check_charge(self, name: str, rows: int) -> list[int]:
        """The levels of the student's next rows.

        Raises:
            UnknownStudent: there is none, or they were revoked.
            BudgetExceeded: the student, or all of them together, have fewer queries left.
        """
        if rows < 1:
            raise ValueError(f"a request is for at least one row, got {rows}")
        student = self.student(name)
        if rows > self.remaining(name):
            mine = student.queries - student.answered
            everybody = self.statement.queries - self.answered
            whose = (
                f"{name!r} has {mine} of {student.queries} queries left"
                if mine <= everybody
                else f"the teacher has {everybody} of {self.statement.queries} queries left for "
                "all students together"
            )
            raise BudgetExceeded(
                f"{whose}, and {rows} rows were asked for; nothing was answered or charged"
            )
        return [self.statement.level(student.answered + row) for row in range(rows)]

    def apply_add(self, name: str, queries: int) -> None:
        """Adds a student; one who comes back goes on where they stopped."""
        before = self.students.get(name)
        if before is None:
            self.students[name] = Student(name, queries, queries)
            return
        # Another allowance may have been asked for by looking at answers.
        same = queries == before.queries
        planned = before.planned if same else self.statement.queries_per_student
        self.students[name] = Student(name, queries, planned, before.answered)

    def apply_revoke(self, name: str) -> None:
        """The student is answered no longer."""
        self.students[name] = replace(self.students[name], revoked=True)

    def apply_charge(self, name: str, rows: int) -> None:
        """Adds answered rows."""
        student = self.students[name]
        self.students[name] = replace(student, answered=student.answered + rows)
        self.answered += rows

    def spent(self, head_hash: str) -> AnswersSpent:
        """What all answers cost from the first one on, and what those given so far do."""
        delta = self.budget.delta
        queries = self.statement.queries if self.answered else 0
        events = self.statement.largest_cost(queries) if queries else ()
        return AnswersSpent(
            epsilon=_planned(self.statement, queries, delta) if queries else 0.0,
            delta=delta,
            spent_epsilon=self._epsilon([one.answered for one in self.students.values()]),
            answered=self.answered,
            events=events,
            curve=compose(events),
            students=tuple(
                StudentSpent(
                    **vars(student),
                    epsilon=self._epsilon([student.planned if student.answered else 0]),
                    spent_epsilon=self._epsilon([student.answered]),
                )
                for student in self.students.values()
            ),
            head_hash=head_hash,
        )

    def _epsilon(self, answered: Iterable[int]) -> float:
        """What students cost together who were answered so many rows each."""
        return _epsilon(self.statement, _together(self.statement, answered), self.budget.delta)

    def _covered(self) -> str:
        """The largest number of queries that the budget covers, in words."""
        covered, too_many = 0, self.statement.queries
        while too_many - covered > 1:
            middle = (covered + too_many) // 2
            if _planned(self.statement, middle, self.budget.delta) <= self.budget.epsilon:
                covered = middle
            else:
                too_many = middle
        return f"{covered} queries" if covered else "not one query"


def _together(statement: AnswerStatement, answered: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """How many answers of each level students got together who got so many each."""
    counts: dict[int, int] = {}
    for one in answered:
        for level, count in statement.level_counts(one).items():
            counts[level] = counts.get(level, 0) + count
    return tuple(sorted(counts.items()))


@functools.lru_cache(maxsize=1024)
def _epsilon(
    statement: AnswerStatement, counts: tuple[tuple[int, int], ...], delta: float
) -> float:
    return compose(statement.events(dict(counts))).epsilon(delta)


@functools.lru_cache(maxsize=64)
def _planned(statement: AnswerStatement, queries: int, delta: float) -> float:
    return compose(statement.largest_cost(queries)).epsilon(delta)
