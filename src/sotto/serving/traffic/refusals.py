"""Refusals that a client gets: JSON, `{"error": code, "message": one sentence, ...}`."""

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Literal

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sotto.serving.traffic.logs import without_values

Code = Literal[
    "not-found",
    "method-not-allowed",
    "unknown-token",
    "not-a-student",
    "too-many-requests",
    "unsupported-media-type",
    "body-too-large",
    "body-too-slow",
    "body-incomplete",
    "not-json",
    "bad-observations",
    "too-many-rows",
    "bad-idempotency-key",
    "idempotency-key-reused",
    "budget-spent",
    "ledger-unavailable",
    "not-a-person",
    "not-the-operator",
    "no-place",
    "took-part",
    "withdrew",
    "finished",
    "unknown-place",
    "place-closed",
    "contribution-conflict",
    "bad-contribution",
    "acts-elsewhere",
    "store-unavailable",
    "internal-error",
]

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

log = logging.getLogger("sotto.serving")


class Refusal(Exception):
    """A refusal of a request, for which nothing was charged.

    Attributes:
        status: HTTP status.
        code: kind of the refusal, for programs.
        message: one sentence that says why, and what to do.
        details: more fields of the JSON body.
        headers: headers of the response.
    """

    def __init__(
        self,
        status: int,
        code: Code,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.details, self.headers = dict(details or {}), dict(headers or {})

    def response(self) -> JSONResponse:
        """Returns the response that the client gets."""
        body = {"error": self.code, "message": self.message} | self.details
        return JSONResponse(body, self.status, self.headers)


def of_framework(method: str, error: HTTPException) -> Refusal:
    """Returns the refusal of an unknown path or method, which the framework detects."""
    if error.status_code == 405:
        message = f"this address does not take {method}"
        return Refusal(405, "method-not-allowed", message, headers=error.headers)
    return Refusal(404, "not-found", "there is nothing at this address")


class Guard:
    """The outermost layer: it adds headers to every response and hides exceptions.

    Every exception of the service ends here, so that no server prints its message.
    """

    def __init__(self, app: ASGIApp, refused: Callable[[Code], None]) -> None:
        self._app = app
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":  # the server's own start and end
            await self._lifespan(scope, receive, send)
            return
        started = False

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        try:
            await self._app(scope, receive, guarded_send)
        except Exception as error:
            incident = secrets.token_hex(4)
            log.error("incident %s: %s", incident, without_values(error))
            self._refused("internal-error")
            if not started:
                refusal = Refusal(
                    500,
                    "internal-error",
                    f"the service failed; ask its operator to search the log for {incident}",
                )
                await refusal.response()(scope, receive, guarded_send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles the start and the end. A server would print the text of their exceptions."""

        async def without_text(message: Message) -> None:
            await send({key: value for key, value in message.items() if key != "message"})

        try:
            await self._app(scope, receive, without_text)
        except Exception as error:  # not the cancellation by which a second Ctrl-C ends it
            log.error("the service failed to start or to stop: %s", without_values(error))
            raise
