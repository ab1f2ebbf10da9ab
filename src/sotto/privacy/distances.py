"""How far a teacher's rows can be apart on neighbouring inputs: what an answer protects.

A mechanism on rows protects whatever moves the row by at most the distance it was charged for.
Which inputs these are is a separate sentence, and each type here is one such sentence, with the
distance that follows from it.
"""

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sotto.privacy.observations import LARGEST
from sotto.privacy.statements import Assumption
from sotto.privacy.units import Adjacency, Unit

_OFF = 5e-10
"""How far rounding moves a row where nothing else is stated; twice it is added to a distance."""

_TRAINING = "the data the teacher was trained on"


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

    @property
    def off(self) -> float:
        """Bound on the L2 distance of a row as it is computed from the exact one."""
        return _OFF

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
        return _OFF if self.rounding is None else self.rounding

    @property
    def unit(self) -> Unit:
        """What neighbouring inputs differ in."""
        return Unit(kind="observation", adjacency=Adjacency.REPLACE_ONE)

    @property
    def protects(self) -> tuple[str, ...]:
        """What an answer keeps secret."""
        return (
            f"each observation, against any other within L2 distance {self.radius:g} of it; "
            "answers to observations that move together add up",
        )

    @property
    def does_not_protect(self) -> tuple[str, ...]:
        """What it does not."""
        refused = f"that an observation has an entry beyond {LARGEST:g}, which is refused"
        return (
            _TRAINING,
            "anything from a student who chose the observation and so knows it already",
            *((refused,) if self.rounding is not None else ()),
        )

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the distance needs."""
        return (
            Assumption(
                statement=f"the policy network has L2 Lipschitz constant at most {self.lipschitz:g}"
                ", input scaling included",
                enforced_by="code",
                how="product of spectral norms by full SVD, times the softmax constant 1/2",
            ),
            _float64() if self.rounding is None else self._analysed(),
        )

    def _analysed(self) -> Assumption:
        return Assumption(
            statement=f"rounding moves a row by at most {self.off:g}",
            enforced_by="code",
            how="a forward error analysis of this network in float64, for observations with "
            f"entries up to {LARGEST:g} in magnitude; others are refused",
        )

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

    @property
    def protects(self) -> tuple[str, ...]:
        """What an answer keeps secret."""
        return (
            f"which of two policies answers, if their rows are within L2 distance {self.l2:g} "
            "of each other at every query",
        )

    @property
    def does_not_protect(self) -> tuple[str, ...]:
        """What it does not."""
        return (_TRAINING, "differences between policies larger than the stated distance")

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the distance needs."""
        return (
            Assumption(
                statement=f"the policies to be confused are within L2 distance {self.l2:g}",
                enforced_by="user",
                how="you choose the distance, without looking at the teacher's data",
            ),
            _float64(),
        )

    def _unrestricted(self) -> float:
        return self.l2


class AnyTwoTeachers(_Distance):
    """Neighbours: any two teachers, whatever their policies are."""

    kind: Literal["any-two-teachers"] = "any-two-teachers"

    @property
    def unit(self) -> Unit:
        """What neighbouring inputs differ in."""
        return Unit(kind="teacher", adjacency=Adjacency.REPLACE_ONE)

    @property
    def protects(self) -> tuple[str, ...]:
        """What an answer keeps secret."""
        return ("the whole teacher: any policy instead of it, and with it all it was trained on",)

    @property
    def does_not_protect(self) -> tuple[str, ...]:
        """What it does not."""
        return ()

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the distance needs: nothing."""
        return ()

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

    @property
    def protects(self) -> tuple[str, ...]:
        """What an answer keeps secret."""
        return (
            "the training data of every person: everything they contributed, in whichever of the "
            f"{self.teachers} shards they are",
        )

    @property
    def does_not_protect(self) -> tuple[str, ...]:
        """What it does not."""
        return ("the observations that the student asks about",)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the distance needs."""
        return (
            Assumption(
                statement=f"the {self.teachers} teachers were trained on disjoint sets of people, "
                "each without anything computed from another's data",
                enforced_by="user",
                how="you made the shards; hyper-parameters must not come from the people's data",
            ),
            Assumption(
                statement="the mean is taken over valid rows, so one teacher moves it by 1/n",
                enforced_by="code",
                how="each teacher's row is made a policy before the mean is taken",
            ),
            _float64(),
        )

    def _unrestricted(self) -> float:
        return math.sqrt(2.0) / self.teachers


def _float64() -> Assumption:
    return Assumption(
        statement=f"rounding moves a row by less than {_OFF:g}",
        enforced_by="code",
        how="the teacher's rows are computed in float64",
    )


Distance = Annotated[
    ObservationDistance | PolicyDistance | AnyTwoTeachers | TrainingShards,
    Field(discriminator="kind"),
]
"""What neighbouring inputs are, for the rows of a teacher."""
