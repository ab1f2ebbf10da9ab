"""The certificate as a value: what is proved about a run, in fields that JSON brings back.

It holds data: numbers, statements of the ledger, and which sentences it says, by identifier and
version. Their words are rendered.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sotto.privacy.accounting.events import Event
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.claims import Said
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.statements import Assumption, Gap, StreamStatement
from sotto.privacy.units import Unit

_FROZEN = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
Status = Literal["proved", "paper-claim", "none"]

_CURVE_DELTAS = tuple(float(f"{m}e-{k}") for k in range(10, 1, -1) for m in (1, 3))


def points(epsilon_at: Callable[[float], float]) -> tuple[tuple[float, float], ...]:
    """Pairs (epsilon, delta) at each of a fixed list of deltas that the accountant resolves."""
    found = []
    for delta in _CURVE_DELTAS:
        try:
            found.append((epsilon_at(delta), delta))
        except ValueError:  # finer than the accountant resolves
            continue
    return tuple(found)


class CertifiedStream(BaseModel):
    """One stream of releases, as the ledger holds it.

    Attributes:
        statement: everything its analysis needs.
        releases: how many were charged.
        persons: how many took part, or may have under Poisson sampling.
        event: what the charged releases cost one person; None if there are none.
        versions: of the software that opened it.
        settings: of JAX and XLA that it was opened under; earlier versions did not write them down.
    """

    model_config = _FROZEN
    statement: StreamStatement
    releases: int
    persons: int
    event: Event | None
    versions: dict[str, str]
    settings: dict[str, str] = Field(default={}, exclude_if=lambda value: not value)


class CertifiedStudent(BaseModel):
    """What one student may be answered, and what that costs alone.

    Attributes:
        name: of the student.
        queries: answered rows allowed in all.
        answered: answered rows so far.
        revoked: whether the student is answered no longer.
        epsilon: of all answers that this student may get, alone, at the certificate's delta; 0
            before the first one.
        spent_epsilon: of those given so far; None in certificates of earlier versions, whose
            `epsilon` it was.
    """

    model_config = _FROZEN
    name: str
    queries: int
    answered: int
    revoked: bool
    epsilon: float
    spent_epsilon: float | None = Field(default=None, exclude_if=lambda value: value is None)


class CertifiedAnswers(BaseModel):
    """A teacher's answers, as the ledger holds them.

    Attributes:
        statement: everything their analysis needs.
        answered: rows answered so far, of all students together.
        planned_epsilon: what all `statement.queries` answers cost at most, at the certificate's
            delta, whatever the students ask.
        spent_epsilon: of the answers given so far. It holds only if their number was fixed in
            advance. None in certificates of earlier versions, whose headline it was.
        students: in the order they were added.
    """

    model_config = _FROZEN
    statement: AnswerStatement
    answered: int
    planned_epsilon: float
    spent_epsilon: float | None = Field(default=None, exclude_if=lambda value: value is None)
    students: tuple[CertifiedStudent, ...]


class WorstPerson(BaseModel):
    """The streams of the person who pays most, by name, and what they are composed of.

    Of a teacher's answers there are no streams; the events are those of all answers together.
    """

    model_config = _FROZEN
    streams: tuple[str, ...]
    events: tuple[Event, ...]
    sampler_delta: float


class Certificate(BaseModel):
    """What is proved about everything that one run has released.

    Attributes:
        status: "proved"; "paper-claim" if a step is not private (epsilon is infinite and `gaps`
            names it); "none" if nothing was released, or nothing can be proved.
        epsilon: for the worst person at `delta`, noise samplers included; of a teacher, for all
            answers that all students together may be given.
        curve: pairs (epsilon, delta) for the worst person at each of a fixed list of deltas, as
            far as the accountant resolves them.
        method: which accountant computed `epsilon`.
        persons: how many took part, or may have under Poisson sampling; 0 for a teacher, whose
            ledger does not know the people behind it.
        answers: of a teacher; None for a training run, whose JSON does not name it.
        claims: the sentences that it says: what is protected, what is not, what the proof needs.
        head_hash: hash of the ledger's last entry, which fixes all of them.
        versions: of the software that created the ledger.
        created: when the ledger was, ISO 8601 in UTC.
    """

    model_config = _FROZEN
    schema_version: Literal[2] = 2
    run_id: str
    created: str
    status: Status
    unit: Unit
    epsilon: float
    delta: float
    budget: Budget
    curve: tuple[tuple[float, float], ...]
    method: str
    persons: int
    claims: tuple[Said, ...]
    gaps: tuple[Gap, ...]
    streams: tuple[CertifiedStream, ...]
    answers: CertifiedAnswers | None = Field(default=None, exclude_if=lambda value: value is None)
    worst_person: WorstPerson
    versions: dict[str, str]
    head_hash: str

    @property
    def unit_sentence(self) -> str:
        """The unit and the adjacency, for a person."""
        return (
            self.unit.sentence() if self.answers is None else self.answers.statement.unit_sentence
        )

    @property
    def protects(self) -> tuple[str, ...]:
        """What is protected, in words."""
        return tuple(one.sentence for one in self.claims if one.section == "protects")

    @property
    def does_not_protect(self) -> tuple[str, ...]:
        """What is not, in words."""
        return tuple(one.sentence for one in self.claims if one.section == "does-not-protect")

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the proof needs, in words, and what enforces it."""
        return tuple(
            Assumption(statement=one.sentence, enforced_by=one.section, how=one.how)
            for one in self.claims
            if one.section in ("code", "user")
        )

    def text(self) -> str:
        """The one JSON text of this certificate."""
        return self.model_dump_json(indent=2) + "\n"

    def write(self, path: Path, mode: int = 0o644) -> None:
        """Stores the certificate as JSON. At no moment is there half a certificate at `path`."""
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(self.text())
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class CertificateOfSchema1(BaseModel):
    """A certificate as earlier versions wrote it, with its sentences in words."""

    model_config = _FROZEN
    schema_version: Literal[1]
    run_id: str
    created: str
    status: Status
    unit: Unit
    unit_sentence: str
    epsilon: float
    delta: float
    budget: Budget
    curve: tuple[tuple[float, float], ...]
    method: str
    persons: int
    protects: tuple[str, ...]
    does_not_protect: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    gaps: tuple[Gap, ...]
    streams: tuple[CertifiedStream, ...]
    answers: CertifiedAnswers | None = Field(default=None, exclude_if=lambda value: value is None)
    worst_person: WorstPerson
    versions: dict[str, str]
    head_hash: str

    def text(self) -> str:
        """The one JSON text of this certificate."""
        return self.model_dump_json(indent=2) + "\n"
