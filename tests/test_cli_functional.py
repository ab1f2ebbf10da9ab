"""`sotto account functional-noise`."""

import math

import pytest
from commands import printed, refused, run_json

from sotto.privacy.accounting.gaussian import gaussian_epsilon

COMMAND = ("account", "functional-noise", "--mode")
TARGET = ("--target-epsilon", "0.9", "--delta", "1e-4")
NODES = ("--nodes", "11", "--actions", "2", "--reward-radius", "1")
TRANSITION = ("reward-release", "--unit", "transition", *TARGET)
PAPER = ("--steps", "5000", "--batch", "128", "--lipschitz", "1", "--learning-rate", "0.01")


def require_proved(answer: dict) -> None:
    """Checks that both kinds of noise meet the target over all releases, with little to spare."""
    for sigma, sensitivity in (("sigma", "sensitivity"), ("sigma_gp", "sensitivity_gp")):
        multiplier = answer[sigma] / answer[sensitivity] / math.sqrt(answer["releases"])
        assert (
            gaussian_epsilon(multiplier, 1e-4) <= 0.9 < gaussian_epsilon(0.999 * multiplier, 1e-4)
        )


def test_reward_release(capsys) -> None:
    answer = run_json(capsys, *COMMAND, "reward-release", *NODES, *TARGET)
    assert answer["sigma"] == pytest.approx(16.4, abs=0.05)
    assert answer["sigma_gp"] == pytest.approx(18.0, abs=0.05)
    assert answer["status"] == "proved"
    assert "impossible" not in answer
    require_proved(answer)
    near = run_json(capsys, *COMMAND, "reward-release", *NODES[:-1], "0.01", *TARGET)
    assert near["sigma"] == pytest.approx(0.164, abs=5e-4)


def test_paper(capsys) -> None:
    answer = run_json(capsys, *COMMAND, "paper", *PAPER, "--epsilon", "0.9", "--delta", "1e-4")
    assert answer["sigma"] == pytest.approx(6.57, abs=5e-3)
    assert (answer["status"], answer["epsilon"]) == ("paper-claim", "inf")
    assert answer["audited_epsilon_at_least"] == 4.39
    assert len(answer["gaps"]) == 9


@pytest.mark.parametrize(("iterations", "sigma"), [(1, 18.0), (10, 56.9), (39, 112.4)])
def test_noise_of_every_iterate_grows_with_the_root(capsys, iterations: int, sigma: float) -> None:
    answer = run_json(
        capsys, *COMMAND, "per-iteration", *NODES, "--iterations", str(iterations), *TARGET
    )
    assert answer["sigma_gp"] == pytest.approx(sigma, abs=0.06)
    assert answer["releases"] == iterations
    require_proved(answer)


def test_released_values_move_by_a_geometric_sum(capsys) -> None:
    once = run_json(capsys, *COMMAND, "reward-release", *NODES, *TARGET)
    answer = run_json(
        capsys,
        *COMMAND,
        "output-release",
        *NODES,
        "--iterations",
        "10",
        "--discount",
        "0.9",
        *TARGET,
    )
    assert answer["sensitivity"] == pytest.approx(6.513 * 22**0.5, rel=1e-3)
    assert answer["sigma"] / once["sigma"] == pytest.approx(6.513, abs=5e-4)
    assert answer["beta_gp"] == once["beta_gp"]
    require_proved(answer)


def test_one_transition_needs_little(capsys) -> None:
    answer = run_json(capsys, *COMMAND, *TRANSITION, "--least-visits", "118", "--reward-range", "1")
    assert answer["sigma"] == pytest.approx(0.030, abs=5e-4)


def test_in_words(capsys) -> None:
    said = printed(capsys, *COMMAND, "reward-release", *NODES, *TARGET, "--reward-range", "0.5")
    assert "sigma 16.4023" in said
    assert "sigma 18" in said
    assert "2 times the reward range 0.5" in said
    assert "probability above 0.711" in said
    said = printed(capsys, *COMMAND, "paper", *PAPER, "--epsilon", "0.9", "--delta", "1e-4")
    assert "Not a guarantee" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("reward-release", *TARGET), "needs --nodes, --actions, --reward-radius"),
        (("paper", *NODES, *TARGET), "needs --epsilon, --steps"),
        (("paper", *PAPER, "--epsilon", "1", *TARGET), "no use for --target-epsilon"),
        (("per-iteration", *NODES, *TARGET, "--unit", "transition"), "belongs to"),
        (("per-iteration", *NODES, *TARGET, "--iterations", "0"), "--iterations must be"),
        ((*TRANSITION, "--least-visits", "0", "--reward-range", "1"), "--least-visits and"),
        ((*TRANSITION, "--least-visits", "1", "--reward-range", "inf"), "--least-visits and"),
    ],
)
def test_settings_that_mean_nothing_are_refused(capsys, words: tuple[str, ...], says: str) -> None:
    assert says in refused(capsys, *COMMAND, *words)
