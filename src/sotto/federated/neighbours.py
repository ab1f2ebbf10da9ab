"""Neighbours of a device in a round, and how many of them can open its masks.

The devices of a round stand in a circle in random order. A device shares its masks with the
neighbours at the distances 1 to k/2 on both sides, and gives them shares of its two secrets. Any
`threshold` of these neighbours can reconstruct one secret together (Bell et al. 2020, "Secure
single-server aggregation with (poly)logarithmic overhead", section 3).

Guarantee:
    Let `people - promised` devices at most drop out. Let `colluding` of all devices in the circle,
    or one in twenty if these are more, show everything to the server. They count whether they drop
    out or not, and are chosen without looking at the circle. Each of these failures then has
    probability below 2^-40 in a round:

    - a secret cannot be reconstructed, because too few neighbours are left;
    - colluding neighbours reconstruct both secrets of a device, and see its vector;
    - the remaining devices fall apart into groups that share no masks, so that the server sees the
      sum of each group.

    The first two are tails of hypergeometric distributions, times the number of devices. For the
    third, devices fall apart only where two runs of k/2 devices in a row are all gone.
    `failure_bounds` computes the three bounds.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

FAILURE = 2.0**-40
"""Largest probability of each failure in a round."""

FEWEST = 3
"""Fewest devices in a sum; the sum of two tells each of them the other one's vector."""

_SHOWING = 20  # masks are safe from one in so many devices, also if fewer are said to collude
_COMPLETE = 48  # up to this number everybody is everybody's neighbour


class FailureBounds(NamedTuple):
    """Upper bounds on the probabilities of the three failures in a round."""

    unrecoverable: float
    """A secret of some device cannot be reconstructed."""
    revealed: float
    """Colluding devices have enough shares of some device for both of its secrets."""
    apart: float
    """The devices that are left fall apart into groups without common masks."""


class Neighbourhood(NamedTuple):
    """The public sizes of a round's circle.

    Attributes:
        people: number of devices in the circle.
        neighbours: number of neighbours of each device (k), even unless everybody is a neighbour.
        threshold: number of neighbours who reconstruct a secret (t).
    """

    people: int
    neighbours: int
    threshold: int

    def of(self, place: int) -> tuple[int, ...]:
        """Returns the places of the neighbours of a place in the circle, in increasing order."""
        if self.neighbours == self.people - 1:
            return tuple(other for other in range(self.people) if other != place)
        half = self.neighbours // 2
        steps = (*range(-half, 0), *range(1, half + 1))
        return tuple(sorted((place + step) % self.people for step in steps))


@lru_cache
def neighbourhood(people: int, promised: int, colluding: int) -> Neighbourhood:
    """Returns the smallest neighbourhood in which no failure is likely.

    The threshold is more than half of the neighbours where so many remain, so that a server that
    tells different devices different things about a third one gets only one of its secrets.

    Args:
        people: number of devices in the circle.
        promised: number of devices that do not drop out.
        colluding: number of devices in the circle that may show everything to the server.

    Raises:
        ValueError: no circle of so many devices is safe.
    """
    if not FEWEST <= promised <= people:
        raise ValueError(
            f"a round of {people} devices needs at least {FEWEST} that stay, and at most all of "
            f"them; {promised} are promised"
        )
    showing = max(colluding, people // _SHOWING)
    for found in _candidates(people, promised):
        if found.threshold > 0 and max(failure_bounds(found, promised, showing)) <= FAILURE:
            return found
    raise ValueError(
        f"{showing} of {people} devices are too many to collude if only {promised} are promised "
        "to stay; ask more devices, or promise more"
    )


def _candidates(people: int, promised: int) -> Iterator[Neighbourhood]:
    """Yields circles with more and more neighbours, each with the best threshold."""
    if people > _COMPLETE:
        for neighbours in range(2, people - 1, 2):
            yield Neighbourhood(people, neighbours, _threshold(people, neighbours, promised))
    complete = people - 1
    yield Neighbourhood(people, complete, min(complete // 2 + 1, promised - 1))


def _threshold(people: int, neighbours: int, promised: int) -> int:
    """Returns more than half of the neighbours, or as many as are left in all likelihood."""
    from scipy.stats import hypergeom  # it takes a second, and few people need none

    staying = hypergeom(people - 1, promised - 1, neighbours)
    likely = int(staying.ppf(FAILURE / people))  # smallest number with this much at or below it
    while likely > 0 and people * staying.cdf(likely - 1) > FAILURE:
        likely -= 1
    return min(neighbours // 2 + 1, likely)


def failure_bounds(found: Neighbourhood, promised: int, colluding: int) -> FailureBounds:
    """Returns bounds on the probabilities of failures in a round.

    Args:
        found: sizes of the circle.
        promised: number of devices that do not drop out.
        colluding: number of devices in the circle that may show everything to the server.
    """
    people, neighbours, threshold = found
    if neighbours == people - 1:
        # Nobody is left to chance: promised - 1 neighbours stay at least, and all collude at most.
        return FailureBounds(float(threshold > promised - 1), float(colluding >= threshold), 0.0)
    from scipy.stats import hypergeom

    staying = hypergeom(people - 1, promised - 1, neighbours)
    showing = hypergeom(people - 1, min(colluding, people - 1), neighbours)
    gone = min(people, people - promised + colluding)
    return FailureBounds(
        min(1.0, people * float(staying.cdf(threshold - 1))),
        min(1.0, people * float(showing.sf(threshold - 1))),
        min(1.0, math.comb(people, 2) * _all_of(neighbours, gone, people)),
    )


def _all_of(given: int, gone: int, people: int) -> float:
    """Returns the probability that `given` places are all among `gone` random ones."""
    if given > gone:
        return 0.0
    return math.comb(people - given, gone - given) / math.comb(people, gone)
