"""Certificates from ledgers: nobody writes a certificate by hand.

`derive` turns a ledger into a `Certificate`, which its method `write` stores. `read` reads it back,
`verify` derives it again and compares, and `render` prints it in words.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.certificates.check import Verification, check, facts_of, read
from sotto.privacy.certificates.model import (
    Certificate,
    CertifiedAnswers,
    CertifiedStream,
    CertifiedStudent,
    Status,
    WorstPerson,
    points,
)
from sotto.privacy.certificates.text import render
from sotto.privacy.claims import said
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.statements import StreamStatement
from sotto.problems import first_problem

__all__ = ["Certificate", "Verification", "derive", "read", "render", "verify", "why_false"]


def derive(ledger: Ledger | AnswerLedger) -> Certificate:
    """Returns the certificate of everything charged to the ledger so far.

    Raises:
        PrivacyError: the ledger holds a value that no certificate can have.
    """
    try:
        return _of_answers(ledger) if isinstance(ledger, AnswerLedger) else _of_streams(ledger)
    except ValidationError as error:
        problem = first_problem(error, Certificate)
        raise PrivacyError(
            f"the ledger has no certificate, where {problem}; restore the ledger from a backup"
        ) from None


def _of_streams(ledger: Ledger) -> Certificate:
    spent = ledger.spent()
    charged = [record.statement for record in ledger.streams if record.releases]
    streams = tuple(
        CertifiedStream(
            statement=record.statement,
            releases=record.releases,
            persons=len(record.persons),
            event=record.statement.event if record.releases else None,
            versions=versions,
            settings=settings,
        )
        for record, versions, settings in zip(
            ledger.streams, ledger.stream_versions, ledger.stream_settings, strict=True
        )
    )
    return Certificate(
        run_id=ledger.run_id,
        created=ledger.created,
        status=_status(charged, spent.epsilon),
        unit=ledger.unit,
        epsilon=spent.epsilon,
        delta=spent.delta,
        budget=ledger.budget,
        curve=points(spent.epsilon_at),
        method=spent.worst.curve.method,
        persons=spent.persons,
        claims=said(facts_of(ledger)),
        gaps=_distinct(one.gaps for one in charged),
        streams=streams,
        worst_person=WorstPerson(
            streams=tuple(ledger.streams[i].statement.name for i in spent.worst.streams),
            events=spent.worst.events,
            sampler_delta=spent.worst.sampler_delta,
        ),
        versions=ledger.versions,
        head_hash=ledger.head_hash,
    )


def _of_answers(ledger: AnswerLedger) -> Certificate:
    statement, spent = ledger.statement, ledger.spent()
    answers = CertifiedAnswers(
        statement=statement,
        answered=spent.answered,
        planned_epsilon=statement.planned_epsilon(spent.delta),
        spent_epsilon=spent.spent_epsilon,
        students=tuple(
            CertifiedStudent(
                name=one.name,
                queries=one.queries,
                answered=one.answered,
                revoked=one.revoked,
                epsilon=one.epsilon,
                spent_epsilon=one.spent_epsilon,
            )
            for one in spent.students
        ),
    )
    return Certificate(
        run_id=ledger.run_id,
        created=ledger.created,
        status=_status([statement] if spent.answered else [], spent.epsilon),
        unit=statement.distance.unit,
        epsilon=spent.epsilon,
        delta=spent.delta,
        budget=ledger.budget,
        curve=points(spent.curve.epsilon),
        method=spent.curve.method,
        persons=0,
        claims=said(facts_of(ledger)),
        gaps=statement.gaps,
        streams=(),
        answers=answers,
        worst_person=WorstPerson(streams=(), events=spent.events, sampler_delta=0.0),
        versions=ledger.versions,
        head_hash=spent.head_hash,
    )


def verify(path: Path, ledger: Ledger | AnswerLedger) -> Verification:
    """Derives the certificate again and compares it with the one stored at `path`.

    It also checks the ledger's chain of hashes, and a teacher's stored answers.
    """
    return check(path, ledger, derive)


def why_false(path: Path, ledger: Ledger | AnswerLedger) -> str:
    """Returns why the stored certificate is false, and what to do; empty if it is not."""
    stored = verify(path, ledger) if path.exists() else None
    if stored is None or stored.status != "false":
        return ""
    return f"{stored.mismatches[0]}; move it away"


def _status(charged: Sequence[StreamStatement | AnswerStatement], epsilon: float) -> Status:
    if not charged or any(one.entropy == "fixed-seed" for one in charged):
        return "none"
    if any(one.gaps for one in charged):
        return "paper-claim"
    return "proved" if math.isfinite(epsilon) else "none"


_T = TypeVar("_T")


def _distinct(lists: Iterable[Iterable[_T]]) -> tuple[_T, ...]:
    """Returns all items in order, each once."""
    return tuple(dict.fromkeys(item for items in lists for item in items))
