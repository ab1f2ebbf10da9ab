"""The content of a printed page, as data: what `html` and `pdf` draw."""

import hashlib
import math
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sotto.errors import visible
from sotto.privacy.bounds import at_most
from sotto.privacy.certificates.check import AnyCertificate
from sotto.privacy.certificates.lone import FileVerification
from sotto.privacy.certificates.model import DescribedCertificate
from sotto.privacy.certificates.text import (
    dated,
    meaning_of_delta,
    sections,
    standing,
    unit_sentence,
)
from sotto.privacy.described.findings import FINDINGS

_LONGEST = 1200
"""Most characters of one line: a file from a stranger cannot make the page endless. Every sentence
of the catalogue is shorter."""
_LINES = 40
"""Most lines of one section."""


@dataclass(frozen=True)
class Page:
    """A page to print; every text is on one line, and all its characters print.

    Attributes:
        title: the first line.
        verdict: one or two words in large, such as "PROVED" or "FALSE".
        good: whether the page states a guarantee that holds.
        reasons: sentences on why the verdict is this one.
        facts: pairs of a name and a value.
        sections: pairs of a title and its sentences.
    """

    title: str
    verdict: str
    good: bool
    reasons: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    sections: tuple[tuple[str, tuple[str, ...]], ...]


def page_of_certificate(c: AnyCertificate, file: Path) -> Page:
    """Returns the page of a certificate that its ledger gives, as it is stored in a file."""
    verdict, sentence = standing(c)
    return _made(
        f"Privacy certificate of run {c.run_id}",
        verdict.upper(),
        c.status == "proved",
        [f"{verdict}: {sentence}"],
        [*_numbers(c), *_origin(c), *_file(file)],
        [*_sentences(c), _checks(file)],
    )


def page_of_verification(
    found: FileVerification, file: Path, signed_by: Path | None = None
) -> Page:
    """Returns the page of a file that was verified alone, with the result in large.

    What a false or unverifiable file says stands on the page in one line, as its own words.
    """
    c = found.certificate
    reasons = list(found.reasons)
    title = "Result of verifying a privacy certificate"
    if c is None or found.status in ("false", "unverifiable"):
        if c is not None:
            epsilon, delta = at_most(c.epsilon), at_most(c.delta)
            reasons.append(
                f"The file claims: {c.status}, epsilon {epsilon} at delta {delta}, run "
                f"{c.run_id}. Do not rely on it."
            )
        checks = [_checks(file)]
        return _made(title, found.status.upper(), False, reasons, _file(file), checks)
    if isinstance(c, DescribedCertificate):
        return _page_of_described(c, reasons, file, signed_by)
    verdict, sentence = standing(c)
    large = f"{found.status}: {verdict}".upper()
    if found.status == "stale":
        reasons.append(
            "It was true when it was made, and its ledger has gone on since. Ask for the current "
            "certificate."
        )
    reasons.append(f"{verdict}: {sentence}")
    reasons += [f"Corrected words: {one}." for one in found.corrections] + _signed(signed_by)
    good = found.status == "true" and c.status == "proved"
    facts = [("Run", c.run_id), *_numbers(c), *_origin(c), *_file(file)]
    return _made(title, large, good, reasons, facts, [*_sentences(c), _checks(file)])


def _page_of_described(
    c: DescribedCertificate, reasons: list[str], file: Path, signed_by: Path | None
) -> Page:
    """Returns the page of a certificate that follows from the description in it."""
    d = c.description
    claimed = "none" if d.claimed.epsilon is None else f"{at_most(d.claimed.epsilon)} ({c.verdict})"
    person = []
    if c.person is not None:
        cost = f"epsilon {at_most(c.person.epsilon)} for up to {c.person.records} records"
        person = [("A person", cost)]
    steps = f"{d.total_steps:,} of {d.batch_size:,} in {d.records:,} records, {d.sampling}"
    facts = [
        ("Training", c.run_id),
        ("Epsilon", f"{at_most(c.epsilon)}, if the description is true"),
        *person,
        ("Delta", at_most(c.delta)),
        ("Epsilon claimed", claimed),
        ("Unit", c.unit.sentence()),
        ("Steps", f"{steps}; runs: {d.runs}"),
        (
            "Noise, clip norm",
            f"{at_most(d.noise_multiplier, 6)} on the {d.noise_scaled_to}, {d.clip_norm}",
        ),
        ("Accountant", c.method),
        ("Source", d.source),
        *_file(file),
    ]

    def sentences(*within: str) -> tuple[str, ...]:
        return tuple(one.sentence for one in c.claims if one.section in within)

    return _made(
        "Result of verifying the certificate of a described training",
        "TRUE: DESCRIBED, NOT RECORDED",
        False,
        [*reasons, *sentences("does-not-protect"), *_signed(signed_by)],
        facts,
        [
            ("Protected", sentences("protects")),
            ("Asserted by whoever described the training", sentences("code", "user")),
            ("Findings", tuple(f"{name}: {FINDINGS[name]}" for name in c.findings)),
            _checks(file, "check_described.py"),
        ],
    )


