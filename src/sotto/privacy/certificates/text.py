"""Certificates as text in plain words."""

import math
import re
from collections.abc import Iterable
from typing import Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sotto.errors import visible
from sotto.privacy.accounting.events import (
    ApproximateDP,
    Gaussian,
    NoGuarantee,
    PrefixReleases,
    RepeatAndSelect,
    SampledGaussian,
)
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.bounds import at_least, at_most, guarantee, percent
from sotto.privacy.certificates.check import AnyCertificate
from sotto.privacy.certificates.model import Certificate, CertifiedAnswers, CertifiedStream
from sotto.privacy.claims import Reference
from sotto.privacy.ledger.ledger import NO_TIME
from sotto.privacy.mechanisms.policies import Dirichlet, GaussianPolicy, TruncatedDirichlet
from sotto.privacy.mechanisms.stable_prefixes import Consensus, Floor, RandomStop
from sotto.privacy.statements import Returning

QUOTED = "In the words of the algorithm's author, which sotto does not check"
"""Title of sentences that are not in the catalogue. No proof stands behind them."""

Line = tuple[str, str]
"""A sentence of a certificate, and for an assumption how it is ensured; else an empty text."""

TERMS = {
    r"\busers?\b": "User: a person whose data the training uses.",
    r"\breleases?\b": "Release: a noisy result. Only releases may be published or used further.",
    r"\bstreams?\b": "Stream: a series of releases that is planned before the first of them.",
    r"\bslots?\b": "Slot: the place of one person, or of one expert, in a release. The slot of "
    "whoever is absent counts as zero.",
    r"\bledgers?\b": "Ledger: the record of what this run has released. Entries are only added.",
}
"""Terms of certificates by a pattern that finds them, each with what it means."""


def render(certificate: Certificate) -> RenderableType:
    """Returns the certificate in plain words, for `rich.console.Console.print`."""
    c = certificate
    title, sentence = standing(c)
    color = "green" if c.status == "proved" else "red"
    parts: list[RenderableType] = [
        Text(visible(f"Privacy certificate of run {c.run_id}"), style="bold"),
        Text(""),
        Text.assemble((title, f"bold {color}"), f": {visible(sentence)}"),
        Text(""),
        Text(unit_sentence(c)),
    ]
    if meaning := meaning_of_delta(c):
        parts += [Text(""), Text(meaning)]
    for title, lines in sections(c):
        if lines:
            parts += [Text(""), Text(title, style="bold")]
        for sentence, how in lines:
            parts.append(Padding(Text(f"- {visible(sentence)}"), (0, 0, 0, 2)))
            if how:
                parts.append(Padding(Text(visible(how), style="dim"), (0, 0, 0, 6)))
    software = ", ".join(f"{name} {number}" for name, number in c.versions.items())
    persons = "" if c.answers else f"{c.unit.counted(c.persons)}. "
    parts += [
        Text(""),
        *(Text(visible(f"JAX settings: {one}"), style="dim") for one in _settings(c)),
        Text(visible(f"Computed by: {c.method}. {persons}{software}."), style="dim"),
        Text(visible(f"{dated(c)}, head {c.head_hash}"), style="dim"),
    ]
    return Group(*parts)


def sections(c: AnyCertificate) -> tuple[tuple[str, tuple[Line, ...]], ...]:
    """Returns the lists of sentences in a certificate, each with its title; some are empty."""
    found: list[tuple[str, tuple[Line, ...]]] = [
        ("Protected", _alone(c.protects if c.status == "proved" else ())),
        ("Not protected", _alone(c.does_not_protect)),
        ("Steps that are not private", tuple((f"{gap.name}: {gap.why}", "") for gap in c.gaps)),
        ("Duties of whoever runs this", _assumed(c, "user", granted=False)),
        ("Taken for granted", _assumed(c, "user", granted=True)),
        ("Enforced by the code", _assumed(c, "code")),
        (QUOTED, _alone(c.quoted if isinstance(c, Certificate) else ())),
        ("Released", _alone((*map(_stream_line, c.streams), *_answer_lines(c)))),
        ("What each student learns alone", _alone(_student_lines(c))),
    ]
    words = [word for _, lines in found for line in lines for word in line]
    said = " ".join([unit_sentence(c), *words])
    terms = tuple(meaning for term, meaning in TERMS.items() if re.search(term, said, re.I))
    return (*found, ("Terms", _alone(terms)))


def unit_sentence(c: AnyCertificate) -> str:
    """Returns the protected unit in a sentence, or the unit of a claim without a proof."""
    if c.status == "proved":
        return c.unit_sentence
    return c.unit_sentence.replace("Protected is", "The claim is about", 1)


