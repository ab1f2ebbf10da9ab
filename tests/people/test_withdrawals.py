"""The file of withdrawals: durable, its owner's alone, and whole after a kill."""

import os
import stat
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest
from small_campaign import MASTER

from sotto.people.database.store import CampaignDatabase
from sotto.people.database.withdrawals import Withdrawals
from sotto.people.errors import StoreUnavailable
from sotto.privacy.ledger.persons import LARGEST_PERSON


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "withdrawals.txt"


def test_people_are_noted_once(file: Path) -> None:
    noted = Withdrawals(file)
    assert noted.persons() == set()
    for person in (7, 0, LARGEST_PERSON, 7):
        noted.note(person)
    assert noted.persons() == Withdrawals(file).persons() == {0, 7, LARGEST_PERSON}
    size = file.stat().st_size
    noted.note(7)
    assert file.stat().st_size == size
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_number_is_synced_before_it_is_acknowledged(file: Path, monkeypatch) -> None:
    done: list[str] = []
    for name in ("write", "fsync"):
        real = getattr(os, name)

        def seen(*arguments, name=name, real=real):
            done.append(name)
            return real(*arguments)

        monkeypatch.setattr(os, name, seen)
    Withdrawals(file).note(1)
    assert done == ["write", "fsync", "fsync"]  # and the name of the file


def test_a_number_that_was_not_written_whole_is_not_acknowledged(file: Path, monkeypatch) -> None:
    noted, write = Withdrawals(file), os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda to, data: write(to, data[:5]))
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="the disk is full"):
                noted.note(123_456)
    assert noted.persons() == set()
    noted.note(123_456)
    assert noted.persons() == {123_456}


@pytest.mark.parametrize("left", range(13))
def test_a_line_that_a_kill_cut_off_is_nobody_else(file: Path, left: int) -> None:
    Withdrawals(file).note(123_456)
    whole = file.read_bytes()
    file.write_bytes(whole + b"\n1987654321\n"[:left])
    expected = {123_456} | ({1_987_654_321} if left > 10 else set())
    assert Withdrawals(file).persons() == expected
    Withdrawals(file).note(42)
    assert Withdrawals(file).persons() == expected | {42}


def test_a_line_that_was_never_written_may_be_zeros(file: Path) -> None:
    Withdrawals(file).note(5)
    for zeros in (1, 12, 4096):
        file.write_bytes(file.read_bytes() + bytes(zeros))
        Withdrawals(file).note(zeros)
    assert Withdrawals(file).persons() == {5, 1, 12, 4096}


@pytest.mark.parametrize("damage", [b"00000000x5\n", b"00000000055\n", b"-000000005\n", b"five\n"])
def test_a_damaged_file_is_refused(file: Path, damage: bytes) -> None:
    Withdrawals(file).note(5)
    file.write_bytes(file.read_bytes() + damage)
    with pytest.raises(StoreUnavailable, match="is damaged"):
        Withdrawals(file).persons()


def test_who_withdrew_elsewhere_and_asks_again_is_noted_here_too(
    make: Callable[..., CampaignDatabase], where: str, file: Path
) -> None:
    """Machines may share a database, and each has a file of its own."""
    store = make()
    store.enrol(1)
    store.withdraw(0)
    here = CampaignDatabase.open(where, "campaign", MASTER, Withdrawals(file))
    here.withdraw(0)
    here.close()
    assert Withdrawals(file).persons() == {0}


def _note(path: str, first: int) -> None:
    for person in range(first, first + 20):
        Withdrawals(Path(path)).note(person)


def test_processes_that_write_at_once_lose_nothing(file: Path) -> None:
    context = get_context("fork")
    workers = [context.Process(target=_note, args=(str(file), 20 * i)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert Withdrawals(file).persons() == set(range(80))
