"""An import tells nobody's values: not in errors, not beside the dataset, not by ids in it."""

import json
import os
import pickle
import shutil
import sqlite3
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from own_logs import (
    ROWS,
    Unit,
    as_csv,
    as_huggingface,
    as_sqlite,
    declared,
    imported,
    typed,
    units,
)
from people_logs import write_visits

from sotto.algorithms.expert_offline.algorithm import ExpertOffline
from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.cli import main
from sotto.data.imports.importing import import_log
from sotto.data.imports.records import load
from sotto.data.minari_files import described
from sotto.errors import RunError

CANARY = "canary1848"
ARGUMENTS = [
    *("--person", "who", "--time", "t", "--observation", "x=-1..1", "s=f,m"),
    *("--action", "a=no,yes", "--reward", "r=0..1", "--propensity", "p=0.125"),
    *("--people", "6", "--horizon", "3"),
]


def run(where, folder, *more):
    return main(["import", where, *ARGUMENTS, "--out", str(folder / "out"), *more])


def canaries(name: str, cell: str) -> list[str]:
    """A log in which one cell, or one line, holds something unusual."""
    lines = [",".join(row) for row in ROWS]
    place = {"who": 0, "t": 1, "x": 2, "s": 3, "a": 4, "r": 5, "p": 6}[name]
    cells = lines[0].split(",")
    cells[place] = cell
    return ["who,t,x,s,a,r,p", ",".join(cells), *lines[1:]]


