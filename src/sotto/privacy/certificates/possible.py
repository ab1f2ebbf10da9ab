"""Numbers of a certificate that no ledger can have together, whatever was released.

A ledger refuses such numbers when they would arise, so a certificate that states them was made up.
The cost of the statements themselves is compared in `lone.py`.
"""

import math
from collections.abc import Sequence

from sotto.privacy.accounting.composition import Gaussian, compose
from sotto.privacy.certificates.model import CertifiedAnswers, CertifiedStream
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.costs import SAMPLER_RESERVE, filter_bound, shift_of
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.statements import Poisson, is_exclusive

_ROUNDING = 1e-6
"""Relative difference that another machine's arithmetic may make."""


def check_budget(epsilon: float, budget: Budget) -> None:
    """Refuses an epsilon above the budget, which a ledger never exceeds.

    Raises:
        PrivacyError: it is above.
    """
    _require(
        epsilon <= budget.epsilon * (1 + _ROUNDING),
        f"epsilon {epsilon:.6g} exceeds the budget of {budget.epsilon:g}",
    )


def check_counts(streams: Sequence[CertifiedStream], persons: int, budget: Budget) -> None:
    """Refuses numbers of releases and people that contradict each other.

    Raises:
        PrivacyError: they do.
    """
    alone = 0
    for one in streams:
        name, horizon = one.statement.name, one.statement.horizon
        _require(
            0 <= one.releases <= horizon,
            f"{name!r} made {one.releases} releases, and its statement plans {horizon}",
        )
        whole = one.persons
        if isinstance(rule := one.statement.participation, Poisson):
            whole = rule.population if one.releases else 0
        _require(
            one.persons == whole and one.persons >= 0 and (one.releases > 0 or not one.persons),
            f"{one.persons} people cannot have taken part in {name!r}",
        )
        alone += one.persons if is_exclusive(one.statement.participation) else 0
    shared = [one.persons for one in streams if not is_exclusive(one.statement.participation)]
    _require(
        alone + max(shared, default=0) <= persons <= alone + sum(shared),
        f"{persons} people in all do not fit the numbers of people in its streams",
    )
    _require(budget.delta * persons < 1, f"delta {budget.delta:g} is vacuous for {persons} people")


def check_filter(streams: Sequence[CertifiedStream], persons: int, budget: Budget) -> None:
    """Refuses shared streams that cost somebody more than the budget of an adaptive ledger.

    Nobody's squared shifts may exceed the filter's, so neither does the mean over all people.

    Raises:
        PrivacyError: one stream alone costs more, or all together cost more on average.
    """
    bound = filter_bound(budget.epsilon, budget.delta)
    limits = bound.noise_multiplier**-2, SAMPLER_RESERVE * budget.delta
    alone = sum(one.persons for one in streams if is_exclusive(one.statement.participation))
    totals = [0.0, 0.0]
    for one in (one for one in streams if not is_exclusive(one.statement.participation)):
        costs = shift_of([one.statement]) ** 2, one.statement.sampler_delta
        for part, (cost, limit) in enumerate(zip(costs, limits, strict=True)):
            _require(
                cost <= limit * (1 + _ROUNDING),
                f"{one.statement.name!r} alone costs more than the budget of its people",
            )
            totals[part] += cost * one.persons
    _require(
        all(
            total <= limit * (persons - alone) * (1 + _ROUNDING)
            for total, limit in zip(totals, limits, strict=True)
        ),
        "the streams that people share cost more than the budget, even on average over people",
    )


def check_shared_budget(
    streams: Sequence[CertifiedStream], limits: dict[str, float], delta: float
) -> None:
    """Refuses streams that a budget of several products would not have covered.

    Args:
        streams: streams of the certificate.
        limits: epsilon and delta of the shared budget.
        delta: of the certificate, at which streams that are not Gaussian are counted.

    Raises:
        PrivacyError: the limits are none, or one stream alone costs more.
    """
    most, at = limits.get("epsilon", math.nan), limits.get("delta", math.nan)
    _require(0 < most < math.inf and 0 < at < 1, "its shared budget is no epsilon and delta")
    for one in (one for one in streams if one.event is not None):
        assert one.event is not None
        where = at if isinstance(one.event, Gaussian) else delta
        _require(
            compose([one.event]).epsilon(where) <= most * (1 + _ROUNDING),
            f"{one.statement.name!r} alone costs more than the shared budget of epsilon {most:g}",
        )


def check_answers(answers: CertifiedAnswers) -> None:
    """Refuses students who were answered more often than their teacher allows.

    Raises:
        PrivacyError: there are such students.
    """
    most = answers.statement.queries_per_student
    for one in answers.students:
        _require(
            0 <= one.answered <= most and 1 <= one.queries <= most,
            f"{one.name!r} cannot have {one.answered} of {one.queries} answers; each student of "
            f"this teacher has at most {most}",
        )
        _require(
            one.spent_epsilon is None or one.spent_epsilon <= one.epsilon * (1 + _ROUNDING),
            f"the answers to {one.name!r} cost more than the epsilon of all that they may get",
        )


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise PrivacyError(f"no ledger gives this certificate: {reason}")
