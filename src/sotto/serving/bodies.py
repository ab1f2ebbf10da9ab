"""Reading the body of a request within limits of size and time."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from sotto.serving.refusals import Refusal


async def read_body(request: Request, most: int, seconds: float, smaller: str) -> bytes:
    """Returns the body of a request that says that it is JSON.

    Args:
        request: the request.
        most: largest number of bytes.
        seconds: longest time that the body may take.
        smaller: says how to send less.

    Raises:
        Refusal: the body is not JSON by its header, too large, too slow, or incomplete.
    """
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
