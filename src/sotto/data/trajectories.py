"""Logs of experts: their transitions, one expert after another, without padding.

An expert is the unit of privacy of algorithms that learn from such a log. One expert's data are one
slice of every array, and nothing else in the log depends on them but where later slices begin. All
arrays are numpy arrays in main memory, as large as the log itself: 3,000 experts with 20 episodes
of 200 CartPole steps take half a GB.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class Transitions(NamedTuple):
    """Steps to learn from, in any order, as JAX or numpy arrays; the first axis is the step."""

    observations: Float[Any, "steps obs"]
    actions: Int[Any, " steps"]
    rewards: Float[Any, " steps"]
    next_observations: Float[Any, "steps obs"]
    terminated: Bool[Any, " steps"]


class ExpertLog(NamedTuple):
    """The S transitions of E experts, ordered by expert, episode and step."""

    transitions: Transitions
    """Numpy arrays: observations (not scaled) and rewards as float32, actions as int32."""
    lasts: Bool[np.ndarray, " S"]
    """Whether the step is the last one of an episode."""
    steps: Int[np.ndarray, " E"]
    """Number of transitions of each expert; 0 for an expert without episodes."""

    @property
    def experts(self) -> int:
        """Number of experts E, with those who have no episodes."""
        return len(self.steps)

    @property
    def observation_size(self) -> int:
        """Length of one observation."""
        return int(self.transitions.observations.shape[1])

    @property
    def starts(self) -> Int[np.ndarray, " E"]:
        """Place of the first transition of each expert."""
        starts: np.ndarray = np.cumsum(self.steps) - self.steps
        return starts

    def of(self, expert: int) -> "ExpertLog":
        """Returns the log of one expert alone, as views."""
        first = int(self.starts[expert])
        own = slice(first, first + int(self.steps[expert]))
        return ExpertLog(
            Transitions(*(array[own] for array in self.transitions)),
            self.lasts[own],
            self.steps[expert : expert + 1],
        )


def checked(log: ExpertLog) -> ExpertLog:
    """Returns the log itself after checking its shapes, types and numbers of steps.

    Raises:
        ValueError: they do not fit together; the message names the array.
    """
    if np.ndim(log.transitions.observations) != 2:
        raise ValueError(
            "A log of experts needs observations [S, obs]; these have "
            f"{np.ndim(log.transitions.observations)} axes."
        )
    steps, size = log.transitions.observations.shape
    wanted: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
        "observations": ((steps, size), np.floating),
        "actions": ((steps,), np.integer),
        "rewards": ((steps,), np.floating),
        "next_observations": ((steps, size), np.floating),
        "terminated": ((steps,), np.bool_),
        "lasts": ((steps,), np.bool_),
        "steps": ((len(log.steps),), np.integer),
    }
    arrays = {**log.transitions._asdict(), "lasts": log.lasts, "steps": log.steps}
    for name, (shape, kind) in wanted.items():
        array = arrays[name]
        if array.shape != shape or not np.issubdtype(array.dtype, kind):
            raise ValueError(
                f"{name} of a log of experts must be {kind.__name__} of shape {list(shape)}; "
                f"they are {array.dtype} of shape {list(array.shape)}."
            )
    if not len(log.steps) or log.steps.min() < 0 or log.steps.sum() != steps:
        raise ValueError(
            f"A log of experts needs the number of steps of each of them, {steps:,} in all."
        )
    if not log.lasts[(log.starts + log.steps - 1)[log.steps > 0]].all():
        raise ValueError("The last step of an expert in a log is the last one of an episode.")
    return log
