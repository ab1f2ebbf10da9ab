"""Settings of the bandit; every field is an option of the command line."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from sotto.algorithms.calibration import gaussian_multiplier
from sotto.algorithms.log_facts import with_facts
from sotto.algorithms.settings import (
    AtLeastTwo,
    Count,
    Epsilon,
    Fraction,
    Positive,
    Seed,
    Settings,
    Signed,
    known,
)
from sotto.data.imports.declaration import Declaration
from sotto.data.imports.records import Records
from sotto.privacy.statements import Correlation
from sotto.privacy.units import PopulationKind

GAIN_NORM = 0.25
"""Bound on one person's mean gain over random choice, in units of the range of rewards."""
GAIN_SHARE = 1 / 17
"""Share of the budget (of 1 / multiplier^2) that the measured gain takes."""

Bounds = tuple[Signed, ...]
Noise = Literal["prefix-sum", "binary-tree", "independent"]


@dataclass(frozen=True)
class BanditConfig(Settings):
    """A linear contextual bandit for people who rated items, each person protected."""

    on: str | None = None
    """Log of the people, in which a row is a rated item: a dataset that `sotto import` wrote."""
    candidates: AtLeastTwo = 5
    """Number of items that a person is offered in each round."""
    blocks: Count = 10
    """Number of blocks of people, who come one block after the other. Each block's release is what
    the next block learns from."""
    noise: Noise = "prefix-sum"
    """Noise over the blocks. It cancels in sums of blocks (prefix-sum), is that of a tree of blocks
    (binary-tree), or is independent."""
    clip_norm: Positive = 0.02
    """Clip norm of a person's moments. Most people may be longer, since both moments of a person
    shrink by the same factor. Choose it without the log."""
    seed: Seed = 0
    """Public seed of the offers. The noise has no seed."""
    population: PopulationKind = "real"
    """Whether the people of the log are simulated or real."""
    target_epsilon: Epsilon = 1.0
    """Epsilon that the certificate must not exceed. The noise is calibrated to spend all of it."""
    delta: Fraction | None = None
    """Delta of the guarantee, below one over the number of people. None takes a tenth of that."""

    identity: str | None = None
    """Identity of the import, which puts people in places. None takes that of the dataset."""
    source: str | None = None
    """Declared origin of the log. None takes that of the dataset."""
    licence: str | None = None
    """Declared terms of the log. None takes those of the dataset."""
    already_public: bool | None = None
    """Whether the log is public already. None takes what the dataset says."""
    people: Annotated[int, Field(ge=2, le=10**7)] | None = None
    """Number of places in the log. None takes that of the dataset."""
    horizon: Count | None = None
    """Most rated items of a person. None takes that of the dataset."""
    low: Bounds | None = None
    """Lower bounds of the features of an item. None takes those of the dataset."""
    high: Bounds | None = None
    """Upper bounds of the features of an item. None takes those of the dataset."""
    reward_bounds: tuple[Signed, Signed] | None = None
    """Lower and upper bound of a rating. None takes those of the dataset."""

    def check(self) -> None:
        """Refuses a log that is not named, and settings that do not fit together."""
        if self.on is None:
            raise ValueError("give --on with the dataset that sotto import wrote")
        if self.horizon is not None and self.horizon < self.candidates:
            raise ValueError(
                f"people have at most {self.horizon} rated items, and a round needs "
                f"{self.candidates}; offer fewer with --candidates"
            )
        if self.people is not None and self.blocks > (made := math.ceil(self.people / self.slots)):
            raise ValueError(
                f"{self.people} people make {made} blocks of {self.slots}, not {self.blocks}, for "
                f"blocks are equal; give --blocks {made}"
            )
        if (
            self.people is not None
            and self.delta is not None
            and self.delta * self.slots >= (1 / self.blocks)
        ):
            raise ValueError(
                f"delta {self.delta:g} is vacuous for {self.slots * self.blocks} places; give "
                f"one below 1/{self.slots * self.blocks}"
            )

    @property
    def slots(self) -> int:
        """Number of people in a block."""
        return math.ceil(known(self.people) / self.blocks)

    @property
    def num_updates(self) -> int:
        """Number of blocks, in each of which there are people."""
        return self.blocks

    @property
    def rounds(self) -> int:
        """Most rounds of a person. Each rated row is offered at most once."""
        return known(self.horizon) // self.candidates

    @property
    def features(self) -> int:
        """Number of features of an item."""
        return len(known(self.low))

    @property
    def correlation(self) -> Correlation:
        """Correlation of the noise over blocks."""
        return Correlation(kind=self.noise)

    @property
    def noise_multiplier(self) -> float:
        """Multiplier of the whole stream, which meets the target."""
        numbers = 2 * self.features + 1
        return gaussian_multiplier(
            self.target_epsilon, known(self.delta), draws=self.num_updates * numbers
        )


def feature_bounds(declaration: Declaration) -> tuple[Bounds, Bounds]:
    """Returns the bounds of the features of an item: its observation, and then its action.

    An action of several categories has one feature for each of them.
    """
    seen, acts = declaration.observation_space, declaration.action_space
    if declaration.discrete:
        zeros, ones = (0.0,) * int(acts.n), (1.0,) * int(acts.n)
    else:
        zeros, ones = tuple(acts.low.tolist()), tuple(acts.high.tolist())
    return (*seen.low.tolist(), *zeros), (*seen.high.tolist(), *ones)


def filled(config: BanditConfig, records: Records) -> BanditConfig:
    """Returns the settings with the public facts of the dataset.

    Raises:
        ValueError: a setting contradicts the dataset.
    """
    low, high = feature_bounds(records.declaration)
    return with_facts(config, records, {"low": low, "high": high})
