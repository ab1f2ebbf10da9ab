"""What becomes of one person's rows depends on these rows alone."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import own_logs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from minari.dataset.minari_storage import MinariStorage
from own_logs import ROWS, Row, as_csv, declared, expected, imported, units

from sotto.data.imports import importing
from sotto.data.imports.declaration import Declaration

CELLS = (
    ["1", "2", "-3.5", "2020-01-01", "2020-01-01T10:00", "", "soon", "inf"],
    ["0.5", "-3", "nan", "inf", "", "1e400", "abc", " 0 ", "0x1"],
    ["f", "f", "m", "x", "", "F"],
    ["no", "yes", "yes", "maybe", ""],
    ["0", "1", "0.25", "7", "-1e300", "inf", ""],
    ["0.5", "0.0625", "0", "1", "2", "-1", "", "nan"],
)
OTHERS = ["ann", "bo", "żółć", "7", "7.0", " ", ""]


def rows_of(*people: str) -> st.SearchStrategy[list[Row]]:
    """Rows of these people with cells of every kind, right and wrong."""
    row = st.tuples(st.sampled_from(people), *map(st.sampled_from, CELLS))
    return st.lists(row, max_size=8)


def units_of(rows: list[Row], declaration: Declaration) -> Counter[object]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if not expected(plain(rows), declaration):
            with pytest.raises(ValueError, match="no row of the log is usable"):
                imported(as_csv(folder, rows), folder / "out", declaration)
            return Counter()
        return Counter(units(imported(as_csv(folder, rows), folder / "out", declaration)))


def plain(rows: list[Row]) -> list[Row]:
    """The rows without blanks around numbers, which the import allows."""
    return [(who, t, x.strip(), *others) for who, t, x, *others in rows]


DECLARATIONS = [declared(people=8), declared(people=8, drop="person", horizon=2)]


@settings(max_examples=15, deadline=None)
@given(
    others=rows_of(*OTHERS),
    before=rows_of("zoe"),
    after=rows_of("zoe"),
    declaration=st.sampled_from(DECLARATIONS),
    data=st.data(),
)
def test_a_person_changes_only_their_own_unit(others, before, after, declaration, data):
    """Whoever else is there, and wherever the rows of the person stand among theirs."""

    def mixed(rows: list[Row]) -> list[Row]:
        order = data.draw(st.permutations([True] * len(rows) + [False] * len(others)))
        mine, theirs = iter(rows), iter(others)
        return [next(mine) if own else next(theirs) for own in order]

    rest = units_of(others, declaration)
    for rows in (before, after):
        whole, own = units_of(mixed(rows), declaration), units_of(rows, declaration)
        assert whole == rest + own
        assert own.total() <= 1


@settings(max_examples=30, deadline=None)
@given(rows=rows_of(*OTHERS, "zoe"), declaration=st.sampled_from(DECLARATIONS))
def test_the_rules_are_those_of_a_plain_second_implementation(rows, declaration):
    assert units_of(rows, declaration) == Counter(expected(plain(rows), declaration))


def test_places_are_uniformly_random():
    """Each of the 6 orders of 3 places has 1000 of 6000 draws, within 6 standard deviations."""
    found = Counter(tuple(importing.places(3).tolist()) for _ in range(6000))
    assert len(found) == 6
    assert all(abs(count - 1000) < 6 * np.sqrt(6000 * 5 / 36) for count in found.values())


def test_people_take_the_places(tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "places", lambda people: np.array([5, 0, 3, 1, 2, 4]))
    found = imported(as_csv(tmp_path, ROWS), tmp_path / "out", declared())
    assert np.flatnonzero(found.present.any(axis=1)).tolist() == [0, 3, 5]


def test_people_whose_rows_share_a_file_stay_apart(tmp_path):
    """There are 256 files and 400 people, whose rows alternate."""
    rows = [
        (f"p{n}", str(-t), "0", "f", "no", str(n / 1024), str((t + 1) / 4))
        for t in range(3)
        for n in range(400)
    ]
    declaration = declared(people=1000)
    found = imported(as_csv(tmp_path, rows), tmp_path / "out", declaration)
    assert units(found) == expected(rows, declaration)


def test_who_comes_first_depends_on_a_secret_only(tmp_path):
    """In 30 imports each of two people is first at least once, in the arrays and in the file."""
    rows = [("ann", "1", "-1", "f", "no", "0", "1"), ("bo", "1", "1", "f", "no", "1", "1")]
    first, written = set(), set()
    for number in range(30):
        found = imported(as_csv(tmp_path, rows), tmp_path / str(number), declared(people=2))
        first.add(float(found.rewards[0, 0]))
        episodes = MinariStorage.read(tmp_path / str(number) / "data").get_episodes([0])
        written.update(float(episode["rewards"][0]) for episode in episodes)
    assert first == written == {0.0, 1.0}


def test_more_people_than_declared_are_refused(tmp_path):
    """People without a usable row are nobody, with or without room for them."""
    where = as_csv(tmp_path, [*ROWS, ("cy", "", "", "", "", "", "")])
    imported(where, tmp_path / "three", declared(people=3))
    with pytest.raises(ValueError, match="more people than the 2 that are declared"):
        imported(where, tmp_path / "two", declared(people=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "three"]


def test_equal_times_keep_the_order_of_the_log(tmp_path):
    rows = [("ann", "1", "0", "f", "no", str(n / 64), "1") for n in range(40)]
    found = imported(as_csv(tmp_path, rows), tmp_path / "out", declared(horizon=40))
    (steps,) = units(found)
    assert [step[2] for step in steps] == [n / 64 for n in range(40)]


def test_without_a_time_rows_keep_the_order_of_the_log(tmp_path):
    rows = [("ann", str(-n), "0", "f", "no", str(n / 4), "1") for n in range(3)]
    found = imported(as_csv(tmp_path, rows), tmp_path / "out", declared(time=None))
    (steps,) = units(found)
    assert [step[2] for step in steps] == [0, 0.25, 0.5]


def test_episodes_of_a_person_follow_each_other(tmp_path):
    """By their first rows; the horizon counts the steps of all of them together."""
    path = tmp_path / "log.csv"
    lines = [
        ("b", 1, 0.0),
        ("a", 2, 0.25),
        ("b", 3, 0.5),
        ("a", 4, 0.75),
        ("c", 5, 1.0),
        ("", 6, 1.0),
    ]
    text = "".join(f"ann,{e},{t},0,f,no,{r},1\n" for e, t, r in lines)
    path.write_text("who,e,t,x,s,a,r,p\n" + text)
    for horizon, ends, cut in (
        (5, [False, True, False, True, True], [False] * 5),
        (3, [False, True, True], [False, False, True]),
        (2, [False, True], [False, False]),
    ):
        declaration = declared(episode="e", horizon=horizon)
        found = imported(str(path), tmp_path / f"out{horizon}", declaration)
        (steps,) = units(found)
        assert [step[2] for step in steps] == [0.0, 0.5, 0.25, 0.75, 1.0][:horizon]
        assert [step[4] for step in steps] == ends
        assert [step[5] for step in steps] == cut


def test_fills_stand_for_what_is_missing(tmp_path):
    rows = [("ann", "1", "", "x", "no", "1", "1"), ("ann", "2", "inf", "", "no", "1", "1")]
    observation = [
        {"column": "x", "low": -1, "high": 1, "fill": 0.5},
        {"column": "s", "categories": ["f", "m"], "fill": "m"},
    ]
    found = imported(as_csv(tmp_path, rows), tmp_path / "out", declared(observation=observation))
    (steps,) = units(found)
    assert [step[0] for step in steps] == [(0.5, 0.0, 1.0)] * 2


def test_what_a_killed_import_left_is_removed_by_the_next_one(tmp_path):
    """kill -9 after the rows were spread: they are the rows of people, in the clear."""
    log = as_csv(tmp_path, ROWS)
    code = (
        "import os, pathlib, signal, sys; sys.path[:0] = sys.argv[3:]\n"
        "from own_logs import declared\n"
        "from sotto.data.imports import importing\n"
        "importing.datasets.write = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "importing.import_log(sys.argv[1], declared(), pathlib.Path(sys.argv[2]), say=print)\n"
    )
    words = [
        sys.executable,
        "-c",
        code,
        log,
        str(tmp_path / "out"),
        str(Path(own_logs.__file__).parent),
    ]
    assert subprocess.run(words).returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(".out.*")
    assert any((left / "rows").iterdir())
    other = tmp_path / ".out.notes123"  # somebody's own folder
    (other / "mine").mkdir(parents=True)
    running = tmp_path / ".out.abcdefgh"
    running.mkdir()
    with importing._held(running):
        imported(log, tmp_path / "out", declared())
    assert not left.exists()
    assert running.exists()
    assert (other / "mine").exists()
    assert set(tmp_path.glob(".out.*")) == {running, other}


def test_imports_of_one_output_at_the_same_time_do_not_stop_each_other(tmp_path, monkeypatch):
    """One ends while the other looks for what was left, and one has just begun."""
    log = as_csv(tmp_path, ROWS)
    ending, begun = tmp_path / ".out.a_ending", tmp_path / ".out.b_begun_"
    (ending / "rows").mkdir(parents=True)
    begun.mkdir()
    look = os.getuid

    def ends_meanwhile() -> int:
        if ending.exists():
            shutil.rmtree(ending)
        return look()

    monkeypatch.setattr(os, "getuid", ends_meanwhile)
    imported(log, tmp_path / "out", declared())
    assert begun.exists()  # its import would not find it


def test_an_import_that_ends_after_another_one_of_the_same_output_says_so(tmp_path, monkeypatch):
    out = tmp_path / "out"
    sync = importing._sync

    def another_ends(folder: Path) -> None:
        sync(folder)
        (out / "data").mkdir(parents=True)

    monkeypatch.setattr(importing, "_sync", another_ends)
    with pytest.raises(ValueError, match="out exists; remove it, or choose another name"):
        imported(as_csv(tmp_path, ROWS), out, declared())
    assert list(out.iterdir()) == [out / "data"]
    assert not list(tmp_path.glob(".out.*"))
