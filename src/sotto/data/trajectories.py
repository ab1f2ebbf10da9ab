"""Logs of experts: padded arrays of whole episodes, with the expert they came from as first axis.

Experts are the unit of privacy where such a log is learnt from: what belongs to one expert is one
row of every array, and nothing else in the log depends on it. Everything here is numpy, on the
host: 3,000 experts with 20 episodes of 200 CartPole steps are 0.25 GB.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int


class Transitions(NamedTuple):
    """Steps to learn from, in any order; the first axis is the step's."""

    observations: Float[Array, "steps obs"]
    actions: Int[Array, " steps"]
    rewards: Float[Array, " steps"]
    next_observations: Float[Array, "steps obs"]
    terminated: Bool[Array, " steps"]


class ExpertLog(NamedTuple):
    """Episodes of E experts: N slots each, of at most T steps. Padding is zero."""

    observations: Float[np.ndarray, "E N T1 obs"]
    """T1 = T + 1, float32; an episode of n steps fills the first n + 1. Not scaled."""
    actions: Int[np.ndarray, "E N T"]
    """int32."""
    rewards: Float[np.ndarray, "E N T"]
    """float32."""
    lengths: Int[np.ndarray, "E N"]
    """Steps taken, int32; 0 where the expert has no episode in the slot."""
    terminated: Bool[np.ndarray, "E N"]
    """The last step ended the episode; otherwise it was truncated, and a value lies beyond it."""

    @property
    def experts(self) -> int:
        """E, present or not: the number of rows."""
        return len(self.lengths)

    @property
    def episodes(self) -> int:
        """N, slots per expert."""
        return int(self.lengths.shape[1])

    @property
    def cap(self) -> int:
        """T, the most steps an episode can have."""
        return int(self.actions.shape[2])

    @property
    def observation_size(self) -> int:
        """How many numbers one observation has."""
        return int(self.observations.shape[3])

    @property
    def steps(self) -> Int[np.ndarray, " E"]:
        """How many transitions each expert has."""
        total: np.ndarray = self.lengths.sum(axis=1, dtype=np.int64)
        return total

    @property
    def returns(self) -> Float[np.ndarray, "E N"]:
        """Undiscounted return of each episode, in float64; 0 in an empty slot."""
        return ordered_sum(self.rewards, axis=2)

    def select(self, experts: Int[np.ndarray, " n"] | slice) -> "ExpertLog":
        """The log of these experts alone."""
        return ExpertLog(*(array[experts] for array in self))


def ordered_sum(values: Float[np.ndarray, "..."], axis: int) -> Float[np.ndarray, "..."]:
    """A sum in float64, from first to last: zeros at the end change nothing, however many.

    numpy's own sums add pairs, and how they are rounded depends on the length: on how far one
    expert's values are padded, which another expert's longest episode decides.
    """
    with np.errstate(all="ignore"):
        total = np.cumsum(values, axis=axis, dtype=np.float64)
    return np.asarray(total.take(-1, axis=axis))


def checked(log: ExpertLog) -> ExpertLog:
    """The log itself, once its shapes, types and lengths fit together.

    Raises:
        ValueError: they do not; what is wrong is named.
    """
    if log.lengths.ndim != 2 or log.observations.ndim != 4:
        raise ValueError(
            "A log of experts needs observations [E, N, T + 1, obs] and lengths [E, N]; these have "
            f"{log.observations.ndim} and {log.lengths.ndim} axes."
        )
    experts, episodes = log.lengths.shape
    cap, size = log.observations.shape[2] - 1, log.observations.shape[3]
    wanted: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
        "observations": ((experts, episodes, cap + 1, size), np.floating),
        "actions": ((experts, episodes, cap), np.integer),
        "rewards": ((experts, episodes, cap), np.floating),
        "lengths": ((experts, episodes), np.integer),
        "terminated": ((experts, episodes), np.bool_),
    }
    for name, (shape, kind) in wanted.items():
        array = getattr(log, name)
        if array.shape != shape or not np.issubdtype(array.dtype, kind):
            raise ValueError(
                f"{name} of a log of experts must be {kind.__name__} of shape {list(shape)}; "
                f"they are {array.dtype} of shape {list(array.shape)}."
            )
    if experts == 0 or cap < 1:
        raise ValueError("A log of experts needs at least one expert and room for one step.")
    if log.lengths.min() < 0 or log.lengths.max() > cap:
        raise ValueError(f"Episodes must have between 0 and {cap} steps, the room in the log.")
    return log


def transitions(
    log: ExpertLog,
    experts: Int[np.ndarray, " n"],
    episodes: Int[np.ndarray, " n"],
    steps: Int[np.ndarray, " n"],
) -> Transitions:
    """The transitions at these places; places beyond the end of an episode are padding."""
    return Transitions(
        observations=log.observations[experts, episodes, steps],
        actions=log.actions[experts, episodes, steps],
        rewards=log.rewards[experts, episodes, steps],
        next_observations=log.observations[experts, episodes, steps + 1],
        terminated=log.terminated[experts, episodes]
        & (steps + 1 == log.lengths[experts, episodes]),
    )


def places(
    log: ExpertLog, experts: Int[np.ndarray, " n"], ordinals: Int[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Episode and step of each expert's `ordinals`-th transition, counted through their episodes.

    Args:
        log: the log.
        experts: rows.
        ordinals: at least 0 and below `log.steps[experts]`.

    Raises:
        ValueError: an ordinal that its expert does not have.
    """
    if np.any((ordinals < 0) | (ordinals >= log.steps[experts])):
        raise ValueError("There is no transition of that number in the expert's log.")
    ends = np.cumsum(log.lengths, axis=1, dtype=np.int64)[experts]
    episodes = np.sum(ends <= ordinals[:, None], axis=1)
    begins = np.take_along_axis(ends - log.lengths[experts], episodes[:, None], axis=1)[:, 0]
    return episodes, ordinals - begins


def all_transitions(log: ExpertLog) -> Transitions:
    """Every transition of every expert, in the order of expert, episode and step."""
    present = np.arange(log.cap) < log.lengths[:, :, None]
    experts, episodes, steps = np.nonzero(present)
    return transitions(log, experts, episodes, steps)
