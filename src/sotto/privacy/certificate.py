"""The certificate: what is proved about a run, derived from its ledger and never written by hand.

`derive` turns a ledger into a `Certificate`; `write` stores it; `verify` derives it again and lists
every field in which a stored one differs; `render` says it to a person.
"""

import math
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sotto.privacy.errors import PrivacyError
from sotto.privacy.events import Event, Gaussian, NoGuarantee, SampledGaussian
from sotto.privacy.ledger import Ledger
from sotto.privacy.spending import Budget, Spent
from sotto.privacy.statements import Assumption, Gap, StreamStatement
from sotto.privacy.units import Unit

_FROZEN = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
_CURVE_DELTAS = tuple(float(f"{m}e-{k}") for k in range(10, 1, -1) for m in (1, 3))
_TOLERANCE = 1e-6
"""Relative difference in epsilon that another machine's arithmetic may make."""

Status = Literal["proved", "paper-claim", "none"]


class CertifiedStream(BaseModel):
    """One stream of releases, as the ledger holds it.

    Attributes:
        statement: everything its analysis needs.
        releases: how many were charged.
        persons: how many took part, or may have under Poisson sampling.
        event: what the charged releases cost one person; None if there are none.
        versions: of the software that opened it.
    """

    model_config = _FROZEN
    statement: StreamStatement
    releases: int
    persons: int
    event: Event | None
    versions: dict[str, str]


class WorstPerson(BaseModel):
    """The streams of the person who pays most, by name, and what they are composed of."""

    model_config = _FROZEN
    streams: tuple[str, ...]
    events: tuple[Event, ...]
    sampler_delta: float


class Certificate(BaseModel):
    """What is proved about everything that one run has released.

    Attributes:
        status: "proved"; "paper-claim" if a step is not private (epsilon is infinite and `gaps`
            names it); "none" if nothing was released, or nothing can be proved.
        epsilon: for the worst person at `delta`, noise samplers included.
        curve: pairs (epsilon, delta) for the worst person at each of a fixed list of deltas, as
            far as the accountant resolves them.
        method: which accountant computed `epsilon`.
        persons: how many took part, or may have under Poisson sampling.
        head_hash: hash of the ledger's last entry, which fixes all of them.
        versions: of the software that created the ledger.
        created: when the ledger was, ISO 8601 in UTC.
    """

    model_config = _FROZEN
    schema_version: Literal[1] = 1
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
    worst_person: WorstPerson
    versions: dict[str, str]
    head_hash: str

    def write(self, path: Path) -> None:
        """Stores the certificate as JSON. At no moment is there half a certificate at `path`."""
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(self.model_dump_json(indent=2) + "\n")
                file.flush()
                os.fchmod(file.fileno(), 0o644)
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


