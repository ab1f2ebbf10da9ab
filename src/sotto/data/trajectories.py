"""Logs of experts: padded arrays of whole episodes; the first axis is the expert.

An expert is the unit of privacy of algorithms that learn from such a log. One expert's data are one
row of every array, and nothing else in the log depends on them. All arrays are numpy arrays in main
memory: 3,000 experts with 20 episodes of 200 CartPole steps take 0.25 GB.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int


class Transitions(NamedTuple):
    """Steps to learn from, in any order; the first axis is the step."""

    observations: Float[Array, "steps obs"]
    actions: Int[Array, " steps"]
    rewards: Float[Array, " steps"]
    next_observations: Float[Array, "steps obs"]
    terminated: Bool[Array, " steps"]


class ExpertLog(NamedTuple):
    """Episodes of E experts, N slots each, of at most T steps. Padding is zero."""

    observations: Float[np.ndarray, "E N T1 obs"]
    """Observations, float32, not scaled; T1 = T + 1, and n steps fill the first n + 1."""
    actions: Int[np.ndarray, "E N T"]
    """Actions as int32."""
    rewards: Float[np.ndarray, "E N T"]
    """Rewards as float32."""
    lengths: Int[np.ndarray, "E N"]
    """Number of steps, int32; 0 if the slot has no episode."""
    terminated: Bool[np.ndarray, "E N"]
    """Whether the last step ended the episode; otherwise it was truncated."""

    @property
    def experts(self) -> int:
        """Number of experts E, with those who have no episodes."""
        return len(self.lengths)

    @property
    def episodes(self) -> int:
        """Number of slots per expert, N."""
        return int(self.lengths.shape[1])

    @property
    def cap(self) -> int:
        """Largest number of steps of an episode, T."""
        return int(self.actions.shape[2])

    @property
    def observation_size(self) -> int:
        """Length of one observation."""
        return int(self.observations.shape[3])

    @property
    def steps(self) -> Int[np.ndarray, " E"]:
        """Number of transitions of each expert."""
        total: np.ndarray = self.lengths.sum(axis=1, dtype=np.int64)
        return total

    @property
    def returns(self) -> Float[np.ndarray, "E N"]:
        """Undiscounted return of each episode in float64; 0 for an empty slot."""
        return ordered_sum(self.rewards, axis=2)

    def select(self, experts: Int[np.ndarray, " n"] | slice) -> "ExpertLog":
        """Returns the log of these experts alone."""
        return ExpertLog(*(array[experts] for array in self))


def ordered_sum(values: Float[np.ndarray, "..."], axis: int) -> Float[np.ndarray, "..."]:
    """Sums in float64 from first to last, so that zeros at the end change nothing.

    numpy's own sums add pairs, and their rounding depends on the length of the array. That length
    is the padding of one expert's values, which another expert's longest episode determines.
    """
    with np.errstate(all="ignore"):
        total = np.cumsum(values, axis=axis, dtype=np.float64)
    return np.asarray(total.take(-1, axis=axis))


def checked(log: ExpertLog) -> ExpertLog:
    """Returns the log itself after checking its shapes, types and lengths.

    Raises:
        ValueError: they do not fit together; the message names the array.
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
    """Returns the transitions at these places; places beyond an episode's end are padding."""
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
    """Returns the episode and step of each expert's `ordinals`-th transition, over all episodes.

    Args:
        log: the log.
        experts: rows.
        ordinals: numbers from 0 to `log.steps[experts] - 1`.

    Raises:
        ValueError: an expert has no transition of that number.
    """
    if np.any((ordinals < 0) | (ordinals >= log.steps[experts])):
        raise ValueError("There is no transition of that number in the expert's log.")
    ends = np.cumsum(log.lengths, axis=1, dtype=np.int64)[experts]
    episodes = np.sum(ends <= ordinals[:, None], axis=1)
    begins = np.take_along_axis(ends - log.lengths[experts], episodes[:, None], axis=1)[:, 0]
    return episodes, ordinals - begins


def all_transitions(log: ExpertLog) -> Transitions:
    """Returns every transition of every expert, ordered by expert, episode and step."""
    present = np.arange(log.cap) < log.lengths[:, :, None]
    experts, episodes, steps = np.nonzero(present)
    return transitions(log, experts, episodes, steps)
