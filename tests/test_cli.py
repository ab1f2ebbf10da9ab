"""The command line: accounting figures, help, and bad input that ends in one clear sentence."""

import json
import logging
import math
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from commands import printed, refused, run_json
from small_runs import SMALL_PPO

import sotto
from sotto.algorithms.base import Words
from sotto.cli import main
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.cli.terminal.progress import Display
from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.mechanisms.noise import sampler_delta


# Balle and Wang 2018 by numerical integration of the two Gaussians, done outside sotto.
@pytest.mark.parametrize(
    ("noise_multiplier", "releases", "expected"), [(1.0, 1, 4.3772), (2.0, 4, 4.3772)]
)
def test_account_gaussian(capsys, noise_multiplier, releases, expected) -> None:
    answer = run_json(
        capsys,
        *("account", "gaussian", "--noise-multiplier", str(noise_multiplier)),
        *("--delta", "1e-5", "--releases", str(releases)),
    )
    assert answer["epsilon"] == pytest.approx(expected, abs=1e-3)


def test_account_dpsgd(capsys) -> None:
    answer = run_json(
        capsys,
        *("account", "dpsgd", "--noise-multiplier", "1.0", "--sampling-rate", "0.01"),
        *("--steps", "1000", "--delta", "1e-5"),
    )
    assert answer["epsilon"] == pytest.approx(1.83, abs=0.03)


def test_calibrate_gaussian_never_exceeds_the_target(capsys) -> None:
    answer = run_json(capsys, "calibrate", "gaussian", "--target-epsilon", "1.0", "--delta", "1e-5")
    assert 0.999 < answer["epsilon"] <= 1.0
    assert gaussian_epsilon(answer["noise_multiplier"], 1e-5) <= 1.0
    assert gaussian_epsilon(answer["noise_multiplier"] * 0.999, 1e-5) > 1.0


def test_calibrations_leave_room_for_the_sampler_of_the_noise(capsys) -> None:
    """The delta of 2**40 draws is 1.3e-26, once for each release that people are drawn for."""
    words = ("calibrate", "gaussian", "--target-epsilon", "1.0", "--releases", "1000", "--delta")
    noise = run_json(capsys, *words, "2e-24")["noise_multiplier"]
    assert noise == sotto.calibrate(target_epsilon=1.0, delta=2e-24, releases=1000)
    together = noise / math.sqrt(1000)
    left = 2e-24 - sampler_delta(together, 2**40)
    assert gaussian_epsilon(together, left) <= 1.0 < gaussian_epsilon(together * (1 - 1e-7), left)
    sampled = ("--sampling-rate", "0.1", "--steps", "1000", "--delta", "2e-24")
    said = refused(capsys, "calibrate", "dpsgd", "--target-epsilon", "1.0", *sampled)
    assert "delta 2e-24 is too small for the sampler" in said
    assert "at least 1e-20" in said


@pytest.mark.parametrize(
    ("noise", "tries", "delta", "expected"),
    [("5", "10", "1e-5", 1.1267), ("1e308", "2", "1e-11", 0.0)],
)
def test_account_select(capsys, noise, tries, delta, expected) -> None:
    answer = run_json(
        capsys,
        *("account", "select", "--noise-multiplier", noise),
        *("--mean-tries", tries, "--delta", delta),
    )
    assert answer["epsilon"] == pytest.approx(expected, abs=1e-4)


def test_calibrate_dpsgd_is_the_inverse_of_account(capsys) -> None:
    shape = ("--sampling-rate", "0.02", "--steps", "50", "--delta", "1e-5")
    found = run_json(capsys, "calibrate", "dpsgd", "--target-epsilon", "1.0", *shape)
    noise = str(found["noise_multiplier"])
    again = run_json(capsys, "account", "dpsgd", "--noise-multiplier", noise, *shape)
    assert 0.99 < again["epsilon"] <= 1.0


