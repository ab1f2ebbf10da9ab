"""Numbers of a certificate that no ledger can have together, whatever was released.

A ledger refuses such numbers when they would arise, so a certificate that states them was made up.
The cost of the statements themselves is compared in `lone.py`.
"""

import math
from collections.abc import Sequence

from sotto.privacy.accounting.composition import Gaussian, NoGuarantee, compose
from sotto.privacy.certificates.check import TOLERANCE
from sotto.privacy.certificates.model import CertifiedAnswers, CertifiedStream
from sotto.privacy.claims import LedgerFacts, Reference, said
from sotto.privacy.claims.conditions import through_functions
from sotto.privacy.claims.rewards import PRINTED, SENSITIVITY, radii_in
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.costs import SAMPLER_RESERVE, filter_bound, shift_of
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.statements import Poisson, Returning
from sotto.privacy.units import Adjacency


def check_budget(epsilon: float, budget: Budget) -> None:
    """Refuses a finite epsilon above the budget, which a ledger never exceeds.

    An infinite one claims nothing. It may stand beside a finite budget where what was proved in an
    earlier version is not proved any more.

    Raises:
        PrivacyError: it is above.
    """
    _require(
        math.isinf(epsilon) or epsilon <= budget.epsilon * (1 + TOLERANCE),
        f"epsilon {epsilon:.6g} exceeds the budget of {budget.epsilon:g}",
    )


def check_counts(streams: Sequence[CertifiedStream], persons: int, budget: Budget) -> None:
    """Refuses numbers of releases and people that contradict each other.

    Raises:
        PrivacyError: they do.
    """
    for one in streams:
        name, rule, horizon = one.statement.name, one.statement.participation, one.statement.horizon
        _require(
            0 <= one.releases <= horizon,
            f"{name!r} made {one.releases} releases, and its statement plans {horizon}",
        )
        least, most = 0, persons if one.releases else 0
        if isinstance(rule, Poisson) and one.releases:  # everybody who may be drawn pays
            least = most = rule.population
        if (shares := one.statement.shares) is not None:
            least = one.releases * shares.promised
            most = min(most, one.releases * shares.slots)
        _require(
            least <= one.persons <= most,
            f"{one.persons} people cannot have taken part in {name!r}",
        )
    alone, shared = _people(streams)
    _require(
        alone + max(shared, default=0) <= persons <= alone + sum(shared),
        f"{persons} people in all do not fit the numbers of people in its streams",
    )
    _require(budget.delta * persons < 1, f"delta {budget.delta:g} is vacuous for {persons} people")


def check_functions(streams: Sequence[CertifiedStream]) -> None:
    """Refuses released functions whose sentence on sensitivity is missing or says another bound.

    Their values are not clipped, so the sentence is the only place where the bound is explained.
    Units must be those of which such a stream has a proof.

    Raises:
        PrivacyError: there is such a stream, or one whose input is not in all of its releases.
    """
    for one in streams:
        statement, rule = one.statement, one.statement.participation
        if isinstance(statement.event, NoGuarantee):
            continue
        name = statement.name
        stated = [
            (said_there.numbers["name"], float(said_there.numbers["bound"]))
            for said_there in said(LedgerFacts(streams=(statement,)))
            if isinstance(said_there, Reference) and said_there.claim == SENSITIVITY.identifier
        ]
        unit, function = statement.unit, through_functions(statement)
        _require(
            unit.for_functions
            if function or stated or statement.choice
            else unit.for_contributions,
            f"no release as that of {name!r} protects such a unit",
        )
        _require(
            unit.adjacency is not Adjacency.WITHIN_RADIUS or len(radii_in(statement.protects)) == 1,
            f"{name!r} does not say within which radius",
        )
        if not function:
            continue
        _require(
            rule == Returning(max_participations=statement.horizon, min_separation=1)
            and set(statement.parts) == {"values"},
            f"{name!r} is no release of a function, whose input is in each of its releases",
        )
        bound = statement.parts["values"].clip_norm * statement.unit.adjacency.sensitivity_factor
        _require(
            [repr(name)] == [who for who, _ in stated]
            and math.isclose(stated[0][1], bound, rel_tol=PRINTED),
            f"no sentence says why the values of {name!r} differ by at most {bound:.6g}",
        )


def check_filter(streams: Sequence[CertifiedStream], persons: int, budget: Budget) -> None:
    """Refuses shared streams that cost somebody more than the budget of an adaptive ledger.

    Nobody's squared shifts may exceed the filter's, so neither does the mean over all people. The
    same is true of what the samplers cost.

    Raises:
        PrivacyError: one stream alone costs more, or all together cost more on average.
    """
    (alone, people), shared = _people(streams), [one for one in streams if one.statement.is_shared]
    shifts = [shift_of([one.statement]) ** 2 for one in shared]
    samplers = [one.statement.sampler_delta for one in shared]
    bound = filter_bound(budget.epsilon, budget.delta).noise_multiplier ** -2
    for costs, limit in ((shifts, bound), (samplers, SAMPLER_RESERVE * budget.delta)):
        _require(
            max(costs, default=0.0) <= limit * (1 + TOLERANCE),
            "a stream that people share costs more than their budget, even alone",
        )
        total = math.fsum(cost * count for cost, count in zip(costs, people, strict=True))
        _require(
            total <= limit * (persons - alone) * (1 + TOLERANCE),
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
    for one in streams:
        if one.event is None:
            continue
        where = at if isinstance(one.event, Gaussian) else delta
        _require(
            compose([one.event]).epsilon(where) <= most * (1 + TOLERANCE),
            f"{one.statement.name!r} alone costs more than the shared budget of epsilon {most:g}",
        )


def check_answers(answers: CertifiedAnswers) -> None:
    """Refuses students whose answers cost more than all that they may get.

    Raises:
        PrivacyError: there are such students.
    """
    for one in answers.students:
        _require(
            one.spent_epsilon is None or one.spent_epsilon <= one.epsilon * (1 + TOLERANCE),
            f"the answers to {one.name!r} cost more than the epsilon of all that they may get",
        )


def _people(streams: Sequence[CertifiedStream]) -> tuple[int, list[int]]:
    """Returns how many people take part in one stream only, and the people of each shared one."""
    alone = sum(one.persons for one in streams if not one.statement.is_shared)
    return alone, [one.persons for one in streams if one.statement.is_shared]


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise PrivacyError(f"no ledger gives this certificate: {reason}")
