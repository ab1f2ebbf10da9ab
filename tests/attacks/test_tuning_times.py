"""How long a tuning took tells how many tries it made: no time is left in what it leaves.

The attacker has the directory, byte for byte, and the times of its files.
"""

import os
import re
import struct
import time
from pathlib import Path

import pytest

from sotto.algorithms.dppg import tuning
from sotto.cli import main

FLAGS = (
    *("--users-per-update", "4", "--steps-per-user", "8", "--total-steps", "64", "--hidden", "4"),
    *("--private-return", "0", "8", "--target-epsilon", "1.7", "--settings", "clip_norm=.02"),
)


def tuned(monkeypatch: pytest.MonkeyPatch, out: Path, tries: int) -> Path:
    monkeypatch.setattr(tuning, "draw_tries", lambda *_: tries)
    assert main(["tune", "dppg", "--out", str(out), *FLAGS]) == 0
    return out


def listing(run: Path) -> dict[str, float]:
    """Names in a run directory, its own included, and when each was changed."""
    return {
        str(path.relative_to(run)): path.stat().st_mtime for path in (run, *sorted(run.rglob("*")))
    }


def times_in(run: Path, began: float, ended: float) -> dict[str, list[str]]:
    """Every number in its files' bytes or text that could be a moment of its making."""
    found: dict[str, list[str]] = {}
    for path in run.rglob("*"):
        if not path.is_file():
            continue
        data = path.read_bytes()
        hits = [
            f"{kind} at {offset}"
            for offset in range(len(data) - 7)
            for kind in ("<q", ">q", "<d", ">d")
            for scale in (1, 1e3, 1e6, 1e9)
            if began * scale <= struct.unpack_from(kind, data, offset)[0] <= ended * scale
            and (kind[1] == "d" or scale > 1)
        ]
        for digits in re.findall(rb"\d{10,19}", data):
            hits += [
                digits.decode()
                for scale in (1, 1e3, 1e6, 1e9)
                if began * scale <= int(digits) <= ended * scale
            ]
        day = time.strftime("%Y-%m-%d", time.gmtime(began)).encode()
        hits += [day.decode()] * data.count(day)
        if hits:
            found[str(path.relative_to(run))] = hits
    return found


def test_what_a_tuning_leaves_does_not_say_how_many_tries_there_were(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    began = time.time() - 1
    one, many = (tuned(monkeypatch, tmp_path / f"{tries}", tries) for tries in (1, 4))
    ended = time.time() + 1
    stamps = listing(one)
    assert stamps == listing(many)  # the names, and the times
    assert set(stamps.values()) == {0.0}
    assert not times_in(one, began, ended)
    assert not times_in(many, began, ended)
    for name in ("ledger.sqlite", "config.json"):
        assert len((one / name).read_bytes()) == len((many / name).read_bytes())
    for run in (one, many):
        assert main(["certificate", str(run), "--verify"]) == 0
        assert main(["eval", str(run), "--episodes", "2"]) == 0
        assert main(["report", str(run)]) == 0
        assert "is not stated" in (run / "report.html").read_text()


def test_the_attacker_finds_the_times_of_a_training(tmp_path: Path) -> None:
    """So that the test above can fail."""
    began, out = time.time() - 1, tmp_path / "run"
    words = [word for word in FLAGS if not word.startswith(("--settings", "clip_norm"))]
    assert main(["train", "dppg", "--out", str(out), "--json", *words]) == 0
    found = times_in(out, began, time.time() + 1)
    assert {"config.json", "ledger.sqlite", "certificate.json"} <= set(found)
    assert any(name.startswith("tensorboard") for name in found)
    assert not [name for name in found if name.startswith("checkpoints")]


def test_nothing_is_said_while_it_tries(capfd, monkeypatch, tmp_path: Path) -> None:
    trying = tuning._try

    def loud(config: object, seed: int) -> object:
        print("another try")
        os.write(2, b"another try")
        return trying(config, seed)  # type: ignore[arg-type]

    monkeypatch.setattr(tuning, "_try", loud)
    tuned(monkeypatch, tmp_path / "loud", 2)
    printed = capfd.readouterr()
    assert "another try" not in printed.out + printed.err
    assert "Selected" in printed.out
