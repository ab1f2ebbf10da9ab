"""Tables of an answer ledger beside its entries: hashes of tokens, and the answers given.

Tokens have 256 random bits and answers were released, so plain hashes of them tell nothing.
Requests are stored as keyed digests (`answers.digests`).

A stored answer is what a student gets who repeats a request: the noisy rows and nothing else. The
charge's entry contains its hash, so a changed answer is detected.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa
from jaxtyping import Float64

from sotto.privacy.ledger.entries import canonical
from sotto.tokens import new_token, token_hash

_PAGE = 1000  # number of answers read at once
_KEY_LENGTH = 255

_metadata = sa.MetaData()
_tokens = sa.Table(
    "tokens",
    _metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("student", sa.String(64), primary_key=True),
    sa.Column("token_hash", sa.String(64), nullable=False),
)
_answers = sa.Table(
    "answers",
    _metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("student", sa.String(64), nullable=False),
    sa.Column("idempotency_key", sa.String(_KEY_LENGTH), nullable=False),
    sa.Column("request_digest", sa.String(_KEY_LENGTH), nullable=False),
    sa.Column("rows", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("run_id", "student", "idempotency_key"),
)
TABLES = (_tokens, _answers)


# --- tokens --------------------------------------------------------------------------------------


def issue_token(connection: sa.Connection, run_id: str, student: str) -> str:
    """Replaces the student's token by a new one of 256 random bits; only its hash is stored."""
    token = new_token()
    remove_token(connection, run_id, student)
    row = {"run_id": run_id, "student": student, "token_hash": token_hash(token)}
    connection.execute(sa.insert(_tokens).values(**row))
    return token


def remove_token(connection: sa.Connection, run_id: str, student: str) -> None:
    """Removes the student's token, which then opens nothing."""
    here = (_tokens.c.run_id == run_id, _tokens.c.student == student)
    connection.execute(sa.delete(_tokens).where(*here))


class KnownTokens:
    """Hashes of tokens as they were when they were read.

    Args:
        hashes: pairs of a student, or another holder, and the hash of their token.
    """

    def __init__(self, hashes: Iterable[tuple[str, str]]) -> None:
        self._holders: dict[str, str] = {}
        self._hashes: dict[str, str] = {}  # of each holder
        self.add(hashes)

    def add(self, hashes: Iterable[tuple[str, str]]) -> None:
        """Adds tokens that were issued since; a holder's new token replaces the last one."""
        for holder, new in hashes:
            last = self._hashes.get(holder)
            self._holders[new], self._hashes[holder] = holder, new
            if last not in (None, new):
                del self._holders[last]

    def holder(self, token: str) -> str | None:
        """Returns the holder of the token, in a time that does not grow with their number."""
        # A lookup may stop at the first differing character of a hash. That helps nobody: another
        # token has another hash altogether, so a near hash is no step towards a token.
        return self._holders.get(token_hash(token))


def known_tokens(connection: sa.Connection, run_id: str) -> KnownTokens:
    """Returns the tokens that are known now."""
    query = sa.select(_tokens.c.student, _tokens.c.token_hash).where(_tokens.c.run_id == run_id)
    return KnownTokens((student, kept) for student, kept in connection.execute(query))


# --- answers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A request that may be repeated: its key, and a digest of what was asked."""

    key: str
    digest: str

    def __post_init__(self) -> None:
        for name, text, least in (("idempotency key", self.key, 1), ("digest", self.digest, 0)):
            if (
                not least <= len(text) <= _KEY_LENGTH
                or not text.isascii()
                or not text.isprintable()
            ):
                raise ValueError(
                    f"a request's {name} has {least} to {_KEY_LENGTH} printable ASCII characters"
                )

    @property
    def hash(self) -> str:
        """SHA-256 of key and digest, for the charge's entry."""
        return _sha256(canonical([self.key, self.digest]).encode())


@dataclass(frozen=True)
class StoredAnswer:
    """An answer as it was given."""

    sequence: int
    student: str
    request: Request
    rows: bytes

    def belongs_to(self, charge: dict[str, object]) -> bool:
        """Returns whether a charge's entry with these contents is about this answer."""
        mine = (self.student, self.request.hash, answer_hash(self.rows))
        return mine == (charge["student"], charge["request"], charge["answer"])

    def policies(self, actions: int) -> Float64[np.ndarray, "rows actions"]:
        """Returns the rows as numbers, equal to those given."""
        return np.frombuffer(self.rows, "<f8").reshape(-1, actions).astype(np.float64)


def as_bytes(policies: Float64[np.ndarray, "rows actions"]) -> bytes:
    """Returns the rows as bytes to store and hash: float64, little-endian, row by row."""
    return np.ascontiguousarray(policies, "<f8").tobytes()


def answer_hash(rows: bytes) -> str:
    """Returns SHA-256 of an answer, in hexadecimal."""
    return _sha256(rows)


def keep_answer(connection: sa.Connection, run_id: str, answer: StoredAnswer) -> None:
    """Stores an answer."""
    row = {
        "run_id": run_id,
        "sequence": answer.sequence,
        "student": answer.student,
        "idempotency_key": answer.request.key,
        "request_digest": answer.request.digest,
        "rows": answer.rows,
    }
    connection.execute(sa.insert(_answers).values(**row))


def find_answer(
    connection: sa.Connection, run_id: str, student: str, key: str
) -> StoredAnswer | None:
    """Returns the answer to the student's request with this key, if there is one."""
    here = (
        _answers.c.run_id == run_id,
        _answers.c.student == student,
        _answers.c.idempotency_key == key,
    )
    row = connection.execute(sa.select(_answers).where(*here)).one_or_none()
    return None if row is None else _stored(row)


def has_digest_like(connection: sa.Connection, run_id: str, pattern: str) -> bool:
    """Returns whether the digest of any request of the run matches an SQL pattern."""
    query = sa.select(_answers.c.sequence).where(
        _answers.c.run_id == run_id, _answers.c.request_digest.like(pattern)
    )
    return connection.execute(query.limit(1)).first() is not None


def all_answers(connection: sa.Connection, run_id: str) -> Iterator[StoredAnswer]:
    """Yields every stored answer of a run, in order."""
    last = -1
    while True:
        query = (
            sa.select(_answers)
            .where(_answers.c.run_id == run_id, _answers.c.sequence > last)
            .order_by(_answers.c.sequence)
            .limit(_PAGE)
        )
        rows = connection.execute(query).all()
        yield from map(_stored, rows)
        if len(rows) < _PAGE:
            return
        last = rows[-1].sequence


def _stored(row: sa.Row[tuple[object, ...]]) -> StoredAnswer:
    request = Request(row.idempotency_key, row.request_digest)
    return StoredAnswer(row.sequence, row.student, request, bytes(row.rows))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
