"""Logs through Minari's files, and datasets that Minari itself made."""

import warnings
from pathlib import Path

import gymnasium as gym
import jax
import minari
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from padded_logs import of_padded, without

from sotto.data import minari_files
from sotto.data.minari_files import load, save

CARTPOLE = {"env_id": "CartPole-v1", "actions": 2, "floor": 0.01, "policies": "random"}


def random_log(experts=5, episodes=3, cap=7, size=4):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, cap + 1, (experts, episodes)).astype(np.int32)
    lengths[0, 0] = cap
    shape = (experts, episodes, cap)
    return of_padded(
        rng.normal(size=(experts, episodes, cap + 1, size)),
        rng.integers(0, 2, shape),
        rng.normal(size=shape),
        lengths,
        rng.random((experts, episodes)) < 0.5,
    )


def episode(number, length, actions=None, size=2, **changes):
    fields = {
        "id": number,
        "observations": np.full((length + 1, size), number, np.float32),
        "actions": np.zeros(length, np.int64) if actions is None else actions,
        "rewards": np.ones(length),
        "terminations": np.zeros(length, bool),
        "truncations": np.zeros(length, bool),
        "infos": None,
    }
    return EpisodeBuffer(**(fields | changes))


def made_by_minari(path, episodes, metadata, observation=None, action=None, data_format="hdf5"):
    storage = MinariStorage.new(
        path,
        observation_space=observation or gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),
        action_space=action or gym.spaces.Discrete(2),
        data_format=data_format,
    )
    storage.update_episodes(episodes)
    storage.update_episode_metadata(metadata)
    return path


