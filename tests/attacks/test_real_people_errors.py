"""Where real people are met, nothing of what an environment says, raises or is called is seen."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.training import DPPGTraining, create_ledger
from sotto.privacy.claims import streams as claims
from sotto.privacy.ledger.ledger import Ledger
from sotto.rl.envs.gymnasium import unseen
from sotto.rl.envs.gymnasium.unseen import UnseenError
from sotto.runs.metrics import read

HERE = Path(__file__).parent
SECRETS = ("Ada", "Lovelace", "9.7", "97", "LookupError", "KeyError", "SystemExit", "SIGKILL")
HOWS = (
    "exception",
    "class",
    "chain",
    "exit",
    "code",
    "interrupt",
    "memory",
    "died",
    "killed",
    "shape",
)
SENTENCE = (
    "clinic_that_talks:TalkingClinic-v0 failed where real people are met; its error is not shown, "
    "since it may be about them; test the environment without real people"
)
FLAGS = (
    *("--env-id", "clinic_that_talks:TalkingClinic-v0", "--population", "real"),
    *("--noise-multiplier", "4", "--total-steps", "48", "--users-per-update", "3"),
    *("--steps-per-user", "8", "--delta", "1e-4", "--hidden"),
)


@pytest.fixture(autouse=True)
def clinic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    unseen._asked.cache_clear()


def training(folder: Path, **changes: Any) -> DPPGTraining:
    config = DPPGConfig(
        **(
            {
                "env_id": "clinic_that_talks:TalkingClinic-v0",
                "population": "real",
                "noise_multiplier": 5.0,
                "total_steps": 48,
                "users_per_update": 3,
                "steps_per_user": 8,
                "hidden": (),
                "delta": 1e-4,
            }
            | changes
        )
    )
    return DPPGTraining(config, [0], [create_ledger(config, folder / "ledger.sqlite", "run")])


def chain(error: BaseException | None) -> list[BaseException]:
    """The error, and everything that Python would print above it."""
    found: list[BaseException] = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def said_by(folder: Path, capfd: pytest.CaptureFixture[str], when: str, how: str) -> str:
    """Everything that a failing training raises, warns of and prints."""
    os.environ["SOTTO_CLINIC"] = f"{when}:{how}"
    capfd.readouterr()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with pytest.raises(UnseenError) as failure:
                training(folder).advance()
    finally:
        del os.environ["SOTTO_CLINIC"]
    printed = capfd.readouterr()
    assert [str(one) for one in chain(failure.value)] == [SENTENCE]
    return " ".join([printed.out, printed.err, *(str(one.message) for one in warned)])


@pytest.mark.parametrize("how", HOWS)
def test_a_failing_step_is_one_fixed_sentence(capfd, tmp_path: Path, how: str) -> None:
    said = said_by(tmp_path, capfd, "step", how)
    assert not [secret for secret in SECRETS if secret in said]


@pytest.mark.parametrize("when", ["import", "make", "reset"])
def test_whenever_it_fails(capfd, tmp_path: Path, when: str) -> None:
    for how in ("exception", "exit"):
        (folder := tmp_path / how).mkdir()
        said = said_by(folder, capfd, when, how)
        assert not [secret for secret in SECRETS if secret in said]


@pytest.mark.parametrize("when", ["import", "make", "step"])
def test_what_it_prints_goes_nowhere(capfd, monkeypatch, tmp_path: Path, when: str) -> None:
    monkeypatch.setenv("SOTTO_CLINIC", f"{when}:tell")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # rewards beyond float32 warn of nothing either
        trained = training(tmp_path)
        trained.advance()
        trained.close()
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""


def test_the_same_clinic_of_simulated_people_may_talk(capfd, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOTTO_CLINIC", "step:tell")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import importlib

        import clinic_that_talks

        importlib.reload(clinic_that_talks)
        trained = training(tmp_path, population="simulated", evaluation_episodes=0)
        trained.advance()
        trained.close()
    assert "Ada" in capfd.readouterr().out


def test_an_error_of_our_own_over_their_data_is_not_shown(monkeypatch, tmp_path: Path) -> None:
    trained = training(tmp_path)

    def failing(*given: Any) -> Any:
        raise ValueError(f"cannot add {given}")

    from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers

    monkeypatch.setattr(GymnasiumUsers, "_steps", failing)
    with pytest.raises(UnseenError) as failure:
        trained.advance()
    assert [str(one) for one in chain(failure.value)] == [SENTENCE]


def test_the_command_says_one_sentence_also_when_it_is_debugged(tmp_path: Path) -> None:
    """The traceback of SOTTO_DEBUG shows our own lines, and nothing of theirs."""
    code = "import sys; from sotto.cli import main; sys.exit(main(sys.argv[1:]))"
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    for debug in ("", "1"):
        out = tmp_path / f"run{debug}"
        done = subprocess.run(
            [sys.executable, "-c", code, "train", "dppg", "--out", str(out), "--json", *FLAGS],
            env=os.environ
            | {"SOTTO_CLINIC": "step:exit", "SOTTO_DEBUG": debug, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == (1 if debug else 2)
        assert done.stderr.strip().endswith(SENTENCE)
        words = [one for one in SECRETS if not one.isdecimal()]  # which may be the number of a line
        assert not [one for one in words if one in done.stdout + done.stderr]
        assert debug or done.stderr == f"sotto: {SENTENCE}\n"


@pytest.mark.parametrize("population", ["real", "simulated"])
def test_the_certificate_says_what_of_an_environment_is_not_seen(
    tmp_path: Path, population: str
) -> None:
    """That nothing it says is seen holds for real people only, and so is said of them only."""
    made = training(tmp_path, population=population)
    made.close()
    (opened,) = Ledger.open(tmp_path / "ledger.sqlite").streams
    met = tuple(one.assumption() for one in (claims.UNSEEN, claims.OWN_OUTPUT, claims.NEW_PEOPLE))
    assert opened.statement.assumptions == (
        claims.NO_MEMORY.assumption(),
        *(met if population == "real" else ()),
    )


def test_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no module clinic_that_is_not"):
        training(tmp_path, env_id="clinic_that_is_not:Clinic-v0")


@pytest.mark.parametrize(
    "env_id",
    ["CartPole-v1", "MountainCar-v0", "HalfCheetah-v5", "clinic_that_talks:BorrowedClinic-v0"],
)
def test_nobody_real_is_met_in_a_simulator(tmp_path: Path, env_id: str) -> None:
    with pytest.raises(ValueError, match="is a simulator that comes with") as failure:
        training(tmp_path, env_id=env_id)
    assert "leave out --population real" in str(failure.value)


def events_in(file: Path) -> list[Any]:
    """The events of TensorBoard in a file: a length, its checksum, the event, its checksum."""
    found, data = [], file.read_bytes()
    while data:
        end = 12 + int.from_bytes(data[:8], "little")
        found.append(Event.FromString(data[12:end]))
        data = data[end + 4 :]
    return found


@pytest.mark.parametrize("population", ["real", "simulated"])
def test_how_long_people_take_is_in_no_file_of_metrics(tmp_path: Path, population: str) -> None:
    """One person who stayed longer showed in the seconds of a release, without noise."""
    out, path = tmp_path / "run", os.pathsep.join([str(HERE), *filter(None, sys.path)])
    code = "import sys; from sotto.cli import main; sys.exit(main(sys.argv[1:]))"
    flags = [*FLAGS, "--population", population, "--evaluation-episodes", "0"]
    subprocess.run(
        [sys.executable, "-c", code, "train", "dppg", "--out", str(out), "--json", *flags],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        check=True,
    )
    real = population == "real"
    lines = read(out / "metrics.jsonl")
    assert len(lines) == 2
    assert all((one.seconds == 0) == real for one in lines)
    (file,) = (out / "tensorboard").iterdir()
    scalars = [one for one in events_in(file) if one.HasField("summary")]
    assert len(scalars) >= 2
    assert all((one.wall_time == 0) == real for one in scalars)
