"""Files that are written atomically, and JSON without infinity."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sotto.files import replacing, strict_json, write_whole
from sotto.privacy.answers.digests import DigestKey


@pytest.mark.parametrize(
    ("umask", "mode", "found"),
    [(0o022, 0o644, 0o644), (0o077, 0o644, 0o600), (0o022, 0o600, 0o600)],
)
def test_a_new_file_has_the_permissions_that_the_umask_leaves(
    tmp_path: Path, umask: int, mode: int, found: int
) -> None:
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "file", "text", mode)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == found


def test_a_failure_leaves_the_earlier_file_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_whole(file, "earlier")
    with pytest.raises(TypeError), replacing(file) as new:
        new.write("text and not bytes")  # type: ignore[arg-type]
    assert file.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(FileNotFoundError) as missing:
        write_whole(tmp_path / "absent" / "file", "text")
    assert missing.value.filename == str(tmp_path / "absent" / "file")


def test_json_knows_nan_and_infinity() -> None:
    said = strict_json({"a": [math.inf, -math.inf, math.nan], "b": (1, "x", None), "c": 0.1})
    assert json.loads(said) == {"a": ["inf", "-inf", None], "b": [1, "x", None], "c": 0.1}


@pytest.mark.parametrize("write", [lambda path: write_whole(path, "text"), DigestKey.create])
def test_contents_are_on_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], Any]
) -> None:
    """After a power failure there is the earlier file or the new one, and neither is empty."""
    done: list[str] = []
    fsync = os.fsync

    def synced(number: int) -> None:
        done.append(os.path.realpath(f"/proc/self/fd/{number}"))
        fsync(number)

    def named(way: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def rename(old: Any, new: Any) -> None:
            done.append("named")
            way(old, new)

        return rename

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named(os.replace))
    monkeypatch.setattr(os, "link", named(os.link))
    write(tmp_path / "file")
    contents, name, folder = done
    assert Path(contents).parent == tmp_path.resolve()
    assert Path(contents).name.startswith(".file.")
    assert (name, folder) == ("named", str(tmp_path.resolve()))
