"""Speed of a campaign's service: decisions and durable contributions per second, and latencies.

Starts `sotto campaign serve` in a new directory and asks from another process over open
connections, one request at a time on each. The figures include the load generator, which uses the
same cores.

    python benchmarks/people_service.py --people 64 --seconds 20
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import tyro

SPACES = {"observations": 4, "actions": 2}


@dataclass
class Settings:
    """What is asked."""

    people: int = 64
    """Number of connections, with one person each."""
    seconds: float = 15.0
    """Time during which decisions are asked for."""
    contributions: int = 1000
    """Number of contributions, each of another person."""
    idle: int = 256
    """Number of connections that are open beside and send nothing."""
    database: str | None = None
    """SQLAlchemy URL of a PostgreSQL database; the default is SQLite."""


def sotto(*words: str) -> str:
    """Runs a command of sotto and returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "sotto", *words], check=True, capture_output=True, text=True
    )
    return done.stdout


class Connection:
    """One HTTP/1.1 connection of one person, from any local address or the given one."""

    def __init__(
        self, host: str, port: int, token: str, local: tuple[str, int] | None = None
    ) -> None:
        self._host, self._port, self._token, self._local = host, port, token, local

    async def open(self) -> None:
        self._read, self._write = await asyncio.open_connection(
            self._host, self._port, local_addr=self._local
        )

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self._write.write(head.encode() + data)
        lines = (await self._read.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        sizes = [line for line in lines if line.lower().startswith("content-length")]
        answer = json.loads(await self._read.readexactly(int(sizes[0].split(":")[1])))
        if " 200 " not in lines[0]:
            raise RuntimeError(f"{path}: {lines[0]} {answer}")
        found: dict[str, Any] = answer
        return found

    def close(self) -> None:
        self._write.close()


async def decisions(connections: list[Connection], seconds: float) -> list[float]:
    """Asks for actions on every connection, and returns the latencies."""
    until = time.perf_counter() + seconds
    found: list[float] = []

    async def one(connection: Connection) -> None:
        place = (await connection.post("/v1/places", {}))["place"]
        step = 0
        while time.perf_counter() < until:
            began = time.perf_counter()
            asked = {"place": place, "step": step % 200, "observation": [0.01, 0.2, -0.03, 0.4]}
            await connection.post("/v1/actions", asked)
            found.append(time.perf_counter() - began)
            step += 1

    await asyncio.gather(*map(one, connections))
    return found


async def contributions(
    make: Callable[[int], Connection], first: int, count: int, at_once: int
) -> tuple[list[float], float]:
    """Lets new people give a trajectory of 200 steps; returns the latencies and the seconds."""
    given = {
        "observations": [[0.01, 0.2, -0.03, 0.4]] * 201,
        "rewards": [1.0] * 200,
        "terminated": False,
    }
    found: list[float] = []
    people = iter(range(first, first + count))
    began = time.perf_counter()

    async def worker() -> None:
        for person in people:
            connection = make(person)
            await connection.open()
            place = (await connection.post("/v1/places", {}))["place"]
            started = time.perf_counter()
            await connection.post("/v1/contributions", given | {"place": place})
            found.append(time.perf_counter() - started)
            connection.close()

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return found, time.perf_counter() - began


async def measure(settings: Settings, url: str, tokens: list[str]) -> None:
    where = urlsplit(url)
    host, port = where.hostname or "", where.port or 80
    connections = [Connection(host, port, token) for token in tokens[: settings.people]]
    for one in connections:
        await one.open()
    quiet = await decisions(connections, settings.seconds)
    show("decisions", quiet, settings.seconds)
    idle = []
    for _ in range(settings.idle):
        with suppress(OSError):
            idle.append(await asyncio.open_connection(host, port))
    for one in connections:
        await one.open()
    beside = await decisions(connections, settings.seconds)
    show(f"decisions beside {settings.idle} idle connections", beside, settings.seconds)
    found, taken = await contributions(
        lambda person: Connection(host, port, tokens[person]),
        settings.people,
        settings.contributions,
        32,
    )
    show("contributions of 200 steps, with their places", found, taken)


def show(what: str, latencies: list[float], seconds: float) -> None:
    cuts = statistics.quantiles(latencies, n=100)
    print(
        f"{what}: {len(latencies) / seconds:.0f} a second, median {1e3 * cuts[49]:.1f} ms, "
        f"p99 {1e3 * cuts[98]:.1f} ms",
        flush=True,
    )


def main(settings: Settings) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spaces, campaign = Path(folder) / "spaces.json", Path(folder) / "campaign"
        spaces.write_text(json.dumps(SPACES))
        where = [] if settings.database is None else ["--database", settings.database]
        places = settings.people + settings.contributions
        sotto(
            *("campaign", "start", str(campaign), "--spaces", str(spaces), "--acts", "server"),
            *("--updates", "2", "--users-per-update", str(places), "--steps-per-user", "200"),
            *("--delta", "1e-5", *where),
        )
        tokens = sotto("campaign", "invite", str(campaign), str(places), *where).split()
        command = [sys.executable, "-m", "sotto", "campaign", "serve", str(campaign), *where]
        with subprocess.Popen(
            [*command, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            said = "".join(iter(server.stdout.readline, "}\n")) + "}"
            url = json.loads(said)["url"]
            print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
            try:
                asyncio.run(measure(settings, url, tokens))
            finally:
                server.terminate()


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
