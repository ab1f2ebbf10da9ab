"""The values that a `CampaignDatabase` takes and returns."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64

State = Literal["taken", "given", "expired", "withdrawn", "released", "lost", "refused"]
"""The state of a place.

`taken` and `given` places can still change. A given place becomes `released` when its release is
made, `lost` when its release was charged and cannot be made, and `refused` when the ledger or a
shared budget refuses its person.
"""


@dataclass(frozen=True)
class Rules:
    """The public rules of a campaign, which never change.

    Attributes:
        slots: number of places in a release.
        horizon: number of releases.
        participations: most releases that one person gives a contribution to.
        min_separation: any two of these releases are at least this far apart (1: they may be
            consecutive); None if a person takes part once.
        place_seconds: time to give a contribution after a place was taken.
        release_seconds: time after which a release closes, from its first taken place on.
        contribution_bytes: length of every contribution.
        fixed_times: whether a release closes at a multiple of release_seconds instead.
    """

    slots: int
    horizon: int
    participations: int
    min_separation: int | None
    place_seconds: float
    release_seconds: float
    contribution_bytes: int
    fixed_times: bool = False

    def __post_init__(self) -> None:
        for name in ("slots", "horizon", "participations", "contribution_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"a campaign's {name} must be at least 1")
        for name in ("place_seconds", "release_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"a campaign's {name} must be positive and finite")
        if self.min_separation is None and self.participations > 1:
            raise ValueError("people who take part more than once need a min_separation")
        if self.min_separation is not None and self.min_separation < 1:
            raise ValueError("a campaign's min_separation must be at least 1")

    def deadline(self, now: float) -> float:
        """Returns the time at which a release closes whose first place is taken now."""
        if not self.fixed_times:
            return now + self.release_seconds
        period = self.release_seconds
        return period * math.ceil((now + self.place_seconds) / period)


@dataclass(frozen=True)
class Place:
    """A place of one person in one release.

    Attributes:
        id: random name of the place.
        release: the release, and the version of the policy that the person is served by.
        slot: number of the place in its release.
        secret: 32 random bytes, which stay on the server. They are the same every time.
        expires: time until which a contribution is taken.
    """

    id: str
    release: int
    slot: int
    secret: bytes = field(repr=False)
    expires: float


@dataclass(frozen=True)
class Receipt:
    """The answer to a person who withdraws.

    Attributes:
        person: their number.
        dropped: releases whose contribution was deleted because of the withdrawal.
        in_releases: releases that were made with their contribution, have begun, or were charged
            and lost.
    """

    person: int
    dropped: tuple[int, ...]
    in_releases: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns the receipt as people get it."""
        return {
            "person": self.person,
            "deleted_from_releases": list(self.dropped),
            "part_of_releases": list(self.in_releases),
        }


@dataclass(frozen=True)
class History:
    """The course of one person's participation.

    Attributes:
        enrolled: whether there is such a person.
        withdrew: whether they have withdrawn.
        places: release and state of each place they took, in order.
    """

    enrolled: bool
    withdrew: bool
    places: tuple[tuple[int, State], ...]


@dataclass(frozen=True)
class Closed:
    """A release that is closed and not made.

    Attributes:
        release: its number.
        persons: who gave a contribution, by slot; -1 where nobody did.
        contributions: their contributions, by slot; None where nobody gave one.
    """

    release: int
    persons: Int64[np.ndarray, " slots"]
    contributions: list[bytes | None] = field(repr=False)


@dataclass(frozen=True)
class Counts:
    """Counts for the operator; they are not private.

    Attributes:
        enrolled: number of people.
        withdrew: how many of them have withdrawn.
        took_part: how many of them have a contribution in a release that was made.
        release: the release that is not made yet; the horizon when all are made.
        deadline: time at which that release closes at the latest; None before its first place.
        taken: its places that are taken and not settled. Each place is counted once.
        given: its places with a contribution.
        expired: its places whose time ran out.
        withdrawn: its places whose person has withdrawn.
        made: number of releases made.
        lost: number of releases charged and lost.
        empty_slots: slots without a contribution in all releases made.
        updater_until: time until which an updater has the lease; None if none ever had it.
    """

    enrolled: int
    withdrew: int
    took_part: int
    release: int
    deadline: float | None
    taken: int
    given: int
    expired: int
    withdrawn: int
    made: int
    lost: int
    empty_slots: int
    updater_until: float | None
