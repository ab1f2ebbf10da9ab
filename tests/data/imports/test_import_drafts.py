"""Declarations from files, words and answers."""

import json

import pytest
from own_logs import DECLARED, declared

from sotto.data.imports import drafts
from sotto.data.imports.declaration import Declaration


@pytest.mark.parametrize(
    ("word", "draft"),
    [
        ("age", {"column": "age", "low": None, "high": None}),
        ("age=0..120", {"column": "age", "low": 0, "high": 120}),
        ("age=-.5..1e3", {"column": "age", "low": -0.5, "high": 1000.0}),
        ("arm=no,yes", {"column": "arm", "categories": ["no", "yes"]}),
        ("arm=1, 2,-3", {"column": "arm", "categories": [1, 2, -3]}),
        ("arm=1,b", {"column": "arm", "categories": ["1", "b"]}),
    ],
)
def test_columns_in_words(word, draft):
    assert drafts.column(word) == draft


@pytest.mark.parametrize("word", ["=0..1", "age=", "age=1", "age=a..b", "age=1,", "age=..3"])
def test_words_that_are_no_column(word):
    with pytest.raises(ValueError, match=r"LOW\.\.HIGH for numbers"):
        drafts.column(word)


@pytest.mark.parametrize("word", ["age=0...90", "age=0. ..90", "age=0.. .9", "age=0....9"])
def test_bounds_that_can_be_read_in_two_ways(word):
    """Three dots once declared 0 to 0.9, to which every age was clipped."""
    with pytest.raises(ValueError, match="can be read in two ways"):
        drafts.column(word)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"people": 0}, "of the log: people must be at least 2, not 0$"),
        (
            {"observation": {"column": "x", "low": 1, "high": 1}},
            "of the log: x: low must be below high, in single precision, too$",
        ),
        (
            {"observation": {"column": "x", "low": 1, "high": "a"}},
            r"of the log: observation\[0\].high must be a number$",
        ),
        (
            {"action": {"column": "a", "categories": ["a"]}},
            r"of the log: action\[0\].categories must have at least 2 entries$",
        ),
        ({"person": "a"}, "of the log: column 'a' is declared twice$"),
    ],
)
def test_refusals_are_in_plain_words(changes, message):
    with pytest.raises(ValueError, match=message):
        declared(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"person": ""}, "person"),
        ({"observation": []}, "observation"),
        ({"observation": {"column": "x", "low": 1, "high": 1}}, "low must be below high"),
        ({"observation": {"column": "x", "low": 1, "high": 1 + 1e-12}}, "single precision"),
        ({"observation": {"column": "x", "low": 0, "high": float("inf")}}, "high"),
        ({"observation": {"column": "x", "low": 0, "high": float("nan")}}, "high"),
        ({"observation": {"column": "x", "low": 0, "high": 1e39}}, "high"),
        ({"observation": {"column": "x", "low": 0, "high": 1, "fill": 2}}, "fill must be between"),
        ({"observation": {"column": "x", "categories": ["a"]}}, "categories"),
        ({"observation": {"column": "x", "categories": ["a", "a"]}}, "given twice"),
        ({"observation": {"column": "x", "categories": ["a", 1]}}, "all texts or all numbers"),
        ({"observation": {"column": "x", "categories": [True, False]}}, "categories"),
        ({"observation": {"column": "x", "categories": ["a", "b"], "fill": "c"}}, "fill must be"),
        ({"observation": {"column": "r", "low": 0, "high": 1}}, "'r' is declared twice"),
        ({"observation": {"column": "who", "low": 0, "high": 1}}, "'who' is declared twice"),
        ({"time": "who"}, "'who' is declared twice"),
        ({"episode": "who"}, "'who' is declared twice"),
        ({"action": [{"column": c, "categories": [0, 1]} for c in "ab"]}, "one column of categ"),
        ({"action": {"column": "a", "low": 0, "high": 1}}, "propensity of a real action"),
        ({"propensity": None, "density": {"column": "p", "low": 0.1}}, "no density"),
        ({"action": {"column": "a", "categories": [0, 1], "fill": 1}}, "only observations can be"),
        ({"reward": {"column": "r", "low": 0, "high": 1, "fill": 0}}, "only observations can be"),
        ({"reward": {"column": "r", "categories": [0, 1]}}, "reward"),
        ({"propensity": {"column": "p", "low": 0}}, "propensity.low"),
        ({"propensity": {"column": "p", "low": 1.5}}, "propensity.low"),
        ({"people": 1}, "people"),
        ({"people": 10**9}, "people"),
        ({"horizon": 0}, "horizon"),
        ({"drop": "all"}, "drop"),
        ({"mean": 3}, "mean"),
    ],
)
def test_wrong_declarations_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        declared(**changes)


