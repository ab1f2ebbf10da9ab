"""A replica of a teacher in a separate process, which `test_answer_faults` kills.

    python answer_replica.py DATABASE OUT

Every line "STUDENT FIRST STEP" on standard input forks a child, because forks are faster than
imports, and prints its process number. The child sends the student's requests number FIRST,
FIRST + STEP, ... until the budget is spent. It appends a line to OUT for every answer it got.
"""

import hashlib
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from asking import ask
from nursery import fork_for_each

from sotto.privacy.answers.digests import DigestKey
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.errors import BudgetExceeded, LedgerUnavailable

DIGEST = DigestKey(bytes(32)).digest("run", b"the same for all")


def rows_of(number: int) -> int:
    """Returns the number of rows of request `number`."""
    return 1 + number % 3


def serve(database: str, out: int, student: str, number: int, step: int) -> None:
    ledger = None
    while True:
        try:
            ledger = ledger or AnswerLedger.open(database)
            answered = ask(
                ledger, student, rows_of(number), idempotency_key=str(number), request_digest=DIGEST
            )
        except LedgerUnavailable:
            continue  # like a client, sends the same request with the same key again
        except BudgetExceeded:
            os.write(out, f"{student} {number} spent\n".encode())
            return
        digest = hashlib.sha256(answered.policies.tobytes()).hexdigest()
        os.write(out, f"{student} {number} {digest}\n".encode())
        number += step


def work(where: str, out: int, words: list[str]) -> None:
    student, number, step = words
    serve(where, out, student, int(number), int(step))


if __name__ == "__main__":
    fork_for_each(work)
