"""Logs of experts, against the episodes that they were made of."""

import numpy as np
import pytest

from sotto.data.trajectories import (
    ExpertLog,
    all_transitions,
    checked,
    ordered_sum,
    places,
    transitions,
)

LENGTHS = [[3, 1], [0, 4], [2, 2]]
TERMINATED = [[True, False], [False, True], [False, True]]


@pytest.fixture
def log():
    """Three experts with two slots of four steps; every number says where it lies."""
    experts, episodes, cap = 3, 2, 4
    observations = np.zeros((experts, episodes, cap + 1, 2), np.float32)
    actions = np.zeros((experts, episodes, cap), np.int32)
    rewards = np.zeros((experts, episodes, cap), np.float32)
    for expert in range(experts):
        for episode in range(episodes):
            length = LENGTHS[expert][episode]
            for step in range(length + 1 if length else 0):
                observations[expert, episode, step] = 100 * expert + 10 * episode + step, -step
            for step in range(length):
                actions[expert, episode, step] = step % 2
                rewards[expert, episode, step] = expert + 1
    return ExpertLog(
        observations, actions, rewards, np.array(LENGTHS, np.int32), np.array(TERMINATED)
    )


def test_sizes(log):
    assert (log.experts, log.episodes, log.cap, log.observation_size) == (3, 2, 4, 2)
    assert log.steps.tolist() == [4, 4, 4]
    assert log.returns.tolist() == [[3, 1], [0, 8], [6, 6]]
    assert checked(log) is log


def test_all_transitions_are_those_of_the_episodes_in_order(log):
    found = all_transitions(log)
    wanted = [
        (100 * e + 10 * n + t, e + 1, TERMINATED[e][n] and t == LENGTHS[e][n] - 1)
        for e in range(3)
        for n in range(2)
        for t in range(LENGTHS[e][n])
    ]
    assert len(wanted) == 12
    assert found.observations[:, 0].tolist() == [w[0] for w in wanted]
    assert found.next_observations[:, 0].tolist() == [w[0] + 1 for w in wanted]
    assert found.rewards.tolist() == [w[1] for w in wanted]
    assert found.terminated.tolist() == [w[2] for w in wanted]


def test_counting_through_an_experts_episodes_skips_empty_slots(log):
    everything = all_transitions(log)
    experts = np.repeat(np.arange(3), 4)
    ordinals = np.tile(np.arange(4), 3)
    found = transitions(log, experts, *places(log, experts, ordinals))
    for one, other in zip(found, everything, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("ordinal", [-1, 4])
def test_a_transition_that_is_not_there(log, ordinal):
    with pytest.raises(ValueError, match="no transition of that number"):
        places(log, np.array([1]), np.array([ordinal]))


def test_one_experts_rows_are_all_that_selecting_others_drops(log):
    rest = log.select(np.array([0, 2]))
    changed = log._replace(observations=log.observations.copy())
    changed.observations[1] = 7
    for one, other in zip(rest, changed.select(np.array([0, 2])), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"actions": np.zeros((3, 2, 5), np.int32)}, "actions of a log .* shape"),
        ({"actions": np.zeros((3, 2, 4), np.float32)}, "actions of a log .* integer"),
        ({"terminated": np.zeros((3, 2), int)}, "terminated of a log .* bool"),
        ({"lengths": np.full((3, 2), 5)}, "between 0 and 4 steps"),
        ({"lengths": np.full(3, 5)}, "1 axes"),
    ],
)
def test_arrays_that_do_not_fit_together(log, change, says):
    with pytest.raises(ValueError, match=says):
        checked(log._replace(**change))


def test_sums_do_not_depend_on_padding():
    """numpy's own do: how far one expert's rewards are padded, another's longest episode says."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=100) * 10.0 ** rng.integers(-12, 12, 100)
    padded = [np.pad(values, (0, more)) for more in (0, 50, 100, 160, 300)]
    assert len({float(np.sum(one)) for one in padded}) > 1
    assert len({float(ordered_sum(one, 0)) for one in padded}) == 1
    assert ordered_sum(np.array([[1.0, np.nan], [2.0, 3.0]]), 1)[1] == 5
