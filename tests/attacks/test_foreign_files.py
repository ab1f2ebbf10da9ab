"""Directories and datasets of somebody else: nothing that they name is connected to or imported.

Each attack has a listener or a module that notes whether it was reached, and the same command with
the user's own flag reaches it: the tests can fail.
"""

import contextlib
import json
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium as gym
import jax
import numpy as np
import pytest
import small_teacher
from commands import refused

import sotto
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.experts import population as experts
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.cli import main
from sotto.errors import RunError, visible
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.units import Unit
from sotto.rl.envs.registry import from_data
from sotto.runs import checkpoints
from sotto.runs.directory import create_experiment, new_settings
from sotto.runs.registry import algorithm_named, config_to_json
from sotto.serving.directory import ServiceSettings, create_service

TRAP = """
import pathlib
pathlib.Path({marker!r}).write_text("imported")
import gymnasium
gymnasium.register("Trap-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=500)
"""


class Listener:
    """A server on loopback that notes what it is sent, and refuses it."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.heard: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):  # the other side may have gone
                self.heard.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n")

    def hears(self) -> bool:
        """Whether anything comes within ten seconds: a busy machine serves late."""
        until = time.monotonic() + 10
        while not self.heard and time.monotonic() < until:
            time.sleep(0.01)
        return bool(self.heard)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


@pytest.fixture
def database(listener: Listener, monkeypatch) -> str:
    """The URL of a PostgreSQL server that somebody else runs."""
    monkeypatch.setenv("PGPASSWORD", "the-secret-password")
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
    return f"postgresql+psycopg://ann@127.0.0.1:{listener.port}/x?sslmode=disable"


@pytest.fixture
def trap(tmp_path: Path, monkeypatch) -> Iterator[tuple[str, Path]]:
    """An environment whose name imports a module, and the file that this leaves."""
    marker, name = tmp_path / "marker", f"trap_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(TRAP.format(marker=str(marker)))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield f"{name}:Trap-v0", marker
    sys.modules.pop(name, None)
    gym.registry.pop("Trap-v0", None)


def run_of(path: Path, algorithm: str, chosen, ledger: bool, **changes) -> Path:
    """A run directory as it would be after one update."""
    settings = new_settings(
        algorithm=algorithm,
        config=config_to_json(algorithm_named(algorithm), chosen),
        preset=None,
        seeds=(0,),
        population="simulated",
        ledger="ledger.sqlite" if ledger else None,
        command="test",
    )
    unit = Unit(kind="trajectory", adjacency="zero-out")
    budget = Budget(epsilon=8.0, delta=1e-5)

    def create(run) -> None:
        Ledger.create(run.ledger_location, run.settings.run_id, unit=unit, budget=budget)

    experiment = create_experiment(path, settings, create)
    if algorithm == "ppo":
        states = algorithm_named("ppo").initial_states(chosen, (0,))
        checkpoints.save(experiment.runs[0].checkpoints, 1, jax.tree.map(lambda x: x[0], states))
    edit(path, **changes)
    return path


def edit(path: Path, **changes) -> None:
    file = path / "config.json"
    stored = json.loads(file.read_text())
    config = stored["config"] | changes.pop("config", {})
    file.write_text(json.dumps(stored | changes | {"config": config}))


@pytest.fixture
def private(tmp_path: Path) -> Path:
    from sotto.algorithms.dppg.config import DPPGConfig

    return run_of(tmp_path / "run", "dppg", DPPGConfig(target_epsilon=1.0), True)


# --- ledgers -------------------------------------------------------------------------------------

COMMANDS: dict[str, Callable[[Path], tuple[str | Path, ...]]] = {
    "certificate": lambda run: ("certificate", run),
    "verify": lambda run: ("certificate", run, "--verify"),
    "resume": lambda run: ("train", "dppg", "--out", run, "--resume", "--json"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_server_that_a_run_names_is_connected_to(capsys, private, database, listener, command):
    edit(private, ledger=database)
    words = COMMANDS[command](private)
    assert f"give --ledger {database} if you trust that" in refused(capsys, *words)
    assert listener.heard == []
    assert "cannot be used" in refused(capsys, *words, "--ledger", database)
    assert listener.hears()  # with the flag it is


def test_no_report_connects_either(capsys, private, database, listener):
    edit(private, ledger=database)
    (private / "metrics.jsonl").write_text(
        '{"updates": 1, "first_update": 0, "env_steps": 1, "seconds": 1.0, "epsilon": null, '
        '"released": {}, "evaluation": {}, "simulated": {}}\n'
    )
    assert "give --ledger" in refused(capsys, "report", private)
    assert listener.heard == []


def test_another_ledger_than_the_one_named_is_refused(capsys, private, database, listener):
    edit(private, ledger=database)
    for other in (database.replace("ann", "bob"), "ledger.sqlite", f"{database}&options=x"):
        assert "give --ledger" in refused(capsys, "certificate", private, "--ledger", other)
    assert listener.heard == []


def test_no_server_that_a_teachers_run_names_is_connected_to(
    capsys, private, database, listener, tmp_path
):
    edit(private, ledger=database)
    words = ("train", "kickstart", "--teacher", private, "--out", tmp_path / "student")
    assert "give --ledger" in refused(capsys, *words)
    assert "give --ledger" in refused(
        capsys,
        "serve",
        "teacher",
        private,
        "--out",
        tmp_path / "s",
        "--queries",
        "9",
        "--target-epsilon",
        "1",
    )
    assert listener.heard == []
    refused(capsys, *words, "--teacher-ledger", database)
    assert listener.hears()


@pytest.fixture
def service(tmp_path: Path) -> Path:
    settings = ServiceSettings.new(
        run=tmp_path / "run",
        env_id="Fake-v0",
        promise={"queries": 9, "target_epsilon": 8.0},
        ledger=None,
        command="test",
    )
    statement = small_teacher.statement(9)
    budget = Budget(epsilon=8.0, delta=1e-5)
    return create_service(tmp_path / "service", settings, statement, budget).path


@pytest.mark.parametrize(
    "words",
    [
        ("students", "issue", "DIR", "ann"),
        ("students", "list", "DIR"),
        ("students", "revoke", "DIR", "ann"),
        ("certificate", "DIR"),
    ],
    ids=" ".join,
)
def test_no_server_that_a_service_names_is_connected_to(capsys, service, database, listener, words):
    file = service / "service.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"ledger": database}))
    words = [str(service) if word == "DIR" else word for word in words]
    assert "give --ledger" in refused(capsys, *words)
    assert listener.heard == []
    refused(capsys, *words, "--ledger", database)
    assert listener.hears()


@pytest.mark.parametrize("how", ["path", "link", "url", "up"])
def test_another_file_is_not_opened_as_a_ledger(capsys, private, tmp_path, how):
    other = tmp_path / "other.sqlite"
    shutil.copy(private / "ledger.sqlite", other)
    before = other.read_bytes(), other.stat().st_mtime_ns
    place = {"path": str(other), "url": f"sqlite:///{other}", "up": "../other.sqlite"}.get(how)
    if place is None:
        (private / "ledger.sqlite").unlink()
        (private / "ledger.sqlite").symlink_to(other)
    else:
        edit(private, ledger=place)
    assert "give --ledger" in refused(capsys, "certificate", private)
    assert (other.read_bytes(), other.stat().st_mtime_ns) == before
    if how in ("path", "url"):
        assert main(["certificate", str(private), "--ledger", str(place)]) == 0


# --- modules -------------------------------------------------------------------------------------


def test_no_module_that_a_run_names_is_imported(capsys, trap, tmp_path):
    name, marker = trap
    run = run_of(tmp_path / "run", "ppo", PPOConfig(hidden=(8,)), False, config={"env_id": name})
    for words in (
        ("eval", run, "--episodes", "1"),
        ("eval", run, "--video", tmp_path / "x.gif"),
        ("eval", run, "--env-id", f"{name}+{name.partition(':')[0]}:Wrapper"),
        ("train", "ppo", "--out", run, "--resume", "--json"),
        ("train", "kickstart", "--teacher", run, "--out", tmp_path / "student"),
        ("serve", "teacher", run, "--out", tmp_path / "s", "--queries", "9",
         "--target-epsilon", "9"),
    ):  # fmt: skip
        assert f"give --env-id {name} if you trust it" in refused(capsys, *words)
        assert not marker.exists()
    with pytest.raises(ValueError, match=f"give --env-id {name} if you trust it"):
        sotto.load(run)
    assert not marker.exists()
    with pytest.raises(RunError, match="belongs to another version of sotto or to another run"):
        sotto.load(run, env_id=name)  # whose checkpoint is of CartPole in JAX
    assert marker.exists()


def test_no_module_of_a_wrapper_that_a_run_names_is_imported(capsys, trap, tmp_path):
    module, marker = trap[0].partition(":")[0], trap[1]
    name = f"CartPole-v1+{module}:Wrapper"
    run = run_of(tmp_path / "run", "ppo", PPOConfig(hidden=(8,)), False, config={"env_id": name})
    said = refused(capsys, "eval", run, "--episodes", "1")
    assert f"would import '{module}'" in said
    assert not marker.exists()
    assert "has no wrapper 'Wrapper'" in refused(capsys, "eval", run, "--env-id", name)
    assert marker.exists()


def dataset_of(path: Path, env_id: str) -> Path:
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    path.mkdir()
    storage = MinariStorage.new(
        path / "data",
        observation_space=gym.spaces.Box(-np.inf, np.inf, (4,), np.float32),
        action_space=gym.spaces.Discrete(2),
        data_format="hdf5",
    )
    episodes = [
        EpisodeBuffer(
            id=number,
            observations=np.zeros((4, 4), np.float32),
            actions=np.zeros(3, np.int64),
            rewards=np.ones(3),
            terminations=np.zeros(3, bool),
            truncations=np.zeros(3, bool),
            infos=None,
        )
        for number in range(6)
    ]
    storage.update_episodes(episodes)
    storage.update_episode_metadata([{"expert_id": number} for number in range(6)])
    storage.update_metadata({"sotto": {"env_id": env_id, "experts": 6}})
    return path


def test_no_module_that_a_dataset_names_is_imported(capsys, trap, tmp_path):
    name, marker = trap
    dataset = dataset_of(tmp_path / "data-v0", name)
    words = ("train", "expert-offline", "--dataset", dataset, "--method", "bc",
             "--out", tmp_path / "run", "--json")  # fmt: skip
    assert f"give --env-id {name} if you trust it" in refused(capsys, *words)
    assert not marker.exists()
    main([*map(str, words), "--env-id", name, "--gradient-steps", "1", "--hidden", "4"])
    assert marker.exists()


def experts_of(path: Path, name: str) -> Path:
    """Experts whose settings name an environment."""
    settings = {"env_id": name, "experts": 1, "hidden": [8], "seed": 0, "format": experts._FORMAT}
    path.mkdir()
    with (path / "experts.npz").open("wb") as file:
        np.savez(file, header=np.array(json.dumps({"settings": settings})), returns=np.zeros(1))
    return path


def test_no_module_that_experts_name_is_imported(capsys, trap, tmp_path):
    name, marker = trap
    named = experts_of(tmp_path / "experts", name)
    refused(capsys, "experts", "collect", named, "--out", tmp_path / "x-v0")
    assert not marker.exists()


def test_no_module_of_a_class_that_a_file_names_is_imported(capsys, trap, tmp_path):
    """A name without a version is a class in JAX, which other code makes than Gymnasium's."""
    name, marker = trap[0].removesuffix("-v0"), trap[1]
    ppo = run_of(tmp_path / "ppo", "ppo", PPOConfig(hidden=(8,)), False, config={"env_id": name})
    for words in (
        ("eval", ppo, "--episodes", "1"),
        ("eval", ppo, "--video", tmp_path / "x.gif"),
        ("train", "ppo", "--out", ppo, "--resume", "--json"),
        ("train", "kickstart", "--teacher", ppo, "--out", tmp_path / "student"),
        ("train", "expert-offline", "--dataset", dataset_of(tmp_path / "data-v0", name),
         "--method", "bc", "--out", tmp_path / "run", "--json"),
    ):  # fmt: skip
        assert f"give --env-id {name} if you trust it" in refused(capsys, *words)
    with pytest.raises(ValueError, match=f"give --env-id {name} if you trust it"):
        sotto.load(ppo)
    named = experts_of(tmp_path / "experts", name)
    refused(capsys, "experts", "collect", named, "--out", tmp_path / "x-v0")
    assert not marker.exists()
    assert "has no class Trap" in refused(capsys, "eval", ppo, "--env-id", name)
    assert marker.exists()


