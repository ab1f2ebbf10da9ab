"""The guides on certificates, devices and machines are true: their blocks run.

Commands that need other machines are read only, in test_documented_commands.py.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import jax.numpy as jnp
import pytest
from commands import blocks

import sotto
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.cli import main

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "tests" / "runs" / "kept" / "version_0_1_0.tar.xz"


@pytest.fixture
def run_x(tmp_path, monkeypatch) -> Path:
    """The working directory, with a run of an earlier version and its current certificate."""
    monkeypatch.chdir(tmp_path)
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    shutil.move("version_0_1_0/dppg", "runs/x")
    main(shlex.split("certificate runs/x --verify --write"))
    for name in ("certificate.json", "ledger.sqlite"):
        shutil.copy(f"runs/x/{name}", name)
    return tmp_path


def test_the_commands_of_certificates_run(run_x, capsys) -> None:
    checked = 0
    for line in "".join(blocks("docs/certificates.md", "sh")).splitlines():
        line = line.split("  #")[0].replace("tools/", f"{ROOT}/tools/")
        words = shlex.split(line)
        if words[0] == "sotto":
            assert main(words[1:]) == 0, (line, capsys.readouterr().err)
        else:
            line = re.sub(r"^python ", f"{sys.executable} ", line)
            subprocess.run(["bash", "-c", line], check=True, capture_output=True)
        if "--sign" in words:  # the reader has both files in one folder
            shutil.copy("runs/x/certificate.json.sig", ".")
        checked += 1
    assert checked == 11
    assert {path.suffix for path in run_x.iterdir()} >= {".pdf", ".pem", ".sig"}


def test_the_settings_of_devices_are_those_of_the_app() -> None:
    simulated, real = (tomllib.loads(text) for text in blocks("docs/devices.md", "toml"))
    app = tomllib.loads((ROOT / "examples" / "devices" / "pyproject.toml").read_text())
    known = app["tool"]["flwr"]["app"]["config"]
    for given in (simulated, real):
        assert {name: type(value) for name, value in given.items()} == {
            name: type(value) for name, value in known.items() if name in given
        }
        config = DPPGConfig(**json.loads(given["settings"]))
        assert config.num_updates > 1
        assert config.users_per_update > given["promised"] > given["colluding"]
    assert (config.population, config.env_id) == ("real", real["env-id"])


def test_the_app_of_a_real_device_is_made() -> None:
    from flwr.clientapp import ClientApp

    (text,) = blocks("docs/devices.md", "python")
    names: dict[str, object] = {}
    exec(compile(text, "devices.md", "exec"), names)
    assert isinstance(names["app"], ClientApp)


def test_a_stream_over_devices_opens(tmp_path) -> None:
    """The tests have one device."""
    (text,) = blocks("docs/machines.md", "python")
    unit = sotto.Unit(kind="trajectory", adjacency="zero-out")
    release = sotto.Release(
        "mean",
        lambda state, vector, key: ({"vector": vector}, ()),
        lambda state, released: (state, released["vector"]),
        unit,
        {"vector": sotto.Part(clip_norm=1.0, noise_multiplier=5.0)},
        **{"slots": 4, "divisor": 4, "horizon": 1, "population": "simulated"},
    )
    budget = sotto.Budget(epsilon=2, delta=1e-5)
    names = {
        "release": release,
        "ledgers": [sotto.Ledger.create(tmp_path / "ledger.sqlite", unit=unit, budget=budget)],
        "states": jnp.zeros((1, 1)),
        "units": jnp.eye(4),
    }
    exec(compile(text.replace("over_devices(4)", "over_devices(1)"), "machines.md", "exec"), names)
    assert names["stream"] is not None
