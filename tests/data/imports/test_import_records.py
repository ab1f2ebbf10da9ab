"""Imported datasets in Minari's reader, in the experts' reader, and as arrays."""

import json
import shutil
import stat

import h5py
import minari
import numpy as np
import pytest
from own_logs import DECLARED, ROWS, as_csv, declared, imported, units

from sotto.data import minari_files
from sotto.data.imports.importing import import_log
from sotto.data.imports.records import load
from sotto.runs.registry import algorithm_named


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imports")
    import_log(as_csv(folder, ROWS), declared(horizon=1), folder / "log-v0", say=lambda _: None)
    return folder / "log-v0"


def test_minari_reads_it(dataset, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(dataset.parent))
    found = minari.load_dataset("log-v0")
    assert (found.total_episodes, found.total_steps) == (3, 3)
    np.testing.assert_array_equal(found.observation_space.low, [-1, 0, 0])
    np.testing.assert_array_equal(found.observation_space.high, [1, 1, 1])
    assert found.action_space.n == 2
    records = load("log-v0")
    for about, episode in zip(
        found.storage.get_episode_metadata(range(3)), found.iterate_episodes(), strict=True
    ):
        person = about["expert_id"]
        np.testing.assert_array_equal(episode.observations[0], records.observations[person, 0])
        np.testing.assert_array_equal(episode.infos["propensity"], records.propensities[person])
        assert all(found.observation_space.contains(one) for one in episode.observations)
        assert episode.truncations[-1] == records.cut[person, 0]
        assert episode.terminations[-1] != episode.truncations[-1]
    assert records.cut.sum() == 1  # the second step of bo is beyond the horizon
    (bo,) = np.flatnonzero(records.cut[:, 0])
    assert records.rewards[bo, 0] == 1
    assert records.observations[bo, 0, 0] == -1


def test_a_cut_episode_keeps_the_observation_after_it(dataset):
    log = minari_files.load(dataset)
    found = log.transitions
    (last,) = np.flatnonzero(log.lasts & ~found.terminated)
    np.testing.assert_array_equal(found.observations[last], [-1, 1, 0])
    np.testing.assert_array_equal(found.next_observations[last], [0.5, 1, 0])


def test_people_are_units_as_experts_are(dataset):
    said = minari_files.described(dataset)
    assert (said.experts, said.actions, said.simulated, said.env_id) == (6, 2, False, None)
    log, records = minari_files.load(dataset), load(dataset)
    assert log.experts == 6
    np.testing.assert_array_equal(log.steps, records.present.sum(axis=1))
    np.testing.assert_array_equal(log.transitions.actions, records.actions[records.present])


def test_padding_is_zero_and_bounds_hold(tmp_path):
    records = imported(as_csv(tmp_path, ROWS), tmp_path / "out", declared())
    absent = ~records.present
    assert records.observations.shape == (6, 3, 3)
    assert not records.observations[absent].any()
    assert not records.actions[absent].any()
    assert not records.rewards[absent].any()
    assert (records.propensities[absent] == 1).all()
    assert (records.propensities >= 0.125).all()


def test_only_the_owner_may_read_it(dataset):
    assert stat.S_IMODE(dataset.stat().st_mode) == 0o700


def changed(dataset, folder, change):
    """A copy of the dataset with something changed in its file of arrays."""
    shutil.copytree(dataset, folder)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        change(file)
    return folder


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file["episode_0/rewards"].__setitem__(0, 1.5),
        lambda file: file["episode_0/rewards"].__setitem__(0, np.nan),
        lambda file: file["episode_1/observations"].__setitem__((0, 1), -0.5),
        lambda file: file["episode_1/actions"].__setitem__(0, 2),
        lambda file: file["episode_2/infos/propensity"].__setitem__(0, 0.0625),
        lambda file: file["episode_2"].attrs.__setitem__("expert_id", 6),
        lambda file: file["episode_2"].attrs.__setitem__("expert_id", -1),
        lambda file: file["episode_2"].attrs.__setitem__(
            "expert_id", file["episode_0"].attrs["expert_id"]
        ),
    ],
)
def test_what_does_not_fit_the_declaration_is_refused(change, dataset, tmp_path):
    with pytest.raises(ValueError, match="does not fit its declaration; import the log again"):
        load(changed(dataset, tmp_path / "copy", change))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sotto_import", None, "was not made by this version of sotto import"),
        ("sotto_import", {"version": 2}, "was not made by this version of sotto import"),
        ("sotto_import", {"version": 1, "declaration": 7}, "has a damaged declaration"),
        (
            "sotto_import",
            {"version": 1, "declaration": DECLARED | {"horizon": 1, "reward": None}},
            "has a damaged declaration",
        ),
        (
            "sotto_import",
            {
                "version": 1,
                "declaration": DECLARED | {"observation": {"column": "x", "low": -9, "high": 9}},
            },
            "does not fit its declaration",
        ),
        (
            "sotto_import",
            {
                "version": 1,
                "declaration": DECLARED | {"people": 10**7, "horizon": 10**5},
            },
            "needs .* GiB of memory",
        ),
    ],
)
def test_other_metadata_are_refused(key, value, message, dataset, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(dataset, folder)
    path = folder / "data" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_units_are_the_same_in_every_import(tmp_path):
    """Only places differ."""
    where = as_csv(tmp_path, ROWS)
    first, second = (imported(where, tmp_path / name, declared()) for name in ("a", "b"))
    assert units(first) == units(second)


def test_an_import_cannot_share_a_budget(dataset):
    """Its people are in secret places, so no list of numbers could be right."""
    experts = algorithm_named("expert-offline")
    with pytest.raises(ValueError, match="a shared budget cannot know them; leave out --budget"):
        experts.check_numbered(experts.config_type(dataset=str(dataset), target_epsilon=1.0))
