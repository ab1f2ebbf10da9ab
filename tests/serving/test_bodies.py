"""Parsing of bodies: large ones in a thread that lets others run."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest

from sotto.serving.traffic import bodies
from sotto.serving.traffic.bodies import Bodies, parsed
from sotto.serving.traffic.refusals import Refusal


class Slow:
    """A request whose body comes when it is told to."""

    headers: ClassVar = {"content-type": "application/json"}

    def __init__(self) -> None:
        self.come = asyncio.Event()

    async def stream(self) -> AsyncIterator[bytes]:
        await self.come.wait()
        yield b"{}"


def test_one_callers_slow_bodies_are_limited_and_nobody_elses():
    async def run() -> None:
        own, requests = Bodies(2), [Slow() for _ in range(4)]

        def read(caller: str, request: Any) -> Any:
            return asyncio.ensure_future(own.read(caller, request, 100, 5.0, "send less"))

        first, second = read("ann", requests[0]), read("ann", requests[1])
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match="fewer requests at the same time"):
            await read("ann", requests[2])
        other = read("bob", requests[3])
        for request in requests:
            request.come.set()
        assert await asyncio.gather(first, second, other) == [b"{}"] * 3
        assert await read("ann", requests[2]) == b"{}"
        assert not own._sending

    asyncio.run(run())


VALUES = {"a": [1, -2.5, 1e300, 10**400, 0, True, None, "1.5", [], {"b": [3]}]}


def padded(text: str, size: int) -> bytes:
    return text.encode() + b" " * (size - len(text))


@pytest.mark.parametrize("size", [bodies._LARGE_BYTES, bodies._LARGE_BYTES + 1])
def test_the_size_decides_where_a_body_is_parsed(monkeypatch, size):
    threads, real = [], json.loads

    def seen(*arguments, **options):
        threads.append(threading.current_thread())
        return real(*arguments, **options)

    monkeypatch.setattr(json, "loads", seen)
    assert asyncio.run(parsed(padded(json.dumps(VALUES), size))) == VALUES
    is_here = threads == [threading.main_thread()]
    assert is_here == (size == bodies._LARGE_BYTES)


def test_every_number_of_a_large_body_gives_way():
    """json.loads alone holds the interpreter's lock for the whole body, also in a thread."""
    calls = []

    def count(frame, event, _argument):
        if event == "call" and frame.f_code.co_name in ("whole", "real"):
            calls.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        found = bodies._parsed_slowly(b"[1, 2.5, 3e4, [4, -5.0]]")
    finally:
        sys.setprofile(None)
    assert found == [1, 2.5, 3e4, [4, -5.0]]
    assert calls == ["whole", "real", "real", "whole", "real"]


@pytest.mark.parametrize("size", [0, 20_000])
@pytest.mark.parametrize("text", ["[NaN]", "[-Infinity]", "[1, 2", "", "[" * 5000, "\xff"])
def test_what_is_not_json_is_refused_at_any_size(text, size):
    with pytest.raises((ValueError, RecursionError)):
        asyncio.run(parsed(padded(text, size)))
