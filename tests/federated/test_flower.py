"""Flower as the engine: its simulation, and separate processes over the network."""

import json
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from flower_processes import Flower

import sotto
from sotto.cli import main
from sotto.errors import RunError
from sotto.federated.simulation import simulated_network


def test_a_simulation_with_drop_outs(monkeypatch, tmp_path, capsys):
    """Twenty devices in Flower's own processes, of whom three in ten drop out.

    Ray would connect to a cluster of this address, and wait for ever.
    """
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    path = os.environ.get("PYTHONPATH")
    out = tmp_path / "run"
    words = ["simulate", "devices", "--people", "40", "--invited", "20", "--drop-out", "0.3"]
    settings = {"hidden": [], "steps_per_user": 16, "evaluation_episodes": 0}
    extra = ["--settings", json.dumps(settings), "--target-epsilon", "5", "--json"]
    assert main([*words, *extra, "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["updates"] == 2
    assert printed["promised"] == 7
    assert printed["epsilon"] <= 5
    assert {one.status for one in sotto.verify(out).values()} == {"verified"}
    assert os.environ.get("PYTHONPATH") == path
    assert main([*words, *extra[:-1], "--out", str(out), "--resume"]) == 2
    said = capsys.readouterr()
    assert said.out == ""  # neither that releases are made, nor Flower's own words
    assert "has made all of its 2 updates" in said.err


def test_a_process_that_is_connected_to_ray_is_refused(monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    with pytest.raises(RunError, match="in another one"), simulated_network(4, 0.0, 0):
        pass


LEARNING = {
    "target_epsilon": 5.0,
    "users_per_update": 4,
    "steps_per_user": 8,
    "total_steps": 32,
    "hidden": [],
    "correlated_noise": False,
}
"""One update with four people."""


def settings(out: Path) -> dict[str, object]:
    return {
        "out": str(out),
        "settings": json.dumps(LEARNING),
        "promised": 3,
        "bits": 24,
        "seconds": 45,
    }


def test_separate_processes_over_the_network(tmp_path):
    """Four devices with registered keys, one of which is killed while it computes its vector.

    The others make the release. Their own computation takes most of the time that it is waited for.
    """
    out = tmp_path / "run"
    with Flower(tmp_path, people=4, registered=range(4)) as flower:
        flower.wait(lambda: flower.log("server").count("Activated node_id") >= 4)
        flower.run(settings(out))
        flower.wait(lambda: "query.vectors" in flower.log("device-3"))
        flower.kill("device-3")
        flower.wait(lambda: (out / "metrics.jsonl").is_file())
    (run,) = sotto.verify(out).values()
    assert run.status == "verified"
    assert sotto.load(out).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert "Insecure" not in flower.log("server")


def test_devices_without_a_key_and_apps_without_a_signature_are_turned_away(tmp_path):
    """The server knows the first of two devices, and that one asks for a signature.

    Flower 1.41 has signatures of apps of its own hub only, so `flwr run FOLDER` has none.
    """
    keys = tmp_path / "trusted.yaml"
    public = ed25519.Ed25519PrivateKey.generate().public_key()
    said = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    keys.write_text(f"fpk_one: '{said.decode()}'\n")
    with Flower(tmp_path, people=2, registered=[0], trusted=keys) as flower:
        flower.wait(lambda: flower.log("server").count("Activated node_id"))
        flower.run(settings(tmp_path / "run"))
        flower.wait(lambda: "The FAB could not be verified" in flower.log("device-0"))
        flower.wait(lambda: "SuperNode" in flower.log("device-1"))
    assert flower.log("server").count("Activated node_id") == 1
    assert "Receiving" not in flower.log("device-1")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_simulation_that_does_not_start_says_so(monkeypatch):
    def broken(*_arguments: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr("flwr.simulation.run_simulation", broken)
    with pytest.raises(ValueError, match="did not start: no room"), simulated_network(4, 0.0, 0):
        pass
