"""Distances of a teacher's rows on neighbouring inputs, which define what an answer protects.

A mechanism on rows protects any change of input that moves the row by at most the distance that was
charged. Each type here states one kind of neighbouring inputs, with the distance that follows from
it (docs/privacy.md, section 12).
"""

import math
from typing import Annotated, Literal

from pydantic import Field

from sotto.frozen import FrozenModel
from sotto.privacy.units import Adjacency, Unit

OFF = 5e-10
"""Bound on how far rounding moves a row, if none is stated; a distance includes it twice."""


class _Distance(FrozenModel):
    def between(self, actions: int, floor: float) -> float:
        """Returns a bound c on the L2 distance of neighbouring restricted rows.

        Args:
            actions: length m of a row.
            floor: of the mechanism; mixing shrinks distances by 1 - m floor.

        Returns:
            At most the diameter sqrt(2) (1 - m floor) of the restricted simplex.
        """
        shrink = max(0.0, 1.0 - actions * floor)
        if shrink == 0:
            return 0.0
        return shrink * min(self._unrestricted() + 2 * self.off, math.sqrt(2.0))

    def l1_between(self, actions: int, floor: float) -> float:
        """Returns a bound on their L1 distance, or infinity if only c is known."""
        del actions, floor
        return math.inf

    @property
    def off(self) -> float:
        """Bound on the L2 distance of a computed row from the exact one."""
        return OFF

    def _unrestricted(self) -> float:
        """Returns the distance of rows before they are mixed with the uniform row."""
        raise NotImplementedError


class ObservationDistance(_Distance):
    """Neighbours are two observations at L2 distance at most `radius`, shown to one teacher.

    Attributes:
        radius: b, in the units of the observations the teacher is asked about.
        lipschitz: certified L2 Lipschitz constant of the unrestricted policy
            (`lipschitz.certified_lipschitz`), input scaling included; never a sampled one.
        rounding: bound on the L2 distance of a computed row from the exact one, which follows from
            the network (`Ensemble.rounding`) for observations within `observations.LARGEST`. None,
            as in statements of earlier versions, means 5e-10 for any network.
    """

    kind: Literal["observation"] = "observation"
    radius: float = Field(gt=0, allow_inf_nan=False)
    lipschitz: float = Field(ge=0, allow_inf_nan=False)
    rounding: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, exclude_if=lambda value: value is None
    )

    @property
    def off(self) -> float:
        """Bound of the network, or `OFF` where the statement has none."""
        return OFF if self.rounding is None else self.rounding

    @property
    def unit(self) -> Unit:
        """Unit in which neighbouring inputs differ."""
        return Unit(kind="observation", adjacency=Adjacency.REPLACE_ONE)

    def _unrestricted(self) -> float:
        return self.lipschitz * self.radius


class PolicyDistance(_Distance):
    """Neighbours are two teachers whose rows are at L2 distance at most `l2` at every query.

    Attributes:
        l2: the distance.
    """

    kind: Literal["policy"] = "policy"
    l2: float = Field(gt=0, allow_inf_nan=False)

    @property
    def unit(self) -> Unit:
        """Unit in which neighbouring inputs differ."""
        return Unit(kind="policy", adjacency=Adjacency.REPLACE_ONE)

    def _unrestricted(self) -> float:
        return self.l2


class AnyTwoTeachers(_Distance):
    """Neighbours are any two teachers, whatever their policies are."""

    kind: Literal["any-two-teachers"] = "any-two-teachers"

    @property
    def unit(self) -> Unit:
        """Unit in which neighbouring inputs differ."""
        return Unit(kind="teacher", adjacency=Adjacency.REPLACE_ONE)

    def _unrestricted(self) -> float:
        return math.sqrt(2.0)


class TrainingShards(_Distance):
    """Neighbours are training sets that differ in one person, who is in one teacher's shard only.

    The answer is about the mean row of `teachers` teachers trained on disjoint people. One person
    changes one of the teachers, in any way.

    Attributes:
        teachers: number of teachers.
    """

    kind: Literal["training-shards"] = "training-shards"
    teachers: int = Field(ge=1)

    @property
    def unit(self) -> Unit:
        """Unit in which neighbouring inputs differ."""
        return Unit(kind="trajectory", adjacency=Adjacency.REPLACE_ONE)

    def l1_between(self, actions: int, floor: float) -> float:
        """Returns a bound from 2 / n, by which one of n teachers moves the mean in L1 norm."""
        shrink = max(0.0, 1.0 - actions * floor)
        return shrink * (2.0 / self.teachers + math.sqrt(actions) * 2 * self.off)

    def _unrestricted(self) -> float:
        return math.sqrt(2.0) / self.teachers


Distance = Annotated[
    ObservationDistance | PolicyDistance | AnyTwoTeachers | TrainingShards,
    Field(discriminator="kind"),
]
"""Neighbouring inputs of a teacher, with the distance of their rows."""
