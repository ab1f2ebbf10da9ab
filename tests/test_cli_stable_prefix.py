"""`sotto account stable-prefix`: the thresholds of the theory's table, and what is refused."""

import pytest
from commands import printed, refused, run_json

COMMAND = ("account", "stable-prefix")
SETTING = ("--experts", "3000", "--epsilon", "5", "--delta", "1.6667e-4", "--releases")
FLOOR, HAZARD = ("--floor", "0.01"), ("--hazard", "0.02")


@pytest.mark.parametrize(
    ("releases", "rule", "threshold"),
    [("25", FLOOR, 247), ("25", HAZARD, 129), ("100", FLOOR, 461), ("100", HAZARD, 310)],
)
def test_our_thresholds(capsys, releases: str, rule: tuple[str, str], threshold: float) -> None:
    answer = run_json(capsys, *COMMAND, *SETTING, releases, *rule)
    assert answer["threshold"] == pytest.approx(threshold, rel=0.01)
    assert 4.5 < answer["epsilon"] <= 5
    assert (answer["unit"], answer["adjacency"]) == ("expert", "zero-out")
    assert (answer["status"], answer["accounting"]) == ("proved", "two-hop")


def test_the_papers_accounting_beside_ours(capsys) -> None:
    ours = run_json(capsys, *COMMAND, *SETTING, "25", *FLOOR)
    for composition, threshold in (("basic", 1511), ("advanced", 1646), ("exact", 1174)):
        answer = run_json(capsys, *COMMAND, *SETTING, "25", *FLOOR, "--accounting", composition)
        assert answer["threshold"] == pytest.approx(threshold, rel=0.01)
        assert ours["comparison"][composition] == answer["threshold"]
    never = run_json(capsys, *COMMAND, *SETTING, "100", *FLOOR, "--accounting", "advanced")
    assert never["threshold"] == pytest.approx(3335, rel=0.01)
    assert never["reachable"] is False


def test_noise_and_consensus(capsys) -> None:
    thresholds = [
        run_json(capsys, *COMMAND, *SETTING, "25", *FLOOR, "--noise", noise)["threshold"]
        for noise in ("exponential", "monotone-laplace", "paper-laplace")
    ]
    assert thresholds == sorted(thresholds)
    votes = run_json(capsys, *COMMAND, *SETTING, "25", "--consensus")
    assert votes["rule"]["kind"] == "consensus"
    assert votes["epsilon"] == pytest.approx(5, rel=1e-6)
    union = votes["comparison"]["paper_laplace_with_union_over_steps"]
    assert union == pytest.approx(265, rel=0.01)
    assert votes["threshold"] < union


def test_in_words(capsys) -> None:
    said = printed(capsys, *COMMAND, *SETTING, "25", *FLOOR)
    assert "threshold 247" in said
    assert "advanced accounting of the paper: 1646" in said
    said = printed(capsys, *COMMAND, *SETTING, "100", *FLOOR, "--accounting", "advanced")
    assert "No prefix reaches it" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*SETTING, "25"), "give one of --floor, --hazard and --consensus"),
        ((*SETTING, "25", *FLOOR, *HAZARD), "not --floor and --hazard"),
        ((*SETTING, "25", *HAZARD, "--accounting", "basic"), "the paper's"),
        ((*SETTING, "25", "--floor", "0"), "floor must be above 0"),
        (("--experts", "3000", "--releases", "25", "--epsilon", "5", "--delta", "3.34e-4", *FLOOR),
         "vacuous for 3000 experts"),
        (("--experts", "100", "--releases", "25", "--epsilon", "5", "--delta", "1e-4", *FLOOR),
         "100 experts are too few"),
    ],
)  # fmt: skip
def test_what_has_no_guarantee_is_refused(capsys, words: tuple[str, ...], says: str) -> None:
    assert says in refused(capsys, *COMMAND, *words)
