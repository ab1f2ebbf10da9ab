"""Certificates as values, which JSON stores and restores.

A certificate holds numbers, the ledger's statements, and its sentences by identifier and version.
`text.py` prints them in words.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from sotto.files import replacing
from sotto.frozen import FrozenModel
from sotto.privacy.accounting.events import Event
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.claims import Quoted, Reference, Said
from sotto.privacy.described.description import Description, Verdict
from sotto.privacy.ledger.entries import TIME
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.statements import Assumption, Gap, StreamStatement
from sotto.privacy.units import Unit

Status = Literal["proved", "paper-claim", "none"]

RunId = Annotated[
    str,
    Field(pattern=r"^[^\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+$", max_length=64),
]
"""Name of a run, in one line of characters that print from left to right."""
Time = Annotated[str, Field(pattern=TIME)]
"""Time in UTC, ISO 8601 to the second."""
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""SHA-256 in hexadecimal."""
Versions = dict[
    Annotated[str, Field(pattern="^[A-Za-z0-9._-]+$", max_length=64)],
    Annotated[str, Field(pattern="^[A-Za-z0-9.+!_-]+$", max_length=64)],
]
"""Versions of packages by their names."""

_SECTIONS = {
    "protects": "Protected",
    "does-not-protect": "Not protected",
    "code": "Enforced by its code",
    "user": "Up to whoever runs it",
}

_CURVE_DELTAS = tuple(float(f"{m}e-{k}") for k in range(10, 1, -1) for m in (1, 3))


def points(epsilon_at: Callable[[float], float]) -> tuple[tuple[float, float], ...]:
    """Returns pairs (epsilon, delta), one for each delta of a fixed list that can be resolved."""
    found = []
    for delta in _CURVE_DELTAS:
        try:
            found.append((epsilon_at(delta), delta))
        except ValueError:  # finer than the accountant resolves
            continue
    return tuple(found)


class Stored(FrozenModel):
    """A certificate in a file."""

    def text(self) -> str:
        """Returns the canonical JSON text of this certificate."""
        return self.model_dump_json(indent=2) + "\n"

    def write(self, path: Path, mode: int = 0o644) -> None:
        """Stores the certificate as JSON, atomically: `path` never holds half a certificate."""
        with replacing(path, mode) as file:
            file.write(self.text().encode())


class CertifiedStream(FrozenModel):
    """One stream of releases, as the ledger holds it.

    Attributes:
        statement: everything that its analysis needs.
        releases: number of charged releases.
        persons: number of people who were charged, or who may have been under Poisson sampling.
        event: cost of the stream to one person; None if nothing was charged.
        versions: software that opened it, with version numbers.
        settings: JAX and XLA settings under which it was opened; empty in earlier versions.
    """

    statement: StreamStatement
    releases: int
    persons: int
    event: Event | None
    versions: Versions
    settings: dict[str, str] = Field(default={}, exclude_if=lambda value: not value)


class CertifiedStudent(FrozenModel):
    """The answers of one student, and their cost without those of other students.

    Attributes:
        name: name of the student.
        queries: number of answered rows allowed in all.
        answered: number of answered rows so far.
        revoked: whether the student gets no more answers.
        epsilon: cost of all answers that this student may get, at the certificate's delta; 0
            before the first one.
        spent_epsilon: cost of the answers so far. None in certificates of earlier versions, where
            `epsilon` has this meaning.
    """

    name: str
    queries: int
    answered: int
    revoked: bool
    epsilon: float
    spent_epsilon: float | None = Field(default=None, exclude_if=lambda value: value is None)


class CertifiedAnswers(FrozenModel):
    """A teacher's answers, as the ledger holds them.

    Attributes:
        statement: everything that their analysis needs.
        answered: number of rows answered so far, for all students together.
        planned_epsilon: largest cost of all `statement.queries` answers, at the certificate's
            delta, for any questions.
        spent_epsilon: cost of the answers so far. It holds only if their number was fixed in
            advance. None in certificates of earlier versions, where it is the headline epsilon.
        students: students in the order in which they were added.
    """

    statement: AnswerStatement
    answered: int
    planned_epsilon: float
    spent_epsilon: float | None = Field(default=None, exclude_if=lambda value: value is None)
    students: tuple[CertifiedStudent, ...]


class WorstPerson(FrozenModel):
    """The person who pays most. A teacher has no streams, and all answers together count.

    Attributes:
        streams: names of the streams that this person pays for.
        events: costs that are composed to `epsilon`.
        sampler_delta: delta that the samplers of the noise cost; it is taken off `delta` first.
    """

    streams: tuple[str, ...]
    events: tuple[Event, ...]
    sampler_delta: float


