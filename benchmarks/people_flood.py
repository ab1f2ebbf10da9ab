"""Latency of a well-behaved person while somebody floods the service of live people.

    python benchmarks/people_flood.py

It starts `sotto campaign serve` with the limits that it has by default. One person asks for an
action ten times a second, and others arrive (with a new connection, and ask for a place) and give a
trajectory each. Another process floods the service at the same time, in one of these ways:

    unknown tokens    requests with tokens that nobody has
    one valid token   requests of one person, far above the limit of one person
    idle connections  connections that send nothing, and new ones for those that are closed
    slow bodies       requests of one person whose bodies come byte by byte

Every flood has a period without a flood before it, with which it is compared. The flooding process
comes from another address (127.0.0.2), and has the lowest priority on the cores that it shares with
the service, as an attacker uses processors of their own. The figures are still worse than those of
a remote attacker.
"""

import asyncio
import json
import math
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import tyro
from people_service import SPACES, Connection, sotto

STEPS = 200
QUIET = "quiet"
KINDS = ("action", "arrival", "contribution")
ATTACKER = ("127.0.0.2", 0)
_PERIOD = 0.1
_GIVE_EVERY = 2  # periods


@dataclass
class Settings:
    """What is measured."""

    seconds: float = 60.0
    """Duration of each flood, and of the quiet period before it."""
    at_once: int = 32
    """Number of connections that send requests in a flood."""
    idle: int = 400
    """Number of connections that send nothing."""
    json: bool = False
    """Print one JSON object instead of a table."""


# --- floods, in a process of their own -----------------------------------------------------------


async def _requests(host: str, port: int, token: Callable[[], str]) -> None:
    """Sends requests over one connection for ever, as fast as they are answered."""
    asked = {"place": "none", "step": 0, "observation": [0.0] * 4}
    while True:
        connection = Connection(host, port, token(), ATTACKER)
        with suppress(OSError, EOFError):
            await connection.open()
            with closing(connection):
                while True:
                    with suppress(RuntimeError):  # it is refused
                        await connection.post("/v1/actions", asked)
        await asyncio.sleep(0.01)


async def _idle(host: str, port: int) -> None:
    """Keeps a connection open that sends nothing."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port, local_addr=ATTACKER)
            with closing(writer):
                await reader.read()
        await asyncio.sleep(0.01)


async def _slow(host: str, port: int, token: str) -> None:
    """Sends a request whose body comes byte by byte."""
    head = (
        f"POST /v1/contributions HTTP/1.1\r\nHost: campaign\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 8000\r\n\r\n{"
    )
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, port, local_addr=ATTACKER)
            with closing(writer):
                writer.write(head.encode())
                while not writer.is_closing():
                    await asyncio.sleep(0.05)
                    writer.write(b" ")
                    await writer.drain()
        await asyncio.sleep(0.01)


async def flood(kind: str, url: str, token: str, settings: Settings) -> None:
    """Floods the service until this process is killed."""
    os.nice(19)
    where = urlsplit(url)
    host, port = where.hostname or "", where.port or 80
    one: Callable[[], Coroutine[Any, Any, None]] = {
        "unknown tokens": lambda: _requests(host, port, lambda: secrets.token_urlsafe(32)),
        "one valid token": lambda: _requests(host, port, lambda: token),
        "idle connections": lambda: _idle(host, port),
        "slow bodies": lambda: _slow(host, port, token),
    }[kind]
    count = settings.idle if kind == "idle connections" else settings.at_once
    await asyncio.gather(*(one() for _ in range(count)))


FLOODS = ("unknown tokens", "one valid token", "idle connections", "slow bodies")


# --- well-behaved people -------------------------------------------------------------------------


async def behave(url: str, asking: str, giving: list[str], seconds: float) -> dict[str, Any]:
    """Returns latencies of what well-behaved people do in seconds, and the number of failures."""
    where = urlsplit(url)
    host, port = where.hostname or "", where.port or 80
    found: dict[str, Any] = {"failures": 0} | {kind: [] for kind in KINDS}
    given = {
        "observations": [[0.01, 0.2, -0.03, 0.4]] * (STEPS + 1),
        "rewards": [1.0] * STEPS,
        "terminated": False,
    }
    connection = Connection(host, port, asking)
    await connection.open()
    place = (await connection.post("/v1/places", {}))["place"]
    until = time.perf_counter() + seconds
    step = 0

    async def timed(kind: str, one: Connection, path: str, body: dict[str, Any]) -> Any:
        began = time.perf_counter()
        answer = await one.post(path, body)
        found[kind].append(time.perf_counter() - began)
        return answer

    while time.perf_counter() < until:
        try:
            asked = {"place": place, "step": step % STEPS, "observation": [0.01, 0.2, -0.03, 0.4]}
            await timed("action", connection, "/v1/actions", asked)
            if step % _GIVE_EVERY == 0 and giving:
                other = Connection(host, port, giving.pop())
                began = time.perf_counter()
                await other.open()
                with closing(other):
                    mine = (await other.post("/v1/places", {}))["place"]
                    found["arrival"].append(time.perf_counter() - began)
                    await timed("contribution", other, "/v1/contributions", given | {"place": mine})
        except (OSError, EOFError, RuntimeError):
            found["failures"] += 1
            await connection.open()
        step += 1
        await asyncio.sleep(_PERIOD)
    connection.close()
    return found


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Returns median and 99th percentile of each kind in milliseconds."""
    said: dict[str, Any] = {"failures": found["failures"]}
    for kind in KINDS:
        cuts = statistics.quantiles(found[kind], n=100)
        said[kind] = {"median": 1e3 * cuts[49], "p99": 1e3 * cuts[98], "number": len(found[kind])}
    return said


