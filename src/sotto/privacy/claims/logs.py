"""Sentences of certificates about imported logs of people: evaluating policies, and learning.

A comment above a sentence names the module that makes it true.
"""

from typing import NamedTuple, Protocol

from sotto.privacy.claims.claim import Claim
from sotto.privacy.statements import Assumption

# algorithms/evaluation/release.py
VALUES = Claim(
    "evaluation.values",
    "protects",
    "Each person's log, against an observer who sees the released sums, the values and intervals "
    "of all policies, and everything computed from them, such as the choice of a policy.",
)
# algorithms/evaluation/learning.py
LEARNED_POLICY = Claim(
    "evaluation.learnt",
    "protects",
    "Each person's log, against an observer who sees the released sums, the policy that was learnt "
    "from them, and everything computed from them.",
)
PUBLISHED = Claim(
    "evaluation.published",
    "does-not-protect",
    "A person of this log, against somebody who reads the log itself. It is public already.",
)
# data/imports/grouping.py
IDS = Claim(
    "evaluation.ids",
    "user",
    "Whoever made the log gave each person one id, and gave no id to two people. A person with "
    "several ids is protected less than this certificate says.",
    "the import takes all rows with one id for one person, and cannot know who assigned the ids",
)
# data/imports/declaration.py
COLUMNS = Claim(
    "evaluation.columns",
    "user",
    "No cell of the log is public. Public are the names, bounds and categories of its columns, the "
    "number of places for people and the horizon. They were declared without looking at the log.",
    "whoever imported the log declared them",
)
CHOSEN = Claim(
    "evaluation.chosen",
    "user",
    "Policies, estimator, model of returns, clip of the weights and bounds of returns were chosen "
    "without data of these people, or from releases that were paid for. A policy or a model that "
    "was learnt from their data elsewhere has a certificate whose cost adds to this one.",
    "choose them before the evaluation, and evaluate all policies at once",
    version=3,
)
# algorithms/evaluation/cells.py
CELLS = Claim(
    "evaluation.cells",
    "user",
    "The cells into which observations are put were chosen without this log, or from releases that "
    "were paid for.",
    "choose the number of parts of each column before the evaluation",
)
SOURCE = Claim(
    "evaluation.source",
    "user",
    "The log has this origin: {words}",
    "whoever imported the log declared it",
)
LICENCE = Claim(
    "evaluation.licence",
    "user",
    "The log may be used under these terms: {words}",
    "whoever imported the log declared them",
)

# algorithms/offline_people/moments.py, algorithms/offline_people/rounds.py
LEARNED_MODEL = Claim(
    "logs.learned",
    "protects",
    "Everything that each person logged (observations, actions, rewards, and the number of rows), "
    "against an observer who sees the noisy moments, the model, the policy, and everything "
    "computed from them.",
)
# algorithms/offline_people/steps.py
LEARNED_IN_STEPS = Claim(
    "logs.steps",
    "protects",
    "Everything that each person logged (observations, actions, rewards, and the number of rows), "
    "against an observer who sees the noisy sum of people's gradients in every step, the networks "
    "after every step, the policy, and everything computed from them.",
)
PATTERNS = Claim(
    "logs.patterns",
    "does-not-protect",
    "Patterns that many people share. The training learns such patterns, and the policy shows "
    "them.",
)
# data/imports/grouping.py, data/imports/declaration.py
ONE_PERSON = Claim(
    "logs.one-person",
    "user",
    "All rows of a person are under one id, and nobody else has it. The declaration of the log "
    "(bounds, categories, number of people, horizon) was chosen without looking at the log.",
    "whoever imports the log knows how it was made; the import reads nothing in the declaration "
    "off the log",
)
# algorithms/bandit/release.py
JOINT = Claim(
    "logs.joint",
    "protects",
    "Everything that each person logged, against all other people together, whatever they are "
    "offered, and against everybody who sees the noisy sums and everything computed from them "
    "(joint privacy, and privacy of everything that is released).",
)
OWN_OFFERS = Claim(
    "logs.own-offers",
    "does-not-protect",
    "A person, against somebody who sees what this person was offered or chose. A person's own "
    "ratings decide, without noise, what this person is offered next.",
    version=2,
)
SETTINGS = Claim(
    "logs.settings",
    "user",
    "The settings of this run were chosen without this log, or from releases that were paid for.",
    "choose them on public or on other data; a setting that was tried on this log without a ledger "
    "is not in this certificate",
)


class Declared(Protocol):
    """Facts about the origin of an imported log, as its declaration and settings of runs have."""

    @property
    def source(self) -> str | None:
        """Origin, in words."""

    @property
    def licence(self) -> str | None:
        """Terms of use, in words."""

    @property
    def already_public(self) -> bool | None:
        """Whether the log has been published already."""


class AboutLog(NamedTuple):
    """Sentences of a release about an imported log."""

    does_not_protect: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()


NOT_IMPORTED = AboutLog()
"""None, for data that were not imported."""


def about_log(log: Declared, *duties: Claim) -> AboutLog:
    """Returns these duties of whoever imported a log, and the sentences on its origin."""
    stated = ((SOURCE, log.source), (LICENCE, log.licence))
    return AboutLog(
        (PUBLISHED(),) if log.already_public else (),
        (
            *(one.assumption() for one in duties),
            *(one.assumption(words=words) for one, words in stated if words),
        ),
    )
