"""Logs in four formats, and files that are none."""

import json
import os
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from own_logs import (
    DECLARED,
    NAMES,
    ROWS,
    as_csv,
    as_huggingface,
    as_parquet,
    as_sqlite,
    declared,
    expected,
    imported,
    typed,
    units,
)

from sotto.data.imports import cells, sources
from sotto.data.imports.declaration import Declaration
from sotto.data.imports.importing import import_log
from sotto.data.imports.records import load

FORMATS = {
    "csv": as_csv,
    "parquet": as_parquet,
    "huggingface": as_huggingface,
    "database": as_sqlite,
}


def read(where, tmp_path, **given):
    return imported(where, tmp_path / "out", declared(**given))


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_gives_the_same_people(kind, tmp_path):
    where = FORMATS[kind](tmp_path, ROWS)
    assert sources.kind(where) == kind
    found = imported(where, tmp_path / "out", declared(), "visits" if kind == "database" else None)
    assert units(found) == expected(ROWS, declared())
    assert found.people == 6
    stored = json.loads((tmp_path / "out" / "data" / "metadata.json").read_text())["sotto_import"]
    assert stored["kind"] == kind
    assert Declaration.of(stored["declaration"]) == declared()


def test_a_person_in_several_batches_is_one_person(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BATCH", 3)
    monkeypatch.setattr(sources, "_BLOCK", 64)
    rows = [("ann", str(-t), "0", "f", "no", str(t / 32), "0.5") for t in range(20)]
    rows += [("bo", "0", "1", "m", "yes", "1", "1")]
    wanted = expected(rows, declared(horizon=30))
    assert len(wanted) == 2
    for kind, make in FORMATS.items():
        table = "visits" if kind == "database" else None
        found = imported(make(tmp_path, rows), tmp_path / kind, declared(horizon=30), table)
        assert units(found) == wanted, kind


def test_a_query_and_a_view(tmp_path):
    url = as_sqlite(tmp_path, ROWS)
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute("CREATE VIEW v AS SELECT * FROM visits WHERE who <> 'ann'")
    kept = [row for row in ROWS if row[0] != "ann"]
    assert units(imported(url, tmp_path / "a", declared(), "v")) == expected(kept, declared())
    query = "SELECT * FROM visits WHERE who = 'bo'"
    import_log(url, declared(), tmp_path / "b", query=query, say=lambda _: None)
    kept = [row for row in ROWS if row[0] == "bo"]
    assert units(load(tmp_path / "b")) == expected(kept, declared())


def test_a_postgresql_table_and_its_read_only_transaction(tmp_path, postgresql_url):
    engine = sa.create_engine(postgresql_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE visits (who text, t date, x numeric, s text, a boolean, r real, p float8)"
        )
        connection.exec_driver_sql(
            "INSERT INTO visits VALUES ('ann', '2020-01-02', 0.5, 'f', true, 1, 0.5), "
            "('ann', '2019-12-31', 0.25, 'm', false, 0, 0.5)"
        )
    truth = {"column": "a", "categories": [0, 1]}
    found = imported(postgresql_url, tmp_path / "out", declared(action=truth), "public.visits")
    (ann,) = units(found)
    assert [step[0][0] for step in ann] == [0.25, 0.5]
    assert [step[1] for step in ann] == [(0,), (1,)]
    with pytest.raises(ValueError, match="cannot be read"):
        import_log(
            postgresql_url,
            declared(action=truth),
            tmp_path / "other",
            query="DELETE FROM visits RETURNING *",
            say=lambda _: None,
        )
    with engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM visits").scalar() == 2
    engine.dispose()


def test_people_may_have_uuids_in_postgresql(tmp_path, postgresql_url):
    engine = sa.create_engine(postgresql_url)
    with engine.begin() as connection:
        columns = "who uuid, t int, x float8, s text, a text, r float8, p float8"
        connection.execute(sa.text(f"CREATE TABLE visits ({columns})"))
        for number in (1, 1, 2):
            values = f"'00000000-0000-0000-0000-00000000000{number}', 1, 0.5, 'f', 'no', 1, 1"
            connection.execute(sa.text(f"INSERT INTO visits VALUES ({values})"))
    engine.dispose()
    rows = imported(postgresql_url, tmp_path / "out", declared(), "visits")
    assert sorted(map(len, units(rows))) == [1, 2]


def test_numbers_times_and_dictionaries_of_parquet(tmp_path):
    table = pa.table(
        {
            "who": pa.array([7, 7, 8, 8], pa.int32()).dictionary_encode(),
            "t": pa.array([3, 1, None, 2], pa.timestamp("ms", "Europe/Paris")),
            "x": pa.array([True, False, True, None]),
            "s": pa.array(["f", "m", "f", "f"]).dictionary_encode(),
            "a": pa.array([0.1, 0.2, 0.1, 0.2], pa.float32()),
            "r": pa.array([1, 0, 1, 0], pa.int8()),
            "p": pa.array([0.5] * 4, pa.float16()),
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    changes = {"action": {"column": "a", "categories": [0.1, 0.2]}}
    (seven,) = units(read(str(tmp_path / "log.parquet"), tmp_path, **changes))
    assert [(step[0], step[1], step[2]) for step in seven] == [
        ((0.0, 0.0, 1.0), (1,), 0.0),
        ((1.0, 1.0, 0.0), (0,), 1.0),
    ]


@pytest.mark.parametrize("kind", ["csv", "parquet", "huggingface"])
def test_a_missing_column_is_named(kind, tmp_path):
    where = FORMATS[kind](tmp_path, ROWS)
    found = "separated by commas; it has 7 cells$"  # its first line may be a person's
    if kind != "csv":
        found = "its columns are who, t, x, s, a, r, p$"
    with pytest.raises(ValueError, match=f"has no column 'reward'; .*{found}"):
        read(where, tmp_path, reward={"column": "reward", "low": 0, "high": 1})


def test_a_missing_column_of_a_database_is_no_text(tmp_path):
    """SQLite takes a quoted name that is no column for a text."""
    with pytest.raises(ValueError, match="visits has no column 'reward'"):
        imported(
            as_sqlite(tmp_path, ROWS),
            tmp_path / "out",
            declared(reward={"column": "reward", "low": 0, "high": 1}),
            "visits",
        )


def test_two_columns_of_one_name(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("who,t,x,s,a,r,p,x\nann,1,0,f,no,1,0.5,9\n")
    with pytest.raises(ValueError, match="several columns 'x'"):
        read(str(path), tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("log.csv", b"", "cannot be read as CSV"),
        ("log.csv", b"who,t,x,s,a,r,p\n", "no row of the log is usable: there are no rows"),
        (
            "log.csv",
            b"who,t,x,s,a,r,p\n\xff\xfe,1,0,f,no,1,1\n",
            r"whole number; .* must be UTF-8\)$",
        ),
        ("log.csv", "whé,t,x,s,a,r,p\n".encode("latin-1"), r"and is not UTF-8 \(texts must be"),
        ("log.csv", "who,t,x,s,a,r,p\n".encode("utf-16"), r"and is not UTF-8 \(texts must be"),
        ("log.csv", "who,t,x,s,a,r,p\n".encode("utf-16-be"), r"and is not UTF-8 \(texts mu"),
        ("log.csv", b"who, t,x,s,a,r,p\n", r"no column 't' \(did you mean ' t'\?\); its first"),
        ("log.csv", b"who,t,x,s,A,r,p\n", r"no column 'a' \(did you mean 'A'\?\); .* 7 cells$"),
        ("log.csv", b"who,t,x,s,a,r,p\nann,1,0,f,?,9,1\n", r"usable: a is missing or unknown; com"),
        ("log.csv", b"who,t,x,s,a,r,p\nann,soon,0,f,no,1,1\n", "t is missing or unreadable; com"),
        ("log.csv", b"who,t,x,s,a,r,p\nann,1\n", "lines have more or fewer cells than names"),
        ("log.csv", b"who;t;x;s;a;r;p\nann;1;0;f;no;1;1\n", "separated by commas; it has 1 cell$"),
        ("log.parquet", b"who,t,x", "cannot be read as Parquet"),
        ("log.parquet", b"", "cannot be read as Parquet"),
        ("log.xlsx", b"PK", "must be named .csv or .parquet"),
    ],
)
def test_files_that_are_no_logs(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(str(tmp_path / name), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize(
    ("times", "warns"),
    [
        (("1", "2026-11-01"), True),
        (("2026-11-01T10:00", "2"), True),
        (("1", "2"), False),
        (("2026-11-01", "2026-11-01T10:00"), False),
    ],
)
def test_numbers_and_dates_have_no_common_order(times, warns, tmp_path):
    rows = [(who, t, "0", "f", "no", "1", "1") for who, t in zip(("ann", "bo"), times, strict=True)]
    said = []
    import_log(as_csv(tmp_path, rows), declared(), tmp_path / "out", say=said.append)
    assert any("'t' holds dates and numbers" in line for line in said) == warns


@pytest.mark.parametrize(
    ("ids", "warns"),
    [
        (("7", "7.0"), True),
        (("7.0", "ann"), True),
        (("-7.00", "8"), True),
        (("7", "8"), False),
        (("7.0", "8.0"), False),
        (("7.0", ""), False),
        (("ann", "bo.0"), False),
    ],
)
def test_ids_that_pandas_made_real_numbers_are_two_people_and_are_told(ids, warns, tmp_path):
    """One month's file has 7, and the other one's has 7.0: a person has two places."""
    parts = []
    for number, who in enumerate(ids):
        folder = tmp_path / str(number)
        folder.mkdir()
        parts.append(as_csv(folder, [(who, "1", "0", "f", "no", "1", "1")]))
    said = []
    import_log(parts[0], declared(), tmp_path / "out", parts=parts[1:], say=said.append)
    assert any("end in .0, as 7.0, and others do not" in line for line in said) == warns


def test_whole_numbers_of_a_parquet_file_are_no_real_ones():
    assert not cells.real_ids(pa.array([7, 8])).any()
    assert cells.real_ids(pa.array(["7.0", None, "7"]).dictionary_encode()).tolist() == [
        True,
        False,
        False,
    ]


def test_places_that_are_no_logs(tmp_path):
    for where, message in (
        (tmp_path / "absent.csv", "there is no log at"),
        (tmp_path, "a folder without state.json"),
    ):
        with pytest.raises(ValueError, match=message):
            read(str(where), tmp_path)
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ValueError, match="there is no log at"):
        read(str(tmp_path / "pipe.csv"), tmp_path)
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "dataset_dict.json").write_text("{}")
    with pytest.raises(ValueError, match="several splits"):
        read(str(tmp_path / "splits"), tmp_path)


def test_a_line_with_a_wrong_number_of_cells_is_left_out(tmp_path):
    path = tmp_path / "log.csv"
    lines = [",".join(row) for row in [NAMES, *ROWS]]
    path.write_text("\n".join([*lines[:2], "ann,1,2", *lines[2:]]) + "\n")
    assert units(read(str(path), tmp_path)) == expected(ROWS, declared())


@pytest.mark.parametrize("before", [0, 2_000_000, 4_000_000])
def test_a_cell_of_four_megabytes_stops_nobody_wherever_it_stands(before, tmp_path):
    """Arrow makes two bytes of each one above 127 before it cuts the file into blocks."""
    path = tmp_path / "log.csv"
    texts = [
        "x" * before,
        *["x"] * (len(ROWS) - 2),
        "\N{LATIN SMALL LETTER E WITH ACUTE}" * 1_950_000,
    ]
    rows = [[*NAMES, "note"], *([*row, text] for row, text in zip(ROWS, texts, strict=True))]
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")
    assert units(read(str(path), tmp_path)) == expected(ROWS, declared())


@pytest.mark.parametrize("column", ["who", "e"])
@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal128(5, 1), pa.binary(), pa.bool_()])
def test_ids_are_texts_or_whole_numbers(column, kind, tmp_path):
    table = typed(ROWS).append_column("e", pa.array(["1"] * 4))
    wrong = pa.array([None] * 4, kind)
    table = table.set_column(table.schema.get_field_index(column), column, wrong)
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(ValueError, match=f"column '{column}' (holds ids of|has) the type"):
        read(str(tmp_path / "log.parquet"), tmp_path, episode="e")


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint8(), pa.string()])
def test_whole_numbers_stay_the_same_person_where_a_cell_is_missing(kind, tmp_path):
    """Also beside a file in which none is missing; a row without an id belongs to nobody."""
    whole = typed(ROWS)
    at = whole.schema.get_field_index("who")
    pq.write_table(
        whole.set_column(at, "who", pa.array([7, 7, 8, 8], pa.int32())), tmp_path / "whole.parquet"
    )
    missing = pa.array([7, None, 8, None], pa.int64()).cast(kind)
    pq.write_table(whole.set_column(at, "who", missing), tmp_path / "missing.parquet")
    parts = (str(tmp_path / "missing.parquet"),)
    first = str(tmp_path / "whole.parquet")
    tally = import_log(first, declared(), tmp_path / "out", parts=parts, say=lambda _: None)
    assert (tally.people, tally.nobody, tally.rows) == (2, 2, 8)


