"""Sentences about participation, and about streams that the same people may take part in."""

from sotto.privacy.claims.claim import Claim, Facts, about_people, both, some
from sotto.privacy.claims.streams import has_selection
from sotto.privacy.statements import StreamStatement, is_exclusive


def shared(stream: StreamStatement) -> bool:
    """The people of the stream may take part in other streams."""
    return not is_exclusive(stream.participation)


def _assumed(facts: Facts) -> bool:
    """Ledgers of earlier versions left it to the user to decide who takes part in which stream."""
    return about_people(facts) and facts.sharing == "assumed"


def _ruled(facts: Facts) -> bool:
    return about_people(facts) and facts.sharing != "assumed"


def _one_try(facts: Facts) -> bool:
    return not has_selection(facts)


ASSUMED_SETTINGS = Claim(
    "people.settings",
    "user",
    "The initial state, the settings and the schedule are chosen without looking at these people's "
    "data. Between releases the state changes by releases only. Who takes part in which stream is "
    "decided before the first release. Trying several settings on the same people is not paid for.",
    "choose settings on public data, in a simulator, or on other people",
    version=2,
    holds=both(_assumed, _one_try),
)
ASSUMED_CANDIDATES = Claim(
    "people.candidates",
    "user",
    "The initial state, the candidates and the schedule are chosen without looking at these "
    "people's data. Between releases the state changes by releases only. Who takes part in which "
    "stream is decided before the first release. Trying other settings on the same people than the "
    "candidates is not paid for.",
    "choose candidates on public data, in a simulator, or on other people",
    version=2,
    holds=both(_assumed, has_selection),
)
SETTINGS = Claim(
    "people.settings",
    "user",
    "The initial state, the settings and the schedule of a stream are chosen before it is opened, "
    "without looking at these people's data other than through releases that this ledger was "
    "charged for. Between releases the state changes by releases only. Trying several settings on "
    "the same people is not paid for.",
    "choose settings on public data, in a simulator, or on other people",
    version=3,
    holds=both(_ruled, _one_try),
)
CANDIDATES = Claim(
    "people.candidates",
    "user",
    "The initial state, the candidates and the schedule are chosen without looking at these "
    "people's data. Between releases the state changes by releases only. Trying other settings on "
    "the same people than the candidates is not paid for.",
    "choose candidates on public data, in a simulator, or on other people",
    version=3,
    holds=both(_ruled, has_selection),
)
# spending.py
PLANNED = Claim(
    "ledger.planned",
    "code",
    "Streams that the same people may take part in are all opened before the first of them is "
    "charged, or nothing is proved of any. People of one pay for all of them.",
    "the ledger refuses to open another one afterwards",
    holds=both(some(shared), lambda facts: facts.sharing == "planned"),
)
FILTERED = Claim(
    "ledger.filtered",
    "code",
    "For people of streams that others may follow, epsilon is the budget. It holds however earlier "
    "releases decide which streams are opened next, with how much noise, and who takes part.",
    "the budget is fixed before the first charge; these streams are Gaussian, and the ledger "
    "refuses one with which they would add up to more (docs/privacy.md, section 8)",
    holds=both(some(shared), lambda facts: facts.sharing == "adaptive"),
)
# spending.py
ENROLMENT = Claim(
    "ledger.enrolment",
    "user",
    "An enrolment number is one person, always the same one, and who takes part does not depend on "
    "people's data other than through releases.",
    "whoever holds the data assigns the numbers",
    holds=about_people,
)
# ledger.py, spending.py
COUNTED = Claim(
    "ledger.counted",
    "code",
    "Nobody takes part more often than the streams say, and no release goes beyond its horizon.",
    "the ledger counts by person over all resumptions, and is charged before a release",
    holds=about_people,
)
