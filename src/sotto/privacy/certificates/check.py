"""Verification: reads a stored certificate strictly and compares it with its ledger.

A certificate is verified if it is what its ledger gives, stale if it is what its ledger gave at an
earlier entry, and false otherwise. Computed numbers may differ by `TOLERANCE`, because another
machine's arithmetic may differ. Deltas are inputs and may not differ.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from sotto.errors import visible
from sotto.files import once, read_at_most
from sotto.privacy.accounting.composition import (
    Event,
    Gaussian,
    NoGuarantee,
    PrivacyCurve,
    SampledGaussian,
    compose,
)
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.certificates.model import (
    Certificate,
    CertificateOfSchema1,
    CertifiedAnswers,
    CertifiedStudent,
    DescribedCertificate,
    WorstPerson,
    points,
)
from sotto.privacy.claims import LedgerFacts, corrected, said_by_schema_1, same_sentences
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.problems import first_problem

AnyLedger = Ledger | AnswerLedger
AnyCertificate = Certificate | CertificateOfSchema1
Derive = Callable[[AnyLedger], Certificate]

TOLERANCE = 1e-6
"""Relative difference that another machine's arithmetic may make in computed numbers."""

LARGEST = 1 << 26
"""Most bytes of a certificate."""

_COMPUTED = ("epsilon", "planned_epsilon", "spent_epsilon", "divergences")
"""Fields that hold results of floating-point arithmetic."""


@dataclass(frozen=True)
class Verification:
    """The result of comparing a stored certificate with its ledger.

    Attributes:
        status: "verified" if the ledger gives it; "stale" if the ledger gave it at an earlier
            entry; else "false".
        mismatches: one sentence for each difference of a false certificate.
        corrections: one sentence for each statement in earlier words that turned out to be untrue,
            although the numbers are true.
        current: the certificate that the ledger gives now; None if none can be derived.
    """

    status: Literal["verified", "stale", "false"]
    mismatches: tuple[str, ...] = ()
    corrections: tuple[str, ...] = ()
    current: Certificate | None = None


def check(path: Path, ledger: AnyLedger, derive: Derive) -> Verification:
    """Compares the certificate at `path` with the one that `derive` makes from the ledger."""
    wrong = []
    try:
        ledger.verify()
    except PrivacyError as error:
        wrong.append(str(error))
    try:
        stored = read(path)
    except PrivacyError as error:
        return Verification("false", (*wrong, str(error)))
    try:
        current = derive(ledger)
    except PrivacyError as error:  # nothing can be derived from what is left of the ledger
        return Verification("false", tuple(dict.fromkeys([*wrong, str(error)])))
    then = None if wrong else ledger.at(stored.head_hash)
    if then is None:  # no entry of this ledger, or a ledger that is not what was written
        wrong += mismatches(stored, current, ledger)
        return Verification("false", tuple(wrong), (), current)
    up_to_date = stored.head_hash == current.head_hash
    if found := mismatches(stored, current if up_to_date else derive(then), then):
        return Verification("false", tuple(found), (), current)
    status: Literal["verified", "stale"] = "verified" if up_to_date else "stale"
    return Verification(status, (), corrections(stored, then), current)


# --- reading -------------------------------------------------------------------------------------


def read(path: Path) -> AnyCertificate:
    """Returns the certificate of a ledger at `path`, as `read_stored` does.

    Raises:
        PrivacyError: it cannot be read, or it is about a description.
    """
    stored = read_stored(path)
    if isinstance(stored, DescribedCertificate):
        raise _unreadable(path, "it was described, and no ledger recorded it")
    return stored


