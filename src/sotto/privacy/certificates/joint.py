"""Costs that no ledger states by itself: of several ledgers together, and of replacing a unit.

Each is derived from ledgers or from a certificate, and nowhere but here.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sotto.privacy.accounting.composition import compose
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.certificates.model import Certificate
from sotto.privacy.errors import LedgerMismatch
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Account, Budget
from sotto.privacy.units import Adjacency


class Cost(NamedTuple):
    """An epsilon and its delta."""

    epsilon: float
    delta: float


def together(ledgers: Sequence[Ledger | AnswerLedger]) -> Cost:
    """What everything costs that was charged to any of several ledgers about the same people.

    A person has the same number in every ledger, and a teacher is the same in every ledger of its
    answers: the account is that of one ledger to which all had been charged.

    Args:
        ledgers: at least one, of one unit and with one delta.

    Raises:
        LedgerMismatch: their units or deltas differ, so that no epsilon is about all of them, or
            one of them is adaptive.
    """
    if len({_about(ledger) for ledger in ledgers}) != 1:
        raise LedgerMismatch("ledgers of other units, or with other deltas, have no cost in common")
    people = [one for one in ledgers if isinstance(one, Ledger)]
    if people:
        first = people[0]
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
    """What it costs that one unit is replaced by another one.

    Guarantee:
        Under zero-out adjacency, to replace a unit is to zero it out and to put another one in. If
        M(x), M(0) and M(0), M(x') are (epsilon, delta)-close in both directions, then
        P[M(x) in S] <= e^epsilon (e^epsilon P[M(x') in S] + delta) + delta: the cost is
        (2 epsilon, (1 + e^epsilon) delta), with the delta at least doubled.

    Raises:
        ValueError: the certificate's unit is one within a radius, which nothing replaces.
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
    """What zero-out adjacency may cost, so that `replaced` is within (epsilon, delta)."""
    return Budget(epsilon=epsilon / 2, delta=delta / (1 + _exp(epsilon / 2)))


def _about(ledger: Ledger | AnswerLedger) -> tuple[object, ...]:
    if isinstance(ledger, Ledger):
        return (Ledger, ledger.unit, ledger.budget.delta)
    return (AnswerLedger, ledger.statement.distance.unit, ledger.budget.delta)


def _exp(epsilon: float) -> float:
    """e^epsilon, infinite where it is larger than any number."""
    return math.exp(epsilon) if epsilon < 700 else math.inf
