"""The ledger: durable, append-only, its own witness; whatever goes wrong, nothing is lost."""

import contextlib
import json
import math
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import UNIT, statement

from sotto.privacy.errors import (
    BudgetExceeded,
    HorizonExceeded,
    LedgerCorrupt,
    LedgerMismatch,
    LedgerUnavailable,
    ParticipationViolation,
)
from sotto.privacy.ledger import databases
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.statements import (
    Correlation,
    Part,
    Poisson,
    Returning,
)
from sotto.privacy.units import Unit

BUDGET = Budget(epsilon=1.3, delta=1e-5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return Ledger.create(path, "run-a", unit=UNIT, budget=BUDGET)


def state(ledger: Ledger) -> Any:
    return (
        ledger.head_hash,
        ledger.persons,
        ledger.next_person,
        ledger.spent().epsilon,
        [(s.statement, s.releases, s.persons.blocks, s.history) for s in ledger.streams],
    )


def scattered(count: int, seed: int = 0) -> np.ndarray:
    """People no two of whom are neighbours: the longest entry there can be."""
    return 2 * np.random.default_rng(seed).permutation(count) + 10_000


# --- the ordinary course -------------------------------------------------------------------------


def test_a_reopened_ledger_is_the_same(where: str) -> None:
    ledger = Ledger.create(where, "run-a", unit=UNIT, budget=BUDGET)
    stream = ledger.open_stream(statement())
    stream.charge(0, 2, [np.array([3, 1, 2]), PersonBlock(4, 9)])
    stream.charge(2, 1, [np.array([], dtype=np.int32)])
    returning = Returning(max_participations=2, min_separation=3)
    wide = Ledger.create(where, "run-b", unit=UNIT, budget=Budget(epsilon=math.inf, delta=1e-5))
    sampled = statement(participation=Poisson(sampling_rate=0.1, population=70), horizon=4)
    both = wide.open_stream(statement(participation=returning)), wide.open_stream(sampled)
    both[0].charge(0, 1, [np.array([7])])
    both[1].charge(0, 3)

    assert state(Ledger.open(where, "run-a")) == state(ledger)
    assert state(Ledger.open(where, "run-b")) == state(wide)
    ledger.verify()
    assert stream.releases == 3
    assert ledger.next_person == 9
    assert wide.next_person == 70
    assert wide.budget.epsilon == math.inf
    assert ledger.spent().epsilon == pytest.approx(1.27, abs=0.005)  # theory notes, section 4


def test_a_later_run_goes_on_where_the_earlier_one_stopped(ledger: Ledger, path: Path) -> None:
    ledger.open_stream(statement()).charge(0, 1, [PersonBlock(0, 10)])
    resumed = Ledger.open(path)
    stream = resumed.open_stream(statement())
    with pytest.raises(ParticipationViolation, match="person 9 "):
        stream.charge(0, 1, [np.array([9])])
    stream.charge(0, 1, [PersonBlock(resumed.next_person, 20)])
    assert resumed.persons == 20
    assert resumed.spent().epsilon == pytest.approx(ledger.spent().epsilon)
    again = statement(participation=Returning(max_participations=1, min_separation=1))
    returning = resumed.open_stream(again)
    with pytest.raises(BudgetExceeded, match="over the budget"):
        resumed.open_stream(again)
    with pytest.raises(ParticipationViolation, match="person 15 "):
        returning.charge(0, 1, [np.array([15])])


def test_an_interrupted_stream_goes_on(ledger: Ledger, path: Path) -> None:
    """No release is charged twice, and those that the stream has left are counted."""
    everybody = PersonBlock(0, 10)
    poll = statement(
        participation=Returning(max_participations=3, min_separation=1), horizon=3, name="poll"
    )
    ledger.open_stream(poll).charge(0, 1, [everybody])
    spent = ledger.spent().epsilon
    later = Ledger.open(path)
    stream = later.resume_stream(poll)
    assert (stream.releases, stream.statement) == (1, poll)
    stream.charge(1, 2, [everybody] * 2)
    assert later.spent().epsilon == spent  # the noise was scaled to all three
    with pytest.raises(HorizonExceeded, match="3 are made"):
        stream.charge(3, 1, [everybody])
    with pytest.raises(LedgerMismatch, match="no interrupted stream"):
        later.resume_stream(poll)  # it is open already
    with pytest.raises(LedgerMismatch, match="no interrupted stream"):
        Ledger.open(path).resume_stream(poll.model_copy(update={"horizon": 4}))


def test_a_stream_of_an_earlier_noise_law_is_verified_and_does_not_go_on(
    ledger: Ledger, path: Path
) -> None:
    old = statement(participation=Returning(max_participations=2, min_separation=1))
    assert "noise_law" not in old.model_dump()  # its ledger and hashes are as they were
    ledger.open_stream(old).charge(0, 1, [PersonBlock(0, 3)])
    later = Ledger.open(path)
    later.verify()
    assert later.spent().epsilon == ledger.spent().epsilon
    new = old.model_copy(update={"noise_law": "on-grid", "sampler_delta": 2e-30})
    with pytest.raises(LedgerMismatch, match="drew its noise by another law"):
        later.resume_stream(new)
    with pytest.raises(LedgerMismatch, match="no interrupted stream"):
        later.resume_stream(new.model_copy(update={"horizon": 7}))


def test_a_stream_whose_noise_is_forgotten_does_not_go_on(ledger: Ledger, path: Path) -> None:
    correlated = statement(correlation=Correlation(kind="prefix-sum"))
    ledger.open_stream(correlated)
    later = Ledger.open(path)
    later.resume_stream(correlated).charge(0, 1, [PersonBlock(0, 3)])  # the first noise there is
    with pytest.raises(LedgerMismatch, match="correlated"):
        Ledger.open(path).resume_stream(correlated)


def test_going_on_is_refused_where_others_took_the_budget(path: Path) -> None:
    ledger = Ledger.create(path, "run-a", unit=UNIT, budget=BUDGET, adaptive=True)
    cheap = statement(
        participation=Returning(max_participations=2, min_separation=1),
        parts={"policy": Part(clip_norm=0.5, noise_multiplier=3.5)},
    )
    dear = cheap.model_copy(update={"name": "another"})
    ledger.open_stream(cheap)
    other = Ledger.open(path)
    other.open_stream(dear).charge(0, 1, [PersonBlock(0, 3)])
    with pytest.raises(BudgetExceeded, match="'update'"):
        other.resume_stream(cheap)


def test_what_is_refused_leaves_no_trace(ledger: Ledger, path: Path) -> None:
    stream = ledger.open_stream(statement(horizon=3))
    stream.charge(0, 1, [np.array([0, 1])])
    before = state(ledger)
    for expected, refused in [
        (BudgetExceeded, lambda: ledger.open_stream(statement(parts={
            "policy": Part(clip_norm=0.5, noise_multiplier=2.7)}))),
        (LedgerMismatch, lambda: ledger.open_stream(statement(
            unit=Unit(kind="expert", adjacency="zero-out")))),
        (ParticipationViolation, lambda: stream.charge(1, 1, [np.array([5, 5])])),
        (ParticipationViolation, lambda: stream.charge(1, 2, [np.array([5]), np.array([1])])),
        (HorizonExceeded, lambda: stream.charge(1, 3, [np.array([i]) for i in (5, 6, 7)])),
        (LedgerMismatch, lambda: stream.charge(0, 1, [np.array([5])])),
        (ValueError, lambda: stream.charge(1, 2, [np.array([5])])),
        (ValueError, lambda: stream.charge(1, 1, None)),
    ]:  # fmt: skip
        with pytest.raises(expected):
            refused()
        assert state(ledger) == before
        assert state(Ledger.open(path)) == before


def test_entries_hold_who_and_how_often_and_nothing_else(ledger: Ledger, path: Path) -> None:
    ledger.open_stream(statement()).charge(0, 1, [PersonBlock(0, 90_000)])
    rows = sqlite3.connect(path).execute("SELECT kind, payload FROM entries").fetchall()
    kinds = {kind: json.loads(payload) for kind, payload in rows}
    assert set(kinds["create"]) == {"format", "created", "unit", "budget", "sharing", "versions"}
    assert set(kinds["open"]) == {"statement", "versions", "settings", "writer"}
    assert set(kinds["charge"]) == {"stream", "first_release", "count", "persons", "writer"}
    assert kinds["charge"]["persons"] == [[[0, 90_000]]]


def test_a_charge_is_quick_however_long_the_history(ledger: Ledger) -> None:
    stream = ledger.open_stream(statement(horizon=900))
    people = scattered(90 * 640).reshape(90, 10, 64)
    times = []
    for number, releases in enumerate(people):
        start = time.process_time()
        stream.charge(10 * number, 10, list(releases))
        times.append(time.process_time() - start)
    assert min(times[-20:]) < 0.02  # other work on the machine makes the others slower
    assert np.median(times[-20:]) < 5 * np.median(times[:20])


# --- the wrong ledger ----------------------------------------------------------------------------


def test_a_file_without_a_ledger_is_no_reason_to_create_one(tmp_path: Path) -> None:
    place = tmp_path / "ledger.sqlite"
    place.touch()
    with pytest.raises(LedgerUnavailable, match=r"ledger.sqlite holds no ledger; name another"):
        Ledger.open(place, "run")


def test_another_runs_ledger_is_refused(ledger: Ledger, path: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerMismatch, match="belongs to run 'run-a', not 'run-b'"):
        Ledger.open(path, "run-b")
    with pytest.raises(LedgerMismatch, match="has a ledger already"):
        Ledger.create(path, "run-a", unit=UNIT, budget=BUDGET)
    Ledger.create(path, "run-b", unit=UNIT, budget=BUDGET)
    with pytest.raises(LedgerMismatch, match="say which run"):
        Ledger.open(path)
    with pytest.raises(LedgerUnavailable, match="there is no ledger"):
        Ledger.open(tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()
    with pytest.raises(LedgerUnavailable, match="unable to open"):
        Ledger.create(tmp_path / "no" / "x.sqlite", unit=UNIT, budget=BUDGET)
    (tmp_path / "noise").write_bytes(b"not a database" * 1000)
    with pytest.raises(LedgerCorrupt, match="damaged"):
        Ledger.open(tmp_path / "noise")


@pytest.mark.parametrize("url", ["oracle8://x/y", "mysql://u:secret@h/d"])
def test_a_database_without_a_driver_is_refused(url: str) -> None:
    with pytest.raises(LedgerUnavailable, match="driver") as caught:
        Ledger.create(url, unit=UNIT, budget=BUDGET)
    assert "secret" not in str(caught.value)


def test_a_url_is_as_good_as_a_path(path: Path) -> None:
    made = Ledger.create(f"sqlite:///{path}", unit=UNIT, budget=BUDGET)
    assert Ledger.open(path).run_id == made.run_id
    odd = path.with_name("what?is #this%20")
    Ledger.create(odd, unit=UNIT, budget=BUDGET)
    assert odd.is_file()


def test_a_ledger_is_read_while_another_process_writes(ledger: Ledger, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert state(Ledger.open(path)) == state(ledger)


def test_of_two_writers_one_fails_and_nothing_is_lost(where: str) -> None:
    ledger = Ledger.create(where, "run-a", unit=UNIT, budget=BUDGET)
    stream = ledger.open_stream(statement())
    other = Ledger.open(where)
    stream.charge(0, 1, [np.array([0])])
    with pytest.raises(LedgerMismatch, match=r"another process has written .* --resume"):
        other.open_stream(statement())
    with pytest.raises(LedgerMismatch, match="another process has written"):
        other.verify()
    stream.charge(1, 1, [np.array([1])])
    assert state(Ledger.open(where)) == state(ledger)


@pytest.mark.parametrize("forked", [True, False])
def test_two_writers_of_the_same_entry_are_still_two(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch, forked: bool
) -> None:
    """Two processes that make the same release must not share one charge."""
    other = Ledger.open(path)
    ledger.open_stream(statement())
    if forked:
        other._writer = ledger._writer
        monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(LedgerMismatch, match="another process has written"):
        other.open_stream(statement())


# --- tampering -----------------------------------------------------------------------------------


def test_rows_cannot_be_changed_by_accident(ledger: Ledger, path: Path) -> None:
    for statement_text in ("UPDATE entries SET payload = ''", "DELETE FROM entries"):
        with (
            contextlib.closing(sqlite3.connect(path)) as connection,
            pytest.raises(sqlite3.IntegrityError, match="append-only"),
        ):
            connection.execute(statement_text)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entries SET payload = replace(payload, '3.0', '9.0') WHERE sequence = 1",
        "UPDATE entries SET payload = replace(payload, '[4,9]', '[4,5]') WHERE sequence = 2",
        "UPDATE entries SET hash = previous_hash WHERE sequence = 2",
        "UPDATE entries SET kind = 'open' WHERE sequence = 2",
        "DELETE FROM entries WHERE sequence = 2",
        "DELETE FROM entries WHERE sequence = 0",
        "UPDATE entries SET run_id = 'run-b'",
    ],
)
def test_tampering_is_found(ledger: Ledger, path: Path, change: str) -> None:
    stream = ledger.open_stream(statement())
    stream.charge(0, 1, [PersonBlock(4, 9)])
    stream.charge(1, 1, [PersonBlock(20, 22)])
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER no_update")
    connection.execute("DROP TRIGGER no_delete")
    assert connection.execute(change).rowcount > 0
    connection.commit()
    with pytest.raises(LedgerCorrupt, match=r"entry . of the ledger is not what was written"):
        Ledger.open(path)


def test_missing_last_entries_are_found_by_who_wrote_them(ledger: Ledger, path: Path) -> None:
    ledger.open_stream(statement()).charge(0, 1, [PersonBlock(4, 9)])
    ledger.verify()
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER no_delete")
    connection.execute("DELETE FROM entries WHERE sequence = 2")
    connection.commit()
    with pytest.raises(LedgerCorrupt, match="last entries are gone"):
        ledger.verify()


# --- failures ------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_space(path: Path) -> Iterator[None]:
    """The file may not grow: the operating system refuses the write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        connection.close()


@pytest.mark.parametrize("failure", [no_space, locked])
def test_a_charge_that_cannot_be_written_charges_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, failure: Any
) -> None:
    monkeypatch.setattr(databases, "LOCK_WAIT_SECONDS", 0.05)
    ledger = Ledger.create(path, unit=UNIT, budget=BUDGET)
    stream = ledger.open_stream(statement())
    stream.charge(0, 1, [np.array([0])])
    before = state(ledger)
    with failure(path), pytest.raises(LedgerUnavailable, match=r"nothing was charged") as caught:
        stream.charge(1, 1, [scattered(5000)])
    assert "\n" not in str(caught.value)
    assert state(ledger) == before
    assert state(Ledger.open(path)) == before
    stream.charge(1, 1, [scattered(5000)])
    assert stream.releases == 2
    assert state(Ledger.open(path)) == state(ledger)


@pytest.mark.parametrize("instead", ["older copy", "nothing", "another target of a link"])
def test_a_file_that_was_replaced_is_written_no_more(
    ledger: Ledger, path: Path, tmp_path: Path, instead: str
) -> None:
    """SQLite would go on with the file that has no name any more, and every charge would be lost.

    A new process sees the older copy, and refuses it if a certificate says more.
    """
    if instead == "another target of a link":
        path.rename(tmp_path / "target")
        path.symlink_to(tmp_path / "target")
        ledger = Ledger.open(path)
    stream = ledger.open_stream(statement())
    older = Path(shutil.copy(path, tmp_path / "copy"))
    stream.charge(0, 1, [np.array([0])])
    if instead == "another target of a link":
        path.unlink()
        path.symlink_to(older)
    elif instead == "nothing":
        path.unlink()
    else:
        os.replace(older, path)
    with pytest.raises(LedgerUnavailable, match="no longer the file that was opened"):
        stream.charge(1, 1, [np.array([1])])
    if instead == "nothing":
        assert not path.exists()
    else:
        assert [one.releases for one in Ledger.open(path).streams] == [0]


def test_an_older_copy_that_was_written_into_the_file_is_charged_no_more(
    ledger: Ledger, path: Path, tmp_path: Path
) -> None:
    """It is the same file for the operating system, and another connection may open it."""
    stream = ledger.open_stream(statement())
    older = path.read_bytes()
    stream.charge(0, 1, [np.array([0])])
    path.write_bytes(older)
    ledger._engine.dispose()
    with pytest.raises(LedgerMismatch, match="does not end with the entry that was written last"):
        stream.charge(1, 1, [np.array([1])])
    assert [one.releases for one in Ledger.open(path).streams] == [0]


def test_disk_full(ledger: Ledger, path: Path) -> None:
    stream = ledger.open_stream(statement())
    before = state(ledger)
    with ledger._engine.connect() as connection:  # the engine keeps this connection
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LedgerUnavailable, match="disk is full"):
        stream.charge(0, 1, [scattered(5000)])
    assert state(ledger) == before
    with ledger._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 100000")
    stream.charge(0, 1, [scattered(5000)])
    assert state(Ledger.open(path)) == state(ledger)


def test_a_read_only_ledger_is_read_and_not_written(ledger: Ledger, path: Path) -> None:
    with ledger._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = 1")
    with pytest.raises(LedgerUnavailable, match="readonly"):
        ledger.open_stream(statement())
    assert ledger.streams == ()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_commit_that_reports_failure_is_charged_once(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    """Whether or not the commit took place, the same charge again counts once."""
    stream = ledger.open_stream(statement())
    before = state(ledger)

    def commit(connection: Any) -> None:
        if recorded:
            connection.commit()
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(ledger._engine.dialect, "do_commit", commit)
        with pytest.raises(LedgerUnavailable, match="disk I/O error"):
            stream.charge(0, 1, [np.array([0])])
    assert state(ledger) == before
    if recorded:
        with pytest.raises(LedgerMismatch):
            stream.charge(0, 1, [np.array([1])])
    stream.charge(0, 1, [np.array([0])])
    stream.charge(1, 1, [np.array([1])])
    assert stream.releases == 2
    assert state(Ledger.open(path)) == state(ledger)


# --- killed --------------------------------------------------------------------------------------

_VICTIM = """
import os, sys
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.statements import StreamStatement

path, side, text = sys.argv[1:]
statement = StreamStatement.model_validate_json(text)
for line in sys.stdin:  # one child a line: imports are slow, forks are not
    child = os.fork()
    if child == 0:
        out = os.open(side, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        ledger = Ledger.open(path)
        index = len(ledger.streams)
        stream = ledger.open_stream(statement)
        for first in range(0, 10**6, 2):  # until it is killed
            a = ledger.next_person
            stream.charge(first, 2, [PersonBlock(a, a + 3), PersonBlock(a + 4, a + 7)])
            os.write(out, f"{index} {first + 2} {a + 7}\\n".encode())
        os._exit(0)
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(status, flush=True)
"""


def test_killed_at_any_moment_it_holds_all_that_was_charged(ledger: Ledger, path: Path) -> None:
    side = path.with_name("side.txt")
    side.touch()
    moments, long = random.Random(0), statement(horizon=10**6)
    victim = subprocess.Popen(
        [sys.executable, "-c", _VICTIM, str(path), str(side), long.model_dump_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert victim.stdin
    assert victim.stdout
    survived = 0
    try:
        for _ in range(15):
            victim.stdin.write("go\n")
            victim.stdin.flush()
            child = int(victim.stdout.readline())
            time.sleep(moments.uniform(0.02, 0.25))
            os.kill(child, signal.SIGKILL)
            assert int(victim.stdout.readline()) == signal.SIGKILL

            held = Ledger.open(path)
            released = [tuple(map(int, line.split())) for line in side.read_text().splitlines()]
            for index, releases, next_person in released:
                assert held.streams[index].releases >= releases
                assert held.next_person >= next_person
            # At most the charge that was under way is more than was released.
            latest = {index: releases for index, releases, _ in released}
            for index, record in enumerate(held.streams):
                assert record.releases <= latest.get(index, 0) + 2
            survived += len(released)
    finally:
        victim.stdin.close()
        victim.wait(10)
    assert survived > 0
    assert state(Ledger.open(path)) == state(held)


def test_threads_that_charge_the_same_release_are_charged_for_one(ledger: Ledger) -> None:
    stream = ledger.open_stream(statement())
    for release in range(10):
        accepted, refused = [], []
        together = threading.Barrier(4)

        def charge(first: int = release, accepted=accepted, refused=refused, at=together) -> None:
            at.wait()
            try:
                stream.charge(first, 1, [PersonBlock(4 * first, 4 * first + 4)])
                accepted.append(first)
            except LedgerMismatch:
                refused.append(first)

        threads = [threading.Thread(target=charge) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(accepted), len(refused)) == (1, 3)
    assert stream.releases == 10
    ledger.verify()