def test_whole_numbers_that_pandas_made_real_are_refused(tmp_path):
    """They would be the people 7.0 and 8.0, whom another file calls 7 and 8."""
    table = typed(ROWS)
    real = pa.array([7.0, None, 8.0, 8.0])
    table = table.set_column(table.schema.get_field_index("who"), "who", real)
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(ValueError, match=r"ids of the type double; .*astype\('Int64'\)") as found:
        read(str(tmp_path / "log.parquet"), tmp_path)
    assert "\n" not in str(found.value)


def test_real_numbers_are_no_ids_of_a_database(tmp_path):
    """Only their rows are left out: one person's id stops nobody else."""
    url = as_sqlite(tmp_path, ROWS)
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute("CREATE TABLE loose (who, t, x, s, a, r, p)")
        connection.execute("INSERT INTO loose SELECT * FROM visits")
        for wrong in ("7.5", "CAST(x'ff' AS TEXT)"):
            connection.execute(
                f"INSERT INTO loose SELECT {wrong}, t, x, s, a, r, p FROM visits LIMIT 1"
            )
    found = imported(url, tmp_path / "out", declared(), "loose")
    assert units(found) == expected(ROWS, declared())


def test_a_database_whose_ids_are_all_real_numbers_is_told_what_an_id_is(tmp_path):
    url = as_sqlite(tmp_path, ROWS)
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.execute("CREATE TABLE loose (who, t, x, s, a, r, p)")
        connection.execute("INSERT INTO loose SELECT 7.5, t, x, s, a, r, p FROM visits")
    with pytest.raises(ValueError, match="whose id must be a text or a whole number"):
        imported(url, tmp_path / "out", declared(), "loose")