def _settings(c: Certificate) -> tuple[str, ...]:
    """Returns the settings under which streams were opened, each once."""
    lines = (
        ", ".join(f"{name} {value}" for name, value in one.settings.items() if value)
        for one in c.streams
    )
    return tuple(dict.fromkeys(filter(None, lines)))


def dated(c: AnyCertificate) -> str:
    """Returns the time at which the ledger was created, as it is recorded."""
    return "Ledger, time withheld" if c.created == NO_TIME else f"Ledger of {c.created}"


def standing(c: AnyCertificate) -> tuple[str, str]:
    """Returns the status of a certificate in words, and what it means, to stand behind a colon."""
    if c.status == "proved":
        return "Proved", f"{guarantee(c.epsilon, c.delta)}. {meaning_of_epsilon(c)}"
    if c.status == "paper-claim":
        return "Not proved", (
            "epsilon is infinite. This run follows a paper whose claim does not hold for the steps "
            "named below. It protects nobody."
        )
    return "No guarantee", f"{_why_nothing(c)}."


def _why_nothing(c: AnyCertificate) -> str:
    """Returns why a certificate with status `none` guarantees nothing."""
    reasons = [e.reason for e in c.worst_person.events if isinstance(e, NoGuarantee)]
    return "; ".join(reasons) or _without_reason(c)


def _without_reason(c: AnyCertificate) -> str:
    """Returns why nothing is proved where no event gives a reason."""
    if not (c.answers.answered if c.answers else any(one.releases for one in c.streams)):
        return "nothing has been released yet"
    if (used := c.worst_person.sampler_delta) >= c.delta:
        return (
            f"epsilon is infinite, because the samplers of the noise cost delta {used:.3g}, and "
            f"delta is {c.delta:.3g}"
        )
    return f"epsilon of what was released is infinite at delta {c.delta:.3g}"


def meaning_of_epsilon(c: AnyCertificate) -> str:
    """Returns how often the best observer is right about two equally likely neighbouring inputs."""
    right = _accuracy(c.epsilon, c.delta)
    return (
        f"An observer who sees {_everything(c)} can tell the two neighbouring inputs apart "
        f"correctly at most {percent(right)} of the time. Random guessing is correct 50% of the "
        "time."
    )


def meaning_of_delta(c: AnyCertificate) -> str:
    """Returns the meaning of delta with the numbers of the run; empty where nothing is proved.

    Two distributions are (epsilon, delta)-indistinguishable if and only if each has an event of
    probability at least 1 - delta, given which they are (epsilon, 0)-indistinguishable (Vadhan
    2017, Lemma 1.5; docs/privacy.md, section 1). The expected number of units outside their events
    is at most delta times the number of units, because expectations add up.
    """
    if c.status != "proved":
        return ""
    each = "any two neighbouring inputs" if c.answers else f"each {c.unit.name}"
    delta = at_most(c.delta, 3)
    sentence = (
        f"Delta {delta} is the chance that epsilon leaves out: for {each}, epsilon "
        f"{at_most(c.epsilon)} holds without exception outside an event of probability at most "
        f"{delta} (about 1 in {1 / c.delta:,.0f}). Inside that event, nothing is promised."
    )
    if c.persons > 1:
        sentence += (
            f" Over the {c.unit.counted(c.persons)} here, at most "
            f"{at_most(c.delta * c.persons, 2)} such events are expected."
        )
    return sentence


def _everything(c: AnyCertificate) -> str:
    if c.answers:
        return "every answer to every student, and who knows everything else,"
    if shares := [one.statement.shares for one in c.streams if one.statement.shares]:
        return (
            "everything released, who knows everybody else's data, and to whom at most "
            f"{min(one.colluding for one in shares)} of all devices that are asked in a round tell "
            "their noise and secrets,"
        )
    return "everything released, and who knows everything about everybody else,"


def _accuracy(epsilon: float, delta: float) -> float:
    """Returns the best accuracy of telling two equally likely neighbours apart.

    Source: Kairouz, Oh and Viswanath 2015.
    """
    return 1 - (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))


def _alone(sentences: Iterable[str]) -> tuple[Line, ...]:
    return tuple((one, "") for one in sentences)


def _assumed(
    c: AnyCertificate, by: Literal["code", "user"], granted: bool = False
) -> tuple[Line, ...]:
    """Returns the assumptions of a section; those of schema 1 have words only, and are duties."""
    if isinstance(c, Certificate):
        known = [one for one in c.claims if isinstance(one, Reference) and one.section == by]
        return tuple((one.sentence, one.how) for one in known if one.granted == granted)
    return tuple((a.statement, a.how) for a in c.assumptions if a.enforced_by == by and not granted)


