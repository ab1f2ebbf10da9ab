"""Arithmetic of an answer ledger: which student has how many answers, and what they cost.

An `AnswerAccount` is the state that the entries of an `AnswerLedger` add up to. Its checks change
nothing, and its updates check nothing, as in `ledger.spending`.

Guarantee:
    All students may be one person. No answer is charged beyond `AnswerStatement.queries`, and the
    budget covers that many at the dearest levels. So `epsilon` holds whatever the students ask, in
    whatever order, and whenever they stop: from the first answer on it is the cost of all answers
    that may be given. Divergences are fixed in advance by level and composed with adaptively chosen
    levels (Feldman and Zrnic 2021). Each student's epsilon is that of all their allowed answers
    alone. `spent_epsilon` is the cost of the answers given so far. It is no guarantee if students
    look at answers before they decide whether to ask again, because the number of answers then
    depends on the answers. The proof is in docs/privacy.md, section 12, "The ledger of answers".
"""

import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sotto.privacy.accounting.composition import Event, NoGuarantee, PrivacyCurve, compose
from sotto.privacy.answers.distances import TrainingShards
from sotto.privacy.answers.statement import MOST_LEVELS, AnswerStatement
from sotto.privacy.errors import BudgetExceeded, StudentExists, UnknownStudent
from sotto.privacy.ledger.spending import Budget

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Student:
    """A person or program that may ask the teacher.

    Attributes:
        name: of the student.
        queries: number of answered rows allowed in all.
        planned: number of answered rows that the student's epsilon covers: `queries`, or the most
            that any student of this teacher may have, if the allowance was changed.
        answered: number of answered rows so far.
        revoked: whether the student gets no more answers.
    """

    name: str
    queries: int
    planned: int
    answered: int = 0
    revoked: bool = False


@dataclass(frozen=True)
class StudentSpent(Student):
    """A student and the cost of their answers alone, at the budget's delta.

    Attributes:
        epsilon: cost of all rows they may be answered; 0 before the first answer.
        spent_epsilon: cost of the rows answered so far; see `AnswersSpent`.
    """

    epsilon: float = 0.0
    spent_epsilon: float = 0.0


@dataclass(frozen=True)
class AnswersSpent:
    """The cost of a teacher's answers.

    Attributes:
        epsilon: cost at `delta` of all answers that the statement allows; 0 before the first
            answer, and infinite where nothing is proved.
        delta: of the budget.
        spent_epsilon: cost of the answers given so far. It is a guarantee only if their number was
            fixed in advance.
        answered: number of answered rows of all students.
        events: events that `epsilon` is composed of.
        curve: epsilon as a function of delta.
        students: all students in the order they were added.
        head_hash: hash of the last entry in this sum.
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
    """The sum of an answer ledger's entries."""

    statement: AnswerStatement
    budget: Budget
    students: dict[str, Student] = field(default_factory=dict)
    answered: int = 0

    def copy(self) -> "AnswerAccount":
        """Returns a copy that later entries do not change."""
        return replace(self, students=dict(self.students))

    def check_create(self) -> None:
        """Refuses a statement whose answers may cost more than the budget, or have too many levels.

        Raises:
            ValueError: they have.
            BudgetExceeded: names the number of queries that the budget covers. It is also raised
                for a delta that is vacuous even if each shard has one person.
        """
        distance = self.statement.distance
        if (levels := self.statement.schedule.levels) > MOST_LEVELS:
            raise ValueError(
                f"a schedule of {levels:,} rollouts takes too long to account for; use at most "
                f"{MOST_LEVELS:,}"
            )
        if isinstance(distance, TrainingShards) and self.budget.delta * distance.teachers >= 1:
            raise BudgetExceeded(
                f"delta {self.budget.delta:.2g} is vacuous for {distance.teachers} shards or more "
                "people, since publishing one of them at random would meet it; use a budget with "
                "delta below 1/people"
            )
        least = self.statement.least_delta
        if self.budget.delta < least and self.budget.epsilon < math.inf:
            raise BudgetExceeded(
                f"delta {self.budget.delta:.2g} is finer than the noise sampler's precision, which "
                f"is left out of it; use a delta of at least {least:.2g}"
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
        """Refuses a student who exists already, and names and limits that are not allowed.

        Raises:
            ValueError: the name or the limit is not allowed.
            StudentExists: the student exists and was not revoked.
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
            raise ValueError("this teacher states that it has one student only; add no other one")
        if name in self.students and not self.students[name].revoked:
            raise StudentExists(
                f"there is a student {name!r} already; choose another name, or revoke them first"
            )

    def student(self, name: str) -> Student:
        """Returns the student of this name.

        Raises:
            UnknownStudent: the student does not exist or was revoked.
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
        """Returns how many more rows the student can be answered; others may take some of them.

        Raises:
            UnknownStudent: the student does not exist or was revoked.
        """
        student = self.student(name)
        left = min(student.queries - student.answered, self.statement.queries - self.answered)
        return max(0, left)

    def check_charge(self, name: str, rows: int) -> list[int]:
        """Returns the levels of the student's next rows.

        Raises:
            UnknownStudent: the student does not exist or was revoked.
            BudgetExceeded: the student, or all of them together, have too few queries left.
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
        """Adds a student, or a revoked student again with their earlier count of answers."""
        before = self.students.get(name)
        if before is None:
            self.students[name] = Student(name, queries, queries)
            return
        # The student may have looked at answers before asking for another allowance.
        same = queries == before.queries
        planned = before.planned if same else self.statement.queries_per_student
        self.students[name] = Student(name, queries, planned, before.answered)

    def apply_revoke(self, name: str) -> None:
        """Marks the student as revoked."""
        self.students[name] = replace(self.students[name], revoked=True)

    def apply_charge(self, name: str, rows: int) -> None:
        """Adds answered rows to the student and to the total."""
        student = self.students[name]
        self.students[name] = replace(student, answered=student.answered + rows)
        self.answered += rows

    def spent(self, head_hash: str) -> AnswersSpent:
        """Returns the cost of all allowed answers, and of those given so far."""
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
        """Returns the joint cost of students with these numbers of answers."""
        return _epsilon(self.statement, _together(self.statement, answered), self.budget.delta)

    def _covered(self) -> str:
        """Returns the largest number of queries that the budget covers, as text."""
        covered, too_many = 0, self.statement.queries
        while too_many - covered > 1:
            middle = (covered + too_many) // 2
            if _planned(self.statement, middle, self.budget.delta) <= self.budget.epsilon:
                covered = middle
            else:
                too_many = middle
        return f"{covered} queries" if covered else "not one query"


def _together(statement: AnswerStatement, answered: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Returns the joint number of answers at each level, from the students' numbers of answers."""
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