# --- parts ---------------------------------------------------------------------------------------


def _numbers(c: AnyCertificate) -> list[tuple[str, str]]:
    delta = at_most(c.delta)
    if c.status == "proved":
        each = "any two neighbouring inputs" if c.answers else f"each {c.unit.name}"
        most = math.floor((1 + 1e-9) / c.delta)  # a delta of 1e-5 is 1 in 100,000
        delta += f": epsilon may fail with probability at most 1 in {most:,}, for {each}"
    people = [] if c.answers else [("Who took part", c.unit.counted(c.persons))]
    meaning = meaning_of_delta(c)
    return [
        ("Epsilon", at_most(c.epsilon)),
        ("Delta", delta),
        *([("In words", meaning)] if meaning else []),
        ("Unit", unit_sentence(c)),
        *people,
    ]


def _origin(c: AnyCertificate) -> list[tuple[str, str]]:
    software = ", ".join(f"{name} {number}" for name, number in c.versions.items())
    return [
        ("Accountant", c.method),
        ("Recorded", f"{dated(c)}; {software}"),
        ("Ledger's head", c.head_hash),
    ]


def _file(file: Path) -> list[tuple[str, str]]:
    return [("File", file.name), ("Its SHA-256", hashlib.sha256(file.read_bytes()).hexdigest())]


def _sentences(c: AnyCertificate) -> list[tuple[str, tuple[str, ...]]]:
    return [
        (title, tuple(f"{sentence} ({how})" if how else sentence for sentence, how in lines))
        for title, lines in sections(c)
    ]


def _signed(key: Path | None) -> list[str]:
    return [] if key is None else [f"The key in {key.name} signed the file."]


def _checks(file: Path, checker: str = "check_certificate.py") -> tuple[str, tuple[str, ...]]:
    ledger = (
        "Only the ledger shows what was released since. With it: sotto verify "
        f"{file.name} --ledger ledger.sqlite"
    )
    return (
        "How to check it",
        (
            "This page proves nothing, because anybody can print one. Ask for the file, and "
            f"compare its SHA-256 with the one above: sha256sum {file.name}",
            f"Verify the file: sotto verify {file.name}, or without sotto: python "
            f"tools/{checker} {file.name}",
            *((ledger,) if checker == "check_certificate.py" else ()),
        ),
    )


# --- texts ---------------------------------------------------------------------------------------


def _made(
    title: str,
    verdict: str,
    good: bool,
    reasons: Iterable[str],
    facts: Iterable[tuple[str, str]],
    lists: Iterable[tuple[str, tuple[str, ...]]],
) -> Page:
    return Page(
        left_to_right(title),
        verdict,
        good,
        _some(tuple(reasons)),
        tuple((name, left_to_right(value)) for name, value in facts),
        tuple((name, _some(lines)) for name, lines in lists if lines),
    )


def _some(lines: tuple[str, ...]) -> tuple[str, ...]:
    shown = tuple(map(left_to_right, lines[:_LINES]))
    more = len(lines) - len(shown)
    return (*shown, f"... and {more} more, which the file lists") if more else shown


def left_to_right(text: str) -> str:
    """Returns a text that prints as it reads, from left to right.

    Letters that are written from right to left would move the numbers beside them, so they are
    spelled out, as in `\\u05d0`. Long texts are cut.
    """
    one_way = "".join(
        one.encode("unicode_escape").decode()
        if unicodedata.bidirectional(one) in ("R", "AL", "AN")
        else one
        for one in visible(text[: _LONGEST + 1])
    )
    return one_way if len(text) <= _LONGEST else f"{one_way[:_LONGEST]}... (cut)"
