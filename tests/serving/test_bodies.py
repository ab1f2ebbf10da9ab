"""Parsing of bodies: large ones in a thread that lets others run."""

import asyncio
import json
import sys
import threading

import pytest

from sotto.serving.traffic import bodies
from sotto.serving.traffic.bodies import parsed

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