def test_plain_words(capsys) -> None:
    words = ("account", "gaussian", "--noise-multiplier", "2", "--delta", "1e-5")
    assert "square root" in printed(capsys, *words, "--releases", "4")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("account gaussian --noise-multiplier -1 --delta 1e-5", "positive"),
        ("account gaussian --noise-multiplier 1 --delta 2", "delta"),
        ("account gaussian --noise-multiplier 1 --delta 1e-5 --releases 0", "releases"),
        ("account dpsgd --noise-multiplier 1 --sampling-rate 2 --steps 9 --delta .1", "rate"),
        ("account dpsgd --noise-multiplier 1 --sampling-rate .1 --steps 0 --delta .1", "at least"),
        ("calibrate gaussian --target-epsilon -1 --delta 1e-5", "target_epsilon"),
        ("train dppg --out OUT --env-id CartPol-v1", "CartPole"),
        ("train ppo --out OUT --env-id Cartpole-v1", "CartPole"),
        ("train dppg --out OUT --delta 0.01", "1 / users"),
        ("train dppg --out OUT --noise-multiplier -1", "noise_multiplier must be in"),
        ("train dppg --out OUT --noise-multiplier 1 --target-epsilon 1", "not both"),
        ("train dppg --out OUT --target-epsilon 5000", "smaller epsilon"),
        ("train dppg --out OUT --preset foo", "preset"),
        ("train dppg --out OUT --seeds 0", "--seeds"),
        ("train dppg --out OUT --ledger postgresql://me:secret@host/db", "password"),
        ("train dppg --out OUT --ledger nosuch://host/db", "SQLAlchemy URL"),
        ("train dppg --out OUT --resume", "no run at"),
        ("train ppo --out OUT --total-steps 5", "total_steps"),
        ("train kickstart --out OUT", "--teacher"),
        ("train kickstart --out OUT --teacher OUT", "no run at"),
        ("train kickstart --out OUT --teacher ftp://teacher.example.org", "TOKEN"),
        ("train kickstart --out OUT --teacher OUT --protect observation", "--observation-radius"),
        ("train kickstart --out OUT --resume", "no run at"),
        ("certificate OUT --verify", "no run at"),
        ("report OUT", "no run at"),
        ("eval OUT", "no run at"),
        ("audit --samples 100 --leaks nonsense", "nonsense"),
        ("trian dppg", "did you mean sotto train dppg?"),
        ("certificat OUT", "did you mean sotto certificate?"),
        (
            "train dppg --out OUT --scale 0.5",
            "unrecognized options: --scale (did you mean --advantage-scale or --critic-scale or "
            "--observation-scale?)",
        ),
        ("verify OUT/certificate.json --ledger nowhere.sqlite", "no file nowhere.sqlite; give"),
        ("train dpgp", "no command"),
        ("campaign invite OUT abc", "sotto: abc is not a whole number; see sotto campaign invite"),
        (
            "evaluate --policy uniform --on OUT --epsilon 1 --out OUT --returns 3..-3",
            "sotto: --returns: give 2 values (FLOAT FLOAT), not 1; see sotto evaluate --help",
        ),
        ("train dppg --hidden a", "sotto: --hidden: cannot be read: ['a']; see sotto train dppg"),
        (
            "simulate devices --out OUT --delta 2",
            "sotto: the command line does not have valid settings of dppg: delta must be below 1, "
            "not 2.0",
        ),
        ("simulate people https://x --tokens OUT --seed -1", "seeds go from 0 to 2147483647"),
        ("certify dpsgd --from OUT", "No such file or directory; give a file of JSON as in docs"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(capsys, tmp_path, words, says) -> None:
    out = tmp_path / "run"
    error = refused(capsys, *words.replace("OUT", str(out)).split())
    assert says in error
    assert "secret" not in error
    assert not out.exists()


def test_a_file_in_place_of_a_run_is_refused_with_the_command_for_files(capsys, tmp_path) -> None:
    file = tmp_path / "certificate.json"
    file.write_text("{}")
    said = refused(capsys, "certificate", str(file))
    assert said.endswith(f"directory of its run, or for this file alone: sotto verify {file}")
    spaced = tmp_path / "a run"
    assert refused(capsys, "report", str(spaced)).endswith(
        f"sotto train ALGORITHM --out '{spaced}'"
    )
    (tmp_path / "notes").write_text("")
    assert "is a file; give the directory" in refused(capsys, "report", str(tmp_path / "notes"))


def test_an_existing_directory_is_not_overwritten(capsys, tmp_path) -> None:
    (tmp_path / "precious").write_text("data")
    assert "exists" in refused(capsys, "train", "dppg", "--out", str(tmp_path))
    assert (tmp_path / "precious").read_text() == "data"


@pytest.mark.parametrize(
    "command",
    [
        "account gaussian",
        "account dpsgd",
        "calibrate gaussian",
        "calibrate dpsgd",
        "train dppg",
        "train ppo",
        "train a2c",
        "train kickstart",
        "reproduce gohari2021",
        "eval",
        "certificate",
        "report",
        "audit",
    ],
)
def test_help_teaches(capsys, command) -> None:
    shown = printed(capsys, *command.split(), "--help")
    assert f"sotto {command}" in shown
    assert "Example" in shown
    assert "--json" in shown


@pytest.mark.parametrize("name", ["dppg", "ppo", "kickstart", "functional-q", "expert-offline"])
def test_seeds_are_not_said_to_have_people_of_their_own(capsys, name) -> None:
    shown = " ".join(printed(capsys, "train", name, "--help").replace("│", " ").split())
    assert "own people" not in shown
    assert "the same teacher, experts or reward function, what they cost adds up" in shown


@pytest.mark.parametrize(
    ("name", "side_by_side"),
    [("dppg", True), ("expert-offline", True), *((name, False) for name in ("rlhf", "offline"))],
)
def test_help_shows_seeds_where_they_may_train_side_by_side(capsys, name, side_by_side) -> None:
    assert ("--seeds INT" in printed(capsys, "train", name, "--help")) == side_by_side
    error = refused(capsys, "train", name, "--seeds", "x")
    assert ("x is not a whole number" in error) == side_by_side


@pytest.mark.parametrize(
    ("env_id", "epsilon", "people"),
    [
        ("HalfCheetah-v5", "1", "256"),
        ("HalfCheetah-v5", "10", "32"),
        ("Hopper-v5", "1", "320"),
        ("Hopper-v5", "10", "48"),
    ],
)
def test_a_preset_may_depend_on_epsilon(capsys, env_id, epsilon, people) -> None:
    main(["train", "dppg", "--env-id", env_id, "--target-epsilon", epsilon, "--help"])
    shown = capsys.readouterr().out
    users = shown[shown.index("--users-per-update") :]
    assert users[users.index("(default: ") :].startswith(f"(default: {people})")


def test_help_of_a_preset_shows_its_values(capsys) -> None:
    main(["train", "dppg", "--preset", "paper", "--help"])
    paper = " ".join(capsys.readouterr().out.replace("│", " ").split())
    main(["train", "dppg", "--help"])
    recipe = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "(default: segment)" in paper
    assert "(default: trajectory)" in recipe
    assert "(default: zero-out)" in recipe


def test_every_command_is_listed(capsys) -> None:
    shown = printed(capsys)
    assert all(one in shown for one in ("train dppg", "account dpsgd", "certificate", "audit"))
    shown = printed(capsys, "train")
    assert "train ppo" in shown
    assert shown.startswith("usage: sotto train COMMAND [OPTIONS]\n\ncommands:\n")
    assert main(["--version"]) == 0
    capsys.readouterr()
    assert main(["trian", "ppo"]) == 2
    assert capsys.readouterr().out == ""  # the command that was meant takes the list's place


def test_importing_the_command_line_does_not_import_jax() -> None:
    code = "import sys, sotto.cli; assert not {'jax', 'numpy', 'tyro'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_help_of_a_training_does_not_import_statistics() -> None:
    code = (
        "import sys; from sotto.cli import main; main(['train', 'dppg', '--help']); "
        "assert not {'scipy.stats', 'dp_accounting', 'jax_privacy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


def test_debugging_shows_where_an_error_comes_from(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOTTO_DEBUG", "1")
    with pytest.raises(ValueError, match="no run at"):
        main(["certificate", str(tmp_path / "nothing")])


def test_a_training_finds_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "run-1").mkdir(parents=True)
    assert main(["train", "ppo", *SMALL_PPO, "--json"]) == 0
    assert (tmp_path / "runs" / "run-2" / "config.json").exists()
    assert json.loads(capsys.readouterr().out)["out"] == "runs/run-2"
    assert "say which with --out" in refused(capsys, "train", "ppo", "--resume")


def test_what_a_training_is_doing_is_told_once(capsys, caplog) -> None:
    """A library had added a handler of its own, which printed it again."""
    log = logging.getLogger("sotto.somewhere")
    with Display(1, "last", Words(), silent=False):
        log.info("a policy learns")
    assert capsys.readouterr().out == "    a policy learns\n"
    assert not caplog.records
    log.warning("later")
    assert [one.message for one in caplog.records] == ["later"]


def test_json_has_stdout_for_itself(capsys) -> None:
    @command("noisy")
    def noisy(json: bool = False) -> None:
        """Prints what a library and its thread may print."""
        print("a library says something")
        thread = threading.Thread(target=print, args=("and its thread, too",))
        thread.start()
        thread.join()
        if json:
            print_json({"answer": 1})

    assert noisy(["--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"answer": 1}
    assert said.err.splitlines() == ["a library says something", "and its thread, too"]
    assert noisy([]) == 0
    assert capsys.readouterr().out.startswith("a library says something\n")
    assert main(["eval", "--json", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: sotto eval")
