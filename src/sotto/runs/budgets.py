"""Giving a run's ledger the budget that the run shares with other products."""

from pathlib import Path

from sotto.algorithms.base import AnyLedger
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.ledger.joining import Numbers, not_given
from sotto.privacy.ledger.shared import SharedBudget


def give_budget(ledger: AnyLedger, budget: str | None, numbers: Path | None = None) -> None:
    """Gives a ledger its shared budget before it is charged. A new ledger joins the budget.

    Args:
        ledger: the ledger.
        budget: file or SQLAlchemy URL of the shared budget; None: the run shares none.
        numbers: file with the operator's number of each person, in the order of enrolment; None
            if people enrol under these numbers.

    Raises:
        LedgerMismatch: the ledger shares a budget and none is given, or another one.
        LedgerCorrupt: the shared budget is damaged, or an older copy.
        LedgerUnavailable: the shared budget cannot be used.
        ValueError: a teacher's ledger of answers cannot share a budget, or the file of numbers
            cannot be used.
    """
    if isinstance(ledger, AnswerLedger):
        if budget is not None:
            raise ValueError(
                "a teacher's answers protect the teacher's data and not single people, so they "
                "cannot share a budget of people; leave out --budget"
            )
        return
    if budget is not None:
        listed = None if numbers is None else Numbers.read(numbers)
        ledger.join(SharedBudget.open(budget), listed)
    elif ledger.joined is not None:
        raise not_given(ledger.joined)