def test_a_time_may_be_observed():
    assert declared(observation={"column": "t", "low": 0, "high": 9}).columns.count("t") == 2


def test_every_empty_place_is_found_and_kept_in_the_template():
    assert drafts.missing({}) == [
        (name,) for name in ("person", "observation", "action", "reward", "people", "horizon")
    ]
    draft = DECLARED | {
        "action": {"column": "a", "categories": None},
        "reward": {"column": "r", "low": 0, "high": None},
        "propensity": {"column": "p", "low": None},
        "people": None,
    }
    assert drafts.missing(draft) == [
        ("people",),
        ("action", "a"),
        ("reward", "r"),
        ("propensity", "p"),
    ]
    assert drafts.missing(json.loads(drafts.template(draft))) == drafts.missing(draft)
    assert drafts.missing(DECLARED) == []
    assert drafts.missing(DECLARED | {"people": 0, "horizon": 0}) == []  # declared, and refused


def test_answers_complete_a_draft():
    draft = {"observation": [drafts.column("x"), drafts.column("s")], "time": "t"}
    draft["propensity"] = drafts.chance("p")
    answers = iter(["who", "a=no,yes", "r=0..1", "6", "3", "-1..1", "f,m", "0.125"])
    questions = []

    def ask(question):
        questions.append(question)
        return next(answers)

    assert Declaration.of(drafts.asked(draft, ask)) == declared()
    assert questions[5].startswith("Public bounds of x (observation): LOW..HIGH")


def test_files(tmp_path):
    path = tmp_path / "columns.json"
    path.write_text(json.dumps(DECLARED))
    assert Declaration.of(drafts.read(path)) == declared()
    toml = tmp_path / "columns.toml"
    toml.write_text(
        'person = "who"\ntime = "t"\npeople = 6\nhorizon = 3\n'
        'action = {column = "a", categories = ["no", "yes"]}\n'
        'reward = {column = "r", low = 0, high = 1}\n'
        'propensity = {column = "p", low = 0.125}\n'
        '[[observation]]\ncolumn = "x"\nlow = -1\nhigh = 1\n'
        '[[observation]]\ncolumn = "s"\ncategories = ["f", "m"]\n'
    )
    assert Declaration.of(drafts.read(toml)) == declared()
    for name, content, message in (
        ("a.json", "{", "is not JSON"),
        ("a.json", "[]", "must hold one object"),
        ("a.toml", "=", "is not TOML"),
        ("a.yaml", "", "must be named .json or .toml"),
        ("a.toml", "people = 6\n" + "#" * 2**20, "a.toml cannot be read: it is larger than 1 MiB"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            drafts.read(tmp_path / name)
    with pytest.raises(ValueError, match="cannot be read"):
        drafts.read(tmp_path / "absent.json")


def test_fills_in_words():
    draft = drafts.filled(DECLARED, ("x=0.5", "s=m"))
    assert [one["fill"] for one in draft["observation"]] == [0.5, "m"]
    with pytest.raises(ValueError, match="--fill names 'r', which is no observation"):
        drafts.filled(DECLARED, ("r=0",))
