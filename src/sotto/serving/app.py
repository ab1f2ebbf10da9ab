"""The HTTP endpoints of a teacher, for students, the operator, a monitor and a browser.

    POST /v1/answers   {"observations": [[...], ...]} -> {"policies", "levels", "remaining",
                       "replayed"}; with an Idempotency-Key, if it may be sent again
    GET  /v1/teacher   the statement and the limits
    GET  /v1/budget    the remaining budget: a student's own, or for the operator all
    GET  /healthz      whether the ledger can be read; GET /metrics  counts, for Prometheus
    GET  /             a page that shows v1/budget

Paths with v1 need `Authorization: Bearer TOKEN`. Refusals are described in `refusals`.

Guarantee:
    Every row that leaves the service comes from `AnswerLedger.answer`, which adds fresh noise and
    has charged for it on disk.

Charges wait for the disk and for each other. They are made in one separate thread in order of
arrival, and the event loop stays free. `callers` identifies clients in another thread, so that a
client without a token delays nobody.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import resources
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool

from sotto.privacy.answers.digests import DigestKey
from sotto.privacy.answers.ledger import Answered, AnswerLedger
from sotto.privacy.answers.rows import TeacherRows, require_proved
from sotto.privacy.errors import (
    BudgetExceeded,
    IdempotencyConflict,
    LedgerCorrupt,
    LedgerMismatch,
    LedgerUnavailable,
)
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.serving import metrics
from sotto.serving.metrics import Metrics
from sotto.serving.questions import Question, read_question
from sotto.serving.traffic.apps import json_response, new_app
from sotto.serving.traffic.bodies import Bodies
from sotto.serving.traffic.callers import Caller, Callers, ledger_failures
from sotto.serving.traffic.connections import Connections
from sotto.serving.traffic.limits import Limits
from sotto.serving.traffic.outages import Outage
from sotto.serving.traffic.refusals import Refusal

_HEALTH_SECONDS = 2.0
_MOST_BODIES = 32  # of one student at the same time
_PAGE = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}

_T = TypeVar("_T")


def create_app(
    rows: TeacherRows,
    ledger: AnswerLedger,
    digest_key: DigestKey,
    *,
    env_id: str,
    limits: Limits | None = None,
    is_operator: Callable[[str], bool] = lambda _token: False,
    charged: Callable[[], None] = lambda: None,
    noise: GeneratorSource | None = None,
) -> FastAPI:
    """Returns the service of one teacher, for one process.

    Args:
        rows: the exact rows of the teacher; only noisy rows leave the service.
        ledger: the teacher's promise, its students, and the answers they got.
        digest_key: key by which repeated requests are recognised.
        env_id: environment in which the teacher was trained.
        limits: limits of size and rate.
        is_operator: tells whether a token is the operator's.
        charged: is called after an answer is in the ledger, and before it leaves.
        noise: for tests only; a fixed seed must be stated in the ledger and voids the
            certificate.

    Raises:
        ValueError, TypeError: the noise is not of the stated kind, or the teacher's rows move
            further than stated (`rows.require_proved`).
    """
    service = _Service(
        *(rows, ledger, digest_key, env_id),
        *(limits or Limits(), is_operator, charged, noise or GeneratorSource()),
    )

    of_all = (service.callers, service.connections, service.close, service.metrics.refused)
    app = new_app("A private teacher", *of_all)
    app.add_api_route("/v1/answers", service.answers, methods=["POST"])
    app.add_api_route("/v1/teacher", service.teacher, methods=["GET"])
    app.add_api_route("/v1/budget", service.budget, methods=["GET"])
    app.add_api_route("/healthz", service.health, methods=["GET"])
    app.add_api_route("/metrics", service.counts, methods=["GET"])
    for path in _PAGE:
        app.add_api_route(path, service.page, methods=["GET"])
    return app


class _Service:
    """The endpoints of the service. Its private methods may block unless they are async."""

    def __init__(
        self,
        rows: TeacherRows,
        ledger: AnswerLedger,
        digest_key: DigestKey,
        env_id: str,
        limits: Limits,
        is_operator: Callable[[str], bool],
        charged: Callable[[], None],
        noise: GeneratorSource,
    ) -> None:
        require_proved(rows, noise, ledger.statement)
        self.metrics = Metrics()
        self._rows = rows
        self._ledger = ledger
        self._digest_key = digest_key
        self._statement = ledger.statement
        self._env_id = env_id
        self._limits = limits
        self.connections = Connections(limits)
        self._failures = partial(ledger_failures, Outage())
        self.callers = Callers(ledger, is_operator, limits, self.connections, self._failures)
        self._charged = charged
        self._noise = noise
        self._bodies = Bodies(_MOST_BODIES)
        self._ledger_thread = ThreadPoolExecutor(1, "ledger")
        folder = resources.files("sotto.serving")
        self._files = {
            path: (folder.joinpath(name).read_bytes(), media_type)
            for path, (name, media_type) in _PAGE.items()
        }

    def close(self) -> None:
        """Finishes the work that has begun."""
        self.callers.close()
        self._ledger_thread.shutdown()

    # --- endpoints -------------------------------------------------------------------------------

    async def answers(self, request: Request) -> Response:
        """Answers a batch of observations."""
        arrived = time.perf_counter()
        student = await self.callers.student(request)
        size = self._statement.observation_size
        question = await read_question(student, request, size, self._limits, self._bodies)
        answered = await self._queued(self._answer, student, question)
        self.metrics.answered(
            len(answered.policies), time.perf_counter() - arrived, answered.replayed
        )
        return json_response(
            {
                "policies": answered.policies.tolist(),
                "levels": answered.levels.tolist(),
                "remaining": answered.remaining,
                "replayed": answered.replayed,
            }
        )

    async def teacher(self, request: Request) -> Response:
        """Returns the statement of the teacher and the limits of a request."""
        student = await self.callers.student(request)
        return json_response(
            {
                "statement": self._statement.model_dump(mode="json"),
                "actions": self._statement.mechanism.actions,
                "observation_size": self._statement.observation_size,
                "env_id": self._env_id,
                "max_rows": self._limits.max_rows,
                "remaining": await self._queued(self._remaining, student),
            }
        )

    async def budget(self, request: Request) -> Response:
        """Returns the spent and the remaining budget."""
        caller = await self.callers.caller(request)
        with self._failures():
            return json_response(await run_in_threadpool(self._budget, caller))

    async def health(self, request: Request) -> Response:
        """Returns whether the ledger can be read; it needs no token."""
        self.callers.stranger(request)
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                # This read does not wait for the answer that is being charged.
                await run_in_threadpool(self._ledger.authenticate, "nobody")
        except (LedgerUnavailable, LedgerCorrupt, LedgerMismatch, TimeoutError):
            return JSONResponse({"status": "the ledger cannot be used"}, 503)
        return JSONResponse({"status": "ok"})

    async def counts(self, request: Request) -> Response:
        """Returns counters for Prometheus, which are not private; it needs no token."""
        self.callers.stranger(request)
        return PlainTextResponse(self.metrics.text(), media_type=metrics.CONTENT_TYPE)

    async def page(self, request: Request) -> Response:
        """Returns the page of budgets, its script or its style."""
        self.callers.stranger(request)
        contents, media_type = self._files[request.url.path]
        return Response(contents, media_type=media_type)

    # --- in the ledger's thread ------------------------------------------------------------------

    async def _queued(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Does the work in the ledger's thread, in order of arrival."""
        loop = asyncio.get_running_loop()
        with self._failures():
            return await loop.run_in_executor(self._ledger_thread, work, *arguments)

    def _remaining(self, student: str) -> int:
        return self._ledger.remaining(student)

    def _answer(self, student: str, question: Question) -> Answered:
        try:
            answered = self._ledger.answer(
                student,
                question.observations,
                self._rows,
                self._noise,
                idempotency_key=question.idempotency_key,
                request_digest=self._digest_key.digest(self._ledger.run_id, question.contents),
            )
        except BudgetExceeded as error:
            remaining = self._ledger.remaining(student)
            raise Refusal(
                403, "budget-spent", str(error), details={"remaining": remaining}
            ) from None
        except IdempotencyConflict as error:
            raise Refusal(409, "idempotency-key-reused", str(error)) from None
        self._charged()
        return answered

    def _budget(self, caller: Caller) -> dict[str, Any]:
        spent = self._ledger.spent()
        budget = self._ledger.budget
        left = self._statement.queries - spent.answered
        students = [
            {
                "name": one.name,
                "queries": one.queries,
                "answered": one.answered,
                "remaining": 0 if one.revoked else max(0, min(one.queries - one.answered, left)),
                "revoked": one.revoked,
                "epsilon": one.epsilon,
                "spent_epsilon": one.spent_epsilon,
            }
            for one in spent.students
            if caller.name in (None, one.name)
        ]
        total = {
            "queries": self._statement.queries,
            "answered": spent.answered,
            "remaining": left,
            "epsilon": spent.epsilon,
            "spent_epsilon": spent.spent_epsilon,
        }
        return {
            "students": students,
            "total": total if caller.name is None else None,
            "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
            "unit": self._statement.unit_sentence,
        }
