"""Reports of a shared budget: how much each person has spent, how much is left, who is refused."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from sotto.privacy.accounting.gaussian import epsilon_of_shift
from sotto.privacy.ledger.allowances import WHOLE, Allowance
from sotto.privacy.ledger.costs import SAMPLER_RESERVE
from sotto.privacy.ledger.shared import SharedBudget
from sotto.privacy.ledger.shared_account import SharedAccount

BINS = 10
"""Number of bins of a histogram of used shares."""


@dataclass(frozen=True)
class StreamStanding:
    """The state of one stream.

    Attributes:
        product: run id of the product.
        name: name of the stream.
        people: number of people who took part.
        epsilon: cost of the stream alone for each of them, at the budget's delta.
        share: share of the budget that it uses.
        refused: number of people, known from any product, whom it would refuse now.
    """

    product: str
    name: str
    people: int
    epsilon: float
    share: float
    refused: int


@dataclass(frozen=True)
class PersonStanding:
    """The state of one person.

    Attributes:
        person: the operator's number.
        epsilon: cost so far, at the budget's delta.
        share: used share of the budget, in the part that is used most.
        room: epsilon of one more Gaussian stream that is not refused, if it were alone.
        streams: numbers of the streams in which the person took part.
    """

    person: int
    epsilon: float
    share: float
    room: float
    streams: tuple[int, ...]


@dataclass(frozen=True)
class Standing:
    """The state of a shared budget at one entry.

    Attributes:
        allowance: the budget.
        head_hash: hash of the last entry.
        created: time of creation, ISO 8601 in UTC.
        streams: all streams, in the order in which they were opened.
        people: number of people who took part in anything.
        largest: epsilon of the person who has spent most, at the budget's delta.
        histogram: number of people by used share, in bins of equal width from 0 to 1.
        nearest: people with the least left, at most as many as asked for.
    """

    allowance: Allowance
    head_hash: str
    created: str
    streams: tuple[StreamStanding, ...]
    people: int
    largest: float
    histogram: tuple[int, ...]
    nearest: tuple[PersonStanding, ...]


def standing(budget: SharedBudget, most: int = 10) -> Standing:
    """Returns the state of a shared budget.

    Args:
        budget: the budget.
        most: number of people to name.

    Raises:
        LedgerCorrupt, LedgerUnavailable: it is damaged, or cannot be read.
    """
    account = budget.account()
    people = account.people
    units = account.units(people)
    shares = _shares(units)
    spent = account.allowance.epsilon_of(units)
    bins = np.minimum((shares * BINS).astype(int), BINS - 1)
    nearest = np.lexsort((people, -shares))[:most]
    return Standing(
        allowance=account.allowance,
        head_hash=budget.head_hash,
        created=budget.created,
        streams=tuple(_stream(account, number, people) for number in range(len(account.streams))),
        people=len(people),
        largest=float(spent.max(initial=0.0)),
        histogram=tuple(np.bincount(bins, minlength=BINS).tolist()),
        nearest=tuple(person_standing(budget, int(people[one])) for one in nearest),
    )


def person_standing(budget: SharedBudget, person: int) -> PersonStanding:
    """Returns the state of one person; somebody unknown has spent nothing."""
    account = budget.account()
    allowance = account.allowance
    units = account.units(np.array([person]))
    left = (WHOLE - int(units[0, 0])) / WHOLE
    shift = math.sqrt(max(0.0, allowance.squared_shift * left))
    delta = allowance.gaussian_delta * (1 - SAMPLER_RESERVE)
    alone = np.array([person])
    streams = [n for n in range(len(account.streams)) if not len(account.new(n, alone))]
    return PersonStanding(
        person=person,
        epsilon=float(allowance.epsilon_of(units)[0]),
        share=float(_shares(units)[0]),
        room=epsilon_of_shift(shift, delta),
        streams=tuple(streams),
    )


def _shares(units: Int64[np.ndarray, "people 4"]) -> Float64[np.ndarray, " people"]:
    """Returns the used share of the part that each person has used most."""
    shares: Float64[np.ndarray, " people"] = units.max(axis=1) / WHOLE
    return shares


def _stream(
    account: SharedAccount, number: int, people: Int64[np.ndarray, " people"]
) -> StreamStanding:
    stream = account.streams[number]
    cost = np.array([stream.cost])
    new = account.new(number, people)
    return StreamStanding(
        product=stream.run_id,
        name=stream.statement.name,
        people=stream.size,
        epsilon=float(account.allowance.epsilon_of(cost)[0]),
        share=float(_shares(cost)[0]),
        refused=int(account.over(number, new).sum()),
    )
