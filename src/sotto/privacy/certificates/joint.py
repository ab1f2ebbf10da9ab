"""Costs that no single ledger states: of several ledgers together, and of replacing a unit.

No other module of the project composes or converts the epsilons of certificates.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sotto.privacy.accounting.composition import compose
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.certificates.model import Certificate
from sotto.privacy.errors import LedgerMismatch
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.records import require_alike
from sotto.privacy.ledger.spending import Account, Budget
from sotto.privacy.units import Adjacency


class Cost(NamedTuple):
    """An epsilon and its delta."""

    epsilon: float
    delta: float


def together(ledgers: Sequence[Ledger | AnswerLedger]) -> Cost:
    """Returns the total cost of several ledgers about the same people, or the same teacher.

    A person must have the same number in every ledger. The cost is then that of one ledger with
    all charges.

    Guarantee:
        Ledgers do not know of each other. The cost holds if the streams of all of them were
        declared before the first release of any, as the seeds of a run are. It does not cover
        streams whose settings, or whether they are opened at all, follow from releases of
        another ledger; one ledger refuses these (docs/privacy.md, section 8).

    Args:
        ledgers: at least one, all with the same unit and the same delta.

    Raises:
        LedgerMismatch: the units, distances or deltas differ, so that no epsilon covers all of
            them; one ledger could not hold their streams together; or a ledger is adaptive.
    """
    if len({_about(ledger) for ledger in ledgers}) != 1:
        raise LedgerMismatch(
            "ledgers about other units or distances, or with other deltas, have no cost in common"
        )
    people = [one for one in ledgers if isinstance(one, Ledger)]
    if people:
        first = people[0]
        require_alike([one.statement for ledger in people for one in ledger.streams])
        rules = {one.sharing for one in people}
        if "adaptive" in rules:
            raise LedgerMismatch(
                "an adaptive ledger certifies its own budget, and has no cost in common with others"
            )
        account = Account(
            first.unit,
            first.budget,
            [stream for one in people for stream in one.streams],
            sharing="planned" if "planned" in rules else "assumed",
        )
        return Cost(account.spent().epsilon, first.budget.delta)
    answers = [one.spent() for one in ledgers if isinstance(one, AnswerLedger)]
    events = [event for one in answers for event in one.events]
    return Cost(compose(events).epsilon(answers[0].delta), answers[0].delta)


def replaced(certificate: Certificate) -> Cost:
    """Returns the cost of replacing one unit by another.

    Guarantee:
        Under zero-out adjacency, a replacement is two steps: zero a unit out, then put another one
        in. If M(x) and M(0) are (epsilon, delta)-close in both directions, and so are M(0) and
        M(x'), then P[M(x) in S] <= e^epsilon (e^epsilon P[M(x') in S] + delta) + delta. The cost
        is (2 epsilon, (1 + e^epsilon) delta), with a delta at least twice as large.

    Raises:
        ValueError: the certificate's adjacency is within-radius, which has no replacement.
    """
    epsilon, delta = certificate.epsilon, certificate.delta
    match certificate.unit.adjacency:
        case Adjacency.REPLACE_ONE:
            return Cost(epsilon, delta)
        case Adjacency.ZERO_OUT:
            # The delta is (1 + e^epsilon) delta; where nothing is proved it is the vacuous 1.
            return Cost(2 * epsilon, min(1.0, (1 + _exp(epsilon)) * delta))
        case other:
            raise ValueError(f"a unit of {other.value} adjacency is not replaced by any other one")


def zero_out_budget(epsilon: float, delta: float) -> Budget:
    """Returns the zero-out budget for which `replaced` stays within (epsilon, delta)."""
    return Budget(epsilon=epsilon / 2, delta=delta / (1 + _exp(epsilon / 2)))


def _about(ledger: Ledger | AnswerLedger) -> tuple[object, ...]:
    if isinstance(ledger, Ledger):
        return (Ledger, ledger.unit, ledger.budget.delta)
    # Neighbours at other distances are other neighbours; how far rows move may differ.
    distance = ledger.statement.distance
    far = getattr(distance, "radius", None), getattr(distance, "l2", None)
    return (AnswerLedger, distance.unit, *far, ledger.budget.delta)


def _exp(epsilon: float) -> float:
    """Returns e^epsilon, or infinity where float64 would overflow."""
    return math.exp(epsilon) if epsilon < 700 else math.inf
