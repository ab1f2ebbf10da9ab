"""Sentences about participation, and about streams that the same people may take part in."""

from sotto.privacy.claims.claim import Claim, LedgerFacts
from sotto.privacy.claims.conditions import (
    about_people,
    about_rewards,
    both,
    has_selection,
    some,
)
from sotto.privacy.statements import StreamStatement


def shared(stream: StreamStatement) -> bool:
    """Whether the people of the stream may take part in other streams."""
    return stream.is_shared


def _assumed(facts: LedgerFacts) -> bool:
    """Whether the user alone plans who takes part in which stream, as in earlier versions."""
    return about_people(facts) and facts.sharing == "assumed"


def _ruled(facts: LedgerFacts) -> bool:
    return about_people(facts) and facts.sharing != "assumed"


def _one_try(facts: LedgerFacts) -> bool:
    return not has_selection(facts)


ASSUMED_SETTINGS = Claim(
    "people.settings",
    "user",
    "The initial state, the settings and the schedule are chosen without looking at these "
    "people's data. Between releases, the state changes only through releases. Who takes part in "
    "which stream is decided before the first release. Epsilon does not cover trying several "
    "settings on the same people.",
    "choose settings on public data, in a simulator, or on other people",
    version=3,
    holds=both(_assumed, _one_try),
)
ASSUMED_CANDIDATES = Claim(
    "people.candidates",
    "user",
    "The initial state, the candidates and the schedule are chosen without looking at these "
    "people's data. Between releases, the state changes only through releases. Who takes part in "
    "which stream is decided before the first release. Epsilon does not cover trying settings "
    "other than the candidates on the same people.",
    "choose candidates on public data, in a simulator, or on other people",
    version=3,
    holds=both(_assumed, has_selection),
)
SETTINGS = Claim(
    "stream.settings",
    "user",
    "The initial state, the settings and the schedule of a stream are chosen before it is opened, "
    "without looking at these people's data except through releases that were paid for. A release "
    "that another ledger was charged for has a certificate whose cost adds to this one. Between "
    "releases, the state changes only through releases. Epsilon does not cover trying several "
    "settings on the same people.",
    "choose settings on public data, in a simulator, or on other people",
    version=2,
    holds=both(_ruled, _one_try),
)
CANDIDATES = Claim(
    "stream.candidates",
    "user",
    "The initial state, the candidates and the schedule are chosen without looking at these "
    "people's data. Between releases, the state changes only through releases. Epsilon does not "
    "cover trying settings other than the candidates on the same people.",
    "choose candidates on public data, in a simulator, or on other people",
    holds=both(_ruled, has_selection),
)


def _of_whom(facts: LedgerFacts) -> dict[str, str]:
    """Returns the words for the streams that share people or rewards, and for who pays."""
    if about_rewards(facts):
        return {"streams": "that may be about the same rewards", "who": "A reward in one"}
    return {
        "streams": "in which the same people may take part",
        "who": "A person who takes part in one",
    }


# ledger/spending.py
PLANNED = Claim(
    "ledger.planned",
    "code",
    "All streams {streams} are opened before the first of them is charged. {who} of them pays for "
    "all of them.",
    "the ledger refuses to open another such stream after the first charge",
    version=2,
    numbers=_of_whom,
    # A stream of which nothing is proved may be opened late: epsilon is infinite from then on.
    holds=both(some(shared), lambda facts: facts.sharing == "planned" and not facts.unplanned),
)
FILTERED = Claim(
    "ledger.filtered",
    "code",
    "For people who may take part in several streams, epsilon is the budget. It holds even if "
    "earlier releases decide which streams are opened next, how much noise they have, and who "
    "takes part.",
    "the budget is fixed before the first charge, these streams are Gaussian, and the ledger "
    "refuses a stream that would exceed the budget (docs/privacy.md, section 8)",
    holds=both(some(shared), lambda facts: facts.sharing == "adaptive"),
)


def _limits(facts: LedgerFacts) -> dict[str, str]:
    epsilon, delta = facts.limits or (0.0, 0.0)
    return {"epsilon": str(epsilon).removesuffix(".0"), "delta": str(delta)}


# ledger/shared.py
SHARED_BUDGET = Claim(
    "ledger.shared-budget",
    "code",
    "What people pay here is also counted in a budget that several products share, by the number "
    "of each person. Nobody who has one number in all of them pays more than epsilon {epsilon} at "
    "delta {delta}, as long as nobody goes on with a copy of the budget, or with an earlier state "
    "of it. The numbers of this certificate are about this run alone.",
    "every charge is on disk in the shared budget before this ledger is charged, and is refused if "
    "it would exceed that (docs/privacy.md, section 8); a budget is refused that lacks what its "
    "products, or a file beside it, have seen, and the owner of the data assigns the numbers",
    version=2,
    holds=lambda facts: facts.limits is not None,
    numbers=_limits,
)
# ledger/spending.py
ENROLMENT = Claim(
    "ledger.enrolment",
    "user",
    "An enrolment number always stands for the same person, and no person has two numbers. Who "
    "takes part does not depend on people's data, except through releases. Data that are handed "
    "over for a person, such as rows, ratings or a policy, were computed from that person's data, "
    "public facts and releases alone. Nobody goes on with a copy of this ledger, or with an "
    "earlier state of it: each copy counts its own releases only.",
    "the owner of the data assigns the numbers, scales and completes data by public bounds, and "
    "keeps one ledger; the code refuses a ledger older than the files made from it, and cannot "
    "notice a copy of all files, or a mean, a maximum or a rank over several people in their rows",
    version=5,
    holds=about_people,
)
# ledger/ledger.py, ledger/spending.py
COUNTED = Claim(
    "ledger.counted",
    "code",
    "In this ledger, no person takes part more often than the streams allow, and no stream makes "
    "more releases than planned.",
    "the ledger counts each person's participations, also across resumed runs, and every release "
    "is charged before it is made",
    version=3,
    holds=about_people,
)