@pytest.mark.parametrize("cells", [-1, 0, 1])
def test_one_row_that_is_not_utf8_stops_nobody_else(cells, tmp_path):
    """Also if it has a cell too few or too many, which Arrow tells its handler of as a text."""
    path = as_csv(tmp_path, ROWS)
    lines = Path(path).read_bytes().splitlines(keepends=True)
    row = [b"z\xff\xfe", *lines[1].split(b",")[1:]]
    broken = b",".join(row[:-1] if cells < 0 else row[:cells] + row)
    Path(path).write_bytes(b"".join([*lines, broken.strip(), b"\n"]))
    assert units(read(path, tmp_path)) == expected(ROWS, declared())


def test_names_and_cells_of_csv_files_are_utf8(tmp_path):
    rows = [("Zoë", "1", "0", "é", "no", "1", "1"), ("Zoe", "1", "0", "f", "no", "0", "1")]
    path = Path(as_csv(tmp_path, rows))
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("who", "wér", 1), encoding="utf-8-sig")  # with a BOM
    given = declared(
        person="wér",
        observation=[
            {"column": "x", "low": -1, "high": 1},
            {"column": "s", "categories": ["f", "é"]},
        ],
    )
    found = imported(str(path), tmp_path / "out", given)
    assert [steps[0][0] for steps in units(found)] == [(0, 0, 1), (0, 1, 0)]


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct({"a": pa.int64()}), pa.binary()])
def test_nested_columns_are_refused(kind, tmp_path):
    table = typed(ROWS).set_column(2, "x", pa.nulls(4, kind))
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(ValueError, match="column 'x' has the type"):
        read(str(tmp_path / "log.parquet"), tmp_path)