def _stream_line(stream: CertifiedStream) -> str:
    match stream.event:
        case None:
            cost = "no cost yet"
        case Gaussian(noise_multiplier=z):
            cost = f"Gaussian noise, multiplier {at_most(z, 6)}"
        case SampledGaussian(noise_multiplier=z, sampling_rate=q):
            cost = f"Gaussian noise, multiplier {at_most(z, 6)}, "
            cost += f"people sampled at rate {at_least(q, 6)}"
        case RepeatAndSelect(tries=law, mean=mean, run=run):
            cost = f"the best of a secret number of tries, {law} with mean {at_least(mean, 6)}, "
            cost += f"each with Gaussian noise, multiplier {at_most(run.noise_multiplier, 6)}"
        case PrefixReleases():
            cost = _prefixes(stream)
        case ApproximateDP(epsilon=epsilon):
            cost = _choice(stream, epsilon)
        case NoGuarantee(reason=reason):
            cost = f"no guarantee: {reason}"
        case other:
            cost = str(other)
    return (
        f"{stream.statement.name}: {stream.releases} of {stream.statement.horizon} releases, "
        f"{stream.statement.unit.counted(stream.persons)}{_turns(stream)}, {cost}"
    )


def _turns(stream: CertifiedStream) -> str:
    """Returns how often one person takes part, where that is more than once."""
    match stream.statement.participation:
        case Returning(max_participations=count, min_separation=gap) if count > 1:
            return f", each in at most {count} of them, {gap} or more apart"
        case _:
            return ""


def _prefixes(stream: CertifiedStream) -> str:
    said = stream.statement.prefixes
    assert said is not None
    match said.rule:
        case Floor(floor=floor):
            rule = f"actions with probability at least {at_most(floor, 6)}"
        case RandomStop(hazard=hazard):
            rule = f"ended by a secret coin at rate {at_most(hazard, 6)}"
        case Consensus():
            rule = "actions chosen by the experts' votes"
    return f"stable prefixes, {rule}, threshold {at_most(said.threshold, 6)} of {said.experts}"


def _choice(stream: CertifiedStream, epsilon: float) -> str:
    said = stream.statement.choice
    assert said is not None
    return (
        f"the noisy maximum of {said.candidates} candidates, sensitivity "
        f"{at_most(said.sensitivity, 6)}, epsilon {at_most(epsilon)} with delta 0"
    )


def _answer_lines(c: AnyCertificate) -> tuple[str, ...]:
    if c.answers is None:
        return ()
    said, statement = c.answers, c.answers.statement
    answers = f"{said.answered} of {statement.queries} answers of teacher {statement.name!r}"
    return (
        f"{answers}, {_mechanism(statement)}",
        f"all {statement.queries} of them cost at most {guarantee(said.planned_epsilon, c.delta)}, "
        "no matter who asks for them and when they stop",
        *_so_far(said),
    )


def _so_far(said: CertifiedAnswers) -> tuple[str, ...]:
    """Returns the cost so far, which is no guarantee if students look at answers to stop."""
    if said.spent_epsilon is None or said.answered == said.statement.queries:
        return ()
    return (
        f"the answers given so far cost epsilon {at_most(said.spent_epsilon)}, if their number was "
        "fixed in advance; if students look at answers to decide whether to ask again, only the "
        "cost of all answers holds",
    )


def _mechanism(statement: AnswerStatement) -> str:
    match statement.mechanism:
        case GaussianPolicy(noise_stddev=noise):
            answers = f"the policy with Gaussian noise of standard deviation {at_most(noise, 6)}"
        case TruncatedDirichlet(concentration=k, floor=floor, threshold=threshold):
            answers = (
                f"truncated Dirichlet, concentration {at_least(k, 6)}, floor {at_most(floor, 6)}, "
            )
            answers += f"threshold {at_most(threshold, 6)}"
        case Dirichlet(concentration=k, floor=floor):
            answers = f"Dirichlet, concentration {at_least(k, 6)}, floor {at_most(floor, 6)}"
    schedule = statement.schedule
    if schedule.kind == "vanishing":
        answers += (
            f", times {at_least(schedule.coefficient, 6)} after every "
            f"{schedule.queries_per_rollout} answers to a student, "
            f"{schedule.rollouts} levels in all"
        )
    return answers


def _student_lines(c: AnyCertificate) -> tuple[str, ...]:
    if c.answers is None:
        return ()
    return tuple(
        f"{one.name}{' (revoked)' if one.revoked else ''}: {one.answered} of {one.queries} "
        f"answers, epsilon {at_most(one.epsilon)} for all they may get"
        for one in c.answers.students
    )