def test_a_name_without_a_module_and_one_the_user_gave_are_let_through():
    assert from_data("CartPole-v1", "x") == "CartPole-v1"
    assert from_data("a:B-v0", "x", named="a:B-v0") == "a:B-v0"
    with pytest.raises(ValueError, match="would import 'a'"):
        from_data("CartPole-v1+a:B", "x", named="CartPole-v1")
    for named in (None, "B-v0", "b:B-v0", ""):
        with pytest.raises(ValueError, match="would import 'a'"):
            from_data("a:B-v0", "x", named)


# --- tokens and words ----------------------------------------------------------------------------


def test_a_resumed_students_token_goes_where_the_user_says(capsys, listener, tmp_path, monkeypatch):
    monkeypatch.setenv("SOTTO_TEACHER_TOKEN", "the-secret-token")
    url = f"http://127.0.0.1:{listener.port}"
    run = run_of(tmp_path / "run", "kickstart", KickstartConfig(teacher="https://mine"), False,
                 config={"teacher": url})  # fmt: skip
    words = ("train", "kickstart", "--out", run, "--resume", "--json")
    assert f"give --teacher {url} again if you trust that" in refused(capsys, *words)
    said = refused(capsys, "eval", run)  # it has nothing to evaluate, and says how to go on
    assert f"--out {run} --resume --teacher URL" in said
    assert url not in said
    assert listener.heard == []
    said = refused(capsys, *words, "--teacher", url)
    assert "does not know the token in SOTTO_TEACHER_TOKEN" in said
    assert any(b"the-secret-token" in heard for heard in listener.heard)


