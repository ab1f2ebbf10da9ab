"""Reading the body of a request within limits of size and time, and parsing it."""

import asyncio
import json
from collections import Counter
from collections.abc import Hashable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from sotto.serving.traffic.refusals import Refusal

_LARGE_BYTES = 8192  # these take about 0.1 ms, twice as long as the way to a thread and back


class Bodies:
    """The bodies that are on their way. Slow senders would keep the connections of others.

    Args:
        each: most bodies of one caller at the same time.
    """

    def __init__(self, each: int) -> None:
        self._each = each
        self._sending = Counter[Hashable]()

    async def read(
        self, caller: Hashable, request: Request, most: int, seconds: float, smaller: str
    ) -> bytes:
        """Returns the body of a request that says that it is JSON.

        Args:
            caller: who sends it.
            request: the request.
            most: largest number of bytes.
            seconds: longest time that the body may take.
            smaller: says how to send less.

        Raises:
            Refusal: the caller sends too many at the same time; or the body is not JSON by its
                header, too large, too slow, or incomplete.
        """
        if self._sending[caller] >= self._each:
            raise Refusal(429, "too-many-requests", "send fewer requests at the same time")
        self._sending[caller] += 1
        try:
            return await _read(request, most, seconds, smaller)
        finally:
            self._sending[caller] -= 1
            if not self._sending[caller]:
                del self._sending[caller]


async def _read(request: Request, most: int, seconds: float, smaller: str) -> bytes:
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != "application/json":
        raise Refusal(
            415,
            "unsupported-media-type",
            "send JSON, with the header Content-Type: application/json",
        )
    too_large = Refusal(
        413,
        "body-too-large",
        f"the request's body is larger than {most} bytes; {smaller}",
    )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except ClientDisconnect:  # nobody reads this refusal, but it is counted
        raise Refusal(400, "body-incomplete", "the connection ended before the body") from None
    except TimeoutError:
        raise Refusal(
            408, "body-too-slow", f"the request's body did not arrive within {seconds:g} seconds"
        ) from None
    return bytes(body)


async def parsed(body: bytes) -> Any:
    """Returns the JSON value of a body. A large one does not keep other requests waiting.

    Raises:
        ValueError, RecursionError: the body is not JSON, or nested too deeply.
    """
    if len(body) <= _LARGE_BYTES:
        return json.loads(body, parse_constant=_no_constant)
    return await run_in_threadpool(_parsed_slowly, body)


def _parsed_slowly(body: bytes) -> Any:
    """Returns the same value; other threads run meanwhile.

    The json module keeps the interpreter's lock until it calls a function written in Python. So
    each number is read by such a function.
    """

    def whole(text: str) -> int:
        return int(text)

    def real(text: str) -> float:
        return float(text)

    return json.loads(body, parse_constant=_no_constant, parse_int=whole, parse_float=real)


def _no_constant(name: str) -> Any:
    raise ValueError(name)  # NaN and infinities are not JSON
