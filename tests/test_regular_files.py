"""A folder of unknown origin: what is no regular file is found, whatever it is called."""

import os
import socket
from pathlib import Path

import pytest

from sotto.files import require_regular

NAMES = ("metrics.jsonl", "certificate.json", "ledger.sqlite", "checkpoints/00000002/_METADATA")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run directory with every one of the names."""
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_is_found_under_every_name(folder: Path, name: str) -> None:
    require_regular(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=f"{name} is not a regular file; remove it"):
        require_regular(folder)


@pytest.mark.parametrize("name", NAMES)
def test_so_is_a_link_to_one(folder: Path, name: str, tmp_path_factory) -> None:
    pipe = tmp_path_factory.mktemp("elsewhere") / "pipe"
    os.mkfifo(pipe)
    (folder / name).unlink()
    (folder / name).symlink_to(pipe)
    with pytest.raises(ValueError, match=f"{name} is not a regular file"):
        require_regular(folder)


def test_devices_and_sockets_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "device").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="device is not a regular file"):
        require_regular(folder)
    (folder / "device").unlink()
    monkeypatch.chdir(folder)  # the address of a socket is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        with pytest.raises(ValueError, match="socket is not a regular file"):
            require_regular(folder)


def test_folders_and_links_to_files_and_to_nothing_are_left_alone(folder: Path) -> None:
    (folder / "linked").symlink_to(folder / "metrics.jsonl")
    (folder / "there").symlink_to(folder / "checkpoints")
    (folder / "broken").symlink_to(folder / "nothing")
    require_regular(folder)
