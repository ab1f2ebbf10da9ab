"""A small teacher behind a real server, in a thread of the test's own process."""

import httpx
import numpy as np

from sotto.privacy.answers.distances import PolicyDistance
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.answers.rows import RowsOf
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.mechanisms.policies import Dirichlet

ACTIONS, OBSERVATION_SIZE = 3, 4
SECRET = np.array([0.123456789, 0.765432109, 0.111111102])
"""The policy that must never be seen, whatever is asked."""


def secret_rows(observations: np.ndarray) -> np.ndarray:
    return np.tile(SECRET, (len(observations), 1))


def teacher(rows=secret_rows) -> RowsOf:
    """A teacher with the rows of a function."""
    return RowsOf(rows, ACTIONS, OBSERVATION_SIZE)


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
