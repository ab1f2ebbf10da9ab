"""How far a teacher's rows can be apart on neighbouring inputs: what an answer protects.

A mechanism on rows protects whatever moves the row by at most the distance it was charged for.
Which inputs these are is a separate sentence, and each type here is one such sentence, with the
distance that follows from it.
"""

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sotto.privacy.units import Adjacency, Unit

OFF = 5e-10
"""How far rounding moves a row where nothing else is stated; twice it is added to a distance."""


class _Distance(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def between(self, actions: int, floor: float) -> float:
        """Bound c on the L2 distance of neighbouring restricted rows.

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
        """Bound on their L1 distance, infinite where nothing is known but what follows from c."""
        del actions, floor
        return math.inf

    @property
    def off(self) -> float:
        """Bound on the L2 distance of a row as it is computed from the exact one."""
        return OFF

    def _unrestricted(self) -> float:
        """The distance of rows before they are mixed with the uniform row."""
        raise NotImplementedError


class ObservationDistance(_Distance):
    """Neighbours: two observations at L2 distance at most `radius`, shown to one teacher.

    Attributes:
        radius: b, in the units of the observations the teacher is asked about.
        lipschitz: certified L2 Lipschitz constant of the unrestricted policy
            (`lipschitz.certified_lipschitz`), input scaling included; never a sampled one.
        rounding: bound on the L2 distance of a computed row from the exact one, which follows from
            the network (`Ensemble.rounding`) for observations within `observations.LARGEST`. None:
            as earlier versions stated it, 5e-10 whatever the network.
    """

    kind: Literal["observation"] = "observation"
    radius: float = Field(gt=0, allow_inf_nan=False)
    lipschitz: float = Field(ge=0, allow_inf_nan=False)
    rounding: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, exclude_if=lambda value: value is None
    )

    @property
    def off(self) -> float:
        """As the network has it."""
        return OFF if self.rounding is None else self.rounding

    @property
    def unit(self) -> Unit:
        """What neighbouring inputs differ in."""
        return Unit(kind="observation", adjacency=Adjacency.REPLACE_ONE)

    def _unrestricted(self) -> float:
        return self.lipschitz * self.radius


class PolicyDistance(_Distance):
    """Neighbours: two teachers whose rows are at L2 distance at most `l2` at every query."""

    kind: Literal["policy"] = "policy"
    l2: float = Field(gt=0, allow_inf_nan=False)

    @property
    def unit(self) -> Unit:
        """What neighbouring inputs differ in."""
        return Unit(kind="policy", adjacency=Adjacency.REPLACE_ONE)

    def _unrestricted(self) -> float:
        return self.l2


class AnyTwoTeachers(_Distance):
    """Neighbours: any two teachers, whatever their policies are."""

    kind: Literal["any-two-teachers"] = "any-two-teachers"

    @property
    def unit(self) -> Unit:
        """What neighbouring inputs differ in."""
        return Unit(kind="teacher", adjacency=Adjacency.REPLACE_ONE)

    def _unrestricted(self) -> float:
        return math.sqrt(2.0)


class TrainingShards(_Distance):
    """Neighbours: training sets that differ in one person, who is in one teacher's shard only.

    The answer is about the mean row of `teachers` teachers trained on disjoint people, of which
    one person changes one, in any way.
    """

    kind: Literal["training-shards"] = "training-shards"
    teachers: int = Field(ge=1)

    @property
    def unit(self) -> Unit:
        """What neighbouring inputs differ in."""
        return Unit(kind="trajectory", adjacency=Adjacency.REPLACE_ONE)

    def l1_between(self, actions: int, floor: float) -> float:
        """One teacher's row moves by at most 2 in L1 norm, and the mean of n by 2 / n."""
        shrink = max(0.0, 1.0 - actions * floor)
        return shrink * (2.0 / self.teachers + math.sqrt(actions) * 2 * self.off)

    def _unrestricted(self) -> float:
        return math.sqrt(2.0) / self.teachers


Distance = Annotated[
    ObservationDistance | PolicyDistance | AnyTwoTeachers | TrainingShards,
    Field(discriminator="kind"),
]
"""What neighbouring inputs are, for the rows of a teacher."""