def read_stored(path: Path) -> AnyCertificate | DescribedCertificate:
    """Returns the certificate at `path`, if its text is byte for byte the canonical one.

    Raises:
        PrivacyError: the file is missing or is no JSON, has a name twice, an unknown field or a
            value of another type, or its text is not canonical.
    """
    try:
        text = read_at_most(path, LARGEST).decode("utf-8")
        contents = json.loads(text, object_pairs_hook=once, parse_constant=_no_constant)
        if not isinstance(contents, dict):
            raise ValueError("it is no JSON object")
        if "schema_version" not in contents:
            raise ValueError("it has no schema_version, so it is no certificate; name another file")
        stored: AnyCertificate | DescribedCertificate = _kind(contents).model_validate_json(text)
        written = stored.text()
    except ValidationError as error:
        raise _unreadable(path, first_problem(error, _kind(contents))) from error
    except FileNotFoundError:
        raise _unreadable(path, "no such file; sotto certificate --write makes it") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise _unreadable(path, f"it is no JSON from {place} on; ask for the file again") from error
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error).splitlines()[0]) from error
    if text != written:
        raise PrivacyError(f"the certificate at {path} is not canonical: {_first(text, written)}")
    return stored


def _kind(contents: dict[str, Any]) -> type[AnyCertificate | DescribedCertificate]:
    if contents.get("schema_version") == 1:
        return CertificateOfSchema1
    return DescribedCertificate if contents.get("status") == "described" else Certificate


def _unreadable(path: Path, reason: str) -> PrivacyError:
    return PrivacyError(f"the certificate at {path} cannot be read ({reason})")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON; a certificate says it in quotes")


def _first(text: str, written: str) -> str:
    """Returns the first difference between a text and its canonical form, in words."""
    lines, expected = text.split("\n"), written.split("\n")
    for number, (line, other) in enumerate(zip(lines, expected, strict=False), 1):
        if line != other:
            here, there = (_short(one.strip(" ,")) for one in (line, other))
            return f"line {number} says {here}, and not {there}"
    return f"it has {len(lines) - 1} lines, and not {len(expected) - 1}"


# --- comparing -----------------------------------------------------------------------------------


def mismatches(
    stored: AnyCertificate, derived: Certificate, ledger: AnyLedger, source: str = "the ledger"
) -> list[str]:
    """Returns one sentence for each field that differs from the certificate of the source."""
    true = derived if isinstance(stored, Certificate) else _as_schema_1(derived, ledger)
    retracted = [
        f"nothing is proved of {one.statement.name!r}: {one.event.reason}"
        for one in derived.streams
        if isinstance(one.event, NoGuarantee) and stored.status == "proved"
    ]
    return retracted + differences(stored, true, source)


def differences(stored: BaseModel, true: BaseModel, source: str) -> list[str]:
    """Returns one sentence for each field in which two certificates of one kind differ."""
    return [
        f"{name} is not what {source} gives: the certificate says {here}, {source} {there}"
        for name in type(stored).model_fields
        if not same(getattr(stored, name), getattr(true, name), name)
        for here, there in [_difference(stored, true, name)]
    ]


def _difference(stored: BaseModel, true: BaseModel, name: str) -> tuple[str, str]:
    """Returns the first difference between two values of a field."""
    here, there = getattr(stored, name), getattr(true, name)
    if isinstance(here, tuple | dict):  # its whole text would hide where the difference is
        lines = [
            one.model_dump_json(include={name}, indent=2).split("\n") for one in (stored, true)
        ]
        pairs = (
            (one.strip(" ,"), other.strip(" ,")) for one, other in zip_longest(*lines, fillvalue="")
        )
        here, there = next((pair for pair in pairs if pair[0] != pair[1]), (here, there))
    return _short(here), _short(there)


def facts_of(ledger: AnyLedger) -> LedgerFacts:
    """Returns the facts that decide which sentences a certificate of this ledger says."""
    if isinstance(ledger, AnswerLedger):
        return LedgerFacts(answers=ledger.statement)
    charged = tuple(one.statement for one in ledger.streams if one.releases)
    checked = getattr(ledger, "stream_settings", ())  # of every stream; empty where none were
    written = bool(checked) and all(checked)
    return LedgerFacts(
        charged,
        settings_checked=written,
        sharing=getattr(ledger, "sharing", "assumed"),
        unplanned=getattr(ledger, "unplanned", False),
        limits=_limits(getattr(ledger, "joined", None) or {}),
    )


