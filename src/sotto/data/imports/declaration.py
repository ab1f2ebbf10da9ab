"""The declaration of a log: the meaning of its columns, and public bounds for each of them.

Everything in a declaration is public and given by whoever imports the log. No bound, category,
number of people or horizon is ever read off the data, because such a value depends on people.
"""

from typing import Annotated, Any, Literal, Self

import gymnasium as gym
import numpy as np
from pydantic import (
    Discriminator,
    Field,
    StrictFloat,
    StrictInt,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from sotto.errors import RunError
from sotto.frozen import FrozenModel
from sotto.problems import first_problem, unknown_field

LARGEST = 1e30
"""Largest absolute value of a bound, so that float32 can hold it."""
MOST_PEOPLE = 10**7
MOST_STEPS = 10**5
MOST_CATEGORIES = 1024

Name = Annotated[str, Field(min_length=1, max_length=256)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Category = (
    Annotated[str, Field(min_length=1, max_length=256, strict=True)]
    | Annotated[StrictInt, Field(ge=-(2**53), le=2**53)]
    | Annotated[StrictFloat, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
)


class Range(FrozenModel):
    """A column of real numbers with public bounds.

    Attributes:
        column: name in the log.
        low: lower bound.
        high: upper bound.
        fill: number in the place of a missing one; None drops the row.
    """

    column: Name
    low: Number
    high: Number
    fill: Number | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not np.float32(self.low) < np.float32(self.high):
            raise ValueError(f"{self.column}: low must be below high, in single precision, too")
        if self.fill is not None and not self.low <= self.fill <= self.high:
            raise ValueError(f"{self.column}: the fill must be between low and high")
        return self

    @property
    def width(self) -> int:
        """Number of entries of an observation or action."""
        return 1


class Categories(FrozenModel):
    """A column that holds one of several public categories.

    Attributes:
        column: name in the log.
        categories: the categories, all texts or all numbers.
        fill: category in the place of a missing or an unknown one; None drops the row.
    """

    column: Name
    categories: tuple[Category, ...] = Field(min_length=2, max_length=MOST_CATEGORIES)
    fill: Category | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len({isinstance(one, str) for one in self.categories}) > 1:
            raise ValueError(f"{self.column}: categories must be all texts or all numbers")
        if len(set(self.categories)) < len(self.categories):
            raise ValueError(f"{self.column}: a category is given twice")
        if self.fill is not None and self.fill not in self.categories:
            raise ValueError(f"{self.column}: the fill must be one of the categories")
        return self

    @property
    def width(self) -> int:
        """Number of entries of an observation: one for each category (one-hot)."""
        return len(self.categories)

    @property
    def numeric(self) -> bool:
        """Whether the categories are numbers."""
        return not isinstance(self.categories[0], str)


def _kind(given: Any) -> str:
    has = "categories" in given if isinstance(given, dict) else isinstance(given, Categories)
    return "categories" if has else "range"


Column = Annotated[
    Annotated[Range, Tag("range")] | Annotated[Categories, Tag("categories")], Discriminator(_kind)
]
"""A column with its public bounds or categories; an error is about the kind that was given."""


class Propensity(FrozenModel):
    """The column with the probability with which the logged action was chosen.

    Attributes:
        column: name in the log.
        low: public lower bound of the probabilities, from 1e-9 to 1.
    """

    column: Name
    low: float = Field(ge=1e-9, le=1)


class Density(FrozenModel):
    """The column with the density from which the logged real action was drawn.

    Attributes:
        column: name in the log.
        low: public lower bound of the densities, in units of the log.
    """

    column: Name
    low: float = Field(ge=1e-30, le=LARGEST)


class Declaration(FrozenModel):
    """The columns of a log and the public facts about it.

    Attributes:
        person: column with the id of the person.
        time: column by which the rows of a person are ordered. None keeps the order of the log.
        episode: column with the id of an episode within a person. None: a person is one episode.
        observation: columns that the policy sees.
        action: one column of categories, or one or several columns of real numbers.
        reward: column of the reward.
        propensity: column of the probability of the logged action, which needs categories.
        density: column of the density of the logged action, which needs real numbers.
        terminated: column that says whether the episode ended by itself with this row, as in
            Gymnasium. An episode without such a row was cut off. None: all that the horizon does
            not cut ended by themselves.
        people: number of places in the dataset; more people are refused.
        horizon: largest number of steps of a person; later steps are left out.
        drop: whether an unusable row drops itself, or the whole person.
        source: origin of the log, in words.
        licence: terms of use, in words.
        already_public: whether the log has been published already.
    """

    person: Name
    time: Name | None = None
    episode: Name | None = None
    observation: tuple[Column, ...] = Field(min_length=1, max_length=1024)
    action: tuple[Column, ...] = Field(min_length=1, max_length=64)
    reward: Range
    propensity: Propensity | None = None
    density: Density | None = None
    terminated: Name | None = None
    people: int = Field(ge=2, le=MOST_PEOPLE)
    horizon: int = Field(ge=1, le=MOST_STEPS)
    drop: Literal["row", "person"] = "row"
    source: str | None = Field(default=None, max_length=2000)
    licence: str | None = Field(default=None, max_length=2000)
    already_public: bool = False

    @field_validator("observation", "action", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        return [given] if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _fits(self) -> Self:
        kinds = {type(one) for one in self.action}
        if kinds != {Range} and len(self.action) > 1:
            raise ValueError("action must be one column of categories, or columns of real numbers")
        if self.propensity is not None and not self.discrete:
            raise ValueError(
                "the propensity of a real action is a density; declare it as density, or give "
                "categories for the action"
            )
        if self.density is not None and self.discrete:
            raise ValueError(
                "an action of categories has a probability and no density; declare it as "
                "propensity, or give bounds for the action"
            )
        for one in (*self.action, self.reward):
            if one.fill is not None:
                raise ValueError(f"{one.column}: only observations can be filled")
        used = [name for name in self.columns if name != self.time]
        for name in used:
            if used.count(name) > 1:
                raise ValueError(f"column {name!r} is declared twice")
        if self.time is not None and self.time in (self.person, self.episode):
            raise ValueError(f"column {self.time!r} is declared twice")
        return self

    @classmethod
    def of(cls, given: Any) -> Self:
        """Returns the declaration that a JSON object describes.

        Raises:
            RunError: it is not a declaration; the message names the field.
        """
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise RunError(f"the declaration of the log: {first_problem(error, cls)}") from None

    @classmethod
    def refuse_unknown(cls, given: Any) -> None:
        """Refuses a field that a declaration does not have; others may still be missing.

        Raises:
            RunError: there is such a field, which the message names.
        """
        try:
            cls.model_validate(given)
        except ValidationError as error:
            if unknown := unknown_field(error, cls):
                raise RunError(f"the declaration of the log: {unknown}") from None

    @property
    def discrete(self) -> bool:
        """Whether an action is one of several categories."""
        return isinstance(self.action[0], Categories)

    @property
    def chance(self) -> Propensity | Density | None:
        """Column of the probability or the density of the logged action; None if there is none."""
        return self.propensity if self.discrete else self.density

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all declared columns of the log; the time may be there twice."""
        return (
            self.person,
            *([self.time] if self.time is not None else []),
            *([self.episode] if self.episode is not None else []),
            *(one.column for one in (*self.observation, *self.action, self.reward)),
            *([self.chance.column] if self.chance is not None else []),
            *([self.terminated] if self.terminated is not None else []),
        )

    @property
    def observation_size(self) -> int:
        """Number of entries of an observation."""
        return sum(one.width for one in self.observation)

    @property
    def observation_space(self) -> gym.spaces.Box:
        """The bounds of an observation: one entry for a range, one for each category."""
        low = np.concatenate([_bound(one, "low") for one in self.observation])
        high = np.concatenate([_bound(one, "high") for one in self.observation])
        return gym.spaces.Box(low, high, dtype=np.float32)

    @property
    def action_space(self) -> gym.spaces.Discrete | gym.spaces.Box:
        """The actions: numbers from 0 in the order of the categories, or bounds."""
        if isinstance(self.action[0], Categories):
            return gym.spaces.Discrete(len(self.action[0].categories))
        low = np.concatenate([_bound(one, "low") for one in self.action])
        high = np.concatenate([_bound(one, "high") for one in self.action])
        return gym.spaces.Box(low, high, dtype=np.float32)

    @property
    def reward_bounds(self) -> tuple[float, float]:
        """Lower and upper bound of a reward, rounded to float32 as rewards are."""
        return float(np.float32(self.reward.low)), float(np.float32(self.reward.high))


def _bound(column: Range | Categories, side: Literal["low", "high"]) -> np.ndarray:
    if isinstance(column, Range):
        return np.array([getattr(column, side)], np.float32)
    return np.full(column.width, 0 if side == "low" else 1, np.float32)
