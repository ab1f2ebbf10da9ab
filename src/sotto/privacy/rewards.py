"""Rewards as the private data: two units, and what a certificate says about them.

* `TRANSITION`: the reward of one transition is replaced by any other in the public range.
* `REWARD_FUNCTION`: the whole reward function is replaced by another one within a radius of it,
  everywhere.

In both, states and actions are public.
"""

import math
from dataclasses import dataclass
from typing import Literal

from sotto.privacy.functional_noise import impossibility
from sotto.privacy.units import Adjacency, Unit

TRANSITION = Unit(kind="transition", adjacency=Adjacency.REPLACE_ONE)
REWARD_FUNCTION = Unit(kind="reward-function", adjacency=Adjacency.WITHIN_RADIUS)

PUBLIC_STATES = "States, actions and transitions, and which of them were seen: they are public."


@dataclass(frozen=True)
class Sentences:
    """What a certificate says about rewards; `impossible` where privacy rules learning out."""

    protects: tuple[str, ...]
    does_not_protect: tuple[str, ...]
    impossible: str | None


def sentences(
    unit: Literal["transition", "reward-function"],
    reward_range: tuple[float, float],
    epsilon: float,
    delta: float,
    radius: float | None = None,
) -> Sentences:
    """What to say about a training on private rewards.

    Args:
        unit: which of the two.
        reward_range: public (low, high).
        epsilon: of the whole training, or infinity.
        delta: of the whole training.
        radius: of `reward-function`.
    """
    low, high = reward_range
    if unit == "transition":
        return Sentences(
            (f"The reward of each transition, which may be anything in [{low:g}, {high:g}].",),
            (
                PUBLIC_STATES,
                "What many transitions have in common: the average reward of a place is learnt.",
            ),
            None,
        )
    if radius is None:
        raise ValueError("the reward function is protected within a radius; state it")
    return Sentences(
        (
            "The reward function, up to any change of at most "
            f"{radius:g} everywhere: {radius / (high - low):.3g} times the reward range "
            f"{high - low:g}.",
        ),
        (
            PUBLIC_STATES,
            f"Differences of reward functions beyond {radius:g}: they cost in proportion.",
        ),
        impossibility(epsilon, delta, radius, high - low) if math.isfinite(epsilon) else None,
    )
