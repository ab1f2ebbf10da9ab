"""`sotto account` and `sotto calibrate` for the answers of a teacher."""

import math

import pytest
from commands import printed, refused, run_json

from sotto.cli import main

DIRICHLET = ("account", "dirichlet", "--actions", "6", "--concentration", "5", "--delta", "1e-5")


def test_account_dirichlet_shows_the_papers_figure_beside_the_certified_one(capsys) -> None:
    answer = run_json(
        capsys, *DIRICHLET, "--floor", "0.05", "--distance", "0.01", "--queries", "1000"
    )
    assert 48 < answer["epsilon"] <= 50.5 * 1.05
    assert answer["paper_epsilon"] == pytest.approx(17242, rel=0.01)
    assert answer["epsilon"] < answer["repaired_epsilon"] < answer["paper_epsilon"]
    assert "not certified" in answer["paper_epsilon_note"]


def test_account_dirichlet_says_the_same_in_words(capsys) -> None:
    assert main([*DIRICHLET, "--floor", "0.1", "--distance", "0.01"]) == 0
    said = capsys.readouterr().out
    assert "epsilon 0.99" in said
    assert "As the paper states it: 5.84" in said


def test_account_truncated_dirichlet(capsys) -> None:
    setting = ("account", "dirichlet", "--actions", "6", "--concentration", "0.2")
    answer = run_json(
        capsys,
        *(*setting, "--floor", "0.1", "--distance", "0.05", "--delta", "1e-5"),
        *("--queries", "1000", "--mechanism", "truncated-dirichlet", "--threshold", "0.05"),
    )
    # Theory notes: epsilon_0 = .066 and 4.99 for a thousand answers, at threshold 0.05.
    assert answer["epsilon"] == pytest.approx(4.99, rel=0.01)
    assert "paper_epsilon" not in answer


def test_account_gaussian_policy(capsys) -> None:
    answer = run_json(
        capsys,
        *("account", "gaussian-policy", "--actions", "6", "--noise-stddev", "0.1"),
        *("--distance", "0.1", "--delta", "1e-5"),
    )
    assert answer["epsilon"] == pytest.approx(4.3772, abs=1e-3)  # multiplier 1


@pytest.mark.parametrize(
    "words",
    [
        ("account", "gaussian-policy", "--actions", "6", "--noise-stddev", "0.1", "--delta=1e-5"),
        (*DIRICHLET, "--floor", "0.1"),
    ],
)
def test_equal_rows_cost_nothing_and_are_said_to_be_answered(capsys, words) -> None:
    said = printed(capsys, *words, "--distance", "0")
    assert said.startswith("epsilon 0 at delta 1e-05 (1 answer of ")
    assert "\nNeighbouring rows are equal, so no answer depends on the data.\n" in said
    assert "released" not in said
    answer = run_json(capsys, *words, "--distance", "0")
    assert (answer["epsilon"], answer["queries"]) == (0, 1)
    assert answer["method"] == "Neighbouring rows are equal, so no answer depends on the data"


def test_radii_come_with_what_they_are_worth(capsys) -> None:
    answer = run_json(
        capsys,
        *("account", "dirichlet-radius", "--actions", "6", "--concentration", "5"),
        *("--beta", "0.05"),
    )
    by_status: dict[str, list[float]] = {}
    for one in answer["radii"]:
        by_status.setdefault(one["status"], []).append(one["radius"])
    assert answer["radius"] == min(by_status["valid"]) == pytest.approx(1.249, abs=0.001)
    assert by_status["invalid"] == [pytest.approx(0.4996, abs=1e-4)]
    assert by_status["estimated"] == [pytest.approx(0.565, abs=0.015)]


def test_calibrate_dirichlet_never_exceeds_the_target(capsys) -> None:
    setting = ("--floor", "0.1", "--distance", "0.002", "--queries", "1000", "--actions", "6")
    found = run_json(
        capsys,
        *("calibrate", "dirichlet", "--target-epsilon", "4", "--delta", "1e-5", *setting),
    )
    assert 3.9 < found["epsilon"] <= 4
    again = run_json(
        capsys,
        *("account", "dirichlet", "--concentration", repr(found["concentration"])),
        *("--delta", "1e-5", *setting),
    )
    assert math.isclose(again["epsilon"], found["epsilon"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "account dirichlet --actions 6 --concentration 5 --floor 0.5 --distance .1 --delta .1",
            "floor",
        ),
        (
            "account dirichlet --actions 6 --concentration -5 --floor .1 --distance .1 --delta .1",
            "0",
        ),
        (
            "account dirichlet --actions 6 --concentration nan --floor .1 --distance 1 --delta .1",
            "concentration must be a finite number, not nan",
        ),
        (
            "account dirichlet --actions 6 --concentration 5 --floor .1 --distance nan --delta .1",
            "distance",
        ),
        (
            "account dirichlet --actions 6 --concentration 5 --floor .1 --distance .1 --delta .1 "
            "--queries 0",
            "queries",
        ),
        (
            "account dirichlet --actions 6 --concentration 5 --floor .1 --distance .1 --delta .1 "
            "--threshold .05",
            "truncated-dirichlet",
        ),
        ("account dirichlet-radius --actions 6 --concentration 5 --beta 2", "beta"),
        (
            "calibrate dirichlet --target-epsilon .1 --actions 6 --floor .1 --distance .05 "
            "--delta 1e-5 --queries 1000",
            "no concentration",
        ),
    ],
)
def test_bad_input_is_one_sentence(capsys, words, says) -> None:
    assert says in refused(capsys, *words.split())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"--target-epsilon": "-1"}, "--target-epsilon must be positive and finite, got -1.0"),
        ({"--queries": "0"}, "queries must be at least 1, got 0"),
        ({"--distance": "0"}, "no answer depends on the data: every concentration costs epsilon 0"),
    ],
)
def test_a_calibration_refuses_impossible_numbers_by_name(capsys, changes, why) -> None:
    given = {"--target-epsilon": "8", "--actions": "6", "--floor": "0.1", "--distance": "0.002"}
    words = [word for flag in (given | {"--delta": "1e-5"} | changes).items() for word in flag]
    assert why in refused(capsys, "calibrate", "dirichlet", *words)