def measure(url: str, tokens: list[str], settings: Settings) -> dict[str, Any]:
    """Returns a summary of each flood, and of the quiet period before it."""
    found = {}
    attacker, asking, *giving = tokens
    for kind in FLOODS:
        before = summary(asyncio.run(behave(url, asking, giving, settings.seconds)))
        with subprocess.Popen(
            [sys.executable, __file__, "flood", kind, url, attacker, json.dumps(vars(settings))]
        ) as process:
            time.sleep(2)
            try:
                during = summary(asyncio.run(behave(url, asking, giving, settings.seconds)))
            finally:
                process.kill()
        found[kind] = {QUIET: before, "flood": during}
        time.sleep(1)
    return found


def show(found: dict[str, Any]) -> None:
    """Prints a table of median and 99th percentile in milliseconds."""
    print(f"{'':18}{'':14}{'median':>20}{'p99':>20}   failures")
    for kind, one in found.items():
        for what in KINDS:
            cells = []
            for figure in ("median", "p99"):
                quiet, during = (one[when][what][figure] for when in (QUIET, "flood"))
                cells.append(f"{quiet:.1f} -> {during:.1f} ({during / quiet:.1f}x)")
            failures = one["flood"]["failures"]
            print(f"{kind:18}{what:14}{cells[0]:>20}{cells[1]:>20}{failures:>11}")


def main(settings: Settings) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spaces, campaign = Path(folder) / "spaces.json", Path(folder) / "campaign"
        spaces.write_text(json.dumps(SPACES))
        people = 2 + 2 * len(FLOODS) * math.ceil(settings.seconds / _PERIOD / _GIVE_EVERY)
        sotto(
            *("campaign", "start", str(campaign), "--spaces", str(spaces), "--acts", "server"),
            *("--updates", "2", "--users-per-update", str(people)),
            *("--steps-per-user", str(STEPS), "--delta", "1e-5"),
        )
        tokens = sotto("campaign", "invite", str(campaign), str(people)).split()
        command = [sys.executable, "-m", "sotto", "campaign", "serve", str(campaign)]
        with subprocess.Popen(
            [*command, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            said = "".join(iter(server.stdout.readline, "}\n")) + "}"
            try:
                found = measure(json.loads(said)["url"], tokens, settings)
            finally:
                server.terminate()
        machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
        if settings.json:
            print(json.dumps(machine | {"milliseconds": found}, indent=2))
        else:
            print(f"{machine['cores']} cores, load {machine['load']:.1f}; milliseconds")
            show(found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["flood"]:
        kind, url, token, given = sys.argv[2:]
        asyncio.run(flood(kind, url, token, Settings(**json.loads(given))))
    else:
        main(tyro.cli(Settings, description=__doc__))