@pytest.mark.parametrize("name", ["who", "t", "x", "s", "a", "r", "p"])
@pytest.mark.parametrize("cell", [CANARY, f"{CANARY},{CANARY}", f'"{CANARY}', "18481848e18481848"])
def test_a_strange_cell_is_shown_nowhere(name, cell, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("SOTTO_DEBUG", "")
    path = tmp_path / "log.csv"
    path.write_text("\n".join(canaries(name, cell)) + "\n")
    run(str(path), tmp_path, "--json")
    run(str(path), tmp_path / "again")
    said = "".join(capfd.readouterr())
    assert "1848" not in said
    for file in tmp_path.rglob("*"):
        if file.is_file() and file != path:
            assert b"canary" not in file.read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_no_id_and_no_time_is_in_the_dataset(tmp_path):
    rows = [(f"{CANARY}-{one[0]}", "1848-02-24T11:22:33", *one[2:]) for one in ROWS]
    import_log(as_csv(tmp_path, rows), declared(), tmp_path / "out", say=lambda _: None)
    for file in (tmp_path / "out").rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert b"canary" not in content
            assert b"1848-02" not in content  # random hexadecimal digits may be 1848
            assert b"11:22:33" not in content


@pytest.mark.parametrize(
    "where",
    [
        "postgresql://reader:canary1848@127.0.0.1:1/clinic?options=canary1848",
        "postgresql://reader:canary1848@[bad/clinic",
        "nosuch://reader:canary1848@host/clinic",
        "mysql+nosuch://reader:canary1848@host/clinic?key=canary1848",
        "sqlite:///absent?password=canary1848",
        "sqlite+pysqlcipher://:canary1848@/absent.db",
    ],
)
def test_passwords_are_not_in_errors(where, tmp_path, capfd, monkeypatch):
    assert run(where, tmp_path, "--table", "visits") == 2
    assert CANARY not in "".join(capfd.readouterr())
    with pytest.raises(ValueError, match=r"database|SQLite|cannot be read") as raised:
        import_log(where, declared(), tmp_path / "out", table="t", say=lambda _: None)
    shown = "".join(traceback.format_exception_only(raised.value))
    assert CANARY not in shown
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM visits RETURNING *",
        "INSERT INTO visits (who) VALUES ('x') RETURNING *",
        "DROP TABLE visits",
        "PRAGMA user_version = 7",
        "ATTACH DATABASE 'other.db' AS other",
    ],
)
def test_a_database_is_only_read(query, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = as_sqlite(tmp_path, ROWS)
    before = (tmp_path / "log.db").read_bytes()
    with pytest.raises(ValueError, match=r"cannot be read|returns no rows"):
        import_log(url, declared(), tmp_path / "out", query=query, say=lambda _: None)
    assert (tmp_path / "log.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["log.db"]


@pytest.mark.parametrize("changes", [{}, {"time": None, "horizon": 1}])
def test_the_order_in_which_a_database_gives_rows_tells_nothing(changes, tmp_path):
    """It depends on other people's rows: on pages of a table, and on sizes of hash tables."""
    rng = np.random.default_rng(0)
    visits = [
        (str(person), "7", str(rng.uniform(-1, 1)), "f", rng.choice(["no", "yes"]), "1", "1")
        for person in range(6)
        for _ in range(5)
    ]
    found: dict[str, list[list[Unit]]] = {"csv": [], "database": []}
    for turn in range(3):
        rows = [visits[place] for place in rng.permutation(len(visits))]
        (folder := tmp_path / str(turn)).mkdir()
        for kind, where, table in (
            ("csv", as_csv(folder, rows), None),
            ("database", as_sqlite(folder, rows), "visits"),
        ):
            records = imported(where, folder / kind, declared(**changes), table)
            found[kind].append(units(records))
    assert found["database"][0] == found["database"][1] == found["database"][2]
    assert found["csv"][0] != found["csv"][1]  # a file has an order, which is kept


def test_what_an_earlier_version_imported_from_a_database_is_refused(tmp_path):
    out = tmp_path / "out"
    imported(as_sqlite(tmp_path, ROWS), out, declared(), "visits")
    path = out / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["sotto_import"]["own_order"]
    path.write_text(json.dumps(metadata))
    for read in (load, described):
        with pytest.raises(ValueError, match="imported from a database by an earlier version"):
            read(out)


def test_a_database_without_times_is_refused(tmp_path):
    with pytest.raises(ValueError, match="rows of a database have no order; name the column"):
        imported(as_sqlite(tmp_path, ROWS), tmp_path / "out", declared(time=None), "visits")


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        ("date", "infinity"),
        ("date", "0044-03-15 BC"),
        ("timestamp", "-infinity"),
        ("timestamptz", "20000-01-01"),
        ("time", "24:00:00"),
        ("interval", "2000000000 days"),
    ],
)
def test_a_time_that_python_lacks_stops_nobody_else(kind, cell, postgresql_url, tmp_path):
    engine = sa.create_engine(postgresql_url)
    with engine.begin() as connection:
        columns = f"who text, t int, x float8, s text, a text, r float8, p float8, y {kind}"
        connection.execute(sa.text(f"CREATE TABLE visits ({columns})"))
        for row in (*ROWS, ("late", "1", "0.5", "f", "no", "1", "1", cell)):
            cells = dict(zip("abcdefgh", (*row, None), strict=False))
            names = ", ".join(f"cast(:{name} AS text)" for name in cells)
            given = f"(SELECT {names}) AS given (who, t, x, s, a, r, p, y)"
            casts = f"who, t::int, x::float8, s, a, r::float8, p::float8, y::{kind}"
            connection.execute(sa.text(f"INSERT INTO visits SELECT {casts} FROM {given}"), cells)
    engine.dispose()
    filled = {"column": "y", "low": 0, "high": 1, "fill": 0.5}
    observed = [{"column": "x", "low": -1, "high": 1}, filled]
    rows = imported(postgresql_url, tmp_path / "out", declared(observation=observed), "visits")
    assert len(units(rows)) == 4


def test_a_view_with_an_error_shows_no_value(tmp_path, capfd):
    url = as_sqlite(tmp_path, ROWS)
    with sqlite3.connect(tmp_path / "log.db") as connection:
        bad = f"SELECT json_extract('{CANARY}', '$') AS who, t, x, s, a, r, p FROM visits"
        connection.execute(f"CREATE VIEW v AS {bad}")
    assert run(url, tmp_path, "--table", "v") == 2
    assert CANARY not in "".join(capfd.readouterr())


