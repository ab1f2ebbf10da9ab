"""The ledger of a teacher's answers: every answer is charged durably before it leaves.

One run is one chain of entries, like a `Ledger`'s: `create`, then `student`, `revoke` and `charge`.
A charge and its answer are one transaction, synced to disk before `answer` returns, so the ledger
holds at least what any student has seen, also if the process is killed at any moment. Any number of
processes may share a ledger (`answer_chain`).

The database holds noisy answers, hashes of tokens, and keyed digests of what was asked
(`answer_digests`): no true policy, no token, and nothing that tells an observation without the key.
"""

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import sqlalchemy as sa
from jaxtyping import Float, Float64, Int

from sotto.privacy.answers import storage
from sotto.privacy.answers.account import AnswerAccount, AnswersSpent, Student
from sotto.privacy.answers.chain import FORMAT, AnswerChain
from sotto.privacy.answers.digests import KEYED, RequestDigest
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.errors import IdempotencyConflict, LedgerCorrupt
from sotto.privacy.ledger import entries
from sotto.privacy.ledger.databases import database, failures, make_private, reading
from sotto.privacy.ledger.entries import GENESIS, Entry, canonical, plain, versions
from sotto.privacy.ledger.spending import Budget

_UNANSWERED = (
    "nothing was answered, and trying again is safe; with the same idempotency key it is never "
    "charged twice"
)

Compute = Callable[[Sequence[int]], Float[np.ndarray, "rows actions"]]
"""Noisy rows for the given levels, one for each; see `AnswerStatement.randomize`."""


@dataclass(frozen=True)
class Answered:
    """An answer, charged.

    Attributes:
        policies: noisy rows.
        levels: of the schedule, one for each row.
        replayed: whether this is an earlier answer, given again and not charged again.
        remaining: rows that the student can still be answered.
    """

    policies: Float64[np.ndarray, "rows actions"]
    levels: Int[np.ndarray, " rows"]
    replayed: bool
    remaining: int


