"""Replicas are killed, cut off, repeated and reordered: no budget is overspent, no charge lost."""

import contextlib
import hashlib
import math
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from answer_replica import DIGEST, rows_of
from asking import ask
from nursery import Nursery, wait_for
from postgres import cut_off
from small import answers

from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.ledger.spending import Budget

STATEMENT = answers(queries=601, queries_per_student=420)
LIMITS = {"ann": 420, "bob": 241}  # together more than the teacher answers


@pytest.fixture
def where(where: str) -> str:
    """A database with a teacher and two students."""
    budget = Budget(epsilon=math.inf, delta=1e-5)
    ledger = AnswerLedger.create(where, statement=STATEMENT, budget=budget)
    for name, queries in LIMITS.items():
        ledger.add_student(name, queries)
    ledger.close()
    return where


class Replicas(Nursery):
    """Processes that answer, and the answers that they report."""

    def __init__(self, where: str, out: Path) -> None:
        super().__init__(Path(__file__).with_name("answer_replica.py"), where, out)

    def ask(self, student: str, number: int, step: int = 1) -> int:
        return self.start(f"{student} {number} {step}")

    def given(self) -> dict[tuple[str, int], set[str]]:
        """Returns the answers that left, by request; a refused request has none."""
        found = defaultdict(set)
        for student, number, digest in self.lines():
            if digest != "spent":
                found[student, int(number)].add(digest)
        return found

    def next_request(self, student: str) -> int:
        """Returns this student's first request whose answer nobody has seen."""
        seen = {number for name, number in self.given() if name == student}
        return next(number for number in range(10**6) if number not in seen)


@pytest.fixture
def replicas(where: str, tmp_path: Path) -> Iterator[Replicas]:
    started = Replicas(where, tmp_path / "out.txt")
    yield started
    started.close()


def rows(given: dict[tuple[str, int], set[str]], student: str | None = None) -> int:
    return sum(rows_of(number) for name, number in given if student in (None, name))


def check_books(where: str, given: dict[tuple[str, int], set[str]]) -> None:
    """Checks that every answer that left was charged once, and nothing else or over a limit."""
    ledger = AnswerLedger.open(where)
    ledger.verify()
    assert all(len(digests) == 1 for digests in given.values())
    for student in ledger.students():
        assert student.answered == rows(given, student.name) <= LIMITS[student.name]
    assert ledger.spent().answered == rows(given) <= STATEMENT.queries
    assert derive(ledger).answers.answered == rows(given)
    for (student, number), (digest,) in list(given.items())[::97]:
        again = ask(
            ledger, student, rows_of(number), idempotency_key=str(number), request_digest=DIGEST
        )
        assert hashlib.sha256(again.policies.tobytes()).hexdigest() == digest
    ledger.close()


def test_replicas_never_overspend_together(where: str, replicas: Replicas) -> None:
    """Two replicas share a student's requests and two get the same ones, until all are refused."""
    started = [replicas.ask("ann", 0), replicas.ask("ann", 0)]
    started += [replicas.ask("bob", first, 2) for first in (0, 1)]
    for process in started:
        wait_for(process, 30)
    given = replicas.given()
    check_books(where, given)
    assert rows(given) > STATEMENT.queries - 3  # they stop at the first refusal: 3 rows or fewer


def test_killed_at_any_moment_nothing_is_lost(where: str, replicas: Replicas) -> None:
    moments = random.Random(0)
    ledger = AnswerLedger.open(where)
    running = {}
    for _ in range(12):
        for slot, student in enumerate(("ann", "ann", "bob")):
            if slot not in running:
                running[slot] = replicas.ask(student, replicas.next_request(student))
        time.sleep(moments.uniform(0.01, 0.08))
        victim = running.pop(moments.randrange(3))
        with contextlib.suppress(ProcessLookupError):  # the process may have ended
            os.kill(victim, signal.SIGKILL)
        wait_for(victim, 30)
        left = rows(replicas.given())
        assert left <= ledger.spent().answered <= STATEMENT.queries
    for process in running.values():
        wait_for(process, 30)
    # An answer that was charged and never seen is given when it is asked for again.
    for student in LIMITS:
        wait_for(replicas.ask(student, replicas.next_request(student)), 30)
    given = replicas.given()
    assert len(given) > 200
    check_books(where, given)
    ledger.close()


def test_a_server_that_cuts_everybody_off(
    postgresql_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Clients only have to ask again with the same key."""
    budget = Budget(epsilon=math.inf, delta=1e-5)
    ledger = AnswerLedger.create(postgresql_url, statement=STATEMENT, budget=budget)
    for name, queries in LIMITS.items():
        ledger.add_student(name, queries)
    replicas = Replicas(postgresql_url, tmp_path / "out.txt")
    request.addfinalizer(replicas.close)
    started = [replicas.ask("ann", 0), replicas.ask("ann", 0), replicas.ask("bob", 0)]
    engine = sa.create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    cut = 0
    with engine.connect() as admin:
        deadline = time.monotonic() + 10
        while cut < 30 and len(replicas.given()) < 200 and time.monotonic() < deadline:
            time.sleep(0.01)
            cut += cut_off(admin)
    engine.dispose()
    for process in started:
        wait_for(process, 30)
    assert cut > 5
    check_books(postgresql_url, replicas.given())


def test_requests_repeated_and_out_of_order(where: str) -> None:
    """Each request comes three times, shuffled, over two replicas with four threads each."""
    objects = [AnswerLedger.open(where) for _ in range(2)]
    numbers = [*range(120)] * 3
    random.Random(1).shuffle(numbers)
    seen = defaultdict(list)

    def one(job: tuple[int, int]) -> None:
        position, number = job
        answered = ask(
            objects[position % 2],
            "ann",
            rows_of(number),
            idempotency_key=str(number),
            request_digest=DIGEST,
        )
        seen[number].append(answered)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, enumerate(numbers)))
    assert all(sum(not one.replayed for one in answers) == 1 for answers in seen.values())
    given = {
        ("ann", number): {hashlib.sha256(one.policies.tobytes()).hexdigest() for one in answers}
        for number, answers in seen.items()
    }
    assert len(given) == 120
    check_books(where, given)


def test_students_who_ask_for_the_last_rows_at_once(where: str) -> None:
    objects = [AnswerLedger.open(where) for _ in range(4)]
    ask(objects[0], "ann", 420)
    ask(objects[0], "bob", 171)

    def last(job: tuple[int, AnswerLedger]) -> int:
        try:
            return ask(job[1], "bob", 3, idempotency_key=f"last {job[0]}").policies.size
        except BudgetExceeded:
            return 0

    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(last, enumerate(objects * 3)))
    assert sorted(sizes) == [0] * 9 + [9] * 3
    assert objects[0].spent().answered == 600
    objects[1].verify()