def test_what_is_saved_is_loaded(tmp_path):
    log = random_log()
    save(log, tmp_path / "cartpole-v0", **CARTPOLE)
    found = load(tmp_path / "cartpole-v0")
    for was, now in zip(jax.tree.leaves(log), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(was, now)
        assert was.dtype == now.dtype
    assert not list(tmp_path.glob("*.partial"))


def test_relative_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = random_log()
    save(log, Path("runs/cartpole-log"), **CARTPOLE)
    np.testing.assert_array_equal(load("runs/cartpole-log").steps, log.steps)


def test_minari_reads_what_we_write(tmp_path, monkeypatch):
    log = random_log()
    save(log, tmp_path / "cartpole-v0", **CARTPOLE)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = minari.load_dataset("cartpole-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (15, log.steps.sum())
    assert dataset.action_space == gym.spaces.Discrete(2)
    seventh = dataset[7]
    assert next(iter(dataset.storage.get_episode_metadata([7])))["expert_id"] == 2
    own, lasts, _ = log.of(2)
    first, last = np.flatnonzero(lasts)[:2]
    place = slice(first + 1, last + 1)  # the second episode
    np.testing.assert_array_equal(seventh.observations[:-1], own.observations[place])
    np.testing.assert_array_equal(seventh.observations[-1], own.next_observations[last])
    assert seventh.terminations[-1] == own.terminated[last]
    assert seventh.truncations[-1] == (not own.terminated[last])
    assert not seventh.terminations[:-1].any()
    assert load("cartpole-v0").experts == 5  # by name, too


def test_an_expert_without_episodes_keeps_a_number(tmp_path):
    log = without(random_log(), 3)
    save(log, tmp_path / "few", **CARTPOLE)
    found = load(tmp_path / "few")
    assert found.steps.tolist() == log.steps.tolist()
    assert found.steps[3] == 0
    for was, now in zip(log.of(4).transitions, found.of(4).transitions, strict=True):
        np.testing.assert_array_equal(was, now)


def test_memory_is_that_of_the_steps_alone(tmp_path, monkeypatch):
    """One expert with many short episodes and one with a long one stop nobody."""
    episodes = [*(episode(number, 1) for number in range(300)), episode(300, 3000)]
    metadata = [{"expert_id": number // 300} for number in range(301)]
    path = made_by_minari(tmp_path / "data", episodes, metadata)
    needed = []
    monkeypatch.setattr(minari_files, "require_room", lambda _, size, *more: needed.append(size))
    assert load(path, experts=1000).steps[:3].tolist() == [300, 3000, 0]
    assert needed == [3300 * (8 * 2 + 10) + 8 * 1000]


def test_taking_an_expert_away_empties_their_row_and_leaves_the_others(tmp_path):
    episodes = [episode(number, 2 + number) for number in range(4)]
    owners = [2, 0, 2, 5]
    metadata = [{"expert_id": owner} for owner in owners]
    whole = load(made_by_minari(tmp_path / "all", episodes, metadata), experts=7)
    assert whole.steps.tolist() == [3, 0, 6, 0, 0, 5, 0]
    kept = [number for number in range(4) if owners[number] != 2]
    renumbered = [episode(i, 2 + number) for i, number in enumerate(kept)]
    path = made_by_minari(tmp_path / "without", renumbered, [metadata[number] for number in kept])
    assert load(path, experts=7).steps.tolist() == [3, 0, 0, 0, 0, 5, 0]
    assert load(path).steps.tolist() == [3, 5]  # nobody said how many there are


@pytest.mark.parametrize("owner", ["wu", 7, -1])
def test_where_the_number_of_experts_is_public_an_id_is_a_row(tmp_path, owner):
    path = made_by_minari(tmp_path / "data", [episode(0, 2)], [{"expert_id": owner}])
    with pytest.raises(ValueError, match="must be a number from 0 to 6, one for each of the 7"):
        load(path, experts=7)


def test_what_one_expert_did_stops_nobody(tmp_path):
    """An episode with an action that is none is left out, and so is one without its last place."""
    episodes = [
        episode(0, 2, np.array([0, 5])),
        episode(1, 2, observations=np.zeros((2, 2), np.float32)),
        episode(2, 2, rewards=np.array([1e300, 1.0])),
        episode(3, 3),
    ]
    path = made_by_minari(tmp_path / "data", episodes, [{"expert_id": i} for i in range(4)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log = load(path, experts=4)
    assert log.steps.tolist() == [0, 0, 2, 3]
    assert log.of(2).transitions.rewards.tolist() == [np.inf, 1]
    assert log.lasts.tolist() == [False, True, False, False, True]


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="exists; remove it"):
        save(random_log(), tmp_path / "there", **CARTPOLE)


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_another_column_of_words_in_any_order(tmp_path, data_format):
    metadata = [{"doctor": name} for name in ("wu", "abe", "wu", "wu")]
    episodes = [episode(number, length) for number, length in enumerate((1, 3, 2, 4))]
    path = made_by_minari(tmp_path / "data", episodes, metadata, data_format=data_format)
    log = load(path, id_column="doctor")
    assert log.steps.tolist() == [3, 7]
    assert np.flatnonzero(log.of(1).lasts).tolist() == [0, 2, 6]
    assert log.transitions.observations[-1, 0] == 3
    assert not log.transitions.terminated.any()  # the data just ends


def test_actions_that_do_not_start_at_zero(tmp_path):
    space = gym.spaces.Discrete(3, start=-1)
    found = [episode(0, 3, np.array([-1, 0, 1]))]
    log = load(made_by_minari(tmp_path / "data", found, [{"expert_id": 4}], action=space))
    assert log.transitions.actions.tolist() == [0, 1, 2]


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="There is no Minari dataset"):
        load(tmp_path / "nowhere")
    two = [episode(0, 2), episode(1, 2)]
    path = made_by_minari(tmp_path / "one", two, [{"expert_id": 1}, {"who": 1}])
    with pytest.raises(ValueError, match="'expert_id' is not in the metadata of 1 of 2 episodes"):
        load(path)
    box = gym.spaces.Box(-1, 1, (1,), np.float32)
    continuous = [episode(0, 2, np.zeros((2, 1), np.float32))]
    path = made_by_minari(tmp_path / "two", continuous, [{"expert_id": 1}], action=box)
    with pytest.raises(ValueError, match="actions from a Box"):
        load(path)
    tabular = [episode(0, 2, observations=np.zeros(3, np.int64))]
    path = made_by_minari(
        tmp_path / "three", tabular, [{"expert_id": 1}], observation=gym.spaces.Discrete(4)
    )
    with pytest.raises(ValueError, match="has observations from a Discrete"):
        load(path)
    outside = [episode(0, 2, np.array([0, 5]))]
    path = made_by_minari(tmp_path / "four", outside, [{"expert_id": 1}])
    with pytest.raises(ValueError, match="has no steps in it"):
        load(path)