class AnswerLedger:
    """The durable account of one teacher's answers. Use `AnswerLedger.create` or `.open`.

    Safe for threads, and for other processes with a ledger object of their own; not to be carried
    over a fork.

    Attributes:
        run_id: which run this is.
        created: when, ISO 8601 in UTC.
        versions: of the software that created it, by distribution name.
        statement: what the teacher promises.
        budget: what all answers together may cost.
    """

    def __init__(self, engine: sa.Engine, run_id: str, last: str | None = None) -> None:
        self._engine = engine
        self._chain = AnswerChain(engine, run_id, last)
        account, _ = self._chain.current()
        self.run_id = run_id
        self.created = self._chain.created
        self.versions = self._chain.versions
        self.statement = account.statement
        self.budget = account.budget

    @classmethod
    def create(
        cls,
        where: Path | str,
        run_id: str | None = None,
        *,
        statement: AnswerStatement,
        budget: Budget,
    ) -> "AnswerLedger":
        """Starts the ledger of a new teacher, who has no students yet.

        Args:
            where: path of an SQLite file, or the SQLAlchemy URL of an SQLite or PostgreSQL
                database; it may hold other runs.
            run_id: name of the run; a random one by default.
            statement: what the teacher promises, for good.
            budget: what all answers together may cost. Delta should be below 1 / (number of
                people behind the teacher), which the ledger does not know.

        Raises:
            BudgetExceeded: the budget does not cover `statement.queries` answers.
            LedgerMismatch: the run exists.
            LedgerUnavailable: it cannot be written.
        """
        AnswerAccount(statement, budget).check_create()
        engine = database(where)
        run_id = run_id or uuid.uuid4().hex
        contents = {
            "format": FORMAT,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "statement": plain(statement),
            "budget": plain(budget),
            "versions": versions(),
        }
        entry = Entry(run_id, 0, "create", canonical(contents), GENESIS)
        make_private(engine)  # it holds answers, names and hashes of tokens
        entries.create(engine, entry, storage.TABLES)
        return cls(engine, run_id)

    @classmethod
    def open(cls, where: Path | str, run_id: str | None = None) -> "AnswerLedger":
        """Opens a teacher's ledger, verifies every entry and goes on from there.

        Args:
            where: as for `create`.
            run_id: the run it must belong to; None takes the only one there is.

        Raises:
            LedgerMismatch: it belongs to another run or is no teacher's, or holds several runs and
                none was named.
            LedgerCorrupt: its entries are not what was written.
            LedgerUnavailable: there is none, or it cannot be read.
        """
        engine = database(where)
        return cls(engine, entries.find_run(engine, run_id))

    def close(self) -> None:
        """Gives the connections to the database back."""
        self._engine.dispose()

    @property
    def head_hash(self) -> str:
        """Hash of the last entry this object has seen, which fixes all of them."""
        return self._chain.head

    def holds(self, entry_hash: str) -> bool:
        """Whether an entry has this hash: one that a ledger restored from an old copy has not.

        Raises:
            LedgerUnavailable: it cannot be read.
        """
        return entries.holds(self._engine, self.run_id, entry_hash)

    def at(self, entry_hash: str) -> "AnswerLedger | None":
        """The ledger as it was when this was its last entry, to be read; None if it never was.

        Raises:
            LedgerUnavailable, LedgerCorrupt: as `open`.
        """
        if not self.holds(entry_hash):
            return None
        return AnswerLedger(self._engine, self.run_id, entry_hash)

    # --- students --------------------------------------------------------------------------------

    def add_student(self, name: str, queries: int | None = None) -> str:
        """Lets somebody ask; a student who was revoked goes on where they stopped.

        Args:
            name: letters, digits, dots, dashes and underscores; it is in every certificate.
            queries: rows the student can be answered; by default all that a student of this
                teacher has.

        Returns:
            The student's bearer token. It is shown this once, and only its hash is kept.

        Raises:
            StudentExists: choose another name.
        """
        limit = self.statement.queries_per_student if queries is None else queries
        with self._chain.writing("nobody was added") as (connection, account):
            account.check_add(name, limit)
            token = storage.issue_token(connection, self.run_id, name)
            self._chain.insert(connection, "student", {"student": name, "queries": limit})
        return token

    def revoke(self, name: str) -> None:
        """From now on the student's token opens nothing, and they are answered no more.

        Raises:
            UnknownStudent: there is none, or they were revoked.
        """
        with self._chain.writing("nobody was revoked") as (connection, account):
            account.student(name)
            storage.remove_token(connection, self.run_id, name)
            self._chain.insert(connection, "revoke", {"student": name})

    def authenticate(self, token: str) -> str | None:
        """Whose token it is; None if nobody's, or its student was revoked."""
        return self.known_tokens().holder(token)

    def known_tokens(self) -> storage.KnownTokens:
        """The tokens that are known now, to be compared without another look at the ledger."""
        with failures(self._engine, "try again"), reading(self._engine) as connection:
            return storage.known_tokens(connection, self.run_id)

    def students(self) -> tuple[Student, ...]:
        """Everybody who was ever added, in that order."""
        account, _ = self._chain.current()
        return tuple(account.students.values())

    def remaining(self, student: str) -> int:
        """How many rows the student can be answered now; other students may take some of them.

        Raises:
            UnknownStudent: there is none, or they were revoked.
        """
        account, _ = self._chain.current()
        return account.remaining(student)

    # --- answers ---------------------------------------------------------------------------------

    def answer(
        self,
        student: str,
        rows: int,
        compute: Compute,
        *,
        idempotency_key: str | None = None,
        request_digest: RequestDigest | None = None,
    ) -> Answered:
        """Charges an answer and returns it; when it returns, charge and answer are on disk.

        Args:
            student: who asks, as `authenticate` names them.
            rows: how many rows they ask for; all of them are answered or none.
            compute: makes the noisy rows, given their levels. It is called once at most, while the
                database is locked; if it raises, nothing is charged.
            idempotency_key: the student's name for this request. A request of the same key gets
                the answer that was given first. Without one, nothing is stored but the charge.
            request_digest: of what was asked for; a key belongs to one digest. None: whatever
                comes under the key counts as one request.

        Raises:
            BudgetExceeded: too few queries left, of the student's or of all. Nothing is charged.
            UnknownStudent: there is none, or they were revoked.
            IdempotencyConflict: the key was used for another request, or for one whose digest was
                made with a key that is lost.
            LedgerUnavailable: the database cannot be used. Nothing may be answered; the same
                request with the same key is charged once, however often it is tried.
        """
        request = None
        if idempotency_key is not None:
            digest = "" if request_digest is None else request_digest.keyed
            request = storage.Request(idempotency_key, digest)
        with self._chain.writing(_UNANSWERED) as (connection, account):
            first_query = account.student(student).answered
            if request is not None:
                found = storage.find_answer(connection, self.run_id, student, request.key)
                if found is not None:
                    remaining = account.remaining(student)
                    return self._again(connection, found, request_digest, remaining)
            levels = account.check_charge(student, rows)
            policies = self._checked(compute(levels), rows)
            answer = storage.as_bytes(policies)
            charge = {
                "student": student,
                "first_query": first_query,
                "rows": rows,
                "answer": storage.answer_hash(answer),
                "request": None if request is None else request.hash,
            }
            if request_digest is not None:  # plain ones of earlier versions are not named
                charge["digest"] = request_digest.kind
            sequence = self._chain.insert(connection, "charge", charge)
            if request is not None:
                kept = storage.StoredAnswer(sequence, student, request, answer)
                storage.keep_answer(connection, self.run_id, kept)
            remaining = account.remaining(student) - rows
        return Answered(policies, np.array(levels), False, remaining)

    def has_keyed_digests(self) -> bool:
        """Whether requests are stored that nobody can recognise without the key of their digests.

        Raises:
            LedgerUnavailable: it cannot be read.
        """
        with failures(self._engine, "try again"), reading(self._engine) as connection:
            return storage.has_digest_like(connection, self.run_id, f"{KEYED}:%")

    def _again(
        self,
        connection: sa.Connection,
        found: storage.StoredAnswer,
        digest: RequestDigest | None,
        remaining: int,
    ) -> Answered:
        """The answer that was given to this request before."""
        stored = found.request.digest
        if digest is not None and not digest.comparable(stored):
            raise IdempotencyConflict(
                "this idempotency key was used for a request that cannot be recognised any longer, "
                "for the key of its digest is lost; ask under a new idempotency key, which is "
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

    def _checked(
        self, policies: Float[np.ndarray, "rows actions"], rows: int
    ) -> Float64[np.ndarray, "rows actions"]:
        policies = np.asarray(policies, np.float64)
        shape = (rows, self.statement.mechanism.actions)
        if policies.shape != shape or not np.isfinite(policies).all():
            raise ValueError(
                f"an answer is a finite array of shape {shape}, and one of shape {policies.shape} "
                "was computed; nothing was charged"
            )
        return policies

    # --- accounting ------------------------------------------------------------------------------

    def spent(self) -> AnswersSpent:
        """What the answers given so far cost, all students together and each alone."""
        account, head = self._chain.current()
        return account.spent(head)

    def verify(self) -> None:
        """Reads every entry and every stored answer again, and compares them with this object.

        Raises:
            LedgerCorrupt: an entry or answer was changed, or the last entries are gone.
        """
        self._chain.current()  # everything this object has seen is still in the chain
        AnswerChain(self._engine, self.run_id)
        with failures(self._engine, "nothing was changed"), reading(self._engine) as connection:
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


def _not_as_written(sequence: int) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"the answer of entry {sequence} is not what was written; restore the ledger from a backup"
    )
