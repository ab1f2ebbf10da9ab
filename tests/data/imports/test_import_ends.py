"""Episodes that ended by themselves, and those that were cut off."""

import csv
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own_logs import imported

from sotto.algorithms.offline_people.algorithm import Offline, rows_of
from sotto.algorithms.offline_people.config import OfflinePeopleConfig
from sotto.algorithms.offline_people.moments import Scales, person_moments
from sotto.data import minari_files
from sotto.data.imports.declaration import Declaration
from sotto.data.imports.records import Records
from sotto.keys import new_key

NAMES = ("who", "visit", "t", "x", "a", "r", "over")


def declared(**changes: object) -> Declaration:
    return Declaration.of(
        {
            "person": "who",
            "time": "t",
            "observation": {"column": "x", "low": -1, "high": 1},
            "action": {"column": "a", "categories": ["no", "yes"]},
            "reward": {"column": "r", "low": 0, "high": 1},
            "terminated": "over",
            "people": 20,
            "horizon": 4,
        }
        | changes
    )


def logged(folder: Path, people: dict[str, list[str]]) -> str:
    """A CSV file of people, each with the words about ends in the order of their rows."""
    path = folder / "log.csv"
    with path.open("w", newline="") as file:
        log = csv.writer(file)
        log.writerow(NAMES)
        for who, words in people.items():
            for t, word in enumerate(words):
                visit, _, over = word.rpartition(":")
                log.writerow([who, visit, t, 0.1 * t, "yes", len(who) / 10, over])
    return str(path)


def ends_of(records: Records, who: str) -> str:
    """The steps of a person, who has so many letters: e ended by itself, c cut, . neither."""
    (person,) = np.flatnonzero(np.isclose(records.rewards[:, 0], len(who) / 10))
    count = records.present[person].sum()
    letters = np.where(records.ends[person], np.where(records.cut[person], "c", "e"), ".")
    return "".join(letters[:count])


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["false", "false", "true"], "..e"),
        (["false", "false", "false"], "..c"),
        (["true", "false", "false"], "e.c"),  # the rest is another episode
        (["false", "true", "true", "false"], ".eec"),
        (["false", "false", "false", "false", "true"], "...c"),  # beyond the horizon
        (["false", "false", "false", "true", "true"], "...e"),
        (["0", "1"], ".e"),
        (["True", "FALSE"], "ec"),
        (["false", "maybe"], "c"),  # the row of the end is unusable, so nothing is known of it
        (["", "2", "true"], "e"),
    ],
)
def test_an_episode_ends_where_the_log_says_so(words, steps, tmp_path):
    found = imported(logged(tmp_path, {"a": ["true"], "bb": words}), tmp_path / "out", declared())
    assert ends_of(found, "bb") == steps
    assert ends_of(found, "a") == "e"


def test_visits_end_each_for_itself(tmp_path):
    """Their rows may alternate."""
    log = logged(tmp_path, {"a": ["1:false", "2:false", "1:true", "2:false"], "bb": ["1:true"]})
    found = imported(log, tmp_path / "out", declared(episode="visit"))
    assert ends_of(found, "a") == ".e.c"
    (person,) = np.flatnonzero(found.present.sum(axis=1) == 4)
    np.testing.assert_allclose(found.observations[person, :, 0], [0, 0.2, 0.1, 0.3], atol=1e-6)


def test_without_the_column_every_episode_ended_by_itself(tmp_path):
    log = logged(tmp_path, {"a": ["false", "false"], "bb": ["false"] * 6})
    found = imported(log, tmp_path / "out", declared(terminated=None))
    assert (ends_of(found, "a"), ends_of(found, "bb")) == (".e", "...c")


def test_truth_values_of_parquet_and_what_experts_read(tmp_path):
    table = pa.table(
        {
            "who": ["a", "a", "bb", "bb"],
            "t": [0, 1, 0, 1],
            "x": [0.0, 0.5, 0.0, 0.5],
            "a": ["no"] * 4,
            "r": [0.1, 0.1, 0.2, 0.2],
            "over": pa.array([False, True, False, False]),
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    found = imported(str(tmp_path / "log.parquet"), tmp_path / "out", declared())
    assert (ends_of(found, "a"), ends_of(found, "bb")) == (".e", ".c")
    log = minari_files.load(tmp_path / "out")
    assert log.transitions.terminated.sum() == 1


def test_a_column_is_declared_once():
    with pytest.raises(ValueError, match="'x' is declared twice"):
        declared(terminated="x")


@pytest.mark.parametrize(("last", "learned"), [("true", True), ("false", False)])
def test_offline_learning_learns_no_end_where_people_were_cut_off(last, learned, tmp_path):
    """The last column of its moments is the target for ends."""
    people = {f"p{number}": ["false"] * 3 + [last] for number in range(20)}
    records = imported(logged(tmp_path, people), tmp_path / "out", declared())
    config = Offline().resolved(OfflinePeopleConfig(on=str(tmp_path / "out")))
    log = rows_of(records, slice(0, 1))
    scales = Scales(np.zeros(1), np.eye(1), np.ones(1), np.ones(()))
    person = jax.tree.map(lambda leaf: leaf[0], log)
    moments = person_moments(config, scales, person, new_key(0))
    assert np.any(moments)
    assert bool(np.any(moments[..., -1])) == learned
