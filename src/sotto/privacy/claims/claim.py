"""A sentence that a certificate can say: its identifier, its version, and when it holds.

A certificate stores identifiers, versions and the numbers in a sentence; the sentence itself is
rendered for a person. So a sentence can be put better later without making a certificate false, and
one that was never ours is found out.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.statements import Assumption, Sharing, StreamStatement

Section = Literal["protects", "does-not-protect", "code", "user"]
"""What is protected, what is not, what the proof needs and the code or the user enforces."""


_LONGEST = 1000
"""Characters of a sentence: a longer one is none of ours, and would take long to compare."""


@dataclass(frozen=True)
class Facts:
    """What decides which sentences hold: the statements of a ledger.

    Attributes:
        streams: of the streams that were charged.
        answers: of a teacher; None for a ledger of streams.
        settings_checked: whether the compiler's settings and the kind of keys were checked, and
            written down, when each of these streams was opened.
        sharing: rule of the ledger for streams that the same people may take part in.
    """

    streams: tuple[StreamStatement, ...] = ()
    answers: AnswerStatement | None = None
    settings_checked: bool = False
    sharing: Sharing = "assumed"


Condition = Callable[[Facts], bool]


@dataclass(frozen=True)
class Claim:
    """One sentence, in one version.

    Attributes:
        identifier: what the sentence is about, for good: "noise.random".
        section: where it stands in a certificate.
        sentence: the words, with {name} for each number in them.
        how: of an assumption, how it is enforced.
        version: goes up when the words or the section change.
        holds: whether a certificate about these facts says it; None for a sentence that a
            stream's statement brings, in words.
        numbers: values for the names in braces.
        untrue: of an earlier version, what was not true in it; empty where only words changed.
    """

    identifier: str
    section: Section
    sentence: str
    how: str = ""
    version: int = 1
    holds: Condition | None = None
    numbers: Callable[[Facts], dict[str, str]] = lambda _: {}
    untrue: str = ""

    def words(self, numbers: Mapping[str, str]) -> str:
        """The sentence with its numbers."""
        return self.sentence.format_map(numbers)

    def __call__(self, **numbers: str) -> str:
        """The sentence with its numbers, for the statement of a stream."""
        return self.words(numbers)

    def assumption(self, **numbers: str) -> Assumption:
        """The sentence of an assumption, for the statement of a stream."""
        assert self.section in ("code", "user")
        return Assumption(statement=self.words(numbers), enforced_by=self.section, how=self.how)

    def match(self, section: Section, sentence: str, how: str) -> dict[str, str] | None:
        """The numbers in a sentence, if it is this one; else None."""
        if (section, how) != (self.section, self.how) or len(sentence) > _LONGEST:
            return None
        found = self._pattern.fullmatch(sentence)
        return None if found is None else found.groupdict()

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pieces = re.split(r"\{(\w+)\}", self.sentence)
        texts = [re.escape(piece) for piece in pieces[::2]]
        names = [f"(?P<{name}>.+)" for name in pieces[1::2]]
        return re.compile("".join(a + b for a, b in zip(texts, [*names, ""], strict=True)), re.S)


# --- conditions ----------------------------------------------------------------------------------


def about_rewards(facts: Facts) -> bool:
    """A ledger has one unit, so all of its streams are about rewards, or none."""
    return any(one.unit.kind in ("reward-function", "transition") for one in facts.streams)


def about_people(facts: Facts) -> bool:
    """Streams about people or experts, or a ledger that was not charged for anything yet."""
    return facts.answers is None and not about_rewards(facts)


def always(_: Facts) -> bool:
    """Every certificate says it."""
    return True


def of_answers(facts: Facts) -> bool:
    """A teacher's ledger."""
    return facts.answers is not None


def some(test: Callable[[StreamStatement], bool]) -> Condition:
    """The condition that a stream which was charged is of this kind."""
    return lambda facts: any(map(test, facts.streams))


def both(*conditions: Condition) -> Condition:
    """The condition that all of these hold."""
    return lambda facts: all(condition(facts) for condition in conditions)