def _limits(joined: Mapping[str, Any]) -> tuple[float, float] | None:
    """Returns epsilon and delta of a shared budget, if an entry `join` says them."""
    return (joined["epsilon"], joined["delta"]) if "epsilon" in joined else None


def _as_schema_1(derived: Certificate, ledger: AnyLedger) -> CertificateOfSchema1:
    """Returns the certificate of schema 1 that an earlier version would have written."""
    words = said_by_schema_1(facts_of(ledger))
    fields = {name: getattr(derived, name) for name in CertificateOfSchema1.model_fields}
    fields |= {
        "schema_version": 1,
        "protects": words.protects,
        "does_not_protect": words.does_not_protect,
        "assumptions": words.assumptions,
    }
    if isinstance(ledger, AnswerLedger):
        fields |= _answers_so_far(ledger)
    return CertificateOfSchema1.model_construct(**fields)


def _answers_so_far(ledger: AnswerLedger) -> dict[str, Any]:
    """Returns the fields in which schema 1 stated the cost of a teacher's answers so far."""
    statement, delta, students = ledger.statement, ledger.budget.delta, ledger.students()

    def cost(answered: Sequence[int]) -> tuple[tuple[Event, ...], PrivacyCurve]:
        counts: Counter[int] = Counter()
        for one in answered:
            counts.update(statement.level_counts(one))
        events = statement.events(counts)
        return events, compose(events)

    events, curve = cost([one.answered for one in students])
    return {
        "epsilon": curve.epsilon(delta),
        "curve": points(curve.epsilon),
        "method": curve.method,
        "answers": CertifiedAnswers(
            statement=statement,
            answered=sum(one.answered for one in students),
            planned_epsilon=statement.planned_epsilon(delta),
            students=tuple(
                CertifiedStudent(
                    name=one.name,
                    queries=one.queries,
                    answered=one.answered,
                    revoked=one.revoked,
                    epsilon=cost([one.answered])[1].epsilon(delta),
                )
                for one in students
            ),
        ),
        "worst_person": WorstPerson(streams=(), events=events, sampler_delta=0.0),
    }


def corrections(stored: AnyCertificate, ledger: AnyLedger) -> tuple[str, ...]:
    """Returns a sentence for each statement in earlier words that turned out to be untrue."""
    if isinstance(stored, Certificate):
        return corrected(stored.claims)
    return said_by_schema_1(facts_of(ledger)).corrections


def same(said: Any, true: Any, name: str) -> bool:
    """Whether two values are equal, up to a tolerance for computed numbers."""
    if name == "curve":  # pairs of a computed epsilon and its delta
        return len(said) == len(true) and all(
            same(epsilon, other, "epsilon") and delta == at
            for (epsilon, delta), (other, at) in zip(said, true, strict=True)
        )
    if type(said) is not type(true):
        return False
    if name == "claims":  # a sentence in earlier words is the same sentence
        return same_sentences(said, true)
    if isinstance(true, Gaussian | SampledGaussian):  # an event's multiplier is computed, too
        close = math.isclose(said.noise_multiplier, true.noise_multiplier, rel_tol=TOLERANCE)
        rest = {"noise_multiplier": 1.0}
        return close and said.model_copy(update=rest) == true.model_copy(update=rest)
    if isinstance(true, BaseModel):
        return all(
            same(getattr(said, field), getattr(true, field), field)
            for field in type(true).model_fields
        )
    if isinstance(true, tuple):
        return len(said) == len(true) and all(
            same(one, other, name) for one, other in zip(said, true, strict=True)
        )
    if isinstance(true, dict):
        return list(said) == list(true) and all(same(said[k], true[k], k) for k in true)
    if name in _COMPUTED and isinstance(true, float):
        return math.isclose(said, true, rel_tol=TOLERANCE)
    return bool(said == true)


def _short(value: Any) -> str:
    text = visible(str(value))
    return text if len(text) <= 200 else f"{text[:200]}..."