def test_a_terminal_is_told_nothing_by_a_ledgers_names(capsys, tmp_path, private):
    name = "evil\x1b]0;title\x07\x1b[2J name"
    edit(private, ledger=name)
    error = refused(capsys, "certificate", private)
    assert "\x1b" not in error
    assert "\x07" not in error
    assert visible("plain words, ε and ∞") == "plain words, ε and ∞"
    stored = Ledger.create(
        tmp_path / "l", unit=Unit(kind="trajectory", adjacency="zero-out"),
        budget=Budget(epsilon=8.0, delta=1e-5),
    )  # fmt: skip
    assert stored.run_id.isprintable()


def test_a_teachers_name_with_an_escape_is_printed_without_it(capsys, service):
    file = json.loads((service / "service.json").read_text())
    shutil.rmtree(service)
    statement = small_teacher.statement(9, name="evil\x1b[2J[bold]name")
    settings = ServiceSettings(**file)
    made = create_service(service, settings, statement, Budget(epsilon=8.0, delta=1e-5))
    ledger: AnswerLedger = made.open_ledger()
    ledger.add_student("ann")
    assert main(["certificate", str(service)]) == 0
    said = capsys.readouterr().out
    assert "[bold]name" in said  # as text, and not as markup
    assert "\x1b[2J" not in said


def test_a_page_holds_names_as_text(private):
    from sotto.runs.report import elements

    evil = "<script>alert(1)</script>"
    made = (
        elements.page(evil, []), elements.heading(evil), elements.paragraph(evil),
        elements.tiles({evil: evil}),
        elements.bullets(evil, [(evil, evil)]), elements.table([evil], [[evil]]),
        elements.settings({evil: evil}),
    )  # fmt: skip
    for html in made:
        assert "<script>alert" not in html
