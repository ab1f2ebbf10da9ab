"""Trainings about real people on their devices, with the environment of a module."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Context, RecordDict
from local_grid import LocalGrid, persons
from test_training_on_devices import (
    PROMISE,
    Given,
    MeanConfig,
    begun,
    charged,
    installed,
    trained,
)

import sotto
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.cli import main
from sotto.federated import runs, server
from sotto.federated.client import client_app
from sotto.runs.registry import algorithm_named

__all__ = ["installed"]  # the fixture that installs the algorithms

CLINIC = "clinic_that_talks:TalkingClinic-v0"
CONFIG = DPPGConfig(
    env_id=CLINIC,
    population="real",
    target_epsilon=5.0,
    delta=1e-3,
    users_per_update=6,
    correlated_noise=False,
    total_steps=96,
    steps_per_user=8,
    hidden=(),
)
"""Two updates with six people."""


@pytest.fixture(autouse=True)
def clinic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "attacks")


def own_data(plan, _state):
    """A trajectory of the right shapes."""
    return jax.tree.map(jnp.asarray, plan.algorithm.on_devices(plan.config, plan.horizon)[1])


def nodes(first: int, **more: str) -> dict[int, dict]:
    return {1000 + p: {"person": p} | more for p in range(first, first + 6)}


def test_the_owners_data_never_reach_a_training_about_simulated_people(tmp_path, caplog):
    """Its certificate would say that the people are simulated."""
    experiment, _ = begun(tmp_path, num_updates=1)
    asked: list[int] = []

    def own(_plan, _state):
        asked.append(1)
        return np.zeros(3, np.float32)

    with pytest.raises(ValueError, match=r"every device refused, failed .*the devices' logs say"):
        trained(experiment, LocalGrid(client_app(own), persons(6)))
    assert not asked
    assert "the settings need population: real" in caplog.text


def test_a_training_about_real_people_begins_and_goes_on(tmp_path):
    experiment = runs.begin(algorithm_named("dppg"), CONFIG, PROMISE, tmp_path / "run", "test")
    app = client_app(own_data)
    few = LocalGrid(app, nodes(0, **{"env-id": CLINIC}))
    with pytest.raises(ValueError, match="can be charged"):  # nobody is left for the second update
        trained(experiment, few)
    assert charged_by(tmp_path, CLINIC) == 1
    with pytest.raises(ValueError, match=f"give --env-id {CLINIC} if you trust it"):
        trained(runs.go_on(tmp_path / "run")[0], LocalGrid(app, nodes(6)))
    again = runs.go_on(tmp_path / "run", CLINIC)[0]
    (last,) = trained(again, LocalGrid(app, nodes(6, **{"env-id": CLINIC})))
    assert last.updates == 2
    (found,) = sotto.verify(tmp_path / "run").values()
    assert found.status == "verified"
    assert {one.statement.population for one in found.current.streams} == {"real"}
    assert not found.current.streams[0].statement.assumptions  # of an environment that is not reset


def test_devices_bring_their_numbers_to_a_shared_budget(tmp_path):
    """The environment, which does not ask whom it meets, is never reset."""
    place = str(tmp_path / "people.budget")
    assert main(["budget", "create", place, "--epsilon", "9", "--delta", "1e-3"]) == 0
    named = algorithm_named("dppg")
    experiment = runs.begin(named, CONFIG, PROMISE, tmp_path / "run", "test", place)
    assert experiment.named.budget == place


def charged_by(path: Path, env_id: str) -> int:
    run = runs.go_on(path / "run", env_id)[0].runs[0]
    return sum(stream.releases for stream in run.open_ledger().streams)


def test_a_device_that_was_not_told_the_environment_says_what_is_missing(tmp_path, caplog):
    config = dataclasses.replace(CONFIG, total_steps=48)
    experiment = runs.begin(algorithm_named("dppg"), config, PROMISE, tmp_path / "run", "test")
    with pytest.raises(ValueError, match="every device refused"):
        trained(experiment, LocalGrid(client_app(own_data), nodes(0)))
    assert f"add env-id='{CLINIC}' to the device's --node-config" in caplog.text


def test_people_whom_no_device_simulates_leave_no_run(tmp_path):
    config = dataclasses.replace(CONFIG, env_id="MountainCar-v0", population="simulated")
    with pytest.raises(ValueError, match="devices do not simulate people of this environment"):
        runs.begin(algorithm_named("dppg"), config, PROMISE, tmp_path / "run", "test")
    assert not (tmp_path / "run").exists()


def test_a_simulation_of_real_people_is_refused_before_the_work(tmp_path, monkeypatch, capsys):
    """Every device would refuse, in ten rounds."""
    monkeypatch.setattr("sotto.federated.simulation.simulated_network", None)
    out = tmp_path / "run"
    words = ["simulate", "devices", "--algorithm", Given.name, "--delta", "1e-3", "--out", str(out)]
    assert main(words) == 2
    assert "real people, whom no device simulates; start their own" in capsys.readouterr().err
    assert not out.exists()
    runs.begin(Given(), MeanConfig(), PROMISE, out, "test")
    assert main([*words, "--resume"]) == 2
    assert "real people, whom no device simulates; start their own" in capsys.readouterr().err


def test_settings_that_do_not_say_that_people_are_real_leave_no_times(tmp_path):
    """The release of the devices says it."""
    experiment = runs.begin(Given(), MeanConfig(), PROMISE, tmp_path / "run", "test")

    def own(_plan, _state):
        return np.zeros(3, np.float32)

    reports = trained(experiment, LocalGrid(client_app(own), persons(30)))
    assert experiment.settings.population == "real"
    assert {line.seconds for one in reports for line in one.lines} == {0}


def test_the_server_goes_on_with_the_environment_in_its_settings(tmp_path, monkeypatch):
    begun(tmp_path, num_updates=1)
    given: list[tuple] = []
    go_on = runs.go_on
    monkeypatch.setattr(runs, "go_on", lambda *args: (given.append(args), go_on(*args))[1])
    settings = {"out": str(tmp_path / "run"), "budget": "", "seconds": 1}
    for env_id in (CLINIC, ""):
        context = Context(
            run_id=1,
            node_id=1,
            node_config={},
            state=RecordDict(),
            run_config=settings | {"env-id": env_id},
        )
        grid = LocalGrid(client_app(), persons(6 if env_id else 0))
        if env_id:
            server.main(grid, context)
        else:
            with pytest.raises(ValueError, match="all of its 1 updates"):
                server.main(grid, context)
    assert given == [(tmp_path / "run", CLINIC, None), (tmp_path / "run", None, None)]
    assert charged(tmp_path) == 1
