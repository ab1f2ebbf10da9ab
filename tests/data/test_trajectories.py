"""Logs of experts, against the episodes that they were made of."""

import numpy as np
import pytest
from padded_logs import of_padded, without

from sotto.data.trajectories import checked

LENGTHS = [[3, 1], [0, 4], [2, 2]]
TERMINATED = [[True, False], [False, True], [False, True]]
WANTED = [
    (100 * e + 10 * n + t, e + 1, TERMINATED[e][n] and t == LENGTHS[e][n] - 1)
    for e in range(3)
    for n in range(2)
    for t in range(LENGTHS[e][n])
]
"""The first number of the observation, the reward and whether the episode terminated."""


@pytest.fixture
def log():
    """Three experts with at most two episodes; every number says where it lies."""
    expert, episode, step = np.indices((3, 2, 5))
    observations = np.stack([100 * expert + 10 * episode + step, -step], axis=-1)
    rewards = expert[..., :4] + 1
    return of_padded(
        observations, step[..., :4] % 2, rewards, np.array(LENGTHS), np.array(TERMINATED)
    )


def test_sizes(log):
    assert (log.experts, log.observation_size) == (3, 2)
    assert log.steps.tolist() == [4, 4, 4]
    assert log.starts.tolist() == [0, 4, 8]
    assert log.lasts.sum() == 5
    assert checked(log) is log


def test_transitions_are_those_of_the_episodes_in_order(log):
    found = log.transitions
    assert len(WANTED) == 12
    assert found.observations[:, 0].tolist() == [w[0] for w in WANTED]
    assert found.next_observations[:, 0].tolist() == [w[0] + 1 for w in WANTED]
    assert found.rewards.tolist() == [w[1] for w in WANTED]
    assert found.terminated.tolist() == [w[2] for w in WANTED]


def test_the_log_of_one_expert(log):
    own = checked(log.of(1))
    assert own.transitions.observations[:, 0].tolist() == [110, 111, 112, 113]
    assert (own.experts, own.lasts.tolist()) == (1, [False, False, False, True])
    assert without(log, 1).of(1).steps.tolist() == [0]
    assert without(log, 1).of(2).transitions.rewards.tolist() == [3] * 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"actions": np.zeros(11, np.int32)}, "actions of a log .* shape"),
        ({"actions": np.zeros(12, np.float32)}, "actions of a log .* integer"),
        ({"terminated": np.zeros(12, int)}, "terminated of a log .* bool"),
        ({"next_observations": np.zeros((12, 3), np.float32)}, "next_observations of a log"),
        ({"observations": np.zeros(12, np.float32)}, "1 axes"),
        ({"lasts": np.zeros(11, bool)}, "lasts of a log .* shape"),
        ({"steps": np.array([4, 4, 5])}, "the number of steps of each of them, 12 in all"),
        ({"steps": np.array([8, 8, -4])}, "the number of steps"),
        ({"steps": np.zeros(0, int)}, "the number of steps"),
    ],
)
def test_arrays_that_do_not_fit_together(log, change, says):
    own = {name: array for name, array in change.items() if name in log._fields}
    other = {name: array for name, array in change.items() if name not in log._fields}
    changed = log._replace(transitions=log.transitions._replace(**other), **own)
    with pytest.raises(ValueError, match=says):
        checked(changed)