def test_what_database_options_need(tmp_path):
    url = as_sqlite(tmp_path, ROWS)
    with pytest.raises(ValueError, match="give the database's --table, or a --query"):
        imported(url, tmp_path / "out", declared())
    with pytest.raises(ValueError, match="no table or view 'other'"):
        imported(url, tmp_path / "out", declared(), "other")
    with pytest.raises(ValueError, match="belong to a database"):
        imported(as_csv(tmp_path, ROWS), tmp_path / "out", declared(), "visits")
    with pytest.raises(ValueError, match="give an existing SQLite file"):
        imported(f"sqlite:///{tmp_path}/absent.db", tmp_path / "out", declared(), "visits")
    assert not (tmp_path / "absent.db").exists()


def test_real_actions_have_densities(tmp_path):
    given = DECLARED | {"propensity": None, "density": {"column": "r", "low": 0.5}}
    given["action"] = {"column": "p", "low": 0, "high": 1}
    given["reward"] = {"column": "x", "low": -1, "high": 1}
    given["observation"] = {"column": "s", "categories": ["f", "m"]}
    found = imported(as_csv(tmp_path, ROWS), tmp_path / "out", Declaration.of(given))
    drawn = sorted(step for unit in units(found) for step in unit)
    assert [(step[1], step[3]) for step in drawn] == [
        ((1.0,), 0.75),
        ((0.0625,), 3.0),
        ((0.5,), 1.0),
    ]  # a density of 0 makes a row unusable


