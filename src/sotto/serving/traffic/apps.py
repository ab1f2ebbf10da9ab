"""The part that services of teachers and campaigns share: how they begin, end and refuse."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from sotto.files import strict_json
from sotto.serving.traffic.callers import Callers
from sotto.serving.traffic.connections import Connections
from sotto.serving.traffic.refusals import Code, Guard, Refusal, of_framework


def new_app(
    title: str,
    callers: Callers,
    connections: Connections,
    close: Callable[[], None],
    refused: Callable[[Code], None] = lambda _code: None,
) -> FastAPI:
    """Returns a service without endpoints, which refuses in one form.

    Args:
        title: name of the service.
        callers: those who send requests. Who asks for an unknown path or method is a stranger.
        connections: open connections of the service.
        close: is called when the service ends.
        refused: is called with the code of each refusal.
    """

    async def refusal(_request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        refused(error.code)
        return error.response()

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        try:
            callers.stranger(request)
        except Refusal as too_many:
            return await refusal(request, too_many)
        return await refusal(request, of_framework(request.method, error))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        close()

    # No interactive documentation: it would load scripts from elsewhere. No redirections: they go
    # to the host that the request names, perhaps without encryption.
    app = FastAPI(title=title, openapi_url=None, redirect_slashes=False, lifespan=lifespan)
    app.state.connections = connections
    app.add_middleware(Guard, refused=refused)
    app.add_exception_handler(Refusal, refusal)
    app.add_exception_handler(HTTPException, unknown)
    return app


def json_response(values: dict[str, Any]) -> Response:
    """Returns JSON in which every float64 is exact, as `strict_json` writes it."""
    return Response(strict_json(values), media_type="application/json")
