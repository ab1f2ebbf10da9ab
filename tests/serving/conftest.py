"""A small teacher behind a real server, in a thread of the test's own process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from sotto.privacy.answer_ledger import AnswerLedger
from sotto.privacy.answers import AnswerStatement
from sotto.privacy.distances import PolicyDistance
from sotto.privacy.mechanisms.policies import Dirichlet
from sotto.privacy.spending import Budget
from sotto.serving.app import create_app
from sotto.serving.server import Address, listening, url_of, uvicorn_server

ACTIONS, OBSERVATION_SIZE = 3, 4
SECRET = np.array([0.123456789, 0.765432109, 0.111111102])
"""The policy that must never be seen, whatever is asked."""


def secret_rows(observations: np.ndarray) -> np.ndarray:
    return np.tile(SECRET, (len(observations), 1))


def statement(queries: int = 1000, **changes) -> AnswerStatement:
    values = {
        "name": "teacher",
        "mechanism": Dirichlet(actions=ACTIONS, concentration=5.0, floor=0.1),
        "distance": PolicyDistance(l2=0.001),
        "queries": queries,
        "queries_per_student": queries,
        "observation_size": OBSERVATION_SIZE,
        "population": "simulated",
    }
    return AnswerStatement(**(values | changes))


@contextmanager
def running(app, address: Address | None = None) -> Iterator[str]:
    """Serves the app while the block runs; gives its URL."""
    address = address or Address("127.0.0.1", 0)
    server = uvicorn_server(app, address)
    with listening(address.host, address.port) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield url_of(listener, address)
        finally:
            server.should_exit = True
            thread.join()


class Service:
    """A running service, its ledger and its students' tokens."""

    def __init__(self, url: str, ledger: AnswerLedger) -> None:
        self.url = url
        self.ledger = ledger
        self.http = httpx.Client(base_url=url, trust_env=False)

    def student(self, name: str = "ann", queries: int | None = None) -> dict[str, str]:
        """Headers of a new student."""
        return {"Authorization": f"Bearer {self.ledger.add_student(name, queries)}"}

    def ask(self, headers: dict[str, str], rows: int = 2, key: str | None = None, **more):
        """One batch of questions."""
        extra = {"Idempotency-Key": key} if key else {}
        body = {"observations": np.ones((rows, OBSERVATION_SIZE)).tolist()}
        return self.http.post("/v1/answers", headers=headers | extra, json=body, **more)


@pytest.fixture
def make_ledger(tmp_path: Path) -> Callable[..., AnswerLedger]:
    """The ledger of a new teacher, in SQLite or at a URL."""

    def make(queries: int = 1000, where: Path | str | None = None, **changes) -> AnswerLedger:
        return AnswerLedger.create(
            where or tmp_path / "ledger.sqlite",
            "service",
            statement=statement(queries, **changes),
            budget=Budget(epsilon=8.0, delta=1e-5),
        )

    return make


@pytest.fixture
def serve(make_ledger) -> Iterator[Callable[..., Service]]:
    """Starts services, which stop when the test ends."""
    stacks = []

    def start(queries: int = 1000, rows=secret_rows, **options) -> Service:
        ledger = options.pop("ledger", None) or make_ledger(queries)
        context = running(create_app(rows, ledger, env_id="Fake-v0", **options))
        service = Service(context.__enter__(), ledger)
        stacks.append((context, service))
        return service

    yield start
    for context, service in stacks:
        service.http.close()
        context.__exit__(None, None, None)
        service.ledger.close()
