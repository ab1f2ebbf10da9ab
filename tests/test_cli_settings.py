"""The command line's settings: bad ones end in a sentence, however a flag is written."""

import json
from itertools import pairwise

import pytest
from commands import printed, refused
from small_runs import SMALL_PPO

from sotto.cli import main
from sotto.cli.terminal.parsing import flags_given


@pytest.mark.parametrize(
    ("algorithm", "words", "says"),
    [
        ("dppg", "--hidden -3", "hidden must be at least 1; -3 is not"),
        ("dppg", "--target-epsilon 1 --seed -1", "seed must be in [0, 2147483647]; -1 is not"),
        ("dppg", "--seed 2147483646 --seeds 3", "those from 2147483646 do not"),
        ("ppo", "--seed 1099511627776", "seed must be in"),
        ("functional-q", "--target-epsilon 1 --seed -1", "seed must be in [0, 2147483647]"),
        ("functional-q", "--target-epsilon 1 --seed 1099511627776", "seed must be in [0"),
        ("dppg", "--noise-multiplier 1e-300", "noise_multiplier must be in [1e-6, 1e6]"),
        ("dppg", "--noise_multiplier 0", "noise_multiplier must be in [1e-6, 1e6]; 0.0 is not"),
        ("dppg", "--noise_multiplier=0", "noise_multiplier must be in [1e-6, 1e6]; 0.0 is not"),
        ("dppg", "--target-epsilon 1 --ratio-clip 0.2", "--ratio-clip is now --clip-ratio"),
        ("dppg", "--env_id CartPol-v1", "Did you mean: `CartPole`"),
        ("dppg", "--target-epsilom 1", "did you mean --target-epsilon?"),
        ("dppg", "--target-epsilon abc", "sotto: --target-epsilon: abc is not a number; see"),
    ],
)
def test_bad_settings_are_one_sentence_and_leave_nothing(
    capsys, tmp_path, algorithm, words, says
) -> None:
    out = tmp_path / "run"
    assert says in refused(capsys, "train", algorithm, "--out", str(out), *words.split())
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--noise-multiplier", "1"], "1"),
        (["--noise_multiplier", "1"], "1"),
        (["--noise_multiplier=1"], "1"),
        (["--out", "a_b", "--noise_multiplier", "c_d"], "c_d"),
        (["--noise-multiplier"], None),
        (["noise-multiplier", "1"], None),
        ([], None),
    ],
)
def test_a_flag_is_found_with_hyphens_and_with_underscores(words, value) -> None:
    assert (flags_given(words).get("noise_multiplier") or None) == value


@pytest.mark.parametrize(
    "words",
    [
        "audit --seed -1",
        "experts train --seed -1 --out nowhere",
        "experts collect nowhere --out elsewhere --seed 4294967296",
        "reproduce rio2025 table1 --first-seed -1",
        "reproduce wang2019 cartpole --first-seed -1",
        "reproduce sharma2024 fig2 --experts nowhere --first-seed -1",
    ],
)
def test_seeds_that_no_program_holds(capsys, words) -> None:
    assert "seeds go from 0 to 2147483647" in refused(capsys, *words.split())


def test_help_shows_the_interval(capsys) -> None:
    shown = printed(capsys, "train", "dppg", "--help")
    assert "--delta FLOAT in (0, 1)" in shown
    assert "--parameter-decay FLOAT in (0, 1]" in shown
    assert "--noise-multiplier {None}|{FLOAT in [1e-6, 1e6]}" in shown
    assert "--hidden [INT in [1, inf) [INT in [1, inf) ...]]" in shown


def test_help_shows_the_description_of_a_shared_setting(capsys) -> None:
    shown = " ".join(printed(capsys, "train", "a2c", "--help").split())
    assert "Number of parallel environments. (default: 16)" in shown
    assert "--num-envs INT in [1, inf)" in shown


@pytest.mark.parametrize("steps", ["64", "6.4e1", "64.0"])
def test_an_integer_may_have_an_exponent(tmp_path, steps) -> None:
    out = tmp_path / "run"
    words = (*SMALL_PPO, "--total-steps", steps, "--out", str(out))
    assert main(["train", "ppo", *words]) == 0
    assert json.loads((out / "config.json").read_text())["config"]["total_steps"] == 64
    assert (
        main(
            [
                "account",
                "dpsgd",
                "--noise-multiplier",
                "1",
                "--sampling-rate",
                "0.01",
                "--steps",
                steps,
                "--delta",
                "1e-5",
            ]
        )
        == 0
    )


@pytest.mark.parametrize("steps", ["1.5", "1e400", "nan", "many"])
def test_what_is_no_integer_is_refused(capsys, tmp_path, steps) -> None:
    out = tmp_path / "run"
    error = refused(capsys, "train", "ppo", "--total-steps", steps, "--out", str(out))
    assert "--total-steps" in error
    assert not out.exists()


def test_a_required_flag_may_be_misspelt(capsys) -> None:
    error = refused(capsys, "account", "gaussian", "--noise-multiplie", "1", "--delta", "1e-5")
    assert "give --noise-multiplier FLOAT and leave out --noise-multiplie;" in error


@pytest.mark.parametrize("name", ["train dppg", "tune dppg", "serve teacher", "certificate"])
def test_help_has_whole_paragraphs(capsys, name) -> None:
    """A line ends only where the next word does not fit."""
    lines = printed(capsys, *name.split(), "--help").splitlines()
    inside = [line.removeprefix("│").removesuffix("│") for line in lines if line.startswith("│")]
    for line, below in pairwise(inside):
        indent = len(below) - len(below.lstrip())
        if indent > 6 and line[indent - 1 : indent + 1].strip() and not line.strip().endswith(")"):
            word = below.split()[0]
            assert len(line.rstrip()) + 1 + len(word) > len(line) - 1, (line, below)


def test_help_says_what_a_flag_without_a_value_means(capsys) -> None:
    main(["train", "dppg", "--help"])
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "up to steps_per_user. This flag means no. (default: True)" in words
    main(["train", "dppg", "--preset", "paper", "--help"])
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "up to steps_per_user. (default: False)" in words


def test_the_last_of_two_equal_flags_counts() -> None:
    """It decides the defaults, as it decides the settings."""
    given = flags_given(["--preset", "paper", "--out", "a", "--preset=sotto", "--out", "b"])
    assert given == {"preset": "sotto", "out": "b"}
