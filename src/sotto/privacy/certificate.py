"""The certificate: what is proved about a run, derived from its ledger and never written by hand.

`derive` turns a ledger into a `Certificate`; `write` stores it; `verify` derives it again and lists
every field in which a stored one differs; `render` says it to a person.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sotto.privacy import assumptions
from sotto.privacy.answer_ledger import AnswerLedger
from sotto.privacy.answers import AnswerStatement
from sotto.privacy.certificate_model import (
    Certificate,
    CertifiedAnswers,
    CertifiedStream,
    CertifiedStudent,
    Status,
    WorstPerson,
)
from sotto.privacy.certificate_text import render
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger import Ledger
from sotto.privacy.statements import StreamStatement

__all__ = ["Certificate", "derive", "render", "verify"]

_CURVE_DELTAS = tuple(float(f"{m}e-{k}") for k in range(10, 1, -1) for m in (1, 3))
_TOLERANCE = 1e-6
"""Relative difference in epsilon that another machine's arithmetic may make."""


def derive(ledger: Ledger | AnswerLedger) -> Certificate:
    """The certificate of everything charged to the ledger so far."""
    return _of_answers(ledger) if isinstance(ledger, AnswerLedger) else _of_streams(ledger)


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
        )
        for record, versions in zip(ledger.streams, ledger.stream_versions, strict=True)
    )
    return Certificate(
        run_id=ledger.run_id,
        created=ledger.created,
        status=_status(charged, spent.epsilon),
        unit=ledger.unit,
        unit_sentence=ledger.unit.sentence(),
        epsilon=spent.epsilon,
        delta=spent.delta,
        budget=ledger.budget,
        curve=_curve(spent.epsilon_at),
        method=spent.worst.curve.method,
        persons=spent.persons,
        protects=_distinct(one.protects for one in charged),
        does_not_protect=_distinct(
            [
                *(one.does_not_protect for one in charged),
                assumptions.not_protected_by_streams(charged),
            ]
        ),
        assumptions=_distinct(
            [assumptions.for_streams(charged), *(one.assumptions for one in charged)]
        ),
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
        unit_sentence=statement.unit_sentence,
        epsilon=spent.epsilon,
        delta=spent.delta,
        budget=ledger.budget,
        curve=_curve(spent.curve.epsilon),
        method=spent.curve.method,
        persons=0,
        protects=statement.distance.protects,
        does_not_protect=assumptions.not_protected_by(statement),
        assumptions=assumptions.for_answers(statement),
        gaps=statement.gaps,
        streams=(),
        answers=answers,
        worst_person=WorstPerson(streams=(), events=spent.events, sampler_delta=0.0),
        versions=ledger.versions,
        head_hash=spent.head_hash,
    )


def verify(path: Path, ledger: Ledger | AnswerLedger) -> list[str]:
    """Derives the certificate again and compares it with the one stored at `path`.

    The ledger's chain of hashes is read again and checked too, and a teacher's stored answers.

    Returns:
        One sentence for each mismatch; empty if the certificate is true.
    """
    mismatches = []
    try:
        ledger.verify()
    except PrivacyError as error:
        mismatches.append(str(error))
    try:
        stored = Certificate.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        return [*mismatches, f"the certificate at {path} cannot be read ({reason})"]
    try:
        derived = derive(ledger)
    except PrivacyError as error:  # nothing can be derived from what is left of the ledger
        return list(dict.fromkeys([*mismatches, str(error)]))
    for name in Certificate.model_fields:
        said, true = getattr(stored, name), getattr(derived, name)
        if not _same(said, true, name in _COMPUTED):
            mismatches.append(
                f"{name} is not what the ledger gives: "
                f"the certificate says {_short(said)}, the ledger {_short(true)}"
            )
    return mismatches


def _status(charged: Sequence[StreamStatement | AnswerStatement], epsilon: float) -> Status:
    if not charged or any(one.entropy == "fixed-seed" for one in charged):
        return "none"
    if any(one.gaps for one in charged):
        return "paper-claim"
    return "proved" if math.isfinite(epsilon) else "none"


def _curve(epsilon_at: Callable[[float], float]) -> tuple[tuple[float, float], ...]:
    points = []
    for delta in _CURVE_DELTAS:
        try:
            points.append((epsilon_at(delta), delta))
        except ValueError:  # finer than the accountant resolves
            continue
    return tuple(points)


_COMPUTED = ("epsilon", "planned_epsilon", "spent_epsilon", "curve", "divergences")
"""Fields that hold results of floating-point arithmetic."""


def _same(said: Any, true: Any, computed: bool = False) -> bool:
    """Equal, up to a tolerance where a number was computed."""
    if type(said) is not type(true):
        return False
    if isinstance(true, BaseModel):
        return all(
            _same(getattr(said, name), getattr(true, name), computed or name in _COMPUTED)
            for name in type(true).model_fields
        )
    if isinstance(true, tuple):
        return len(said) == len(true) and all(
            _same(one, other, computed) for one, other in zip(said, true, strict=True)
        )
    if computed and isinstance(true, float):
        return math.isclose(said, true, rel_tol=_TOLERANCE)
    return bool(said == true)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


_T = TypeVar("_T")


def _distinct(lists: Iterable[Iterable[_T]]) -> tuple[_T, ...]:
    """All items, each once, in order."""
    return tuple(dict.fromkeys(item for items in lists for item in items))
