"""A stream in an account: its charged releases, its people, and how often each took part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from sotto.privacy.claims import same_stream
from sotto.privacy.claims.rewards import radii_in, ranges_in
from sotto.privacy.errors import LedgerMismatch, ParticipationViolation, TooFewDevices
from sotto.privacy.ledger.persons import PersonBlock, PersonSet
from sotto.privacy.statements import Returning, StreamStatement


@dataclass
class StreamRecord:
    """One stream: its statement, the number of releases charged, and the people in it.

    Attributes:
        history: of returning persons: the number of participations so far, and the first release
            in which they may take part again.
    """

    statement: StreamStatement
    releases: int = 0
    persons: PersonSet = field(default_factory=PersonSet)
    history: dict[int, tuple[int, int]] = field(default_factory=dict)

    def check_devices(self, releases: Sequence[tuple[PersonBlock, ...]]) -> None:
        """Refuses sums of fewer devices than their shares of the noise need, or of too many.

        Raises:
            TooFewDevices, ParticipationViolation: there is such a sum.
        """
        if (shares := self.statement.shares) is None:
            return
        for release in releases:
            devices = sum(block.stop - block.start for block in release)
            if devices < shares.promised:
                raise TooFewDevices(
                    f"{devices} devices are left of the {shares.promised} that a sum needs for its "
                    "noise; the release is not made, and nobody is charged"
                )
            if devices > shares.slots:
                raise ParticipationViolation(
                    f"a sum has at most {shares.slots} devices, not {devices}"
                )


def participations(
    rule: Returning,
    history: Mapping[int, tuple[int, int]],
    first_release: int,
    releases: Sequence[tuple[PersonBlock, ...]],
) -> dict[int, tuple[int, int]]:
    """Returns the new history of everybody in these releases.

    Raises:
        ParticipationViolation: somebody takes part too often or too soon.
    """
    new: dict[int, tuple[int, int]] = {}
    for number, release in enumerate(releases, first_release):
        for person in chain.from_iterable(range(*block) for block in release):
            taken, free_from = new.get(person) or history.get(person, (0, 0))
            if taken == rule.max_participations:
                raise ParticipationViolation(
                    f"person {person} has taken part {taken} times, as often as the stream "
                    f"allows; leave their slot empty in release {number}"
                )
            if number < free_from:
                raise ParticipationViolation(
                    f"person {person} may take part again from release {free_from} on, not in "
                    f"release {number}: participations are {rule.min_separation} releases apart"
                )
            new[person] = (taken + 1, number + rule.min_separation)
    return new


def took_part(person: int) -> ParticipationViolation:
    """Returns the error for a person who took part in something that excludes this."""
    return ParticipationViolation(
        f"person {person} took part before, and whoever takes part in a stream that is once-only "
        "or exclusive does so in nothing else; number new people from `ledger.next_person` on"
    )


def blocks_of(persons: list[list[list[int]]] | None) -> list[tuple[PersonBlock, ...]] | None:
    """Returns the people of each release of a charge, as its entry holds them."""
    if persons is None:
        return None
    return [tuple(PersonBlock(*block) for block in release) for release in persons]


def not_interrupted(stored: Sequence[StreamStatement], asked: StreamStatement) -> LedgerMismatch:
    """Returns the error for a stream with which a ledger cannot go on.

    Args:
        stored: statements of the ledger's streams.
        asked: statement of the stream, which none of them is, or which is open.
    """
    name = repr(asked.name)

    def differs(one: StreamStatement, *only: str) -> bool:
        same = asked.model_copy(update={field: getattr(one, field) for field in only})
        return same_stream(one, same) and not same_stream(one, asked)

    drawing = ("noise_law", "noise_rounding", "sampler_delta")
    if any(one.noise_law != asked.noise_law and differs(one, *drawing) for one in stored):
        return LedgerMismatch(
            f"{name} was opened by an earlier version, which drew its noise by another law than "
            "this one; what it released stays as it was certified, but it cannot go on: open a new "
            "stream"
        )
    if any(differs(one, "sum_rounding") for one in stored):
        return LedgerMismatch(
            f"{name} was opened on another number of devices, on which its sums are rounded more "
            "often or less, or on several by an earlier version; go on with as many, or open a new "
            "stream"
        )
    return LedgerMismatch(
        f"this ledger has no interrupted stream {name} with these settings; open a new one"
    )


def require_alike(statements: Sequence[StreamStatement]) -> None:
    """Refuses streams that one ledger cannot hold together.

    Raises:
        LedgerMismatch: their noise has several makers, they number the same transitions in two
            ways, or they say several radii or ranges of rewards.
    """
    if len({one.shares is None for one in statements}) > 1:
        raise LedgerMismatch(
            "in one ledger, either devices make the noise of all streams or the server does"
        )
    transitions = [one.takes_all for one in statements if one.unit.kind == "transition"]
    if len(set(transitions)) > 1:
        raise LedgerMismatch(
            "released functions and choices number rewards from 0, and contributions as their "
            "caller does; use a ledger for each"
        )
    ranges = {said for one in statements for said in ranges_in(one.protects)}
    if len(ranges) > 1:
        said = " and ".join(f"[{low}, {high}]" for low, high in sorted(ranges))
        raise LedgerMismatch(
            f"epsilon is stated for one range of rewards, and these streams say {said}; use a "
            "ledger for each"
        )
    radii = {radius for one in statements for radius in radii_in(one.protects)}
    if len(radii) > 1:
        raise LedgerMismatch(
            f"epsilon is stated for one radius, and these streams say {sorted(radii)}; use a "
            "ledger for each"
        )