class Certificate(Stored):
    """The guarantee for everything that one run has released.

    Attributes:
        schema_version: version of this format.
        run_id: name of the run.
        unit: unit of privacy and its adjacency, which say what neighbouring inputs are.
        delta: the probability that epsilon leaves out.
        budget: the most that the ledger allows to be spent; "Infinity" states that there is no
            target.
        gaps: steps that are not private, by name.
        streams: all streams of releases in the ledger.
        worst_person: composition that gives `epsilon`.
        status: "proved"; "paper-claim" if a step is not private (epsilon is infinite and `gaps`
            names it); "none" if nothing was released, or nothing can be proved.
        epsilon: cost to the worst person at `delta`, noise samplers included. For a teacher, the
            cost of all answers that all students together may get.
        curve: pairs (epsilon, delta) for the worst person, one for each delta of a fixed list
            that the accountant resolves.
        method: name of the accountant that computed `epsilon`.
        persons: number of people who were charged, or who may have been under Poisson sampling; 0
            for a teacher, whose ledger does not know the people behind it.
        answers: answers of a teacher; None for a training run, and then not in the JSON.
        claims: sentences about the protection, its limits and its assumptions.
        head_hash: hash of the ledger's last entry, which depends on all entries.
        versions: software that created the ledger, with version numbers.
        created: time when the ledger was created, ISO 8601 in UTC.
    """

    schema_version: Literal[2] = 2
    run_id: RunId
    created: Time
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
    versions: Versions
    head_hash: Hash

    @property
    def unit_sentence(self) -> str:
        """The unit and the adjacency, in words."""
        return (
            self.unit.sentence() if self.answers is None else self.answers.statement.unit_sentence
        )

    @property
    def protects(self) -> tuple[str, ...]:
        """Sentences about what the certificate protects."""
        return tuple(one.sentence for one in self._known if one.section == "protects")

    @property
    def does_not_protect(self) -> tuple[str, ...]:
        """Sentences about what the certificate does not protect."""
        return tuple(one.sentence for one in self._known if one.section == "does-not-protect")

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Assumptions of the proof in words, with what enforces them."""
        return tuple(
            Assumption(statement=one.sentence, enforced_by=one.section, how=one.how)
            for one in self._known
            if one.section in ("code", "user")
        )

    @property
    def quoted(self) -> tuple[str, ...]:
        """Sentences of an algorithm that sotto does not know, each with its section.

        Without a proof nothing is said to be protected.
        """
        return tuple(
            f"{_SECTIONS[one.section]}: {one.sentence}" + (f" ({one.how})" if one.how else "")
            for one in self.claims
            if isinstance(one, Quoted) and (self.status == "proved" or one.section != "protects")
        )

    @property
    def _known(self) -> tuple[Reference, ...]:
        return tuple(one for one in self.claims if isinstance(one, Reference))


class CertificateOfSchema1(Stored):
    """A certificate as earlier versions wrote it, with its sentences as words."""

    schema_version: Literal[1]
    run_id: RunId
    created: Time
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
    versions: Versions
    head_hash: Hash


class DescribedPerson(FrozenModel):
    """The cost to a person with several records (docs/other_trainings.md).

    Attributes:
        records: most records of one person.
        epsilon: cost of all of them together, at the delta of the certificate.
    """

    records: int
    epsilon: float


class DescribedCertificate(Stored):
    """The guarantee of a training that somebody describes. No ledger recorded it.

    Attributes:
        schema_version: version of this format.
        run_id: name of the training.
        status: "described": the facts are the words of whoever described the training.
        unit: unit of privacy and its adjacency, which say what neighbouring inputs are.
        epsilon: proved cost at `delta` of what the description says; never the claimed one.
        delta: the probability that epsilon leaves out.
        curve: pairs (epsilon, delta), one for each delta of a fixed list that the accountant
            resolves.
        method: name of the accountant that computed `epsilon`.
        claims: sentences about the protection, its limits and its assumptions.
        description: everything that the description says.
        verdict: the answer on the epsilon that the description claims.
        findings: names of wrong or unusual things in the description.
        events: cost of everything to one record that contributes zero instead.
        person: cost to a person with several records; None if each has one, and then not in the
            JSON.
        versions: software that computed the certificate, with version numbers.
    """

    schema_version: Literal[2] = 2
    run_id: str
    status: Literal["described"] = "described"
    unit: Unit
    epsilon: float
    delta: float
    curve: tuple[tuple[float, float], ...]
    method: str
    claims: tuple[Reference, ...]
    description: Description
    verdict: Verdict
    findings: tuple[str, ...]
    events: tuple[Event, ...]
    person: DescribedPerson | None = Field(default=None, exclude_if=lambda value: value is None)
    versions: Versions