@pytest.mark.parametrize("name", ["../log.csv", "/etc/hostname", "..", "", 7, None])
def test_a_dataset_names_no_file_outside_its_folder(name, tmp_path):
    folder = Path(as_huggingface(tmp_path, ROWS))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(ValueError, match=r"names no data files in its folder|lacks its file"):
        import_log(str(folder), declared(), tmp_path / "out", say=lambda _: None)


def test_a_selection_of_rows_is_not_read_as_all_rows(tmp_path):
    folder = Path(as_huggingface(tmp_path, ROWS))
    state = json.loads((folder / "state.json").read_text())
    state["_indices_files"] = [{"filename": "indices.arrow"}]
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match="holds a selection of rows"):
        import_log(str(folder), declared(), tmp_path / "out", say=lambda _: None)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_no_extension_type_is_loaded(tmp_path, monkeypatch):
    """Older versions of Arrow unpickled such a type from the schema of a file."""
    monkeypatch.chdir(tmp_path)
    table = typed(ROWS)
    about = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Bomb()),
    }
    table = table.cast(
        pa.schema(
            [field.with_metadata(about if field.name == "s" else None) for field in table.schema]
        )
    )
    pq.write_table(table, tmp_path / "log.parquet")
    import_log(str(tmp_path / "log.parquet"), declared(), tmp_path / "out", say=lambda _: None)
    assert not (tmp_path / "exploded").exists()


def test_nothing_is_left_when_an_import_stops(tmp_path, monkeypatch):
    from sotto.data.imports import grouping

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(grouping, "episodes", stop)
    where = as_csv(tmp_path, ROWS)
    assert run(where, tmp_path) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_one_person_more_does_not_show_in_the_counts(tmp_path, capfd):
    """Counts are rounded down to tens, and all of 20 to 29 people look the same."""
    shown = []
    for people, dropped in ((21, 5), (22, 6), (29, 9), (30, 9)):
        rows = [
            (str(n), "1", "0", "f", "no" if n >= dropped else "?", "1", "1")
            for n in range(people + dropped)
        ]
        (folder := tmp_path / str(people)).mkdir()
        assert run(as_csv(folder, rows), folder, "--people", "50", "--json") == 0
        counts = json.loads(capfd.readouterr().out)["counts"]
        shown.append((counts["people"], counts["unusable"], counts["cells"]))
    assert shown[0] == shown[1] == shown[2]
    assert shown[3] != shown[0]


def test_experts_of_another_import_are_not_asked(tmp_path: Path) -> None:
    """They are in other places, so groups of DP-SGD would mix, and some pay too little."""
    log = write_visits(tmp_path, 30)
    asked = ExpertOffline()
    config = asked.resolved(
        ExpertOfflineConfig(
            dataset=str(log),
            method="dp-sgd",
            env_id="none",
            target_epsilon=1.0,
            batch=8,
            delta=1e-3,
        )
    )
    assert config.identity is not None
    assert config.population == "real"  # nobody had to say so
    assert asked.resolved(config).identity == config.identity
    unsaid = replace(config, population="simulated")
    for begins in (asked.resolved, lambda it: next(asked.train(it, [0], [], (), 0, [tmp_path]))):
        with pytest.raises(RunError, match="was imported, and its people count as real"):
            begins(unsaid)
    with pytest.raises(RunError, match="so its people are real, and those of"):
        asked.resolved(replace(config, experts="runs/experts", population=None))
    shutil.rmtree(log)
    write_visits(tmp_path, 30)
    with pytest.raises(ValueError, match="another import than the one with the identity"):
        next(ExpertOffline().train(config, [0], [], (), 0, [tmp_path]))
