"""The ledger of a teacher's answers: every answer is charged durably before it leaves.

One run is one chain of entries, like that of `Ledger`: `create`, then `student`, `revoke` and
`charge`. A charge and its answer are one transaction, synced to disk before `answer` returns. So
the ledger contains at least what any student has seen, even if the process is killed at any moment.
Any number of processes may share a ledger (`ledger.chain`).

The database stores noisy answers, hashes of tokens, and keyed digests of requests
(`answers.digests`). It stores no true policy, no token, and no observation that could be read
without the key.
"""

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from jaxtyping import Float, Float64, Int

from sotto.privacy.answers import storage
from sotto.privacy.answers.account import AnswerAccount, AnswersSpent, Student
from sotto.privacy.answers.digests import KEYED, RequestDigest
from sotto.privacy.answers.observations import checked
from sotto.privacy.answers.rows import TeacherRows, require_proved
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.errors import IdempotencyConflict, LedgerCorrupt, LedgerMismatch
from sotto.privacy.ledger import entries
from sotto.privacy.ledger.chain import Chain
from sotto.privacy.ledger.databases import database, ledger_errors, reading
from sotto.privacy.ledger.entries import GENESIS, Entry, canonical, json_values, now, versions
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.noise import GeneratorSource

_FORMAT = "answers-1"
_UNANSWERED = (
    "nothing was answered, and trying again is safe; with the same idempotency key it is never "
    "charged twice"
)


@dataclass(frozen=True)
class Answered:
    """An answer that was charged.

    Attributes:
        policies: noisy rows.
        levels: level of the schedule for each row.
        replayed: whether this repeats an earlier answer, which is not charged again.
        remaining: number of rows that the student can still be answered.
    """

    policies: Float64[np.ndarray, "rows actions"]
    levels: Int[np.ndarray, " rows"]
    replayed: bool
    remaining: int


