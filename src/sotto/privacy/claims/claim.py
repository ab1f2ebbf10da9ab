"""A sentence that a certificate can say: its identifier, its version, and when it holds.

A certificate stores identifiers, versions and the numbers in sentences, and the words are printed
from these. So a sentence can be reworded later without making a certificate false, and a forged
sentence is found.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.statements import Assumption, Sharing, StreamStatement

Section = Literal["protects", "does-not-protect", "code", "user"]
"""Section of a certificate; the last two hold assumptions, by what enforces them."""


_LONGEST = 1000
"""Most characters of a sentence that is compared: a longer one cannot be known."""

_NUMBER = r"-?\d+(\.\d+)?(e[+-]?\d+)?"

_NUMBERS = (
    *("bound", "colluding", "delta", "distance", "epsilon", "high", "lipschitz", "low"),
    *("multiplier", "promised", "radius", "records", "secret", "share", "teachers"),
)

PLACES = {
    **dict.fromkeys(_NUMBERS, _NUMBER),
    "kind": "experts|clones",
    "norm": rf"Euclidean norm|norm of the kernel exp\(-{_NUMBER} \|x - y\|\)",
    "streams": "that may be about the same rewards|in which the same people may take part",
    "who": "A reward in one|A person who takes part in one",
    "what": "people|experts|rewards|how many users' updates are within the clip norm|users' returns"
    "|means and variances of users' observations|a critic, which estimates users' returns",
    # The user declares these. They stand in the section "user" only.
    "name": ".+",
    "because": ".+",
    "words": ".+",
}
"""Pattern of the text in each place of a sentence. No other text joins sotto's own words."""


@dataclass(frozen=True)
class LedgerFacts:
    """The facts that decide which sentences hold: the statements of a ledger.

    Attributes:
        streams: statements of the streams that were charged.
        answers: statement of a teacher; None for a ledger of streams.
        settings_checked: whether compiler settings and the kind of keys were checked, and written
            to the ledger, when each of these streams was opened.
        sharing: rule of the ledger for streams that the same people may take part in.
        unplanned: whether such a stream was opened after one of them was charged.
        limits: epsilon and delta of the budget that the ledger shares with other products; None if
            it shares none, or was written before ledgers said them.
    """

    streams: tuple[StreamStatement, ...] = ()
    answers: AnswerStatement | None = None
    settings_checked: bool = False
    sharing: Sharing = "assumed"
    unplanned: bool = False
    limits: tuple[float, float] | None = None


Condition = Callable[[LedgerFacts], bool]


@dataclass(frozen=True)
class Claim:
    """One sentence, in one version.

    Attributes:
        identifier: permanent name, such as "noise.random".
        section: section of the certificate in which the sentence stands.
        sentence: words, with the name of a place, one of `PLACES`, in braces for each number.
        how: for an assumption, how it is enforced.
        version: number that goes up when the words or the section change.
        holds: condition under which a certificate says it; None for a sentence that a stream's
            statement brings, in words.
        numbers: function that gives the values for the names in braces.
        untrue: for an earlier version, what was untrue in it; empty if only words changed.
        granted: for an assumption in the section "user", whether nobody can do anything for it;
            else it is a duty of whoever runs the training.
    """

    identifier: str
    section: Section
    sentence: str
    how: str = ""
    version: int = 1
    holds: Condition | None = None
    numbers: Callable[[LedgerFacts], dict[str, str]] = lambda _: {}
    untrue: str = ""
    granted: bool = False

    def words(self, numbers: Mapping[str, str]) -> str:
        """Returns the sentence with its numbers.

        Raises:
            ValueError: a number of the sentence is missing, or one of them is another text.
        """
        if missing := self._places - set(numbers):
            raise ValueError(f"{self.identifier!r} needs the number {min(missing)!r}")
        for name, number in numbers.items():
            if name not in PLACES or re.fullmatch(PLACES[name], number, re.S) is None:
                raise ValueError(f"{self.identifier!r} cannot say {number!r} as its {name}")
        return self.sentence.format_map(numbers)

    def __call__(self, **numbers: str) -> str:
        """Returns the sentence with its numbers, for the statement of a stream."""
        return self.words(numbers)

    def assumption(self, **numbers: str) -> Assumption:
        """Returns the sentence as an assumption, for the statement of a stream."""
        assert self.section in ("code", "user")
        return Assumption(statement=self.words(numbers), enforced_by=self.section, how=self.how)

    def before(self, version: int, sentence: str = "", how: str = "", untrue: str = "") -> Self:
        """Returns an earlier version of this sentence; empty words are those of today."""
        words = sentence or self.sentence, how or self.how
        return replace(self, version=version, sentence=words[0], how=words[1], untrue=untrue)

    def match(self, section: Section, sentence: str, how: str) -> dict[str, str] | None:
        """Returns the numbers in a sentence, if it is this one; else None."""
        if (section, how) != (self.section, self.how) or len(sentence) > _LONGEST:
            return None
        found = self._pattern.fullmatch(sentence)
        return None if found is None else found.groupdict()

    @cached_property
    def _places(self) -> frozenset[str]:
        return frozenset(re.findall(r"\{(\w+)\}", self.sentence))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pieces = re.split(r"\{(\w+)\}", self.sentence)
        texts = [re.escape(piece) for piece in pieces[::2]]
        names = [f"(?P<{name}>{PLACES[name]})" for name in pieces[1::2]]
        return re.compile("".join(a + b for a, b in zip(texts, [*names, ""], strict=True)), re.S)
