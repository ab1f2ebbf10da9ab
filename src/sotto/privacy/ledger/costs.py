"""The cost of streams for the people who took part in them.

Guarantee:
    A group is all people who took part in the same streams. Each group pays for its streams, and
    the cost of a ledger is that of the group that pays most. This is sound because the members of
    a release are fixed in advance or by earlier releases, and every state that is carried on is a
    function of releases. Given those, a release does not depend on people who have no part in it
    (docs/privacy.md, Theorem 2).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sotto.privacy.accounting.composition import Event, Gaussian, PrivacyCurve, compose
from sotto.privacy.accounting.gaussian import largest_shift
from sotto.privacy.ledger.persons import FULL_PAGE, PersonSet
from sotto.privacy.statements import StreamStatement

SAMPLER_RESERVE = 1e-9
"""Share of delta that a filter sets aside for the noise samplers of all its streams."""

Group = frozenset[int]
"""Indices of the streams that some people share."""


@dataclass(frozen=True)
class Composition:
    """The composed cost of the streams of one group of people.

    Attributes:
        streams: indices of the streams, in the order they were opened.
        events: one event for each stream; under a filter, one event for its bound.
        sampler_delta: delta that the noise samplers of these streams cost together.
        curve: cost of the events.
    """

    streams: tuple[int, ...]
    events: tuple[Event, ...]
    sampler_delta: float
    curve: PrivacyCurve

    def epsilon(self, delta: float) -> float:
        """Returns epsilon at delta, of which the samplers take their share first."""
        left = delta - self.sampler_delta
        return self.curve.epsilon(left) if left > 0 else math.inf


@dataclass(frozen=True)
class Spent:
    """The cost of a ledger for the worst person, as a function of delta.

    Attributes:
        epsilon: at `delta`; infinite where nothing is proved.
        delta: the budget's.
        worst: the composition that costs `epsilon`.
        compositions: one for each group whose streams are not all another group's.
        persons: number of persons who took part, or may have.
    """

    epsilon: float
    delta: float
    worst: Composition
    compositions: tuple[Composition, ...]
    persons: int

    def epsilon_at(self, delta: float) -> float:
        """Returns the worst person's epsilon at another delta.

        Raises:
            ValueError: delta is not in (0, 1), or is finer than the accountant resolves.
        """
        return max(composition.epsilon(delta) for composition in self.compositions)


def groups(streams: Sequence[PersonSet]) -> set[Group]:
    """Returns the distinct sets of streams (by index) in which some person is a member.

    On each page, the persons are divided by their membership in one stream after the other.
    """
    found: set[Group] = set()
    for page in set[int]().union(*(people.pages for people in streams)):
        parts: list[tuple[int, Group]] = [(FULL_PAGE, frozenset())]
        for index, people in enumerate(streams):
            if bits := people.pages.get(page, 0):
                divided = [
                    ((part & bits, group | {index}), (part & ~bits, group)) for part, group in parts
                ]
                parts = [one for two in divided for one in two if one[0]]
        found.update(group for _, group in parts)
    return found - {frozenset()}


def composed(sets: set[Group], statements: Sequence[StreamStatement]) -> tuple[Composition, ...]:
    """Composes the streams of each group; groups that pay for equal events are composed once."""
    largest = [one for one in sets if not any(one < other for other in sets)]
    distinct: dict[tuple[tuple[str, ...], float], Composition] = {}
    for indices in sorted(tuple(sorted(one)) for one in largest):
        events = tuple(statements[i].event for i in indices)
        samplers = math.fsum(statements[i].sampler_delta for i in indices)
        key = (tuple(sorted(event.model_dump_json() for event in events)), samplers)
        if key not in distinct:
            distinct[key] = Composition(indices, events, samplers, compose(events))
    return tuple(distinct.values())


def worst_of(compositions: Sequence[Composition], delta: float, persons: int) -> Spent:
    """Returns the cost of the composition that costs most at delta; nothing costs 0."""
    every = tuple(compositions) or (Composition((), (), 0.0, compose(())),)
    worst = max(every, key=lambda composition: composition.epsilon(delta))
    return Spent(worst.epsilon(delta), delta, worst, every, persons)


# --- the filter ----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def filter_bound(epsilon: float, delta: float) -> Gaussian:
    """Returns the Gaussian release that costs a whole budget.

    Let the squared shifts 1/z^2 of Gaussian streams add up to at most that of this release. The
    streams then cost at most as much as it does, even if the results of earlier ones decide about
    later ones (docs/privacy.md, Theorem 11). The samplers' reserve is taken off delta first.
    """
    return Gaussian(noise_multiplier=1 / largest_shift(epsilon, delta * (1 - SAMPLER_RESERVE)))


def shift_of(statements: Sequence[StreamStatement]) -> float:
    """Returns the shift of Gaussian streams together; infinity if one of them is not Gaussian."""
    events = [one.event for one in statements]
    return math.hypot(
        *(1 / one.noise_multiplier if isinstance(one, Gaussian) else math.inf for one in events)
    )
