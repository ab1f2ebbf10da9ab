"""Services of a small teacher, started by tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from served import running
from small_teacher import Service, secret_rows, statement, teacher

from sotto.privacy.answers.digests import DigestKey
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.ledger.spending import Budget
from sotto.serving.app import create_app


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
def serve(make_ledger, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts services, which stop when the test ends."""
    stacks = []

    def start(queries: int = 1000, rows=secret_rows, **options) -> Service:
        ledger = options.pop("ledger", None) or make_ledger(queries)
        key = DigestKey.create(tmp_path / "digests.key")
        context = running(create_app(teacher(rows), ledger, key, env_id="Fake-v0", **options))
        service = Service(context.__enter__(), ledger)
        stacks.append((context, service))
        return service

    yield start
    for context, service in stacks:
        service.http.close()
        context.__exit__(None, None, None)
        service.ledger.close()
