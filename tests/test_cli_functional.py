"""`sotto account functional-noise`."""

import json

import pytest

from sotto.cli import main

COMMAND = ("account", "functional-noise", "--mode")
TARGET = ("--target-epsilon", "0.9", "--delta", "1e-4")
NODES = ("--nodes", "11", "--actions", "2", "--reward-radius", "1")
PAPER = ("--steps", "5000", "--batch", "128", "--lipschitz", "1", "--learning-rate", "0.01")


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main([*COMMAND, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_reward_release(capsys) -> None:
    answer = run_json(capsys, "reward-release", *NODES, *TARGET)
    assert answer["sigma"] == pytest.approx(16.4, abs=0.05)
    assert answer["sigma_gp"] == pytest.approx(18.0, abs=0.05)
    assert answer["status"] == "proved"
    assert "impossible" not in answer


def test_paper(capsys) -> None:
    answer = run_json(capsys, "paper", *PAPER, "--epsilon", "0.9", "--delta", "1e-4")
    assert answer["sigma"] == pytest.approx(6.57, abs=5e-3)
    assert (answer["status"], answer["epsilon"]) == ("paper-claim", "inf")
    assert answer["audited_epsilon_at_least"] == 4.39
    assert len(answer["gaps"]) == 9


def test_the_other_modes(capsys) -> None:
    answer = run_json(capsys, "per-iteration", *NODES, "--iterations", "39", *TARGET)
    assert answer["sigma_gp"] == pytest.approx(112.4, abs=0.1)
    answer = run_json(
        capsys, "output-release", *NODES, "--iterations", "10", "--discount", "0.9", *TARGET
    )
    assert answer["sensitivity"] == pytest.approx(6.513 * 22**0.5, rel=1e-3)
    transition = ("--unit", "transition", "--least-visits", "118", "--reward-range", "1")
    answer = run_json(capsys, "reward-release", *transition, *TARGET)
    assert answer["sigma"] == pytest.approx(0.030, abs=5e-4)


def test_in_words(capsys) -> None:
    assert main([*COMMAND, "reward-release", *NODES, *TARGET, "--reward-range", "0.5"]) == 0
    said = capsys.readouterr().out
    assert "sigma 16.4" in said
    assert "sigma 18" in said
    assert "2 times the reward range 0.5" in said
    assert "probability above 0.711" in said
    assert main([*COMMAND, "paper", *PAPER, "--epsilon", "0.9", "--delta", "1e-4"]) == 0
    assert "Not a guarantee" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("reward-release", *TARGET), "needs --nodes, --actions, --reward-radius"),
        (("paper", *NODES, *TARGET), "needs --epsilon, --steps"),
        (("paper", *PAPER, "--epsilon", "1", *TARGET), "no use for --target-epsilon"),
        (("per-iteration", *NODES, *TARGET, "--unit", "transition"), "belongs to"),
    ],
)
def test_settings_of_another_mode_are_refused(capsys, words: tuple[str, ...], says: str) -> None:
    assert main([*COMMAND, *words]) == 2
    error = capsys.readouterr().err.strip()
    assert says in error
    assert "\n" not in error
