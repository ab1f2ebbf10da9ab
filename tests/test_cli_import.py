"""`sotto import` from its words to the dataset, asking or not."""

import builtins
import json
import re
import sys

import pytest
from commands import printed, refused
from own_logs import DECLARED, ROWS, as_csv, declared, expected, units

from sotto.cli import main
from sotto.data.imports.records import load

WORDS = [
    *("--person", "who", "--time", "t", "--observation", "x=-1..1", "s=f,m"),
    *("--action", "a=no,yes", "--reward", "r=0..1", "--propensity", "p=0.125"),
    *("--people", "6", "--horizon", "3"),
]


@pytest.fixture
def log(tmp_path):
    return as_csv(tmp_path, ROWS)


def test_several_files_are_one_log(log, tmp_path, capsys):
    more = tmp_path / "more.csv"
    lines = (tmp_path / "log.csv").read_text().splitlines()
    more.write_text(f"{lines[0]}\n{lines[1].replace('bo,2', 'bo,3')}\n")
    assert main(["import", log, str(more), *WORDS, "--out", str(tmp_path / "out")]) == 0
    steps = load(tmp_path / "out").present.sum(axis=1)
    assert sorted(steps[steps > 0]) == [1, 1, 3]  # three of bo
    assert "no log to import" in refused(capsys, "import", *WORDS, "--out", str(tmp_path / "none"))


def test_a_row_that_is_no_text_stops_nobody_and_is_not_printed(tmp_path, monkeypatch, capsys):
    """Arrow tells its handler of a row as a text; Python printed a byte of one that is none."""
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    path = tmp_path / "latin.csv"
    path.write_bytes(b"who,t,x,s,a,r,p\nbo,1,0.5,f,no,0,0.5\nann,1,0.5,f,no,0,0.5,M\xfcller\n")
    assert main(["import", str(path), *WORDS, "--out", str(tmp_path / "out")]) == 0
    assert load(tmp_path / "out").present.sum() == 1
    assert not told


def test_all_in_words(log, tmp_path, capsys):
    said = printed(capsys, "import", log, *WORDS, "--out", str(tmp_path / "out"))
    assert "6 places for people, at most 3 steps each, observations of 3 numbers" in said
    assert "observation  x, -1 to 1\n" in said
    assert "propensity   p, at least 0.125\n" in said
    assert "rows read fewer than 10" in said
    assert said.count("  cells of ") == 1
    assert re.search(r"\n  cells of t, x, s, a, r, p: fewer than 10 of each kind \(.*clipped", said)
    assert "They are no private releases: do not publish them" in said
    found = load(tmp_path / "out")
    assert units(found) == expected(ROWS, declared())
    assert found.declaration == declared()


def test_the_column_of_ends_in_words(tmp_path, capsys):
    path = tmp_path / "log.csv"
    path.write_text("who,x,a,r,over\nbo,0,no,1,false\nbo,1,no,0,true\nann,0,yes,1,false\n")
    words = ["--person", "who", "--observation", "x=0..1", "--action", "a=no,yes"]
    words += ["--reward", "r=0..1", "--terminated", "over", "--people", "2", "--horizon", "2"]
    said = printed(capsys, "import", str(path), *words, "--out", str(tmp_path / "out"))
    assert "\n  terminated   over\n" in said
    found = load(tmp_path / "out")
    assert found.declaration.terminated == "over"
    assert (found.ends.sum(), found.cut.sum()) == (2, 1)  # ann was cut off


def test_words_take_precedence_over_the_file(log, tmp_path, capsys):
    path = tmp_path / "columns.json"
    path.write_text(json.dumps(DECLARED | {"horizon": 2, "people": 3}))
    words = ["--declare", str(path), "--horizon", "1", "--drop", "person", "--fill", "x=1"]
    words += ["--source", "a trial", "--licence", "CC0", "--already-public", "--json"]
    answer = json.loads(printed(capsys, "import", log, *words, "--out", str(tmp_path / "out")))
    observation = [DECLARED["observation"][0] | {"fill": 1}, DECLARED["observation"][1]]
    wanted = declared(
        horizon=1,
        people=3,
        drop="person",
        observation=observation,
        source="a trial",
        licence="CC0",
        already_public=True,
    )
    assert answer["declaration"] == wanted.model_dump(mode="json")
    assert load(tmp_path / "out").declaration == wanted
    assert answer["counts"]["rows"] == 0  # rounded down


def test_what_is_missing_is_printed_as_a_template(log, tmp_path, capsys):
    words = ["--person", "who", "--observation", "x", "s=f,m", "--propensity", "p"]
    assert main(["import", log, *words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    template, _, sentence = said.rpartition("sotto: ")
    assert json.loads(template) == {
        "person": "who",
        "observation": [
            {"column": "x", "low": None, "high": None},
            {"column": "s", "categories": ["f", "m"]},
        ],
        "action": [],
        "reward": None,
        "propensity": {"column": "p", "low": None},
        "people": None,
        "horizon": None,
    }
    assert sentence.startswith("action, reward, people, horizon, x of observation, p of propensity")
    assert "complete the template above, and give it with --declare" in sentence
    assert not (tmp_path / "out").exists()


def test_on_a_terminal_it_asks(log, tmp_path, monkeypatch, capsys):
    answers = iter(["6", "-1..1"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(builtins, "input", lambda _: next(answers))
    words = [word if word != "x=-1..1" else "x" for word in WORDS[:-4]] + WORDS[-2:]
    assert main(["import", log, *words, "--out", str(tmp_path / "out")]) == 0
    assert load(tmp_path / "out").declaration == declared()
    with pytest.raises(StopIteration):
        next(answers)


@pytest.mark.parametrize(("flag", "least"), [("--people", 2), ("--horizon", 1)])
def test_a_number_of_nought_was_declared_and_is_refused(flag, least, log, tmp_path, capsys):
    said = refused(capsys, "import", log, *WORDS, flag, "0", "--out", str(tmp_path / "out"))
    assert f"{flag[2:]} must be at least {least}, not 0" in said
    assert "must be declared" not in said


def test_an_existing_folder_is_kept(log, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    assert "exists; remove it" in refused(capsys, "import", log, "--out", str(tmp_path / "out"))


@pytest.mark.parametrize("words", [[], WORDS])
def test_a_misspelt_field_is_named_before_anything_is_asked_for(words, log, tmp_path, capsys):
    declaration = tmp_path / "d.json"
    declaration.write_text('{"persn": "who"}')
    out = str(tmp_path / "out")
    assert main(["import", log, "--declare", str(declaration), *words, "--out", out]) == 2
    said = capsys.readouterr().err
    assert said == (
        "sotto: the declaration of the log: there is no field 'persn'; did you mean person?\n"
    )
