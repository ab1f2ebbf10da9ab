"""Kills, restarts, duplicated and reordered requests, two replicas: not one charge too many or few.

Every batch has a key and is sent twice, in shuffled order, by several threads, to whichever process
is there; whoever gets no answer sends it again. Processes are killed with SIGKILL in between.
"""

import os
import random
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
from asking import Unasked
from small_teacher import OBSERVATION_SIZE, teacher

from sotto.privacy.answers.digests import DigestKey
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.serving.questions import Question

QUERIES = 500
STUDENTS = 4
BATCHES = 40  # of each student, 1 to 12 rows: twice what the budget covers
KILL_AFTER = (12, 30, 45)  # answers


class Replica:
    """A process that serves, or waits to."""

    def __init__(self, where: str, port: int, digest_key: Path) -> None:
        self.port = port
        self._process = subprocess.Popen(
            [
                *(sys.executable, Path(__file__).with_name("replica.py")),
                *(where, str(port), digest_key),
            ],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def serve(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stdout.readline() == "imported\n"
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline().startswith("http")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            stream.close()


@dataclass
class Batch:
    """A question, and everything that ever came back for it."""

    student: str
    token: str
    key: str
    rows: int
    answers: list[list] = field(default_factory=list)
    refusals: int = 0

    def body(self) -> dict:
        return {"observations": np.full((self.rows, OBSERVATION_SIZE), 0.5).tolist()}


class Storm:
    """Sends every batch twice, until each time there is an answer or a refusal."""

    def __init__(self, ports: list[int], seed: int) -> None:
        self._ports = ports
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._http = httpx.Client(trust_env=False, timeout=10)
        self.answered = 0
        self.failures = 0

    def send(self, batches: list[Batch]) -> None:
        sendings = batches * 2
        self._random.shuffle(sendings)
        with self._http, ThreadPoolExecutor(8) as pool:
            list(pool.map(self._send_one, sendings))

    def _send_one(self, batch: Batch) -> None:
        headers = {"Authorization": f"Bearer {batch.token}", "Idempotency-Key": batch.key}
        while True:
            with self._lock:
                port = self._random.choice(self._ports)
            url = httpx.URL(scheme="http", host="127.0.0.1", port=port, path="/v1/answers")
            try:
                response = self._http.post(url, headers=headers, json=batch.body())
            except httpx.TransportError:
                response = None
            with self._lock:
                if response is None or response.status_code == 503:
                    self.failures += 1
                elif response.status_code == 200:
                    batch.answers.append(response.json()["policies"])
                    self.answered += 1
                    return
                else:
                    assert response.json()["error"] == "budget-spent"
                    batch.refusals += 1
                    return
            time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.mark.parametrize(
    ("database", "replicas"), [("sqlite", 1), ("sqlite", 2), ("postgresql", 2)]
)
def test_nothing_is_overspent_or_lost(request, tmp_path, make_ledger, database, replicas):
    sqlite = database == "sqlite"
    where = str(tmp_path / "l.sqlite") if sqlite else request.getfixturevalue("postgresql_url")
    ports = free_ports(replicas)
    key = tmp_path / "digests.key"
    count = replicas + len(KILL_AFTER)
    spare = [Replica(where, ports[i % replicas], key) for i in range(count)]
    ledger = make_ledger(QUERIES, where=where)
    chance = random.Random(7)
    batches = []
    for name in (f"student-{i}" for i in range(STUDENTS)):
        token = ledger.add_student(name)
        rows = [chance.randint(1, 12) for _ in range(BATCHES)]
        batches += [Batch(name, token, f"key-{i}", count) for i, count in enumerate(rows)]
    assert sum(batch.rows for batch in batches) > 1.5 * QUERIES
    storm = Storm(ports, seed=8)
    running, spare = spare[:replicas], spare[replicas:]
    try:
        for one in running:
            one.serve()
        sender = threading.Thread(target=storm.send, args=(batches,))
        sender.start()
        for number, threshold in enumerate(KILL_AFTER):
            while storm.answered < threshold and sender.is_alive():
                time.sleep(0.001)
            assert sender.is_alive()
            running[number % replicas].kill()
            running[number % replicas] = spare.pop(0)
            running[number % replicas].serve()
        sender.join()
    finally:
        for one in [*running, *spare]:
            one.kill()
    assert storm.failures > 0  # the kills were felt
    check(AnswerLedger.open(where, "service"), DigestKey.open(key), batches)


def check(ledger: AnswerLedger, key: DigestKey, batches: list[Batch]) -> None:
    """What students saw is what was charged, row by row, and within the budget."""
    ledger.verify()
    answered = [batch for batch in batches if batch.answers]
    for batch in batches:
        assert len(batch.answers) + batch.refusals == 2
        assert batch.refusals in (0, 2)
        assert batch.answers in ([], batch.answers[:1] * 2)
    charged = {one.name: one.answered for one in ledger.students()}
    for name, rows in charged.items():
        assert rows == sum(batch.rows for batch in answered if batch.student == name)
    assert sum(charged.values()) <= QUERIES
    smallest = min(batch.rows for batch in batches if not batch.answers)
    assert QUERIES - sum(charged.values()) < smallest  # spent as far as anybody asked
    for batch in batches:
        stored = stored_answer(ledger, key, batch)
        assert stored == (batch.answers[0] if batch.answers else None)


def stored_answer(ledger: AnswerLedger, key: DigestKey, batch: Batch) -> list | None:
    """What the ledger gives for a batch's key; None if it was never charged."""
    question = Question(np.array(batch.body()["observations"]), batch.key)
    try:
        found = ledger.answer(
            batch.student,
            question.observations,
            teacher(Unasked()),
            GeneratorSource(),
            idempotency_key=batch.key,
            request_digest=key.digest(ledger.run_id, question.contents),
        )
    except BudgetExceeded:
        return None
    assert found.replayed
    return found.policies.tolist()