class AnswerLedger(Chain):
    """The durable account of one teacher's answers. Use `AnswerLedger.create` or `.open`.

    Threads may share it. Other processes open a ledger object each; do not use it after a fork.

    Attributes:
        created: time of creation, ISO 8601 in UTC.
        versions: versions of the software that created it, by distribution name.
        statement: statement of the teacher.
        budget: limit on the cost of all answers together.
    """

    name = "the ledger"
    created: str
    versions: dict[str, str]
    statement: AnswerStatement
    budget: Budget
    _account: AnswerAccount

    @classmethod
    def create(
        cls,
        where: Path | str,
        run_id: str | None = None,
        *,
        statement: AnswerStatement,
        budget: Budget,
    ) -> "AnswerLedger":
        """Creates the ledger of a new teacher, who has no students yet.

        Args:
            where: path of an SQLite file, or the SQLAlchemy URL of an SQLite or PostgreSQL
                database; it may contain other runs.
            run_id: name of the run; a random one by default.
            statement: statement of the teacher, which never changes.
            budget: limit on the cost of all answers together. Delta should be below 1 / (number of
                people behind the teacher), which the ledger does not know.

        Raises:
            BudgetExceeded: the budget does not cover `statement.queries` answers.
            LedgerMismatch: the run exists.
            LedgerUnavailable: the database cannot be written.
        """
        AnswerAccount(statement, budget).check_create()
        engine = database(where)
        run_id = run_id or uuid.uuid4().hex
        contents = {
            "format": _FORMAT,
            "created": now(),
            "statement": json_values(statement),
            "budget": json_values(budget),
            "versions": versions(),
        }
        entry = Entry(run_id, 0, "create", canonical(contents), GENESIS)
        entries.create(engine, entry, storage.TABLES)
        return cls(engine, run_id)

    @classmethod
    def open(cls, where: Path | str, run_id: str | None = None) -> "AnswerLedger":
        """Opens a teacher's ledger, verifies every entry and continues from there.

        Args:
            where: as for `create`.
            run_id: name of the run; None takes the only one in the database.

        Raises:
            LedgerMismatch: it belongs to another run or is not a teacher's, or contains several
                runs and none was named.
            LedgerCorrupt: an entry was changed.
            LedgerUnavailable: the database is missing or cannot be read.
        """
        engine = database(where)
        return cls(engine, entries.find_run(engine, run_id))

    def close(self) -> None:
        """Closes the connections to the database."""
        self._engine.dispose()

    # --- students --------------------------------------------------------------------------------

    def add_student(self, name: str, queries: int | None = None) -> str:
        """Adds a student, or a revoked student again with their earlier count of answers.

        Args:
            name: letters, digits, dots, dashes and underscores; certificates show it.
            queries: number of rows the student can be answered; by default the most that a student
                of this teacher may have.

        Returns:
            The student's bearer token. It is shown only once, and the ledger keeps only its hash.

        Raises:
            StudentExists: the student exists and was not revoked.
        """
        limit = self.statement.queries_per_student if queries is None else queries
        with self._alone("nobody was added") as connection:
            self._account.check_add(name, limit)
            token = storage.issue_token(connection, self.run_id, name)
            self._insert(connection, "student", {"student": name, "queries": limit})
        return token

    def revoke(self, name: str) -> None:
        """Invalidates the student's token and refuses them from now on.

        Raises:
            UnknownStudent: the student does not exist or was revoked.
        """
        with self._alone("nobody was revoked") as connection:
            self._account.student(name)
            storage.remove_token(connection, self.run_id, name)
            self._insert(connection, "revoke", {"student": name})

    def authenticate(self, token: str) -> str | None:
        """Returns the student who has the token, or None if nobody has it or they were revoked."""
        return self.known_tokens().holder(token)

    def known_tokens(self) -> storage.KnownTokens:
        """Returns the tokens known now, for comparisons without reading the ledger again."""
        with ledger_errors(self._engine, "try again"), reading(self._engine) as connection:
            return storage.known_tokens(connection, self.run_id)

    def students(self) -> tuple[Student, ...]:
        """Returns everybody who was ever added, in that order."""
        return tuple(self._current()[0].students.values())

    def remaining(self, student: str) -> int:
        """Returns how many more rows the student can be answered; others may take some of them.

        Raises:
            UnknownStudent: the student does not exist or was revoked.
        """
        return self._current()[0].remaining(student)

    # --- answers ---------------------------------------------------------------------------------

    def answer(
        self,
        student: str,
        observations: Float[np.ndarray, "rows obs"],
        teacher: TeacherRows,
        noise: GeneratorSource,
        *,
        idempotency_key: str | None = None,
        request_digest: RequestDigest | None = None,
    ) -> Answered:
        """Charges an answer and returns it, after charge and answer are on disk.

        Guarantee:
            Every row comes from `AnswerStatement.randomize` with fresh noise, and is about the mean
            of the teachers' policies (`rows.TeacherRows`, docs/privacy.md, section 12).

        Args:
            student: name of the student, as `authenticate` returns it.
            observations: what they ask about; all rows are answered or none.
            teacher: the teachers of the statement. Their rows are computed at most once, while the
                database is locked. If that raises an error, nothing is charged.
            noise: source of noise of the stated kind.
            idempotency_key: the student's name for this request. A request with the same key gets
                the first answer again. Without a key, only the charge is stored.
            request_digest: digest of the request; a key belongs to one digest. With None, all
                requests under the key count as one.

        Raises:
            ValueError, TypeError: as `rows.require_proved`, or an observation is not within
                `observations.LARGEST`. Nothing is charged.
            BudgetExceeded: the student, or all of them together, have too few queries left.
                Nothing is charged.
            UnknownStudent: the student does not exist or was revoked.
            IdempotencyConflict: the key was used for another request, or for one whose digest was
                made with a lost key.
            LedgerUnavailable: the database cannot be used. Nothing may be answered. The same
                request with the same key is charged once, however often it is tried.
        """
        require_proved(teacher, noise, self.statement)
        observations = checked(observations, self.statement.observation_size)
        rows = len(observations)
        request = None
        if idempotency_key is not None:
            digest = "" if request_digest is None else request_digest.keyed
            request = storage.Request(idempotency_key, digest)
        with self._alone(_UNANSWERED) as connection:
            account = self._account
            first_query = account.student(student).answered
            if request is not None:
                found = storage.find_answer(connection, self.run_id, student, request.key)
                if found is not None:
                    remaining = account.remaining(student)
                    return self._again(connection, found, request_digest, remaining)
            levels = account.check_charge(student, rows)
            policies = self.statement.randomize(teacher(observations), levels, noise.next())
            answer = storage.as_bytes(policies)
            charge = {
                "student": student,
                "first_query": first_query,
                "rows": rows,
                "answer": storage.answer_hash(answer),
                "request": None if request is None else request.hash,
            }
            if request_digest is not None:  # earlier versions had plain digests and named none
                charge["digest"] = request_digest.kind
            sequence = self._insert(connection, "charge", charge).sequence
            if request is not None:
                kept = storage.StoredAnswer(sequence, student, request, answer)
                storage.keep_answer(connection, self.run_id, kept)
            remaining = account.remaining(student) - rows
        return Answered(policies, np.array(levels), False, remaining)

    def has_keyed_digests(self) -> bool:
        """Returns whether any stored request can only be recognised with the key of its digest.

        Raises:
            LedgerUnavailable: the database cannot be read.
        """
        with ledger_errors(self._engine, "try again"), reading(self._engine) as connection:
            return storage.has_digest_like(connection, self.run_id, f"{KEYED}:%")

    def _again(
        self,
        connection: sa.Connection,
        found: storage.StoredAnswer,
        digest: RequestDigest | None,
        remaining: int,
    ) -> Answered:
        """Returns the answer that was given to this request before."""
        stored = found.request.digest
        if digest is not None and not digest.comparable(stored):
            raise IdempotencyConflict(
                "this idempotency key was used for a request that can no longer be recognised, "
                "because the key of its digest is lost; ask under a new idempotency key, which is "
                "charged"
            )
        if not (stored == "" if digest is None else digest.matches(stored)):
            raise IdempotencyConflict(
                "this idempotency key was used for another request; use a key once for each"
            )
        charge = json.loads(entries.payload_at(connection, self.run_id, found.sequence) or "null")
        if charge is None or not found.belongs_to(charge):
            raise _not_as_written(found.sequence)
        first, count = charge["first_query"], charge["rows"]
        levels = [self.statement.level(query) for query in range(first, first + count)]
        policies = found.policies(self.statement.mechanism.actions)
        return Answered(policies, np.array(levels), True, remaining)

    # --- accounting ------------------------------------------------------------------------------

    def spent(self) -> AnswersSpent:
        """Returns the cost of the answers, of all students together and of each alone."""
        account, head = self._current()
        return account.spent(head)

    def verify(self) -> None:
        """Reads every entry and every stored answer again, and compares them with this object.

        Raises:
            LedgerCorrupt: an entry or answer was changed, or the last entries are missing.
        """
        self._current()  # checks that the chain still contains all that this object has seen
        AnswerLedger(self._engine, self.run_id)
        with (
            ledger_errors(self._engine, "nothing was changed"),
            reading(self._engine) as connection,
        ):
            kept = storage.all_answers(connection, self.run_id)
            for entry in entries.follow(connection, self.run_id, 0, GENESIS):
                contents = json.loads(entry.payload)
                if entry.kind == "charge" and contents["request"] is not None:
                    answer = next(kept, None)
                    if (
                        answer is None
                        or answer.sequence != entry.sequence
                        or not answer.belongs_to(contents)
                    ):
                        raise _not_as_written(entry.sequence)
            if (extra := next(kept, None)) is not None:
                raise _not_as_written(extra.sequence)

    # --- entries ---------------------------------------------------------------------------------

    def _current(self) -> tuple[AnswerAccount, str]:
        """Returns the account of all committed entries, and the hash of the last one."""
        with self._up_to_date():
            return self._account.copy(), self.head_hash

    def _check(self, entry: Entry, contents: dict[str, Any]) -> None:
        match entry.kind:
            case "create":
                if contents["format"] != _FORMAT:
                    raise LedgerMismatch(
                        f"run {entry.run_id!r} is a training run and not a teacher who answers; "
                        "open it as a `Ledger`"
                    )
            case "student":
                self._account.check_add(contents["student"], contents["queries"])
            case "revoke":
                self._account.student(contents["student"])
            case "charge":
                name, rows = contents["student"], contents["rows"]
                self._account.check_charge(name, rows)
                if contents["first_query"] != self._account.students[name].answered:
                    raise ValueError("its first query is not the student's next one")
            case other:
                raise ValueError(f"an answer ledger has no entries of kind {other!r}")

    def _add_up(self, entry: Entry, contents: dict[str, Any]) -> None:
        if entry.kind == "create":
            self.created, self.versions = contents["created"], contents["versions"]
            self.statement = AnswerStatement.model_validate(contents["statement"])
            self.budget = Budget.model_validate(contents["budget"])
            self._account = AnswerAccount(self.statement, self.budget)
        elif entry.kind == "student":
            self._account.apply_add(contents["student"], contents["queries"])
        elif entry.kind == "revoke":
            self._account.apply_revoke(contents["student"])
        else:
            self._account.apply_charge(contents["student"], contents["rows"])


def _not_as_written(sequence: int) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"the answer of entry {sequence} is not what was written; restore the ledger from a backup"
    )
