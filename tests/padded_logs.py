"""Logs of experts from arrays of [experts, episodes, steps]."""

import numpy as np

from sotto.data.trajectories import ExpertLog, Transitions


def of_padded(
    observations: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    lengths: np.ndarray,
    terminated: np.ndarray,
) -> ExpertLog:
    """Returns the log of E experts with N slots each for episodes of at most T steps.

    Args:
        observations: [E, N, T + 1, obs]; the first n + 1 are those of an episode of n steps.
        actions: [E, N, T].
        rewards: [E, N, T].
        lengths: [E, N], number of steps of each episode; 0 if the slot is empty.
        terminated: [E, N], whether the last step ended the episode.
    """
    steps = np.arange(actions.shape[2])
    present, lasts = steps < lengths[..., None], steps + 1 == lengths[..., None]
    transitions = Transitions(
        observations[:, :, :-1][present].astype(np.float32),
        actions[present].astype(np.int32),
        rewards[present].astype(np.float32),
        observations[:, :, 1:][present].astype(np.float32),
        (lasts & terminated[..., None])[present],
    )
    return ExpertLog(transitions, lasts[present], lengths.sum(axis=1, dtype=np.int64))


def without(log: ExpertLog, expert: int) -> ExpertLog:
    """Returns a copy in which this expert has no transitions, and the others have theirs."""
    others = np.repeat(np.arange(log.experts), log.steps) != expert
    steps = np.where(np.arange(log.experts) == expert, 0, log.steps)
    kept = Transitions(*(array[others] for array in log.transitions))
    return ExpertLog(kept, log.lasts[others], steps)
