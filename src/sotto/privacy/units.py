"""The unit of privacy and its adjacency, which every release states.

A privacy guarantee is a sentence about two neighbouring inputs. They differ in one *unit* (one
person's trajectory, one expert, one reward function, ...). The *adjacency* says how they differ.
sotto states no epsilon without both.
"""

from enum import StrEnum
from typing import Literal

from sotto.frozen import FrozenModel


class Adjacency(StrEnum):
    """The way in which two neighbouring inputs differ in one unit."""

    ZERO_OUT = "zero-out"
    """The unit is present, or its slot is kept and contributes zero. The sum moves by clip_norm."""

    REPLACE_ONE = "replace-one"
    """The unit is replaced by another one. The sum moves by up to twice the clip norm."""

    WITHIN_RADIUS = "within-radius"
    """The unit is replaced by another one within a stated distance of it.

    A `FunctionRelease` states its sensitivity to such a replacement directly.
    """

    @property
    def sensitivity_factor(self) -> float:
        """The L2 sensitivity of a sum of vectors clipped to norm 1."""
        return 2.0 if self is Adjacency.REPLACE_ONE else 1.0

    @property
    def phrase(self) -> str:
        """The adjacency, for a person."""
        if self is Adjacency.ZERO_OUT:
            return "is there, or keeps its slot and contributes zero"
        if self is Adjacency.WITHIN_RADIUS:
            return "is there, or another one within the stated radius is in its place"
        return "is there with its own data, or with any other data in its place"


PopulationKind = Literal["simulated", "real"]
"""Whether data come from simulated people, whom nothing can harm, or from real ones."""


def whose_people(
    place: str, known: PopulationKind | None, said: PopulationKind | None
) -> PopulationKind:
    """Returns whether the people at a place are simulated or real.

    Args:
        place: where the people are, such as "in CartPole-v1".
        known: the answer that the program knows by itself. None: it knows none.
        said: the answer that the user gives. None: they give none.

    Raises:
        ValueError: nothing is known and nobody says it, or the user says something else.
    """
    people = known or said
    if people is None:
        raise ValueError(
            f"only you can know whether the people {place} are simulated; say so with "
            "--population simulated or --population real"
        )
    if said not in (None, people):
        raise ValueError(f"the people {place} are {people}; leave out --population {said}")
    return people


UnitKind = Literal[
    "trajectory",
    "feedback",
    "segment",
    "expert",
    "reward-function",
    "transition",
    "observation",
    "policy",
    "teacher",
    "record",
]

_MEANING: dict[UnitKind, str] = {
    "trajectory": "everything one person contributed: the whole of their trajectory "
    "(states, actions and rewards)",
    "feedback": "everything one person contributed: all of their prompts, the completions that "
    "they rated, and their ratings",
    "segment": "one segment of a trajectory; a person whose trajectory spans several segments "
    "is protected less than this certificate says",
    "expert": "one expert: their policy and their logged data",
    "reward-function": "the whole reward function, within the stated radius",
    "transition": "the reward of one transition; which states were visited, and which actions were "
    "taken there, is public",
    "observation": "one observation shown to the teacher, within the stated distance",
    "policy": "the policy that answers, against every other whose rows are within the stated "
    "distance",
    "teacher": "the whole teacher, and with it everything it was trained on",
    "record": "one record of the training data; a person with several records is protected less",
}

_BRIEF: dict[UnitKind, str] = {
    "trajectory": "one person's trajectory",
    "feedback": "one person's feedback",
    "segment": "one segment of a trajectory",
    "expert": "one expert",
    "reward-function": "the whole reward function",
    "transition": "one transition's reward",
    "observation": "one observation",
    "policy": "the teacher's policy",
    "teacher": "the whole teacher",
    "record": "one record",
}


class Unit(FrozenModel):
    """The unit of privacy and its adjacency.

    Under `Unit(kind="trajectory", adjacency="zero-out")` neighbouring inputs differ in whether one
    person took part with their whole trajectory, or contributed zero.

    Attributes:
        kind: the unit that is protected as a whole.
        adjacency: way in which neighbouring inputs differ in one unit.
    """

    kind: UnitKind
    adjacency: Adjacency

    @property
    def name(self) -> str:
        """The word for one unit; "person" where the unit is what one person contributed."""
        if self.kind in ("expert", "reward-function", "transition", "record"):
            return self.kind.replace("-", " ")
        return "person"

    @property
    def about_rewards(self) -> bool:
        """Whether rewards are protected, and not people, experts, policies or records."""
        return self.kind in ("reward-function", "transition")

    @property
    def for_functions(self) -> bool:
        """Whether a released function or a choice can protect it: its sensitivity is stated."""
        within = self.adjacency is Adjacency.WITHIN_RADIUS
        return self.kind == ("reward-function" if within else "transition")

    @property
    def for_contributions(self) -> bool:
        """Whether a `Release` can protect it: each unit has one clipped place in a sum."""
        known = ("trajectory", "feedback", "segment", "expert", "transition")
        return self.adjacency is not Adjacency.WITHIN_RADIUS and self.kind in known

    @property
    def brief(self) -> str:
        """The unit and the adjacency in a few words, such as "one expert, zero-out"."""
        return f"{_BRIEF[self.kind]}, {self.adjacency.value}"

    def counted(self, count: int) -> str:
        """Returns a number of units in words."""
        return f"{count} {self.name}" + ("" if count == 1 else "s")

    def sentence(self) -> str:
        """Returns the unit and the adjacency in one plain sentence."""
        differs = self.adjacency.phrase
        if self.kind in ("observation", "policy"):  # a distance bounds what may replace them
            differs = "is there, or another one within the stated distance is in its place"
        return (
            f"Protected is {_MEANING[self.kind]}. Neighbouring inputs differ in one such unit, "
            f"which {differs} ({self.adjacency.value} adjacency)."
        )


TRANSITION = Unit(kind="transition", adjacency=Adjacency.REPLACE_ONE)
"""The reward of one transition, against any other in its public range."""

EXPERT = Unit(kind="expert", adjacency=Adjacency.ZERO_OUT)
"""One expert, who takes part, or whose slot is kept and contributes zero."""

REWARD_FUNCTION = Unit(kind="reward-function", adjacency=Adjacency.WITHIN_RADIUS)
"""The reward function, against every other one within a radius of it at every point."""