def test_real_actions_and_no_propensity(tmp_path):
    given = {name: value for name, value in DECLARED.items() if name != "propensity"}
    given["action"] = [{"column": "r", "low": 0, "high": 1}, {"column": "p", "low": 0, "high": 0.5}]
    given["reward"] = {"column": "x", "low": -1, "high": 1}
    given["observation"] = {"column": "s", "categories": ["f", "m"]}
    found = imported(as_csv(tmp_path, ROWS), tmp_path / "out", Declaration.of(given))
    assert found.propensities is None
    assert found.actions.shape == (6, 3, 2)
    assert found.actions.dtype == np.float32
    actions = sorted(step[1] for unit in units(found) for step in unit)
    assert actions == [(0.0, 0.25), (1.0, 0.5)]  # the others are outside the bounds


# --- several files -------------------------------------------------------------------------------


def test_a_log_in_several_files_is_one_log(tmp_path):
    """Person bo is in both files, and is one unit in the order of time."""
    whole = imported(as_csv(tmp_path, ROWS), tmp_path / "whole", declared())
    first = as_csv(tmp_path, ROWS[:2])
    second = Path(first).rename(tmp_path / "first.csv"), as_csv(tmp_path, ROWS[2:])
    import_log(str(second[0]), declared(), tmp_path / "out", parts=[second[1]], say=lambda _: None)
    found = load(tmp_path / "out")
    assert units(found) == units(whole)
    assert found.present.any(axis=1).sum() == 3


def test_parts_that_do_not_belong_together_are_refused(tmp_path):
    log = as_csv(tmp_path, ROWS)
    table = as_sqlite(tmp_path, ROWS)
    parquet = as_parquet(tmp_path, ROWS)
    for part, said in (
        (log, "named twice"),
        (parquet, "another kind"),
        (table, "database is one log"),
        (str(tmp_path / "none.csv"), "there is no log"),
    ):
        with pytest.raises(ValueError, match=said):
            import_log(log, declared(), tmp_path / "out", parts=[part], say=lambda _: None)
    assert not (tmp_path / "out").exists()
