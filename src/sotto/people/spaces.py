"""Spaces of a campaign: what people's devices observe, and which actions the policy may choose."""

import json
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from sotto.errors import RunError
from sotto.files import read_given
from sotto.frozen import FrozenModel
from sotto.problems import first_problem
from sotto.rl.envs.base import AnyEnvironment, Box, Discrete
from sotto.rl.envs.gymnasium.described import Described

_LARGEST_FILE = 2**20
Number = Annotated[float, Field(allow_inf_nan=False)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ActionBounds(FrozenModel):
    """Bounds of real actions: one number of each field for each number of an action.

    Attributes:
        low: lower bounds.
        high: upper bounds.
        centre: public action at which the first policy starts. None: the middle of the bounds.
        scale: public size of a usual change of the action. None: half of the distance of the
            bounds.
    """

    low: tuple[Number, ...] = Field(min_length=1, max_length=64)
    high: tuple[Number, ...] = Field(min_length=1, max_length=64)
    centre: tuple[Number, ...] | None = None
    scale: tuple[Factor, ...] | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        given = [one for one in (self.high, self.centre, self.scale) if one is not None]
        if any(len(one) != len(self.low) for one in given):
            raise ValueError("low, high, centre and scale need the same length")
        if any(low >= high for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError("every number of low must be below the same number of high")
        return self

    @property
    def box(self) -> Box:
        """The actions as a training reads them."""
        pairs = list(zip(self.low, self.high, strict=True))
        middle = tuple((low + high) / 2 for low, high in pairs)
        half = tuple((high - low) / 2 for low, high in pairs)
        return Box(self.low, self.high, self.centre or middle, self.scale or half)


Actions = Annotated[
    Annotated[int, Field(ge=2, le=1024), Tag("number")] | Annotated[ActionBounds, Tag("range")],
    Discriminator(lambda given: "range" if isinstance(given, dict | ActionBounds) else "number"),
]
"""Number of discrete actions, or bounds of real ones; an error is about the kind that was given."""


class Spaces(FrozenModel):
    """Public facts about the world that people live in. No simulator is needed.

    Example:
        {"observations": 4, "actions": 2, "observation_scale": [0.4, 0.5, 5, 0.5]}

    Attributes:
        observations: how many numbers an observation has.
        actions: number of discrete actions, or the bounds of real ones.
        observation_scale: public factors that bring each number of an observation to order one.
        observation_centre: public typical observation, which is subtracted first.
        reward_per_step: public reward of an ordinary step.
    """

    observations: int = Field(ge=1, le=4096)
    actions: Actions
    observation_scale: tuple[Factor, ...] | None = None
    observation_centre: tuple[Number, ...] | None = None
    reward_per_step: Number = 1.0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name in ("observation_scale", "observation_centre"):
            given = getattr(self, name)
            if given is not None and len(given) != self.observations:
                raise ValueError(f"{name} needs {self.observations} numbers, got {len(given)}")
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a JSON file.

        Raises:
            RunError: there is no such file, or it does not describe spaces.
        """
        content = read_given(path, _LARGEST_FILE)
        try:
            return cls.model_validate(json.loads(content))
        except ValidationError as error:
            problem = first_problem(error, cls)
            raise RunError(f"{path} does not describe spaces: {problem}") from error
        except ValueError as error:
            raise RunError(f"{path} is not JSON: {error}") from error

    @classmethod
    def of(cls, env: AnyEnvironment) -> Self:
        """Returns the spaces of an environment that is known, for trials with simulated people."""
        action = env.action
        actions: int | ActionBounds = (
            action.n
            if isinstance(action, Discrete)
            else ActionBounds(
                low=action.low, high=action.high, centre=action.centre, scale=action.scale
            )
        )
        return cls(
            observations=env.observation_size,
            actions=actions,
            observation_scale=env.observation_scale,
            observation_centre=env.observation_centre,
            reward_per_step=env.reward_per_step,
        )

    def environment(self, name: str, steps: int) -> Described:
        """Returns the public facts, in the form in which a training reads them.

        Args:
            name: name of the campaign.
            steps: largest number of steps of a trajectory.
        """
        action = Discrete(self.actions) if isinstance(self.actions, int) else self.actions.box
        return Described(
            id=name,
            observation_size=self.observations,
            action=action,
            default_params=(),
            reset_size=0,
            max_episode_steps=steps,
            observation_centre=self.observation_centre,
            observation_scale=self.observation_scale or (1.0,) * self.observations,
            reward_per_step=self.reward_per_step,
        )