def derive(ledger: Ledger) -> Certificate:
    """The certificate of everything charged to the ledger so far."""
    spent = ledger.spent()
    charged = [record.statement for record in ledger.streams if record.releases]
    streams = tuple(
        CertifiedStream(
            statement=record.statement,
            releases=record.releases,
            persons=len(record.persons),
            event=record.statement.event(record.releases) if record.releases else None,
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
        curve=_curve(spent),
        method=spent.worst.curve.method,
        persons=spent.persons,
        protects=_distinct(one.protects for one in charged),
        does_not_protect=_distinct([*(one.does_not_protect for one in charged), _NOT_PROTECTED]),
        assumptions=_distinct(
            [_STANDARD, _standard_for(charged), *(one.assumptions for one in charged)]
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


def verify(path: Path, ledger: Ledger) -> list[str]:
    """Derives the certificate again and compares it with the one stored at `path`.

    The ledger's chain of hashes is read again and checked too.

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
    derived = derive(ledger)
    for name in Certificate.model_fields:
        said, true = getattr(stored, name), getattr(derived, name)
        if not (_close(said, true) if name in ("epsilon", "curve") else said == true):
            mismatches.append(
                f"{name} is not what the ledger gives: "
                f"the certificate says {_short(said)}, the ledger {_short(true)}"
            )
    return mismatches


def _status(charged: Sequence[StreamStatement], epsilon: float) -> Status:
    if not charged or any(one.entropy == "fixed-seed" for one in charged):
        return "none"
    if any(one.gaps for one in charged):
        return "paper-claim"
    return "proved" if math.isfinite(epsilon) else "none"


def _curve(spent: Spent) -> tuple[tuple[float, float], ...]:
    points = []
    for delta in _CURVE_DELTAS:
        try:
            points.append((spent.epsilon_at(delta), delta))
        except ValueError:  # finer than the accountant resolves
            continue
    return tuple(points)


def _close(said: Any, true: Any) -> bool:
    if isinstance(true, tuple):
        return len(said) == len(true) and all(map(_close, said, true))
    return math.isclose(said, true, rel_tol=_TOLERANCE)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


_T = TypeVar("_T")


def _distinct(lists: Iterable[Iterable[_T]]) -> tuple[_T, ...]:
    """All items, each once, in order."""
    return tuple(dict.fromkeys(item for items in lists for item in items))


# --- what holds for every run --------------------------------------------------------------------

_NOT_PROTECTED = (
    "What is true of people in general: whatever is learnt from everybody else is learnt about "
    "each person too.",
    "What other runs on the same people release: this certificate is about one run.",
    "What is learnt from timing, memory use, or by entering the machine.",
)

_STANDARD = (
    Assumption(
        statement="The initial state, hyper-parameters and schedule do not depend on people's "
        "data, nor does anything done to the state between releases other than through releases; "
        "trying several settings on the same people is not accounted for.",
        enforced_by="user",
        how="choose them on public data, in a simulator, or on other people",
    ),
    Assumption(
        statement="An enrolment number is one person, always the same one, and who takes part "
        "does not depend on people's data other than through releases.",
        enforced_by="user",
        how="whoever holds the data assigns the numbers",
    ),
    Assumption(
        statement="Nobody takes part more often than the streams say, and no release goes beyond "
        "its horizon.",
        enforced_by="code",
        how="the ledger counts by person over all resumptions, and is charged before a release",
    ),
    Assumption(
        statement="What a person contributes depends on their own data, their own random numbers "
        "and earlier releases only; so does what the server makes of a release (except in steps "
        "named as not private).",
        enforced_by="code",
        how="both functions are traced and read; a Python number computed from data before is "
        "something that tracing cannot see",
    ),
    Assumption(
        statement="Rounding gives nothing away (except in steps named as not private).",
        enforced_by="code",
        how="clipped contributions and noise are integers on a public grid, and sums are exact",
    ),
    Assumption(
        statement="The noise is as good as random.",
        enforced_by="user",
        how="every draw has a fresh 128-bit key from the operating system, used once and "
        "forgotten, and float64 arithmetic gives it the Gaussian law up to rounding; JAX's "
        "generator is not a cryptographic one, so do not rely on this against an adversary who "
        "can break it",
    ),
    Assumption(
        statement="Timing and other side channels are outside the claim.",
        enforced_by="user",
        how="do not let an adversary time or share the machine",
    ),
)

_SIMULATED = Assumption(
    statement="People are simulated: the claim is about simulated people, and training curves are "
    "for the experimenter.",
    enforced_by="user",
    how="for real people say so in the configuration; nothing un-noised about them is then shown",
)

_SAMPLED = Assumption(
    statement="Who is drawn by Poisson sampling stays secret.",
    enforced_by="code",
    how="draws use fresh keys and are not returned, logged or stored",
)


def _standard_for(charged: Sequence[StreamStatement]) -> tuple[Assumption, ...]:
    found = []
    if any(one.population == "simulated" for one in charged):
        found.append(_SIMULATED)
    if any(one.participation.kind == "poisson" for one in charged):
        found.append(_SAMPLED)
    return tuple(found)


# --- for a person --------------------------------------------------------------------------------


def render(certificate: Certificate) -> RenderableType:
    """The certificate in plain words, for `rich.console.Console.print`."""
    c = certificate
    parts: list[RenderableType] = [
        Text(f"Privacy certificate of run {c.run_id}", style="bold"),
        Text(""),
        _headline(c),
        Text(""),
        Text(c.unit_sentence),
    ]
    for title, lines in (
        ("Protected", c.protects),
        ("Not protected", c.does_not_protect),
        ("Steps that are not private", tuple(f"{gap.name}: {gap.why}" for gap in c.gaps)),
        ("Enforced by the code", _assumed(c, "code")),
        ("Up to you", _assumed(c, "user")),
        ("Released", tuple(map(_stream_line, c.streams))),
    ):
        if lines:
            parts += [Text(""), Text(title, style="bold")]
            parts += [Padding(Text(f"- {line}"), (0, 0, 0, 2)) for line in lines]
    software = ", ".join(f"{name} {number}" for name, number in c.versions.items())
    parts += [
        Text(""),
        Text(f"Computed by: {c.method}. {c.persons} persons. {software}.", style="dim"),
        Text(f"Ledger of {c.created}, head {c.head_hash}", style="dim"),
    ]
    return Group(*parts)


def _headline(c: Certificate) -> Text:
    if c.status == "proved":
        right = _accuracy(c.epsilon, c.delta)
        return Text.assemble(
            ("Proved", "bold green"),
            f": epsilon {c.epsilon:.4g} at delta {c.delta:.3g}. Whoever sees everything released, "
            "and knows everything about everybody else, can tell the two neighbouring inputs "
            f"apart correctly at most {100 * right:.1f}% of the time; tossing a coin gives 50%.",
        )
    if c.status == "paper-claim":
        return Text.assemble(
            ("Not proved", "bold red"),
            ": epsilon is infinite. This run follows a paper whose claim does not hold for the "
            "steps named below; nothing is promised to anybody.",
        )
    reasons = [e.reason for e in c.worst_person.events if isinstance(e, NoGuarantee)]
    why = "; ".join(reasons) or "nothing has been released yet"
    return Text.assemble(("No guarantee", "bold red"), f": {why}.")


def _accuracy(epsilon: float, delta: float) -> float:
    """Best accuracy of telling two equally likely neighbours apart (Kairouz et al. 2015)."""
    return 1 - (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))


def _assumed(c: Certificate, by: Literal["code", "user"]) -> tuple[str, ...]:
    return tuple(f"{a.statement} ({a.how})" for a in c.assumptions if a.enforced_by == by)


def _stream_line(stream: CertifiedStream) -> str:
    match stream.event:
        case None:
            cost = "no cost yet"
        case Gaussian(noise_multiplier=z):
            cost = f"Gaussian noise, multiplier {z:.4g}"
        case SampledGaussian(noise_multiplier=z, sampling_rate=q):
            cost = f"Gaussian noise, multiplier {z:.4g}, people sampled at rate {q:.4g}"
        case NoGuarantee(reason=reason):
            cost = f"no guarantee: {reason}"
        case other:
            cost = str(other)
    return (
        f"{stream.statement.name}: {stream.releases} of {stream.statement.horizon} releases, "
        f"{stream.persons} persons, {cost}"
    )
