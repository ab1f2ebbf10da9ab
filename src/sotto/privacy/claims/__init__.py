"""Every sentence that a certificate can say, and which of them a ledger's statements call for.

There is one module for each subject. The sentences that a training's statement brings are here too,
because a certificate can be verified without the code that trained. A sentence whose words change
gets a new version. Its earlier words go to the folder `earlier`, so that certificates
that say them stay verified.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from sotto.frozen import FrozenModel
from sotto.privacy.claims import (
    answers,
    described,
    experts,
    language,
    ledgers,
    logs,
    people,
    rewards,
    selection,
    shares,
    streams,
)
from sotto.privacy.claims.claim import Claim, LedgerFacts, Section
from sotto.privacy.claims.earlier import brought, sentences, superseded
from sotto.privacy.described.description import Description
from sotto.privacy.statements import Assumption, StreamStatement

__all__ = [
    "Claim",
    "LedgerFacts",
    "Quoted",
    "Reference",
    "by_name",
    "corrected",
    "said",
    "said_by_schema_1",
    "said_of_description",
    "same_sentences",
    "same_stream",
]

PRESENT: tuple[Claim, ...] = (
    answers.OBSERVATIONS,
    answers.POLICY,
    answers.TEACHER,
    answers.SHARDS,
    shares.SERVER,
    shares.EVERYBODY,
    experts.IN_THE_CLEAR,
    experts.BEYOND_ACTIONS,
    answers.TRAINING_DATA,
    answers.CHOSEN,
    answers.REFUSED,
    answers.LARGER,
    answers.ASKED,
    answers.NO_SHARE,
    answers.NO_TRAINING,
    shares.MALICIOUS_SERVER,
    shares.TOOK_PART,
    shares.POISON,
    streams.IN_GENERAL,
    streams.OTHER_RUNS,
    rewards.OTHER_RUNS,
    answers.OTHER_LEDGERS,
    streams.SCALED_VALUES,
    streams.SIDE_CHANNELS,
    ledgers.COUNTED,
    ledgers.PLANNED,
    ledgers.FILTERED,
    ledgers.SHARED_BUDGET,
    rewards.CHARGED,
    answers.CHARGED,
    streams.CONTRIBUTED,
    streams.COMPILED,
    streams.ROUNDED,
    streams.ROUNDED_SUMS,
    rewards.ROUNDED,
    answers.LIPSCHITZ,
    answers.MEAN,
    answers.FLOAT64,
    answers.ANALYSED,
    answers.ROWS,
    answers.LEVELS,
    answers.ROUNDED,
    answers.GRID_LAW,
    streams.LAW,
    shares.LAW,
    shares.ENOUGH,
    rewards.FRESH,
    streams.CORRELATED,
    streams.ROUNDED_NOISE,
    rewards.ANSWERS,
    experts.FRESH,
    experts.ONE_ACTION,
    experts.SILENT,
    streams.SAMPLED,
    selection.BEST_ONLY,
    selection.NO_TIMES,
    ledgers.ASSUMED_SETTINGS,
    ledgers.ASSUMED_CANDIDATES,
    ledgers.SETTINGS,
    ledgers.CANDIDATES,
    rewards.SETTINGS,
    rewards.ASSUMED_STREAMS,
    answers.SETTINGS,
    ledgers.ENROLMENT,
    rewards.KEPT,
    rewards.CLIPPED,
    answers.NOTHING_ELSE,
    experts.ONE_WORLD,
    experts.OWN_DATA,
    answers.DISJOINT,
    answers.WITHIN,
    answers.DELTA,
    shares.HONEST_DEVICES,
    shares.MASKS,
    streams.RANDOM,
    streams.SCALED,
    answers.LAW,
    answers.EARLIER_LAW,
    streams.UNCHANGED,
    streams.FAILURE,
    selection.HOW_LONG,
    streams.TIMING,
    streams.SIMULATED,
)
"""The sentences that hold by their own condition, in the order in which they are read."""

_MODULES = (streams, rewards, experts, language, people, logs, ledgers, answers, shares, selection)
DEFINED = [one for of in _MODULES for one in vars(of).values() if isinstance(one, Claim)]
"""The sentences of today, those of `PRESENT` among them."""

BROUGHT = [one for one in DEFINED if one.holds is None]
"""The sentences that statements of streams bring, in words."""

EARLIER: tuple[Claim, ...] = (*sentences.PRESENT, *brought.OF_SCHEMA_2)
"""Earlier versions of both, which certificates may still name."""


# --- in a certificate ----------------------------------------------------------------------------


class Reference(FrozenModel):
    """A sentence in a certificate: its identifier, its version and the numbers in it."""

    claim: str
    version: int
    numbers: dict[str, str] = Field(default={}, exclude_if=lambda value: not value)

    def __hash__(self) -> int:
        return hash((self.claim, self.version))

    @model_validator(mode="after")
    def _known(self) -> Self:
        known = by_name().get((self.claim, self.version))
        if known is None:
            raise ValueError(f"no sentence {self.claim!r} has a version {self.version}")
        known.words(self.numbers)
        return self

    @property
    def section(self) -> Section:
        """The section of the certificate in which it stands."""
        return self._claim.section

    @property
    def sentence(self) -> str:
        """The words of this version, with the numbers."""
        return self._claim.words(self.numbers)

    @property
    def how(self) -> str:
        """Words on how an assumption is enforced; empty for other sentences."""
        return self._claim.how

    @property
    def granted(self) -> bool:
        """Whether its words of today are taken for granted (`Claim.granted`)."""
        return any(one.granted for one in DEFINED if one.identifier == self.claim)

    @property
    def _claim(self) -> Claim:
        return by_name()[self.claim, self.version]


class Quoted(FrozenModel):
    """A sentence of a stream's statement that sotto does not know, in its own words.

    Attributes:
        section: section of the certificate in which it stands.
        sentence: the words.
        how: for an assumption, the way in which it is ensured.
    """

    section: Section
    sentence: str
    how: str = ""


Said = Annotated[Reference | Quoted, Field(union_mode="smart")]


def said(facts: LedgerFacts) -> tuple[Reference | Quoted, ...]:
    """Returns the sentences of a certificate about these facts, section by section.

    Words that a statement brings are replaced by the known sentence, in its present version.
    """
    brought = [_today(*words) for statement in facts.streams for words in _brought_words(statement)]
    own = [
        Reference(claim=c.identifier, version=c.version, numbers=n)
        for c, n in _held(PRESENT, facts)
    ]
    every = [*brought, *own]
    sections: tuple[Section, ...] = ("protects", "does-not-protect", "code", "user")
    return _distinct([one for section in sections for one in every if one.section == section])


def said_of_description(d: Description) -> tuple[Reference, ...]:
    """Returns the sentences of the certificate of a described training."""
    return tuple(
        Reference(claim=c.identifier, version=c.version, numbers=described.numbers(c, d))
        for c, holds in described.SENTENCES.items()
        if holds(d)
    )


# --- earlier certificates ------------------------------------------------------------------------


def same_sentences(one: Sequence[Reference | Quoted], true: Sequence[Reference | Quoted]) -> bool:
    """Whether sentences are the true ones, each in the words of today or in earlier ones.

    Earlier words may lack a number. Those that they have must be the true ones.
    """
    return len(one) == len(true) and all(map(_same_sentence, one, true))


def _same_sentence(one: Reference | Quoted, true: Reference | Quoted) -> bool:
    if isinstance(one, Quoted) or isinstance(true, Quoted) or one.version == true.version:
        return one == true
    said_then = {name: true.numbers.get(name) for name in one.numbers}
    return one.claim == true.claim and one.numbers == said_then


def corrected(sentences: Sequence[Reference | Quoted]) -> tuple[str, ...]:
    """Returns a line for each sentence in earlier words that turned out to be untrue."""
    references = [one for one in sentences if isinstance(one, Reference)]
    claims = [(by_name()[one.claim, one.version], one) for one in references]
    return tuple(_correction(claim, one.sentence) for claim, one in claims if claim.untrue)


@dataclass(frozen=True)
class SaidBySchema1:
    """The words of a certificate of schema 1 about some facts.

    Attributes:
        corrections: one line for each sentence that turned out to be untrue.
    """

    protects: tuple[str, ...]
    does_not_protect: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    corrections: tuple[str, ...]


def said_by_schema_1(facts: LedgerFacts) -> SaidBySchema1:
    """Returns the words of a certificate of schema 1, and quotes statements as they are."""
    held = [(one, one.words(numbers)) for one, numbers in _held(superseded.SCHEMA_1, facts)]
    untrue = [_correction(claim, words) for claim, words in held if claim.untrue]
    for statement in facts.streams:
        for section, sentence, how in _brought_words(statement):
            claim, _ = _identified(section, sentence, how)
            if claim is not None and claim.untrue:
                untrue.append(_correction(claim, sentence))

    def of(section: Section, brought: Callable[[StreamStatement], Sequence[str]]) -> Any:
        theirs = [line for statement in facts.streams for line in brought(statement)]
        return _distinct([*theirs, *(words for c, words in held if c.section == section)])

    return SaidBySchema1(
        of("protects", lambda one: one.protects),
        of("does-not-protect", lambda one: one.does_not_protect),
        _distinct(
            [
                *(
                    Assumption(statement=words, enforced_by=c.section, how=c.how)
                    for c, words in held
                    if c.section in ("code", "user")
                ),
                *(one for statement in facts.streams for one in statement.assumptions),
            ]
        ),
        _distinct(untrue),
    )


_ADDED = (
    "dppg.parts",
    "evaluation.published",
    "evaluation.source",
    "evaluation.licence",
    "logs.one-person",
    "people.sees-observations",
    "prefixes.policy",
)
"""Sentences that earlier versions did not say of some streams, which go on all the same."""


def same_stream(stored: StreamStatement, asked: StreamStatement) -> bool:
    """Whether two statements are the same, up to earlier words of the same sentences.

    The stored one may be of a version that did not say all of today's sentences.
    """
    if stored == asked:
        return True
    (one, said), (other, now) = _without_words(stored), _without_words(asked)
    added = {words for words in now - said if words[0] in _ADDED}
    return one == other and said == now - added


def _without_words(statement: StreamStatement) -> tuple[StreamStatement, frozenset[Any]]:
    bare = {"protects": (), "does_not_protect": (), "assumptions": ()}
    said_there = set()
    for words in _brought_words(statement):
        claim, numbers = _identified(*words)
        # A bound repeats a number of the statement, and may be rounded otherwise. Its reason is in
        # words, which may have become clearer.
        exact = frozenset(
            (name, value) for name, value in numbers.items() if name not in ("bound", "because")
        )
        known = None if claim is None else (claim.identifier, exact)
        said_there.add(known or words)
    return statement.model_copy(update=bare), frozenset(said_there)


# --- which sentence it is ------------------------------------------------------------------------

_Words = tuple[Section, str, str]


def _brought_words(statement: StreamStatement) -> list[_Words]:
    return [
        *(("protects", line, "") for line in statement.protects),
        *(("does-not-protect", line, "") for line in statement.does_not_protect),
        *((one.enforced_by, one.statement, one.how) for one in statement.assumptions),
    ]


def _identified(section: Section, sentence: str, how: str) -> tuple[Claim | None, dict[str, str]]:
    """Returns the known sentence with these words, in some version, and the numbers in it."""
    for claim in (*BROUGHT, *brought.OF_SCHEMA_2, *brought.OF_SCHEMA_1):
        numbers = claim.match(section, sentence, how)
        if numbers is not None:
            return claim, numbers
    return None, {}


def _today(section: Section, sentence: str, how: str) -> Reference | Quoted:
    claim, numbers = _identified(section, sentence, how)
    if claim is None:
        return Quoted(section=section, sentence=sentence, how=how)
    present = _present(claim.identifier)
    return Reference(claim=present.identifier, version=present.version, numbers=numbers)


def _held(claims: Sequence[Claim], facts: LedgerFacts) -> list[tuple[Claim, dict[str, str]]]:
    return [(one, one.numbers(facts)) for one in claims if one.holds and one.holds(facts)]


def _present(identifier: str) -> Claim:
    return next(one for one in DEFINED if one.identifier == identifier)


def _correction(claim: Claim, words: str) -> str:
    said_then = f"{words} ({claim.how})" if claim.how else words
    return f"the certificate says {said_then!r}; {claim.untrue}"


@cache
def by_name() -> dict[tuple[str, int], Claim]:
    """Returns every sentence that a certificate of schema 2 may name, by identifier and version."""
    every = (*PRESENT, *BROUGHT, *described.SENTENCES, *EARLIER)
    return {(one.identifier, one.version): one for one in every}


def _distinct(items: Sequence[Any]) -> tuple[Any, ...]:
    """Returns each item once, in order."""
    return tuple(dict.fromkeys(items))
