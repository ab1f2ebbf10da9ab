"""The processes of one campaign: two web processes, up to two updaters, and the database."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Protocol

from faulty.clock import Clock

BENCHMARKS = Path(__file__).parents[1]
NAMES = ("web 0", "web 1", "updater 0", "updater 1")
WEB, UPDATERS = NAMES[:2], NAMES[2:]
_READY_SECONDS = 60.0


class Database(Protocol):
    """A database server that can be killed and started again."""

    def kill(self) -> None:
        """Kills all its processes with SIGKILL."""

    def start(self) -> None:
        """Starts it again on the same files."""

    def processes(self) -> list[int]:
        """Returns the numbers of its processes."""


class Nursery:
    """The process that forks commands of sotto."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faulty.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        assert self._answer() == "ready"

    def start(self, words: list[str], clock: Path, log: Path) -> int:
        """Runs a command in a new process, and returns its number."""
        assert self._process.stdin is not None
        asked = {"words": words, "clock": str(clock), "log": str(log)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def close(self) -> None:
        """Ends this process and all that it started."""
        self._process.kill()  # the kernel kills what it started
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class Service:
    """The running processes of one campaign.

    Attributes:
        certificate: path of the certificate.
        ports: ports of the web processes.
        now: clock that is right.
        clocks: clock of each process.
        ended: last line of the log of each process that ended by itself.
    """

    def __init__(
        self, nursery: Nursery, folder: Path, campaign: Path, where: str | None, token: str
    ) -> None:
        self._nursery, self._folder, self._campaign = nursery, folder, campaign
        self.certificate = campaign / "certificate.json"
        self._where = [] if where is None else ["--database", where]
        self._token = token
        self._running: dict[str, int] = {}
        self.ports = _free_ports(len(WEB))
        self.now = Clock(folder / "clock")
        self.clocks = {name: Clock(folder / f"clock of {name}") for name in NAMES}
        self.ended: list[str] = []

    def log(self, name: str) -> Path:
        """Returns the file with all that a process printed."""
        return self._folder / f"{name}.log"

    def process(self, name: str) -> int | None:
        """Returns the number of a running process; None if it does not run."""
        number = self._running.get(name)
        if number is None:
            return None
        with suppress(OSError):
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                return number
        del self._running[name]
        self.ended.append(f"{name}: {self._last_words(name)}")
        return None

    def running(self, names: tuple[str, ...] = NAMES) -> list[str]:
        """Returns which of the processes run."""
        return [name for name in names if self.process(name) is not None]

    def start(self, name: str) -> None:
        """Starts a process that does not run."""
        if self.process(name) is not None:
            return
        self.clocks[name].offset = self.now.offset
        if name in WEB:
            port = str(self.ports[WEB.index(name)])
            words = ["serve", str(self._campaign), "--no-updater", "--port", port]
        else:
            words = ["update", str(self._campaign)]
        self._running[name] = self._nursery.start(
            ["campaign", *words, *self._where], self._folder / f"clock of {name}", self.log(name)
        )

    def send(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to a process if it runs."""
        process = self.process(name)
        if process is not None:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Ends a process by a signal, and waits for its end."""
        self.send(name, number)
        process = self._running.pop(name, None)
        while process is not None and Path(f"/proc/{process}").exists():
            time.sleep(0.002)

    def kill_all(self) -> None:
        """Kills all processes at once, and waits for their ends."""
        for number in self._running.values():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        while any(Path(f"/proc/{number}").exists() for number in self._running.values()):
            time.sleep(0.002)
        self._running.clear()

    def set_time(self, offset: float) -> None:
        """Sets all clocks."""
        for one in (self.now, *self.clocks.values()):
            one.offset = offset

    def facts(self, name: str) -> dict[str, Any] | None:
        """Returns the public facts of the campaign from a web process; None without an answer."""
        connection = HTTPConnection("127.0.0.1", self.ports[WEB.index(name)], timeout=10)
        with closing(connection), suppress(OSError, HTTPException):
            headers = {"Authorization": f"Bearer {self._token}"}
            connection.request("GET", "/v1/campaign", headers=headers)
            answer = connection.getresponse()
            if answer.status == 200:
                found: dict[str, Any] = json.loads(answer.read())
                return found
        return None

    def wait(self, names: tuple[str, ...], enough: Callable[[int], bool]) -> None:
        """Waits until enough of these web processes answer, and starts those that ended.

        Raises:
            TimeoutError: they do not.
        """
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            answers = 0
            for name in names:
                self.start(name)
                answers += self.facts(name) is not None
            if enough(answers):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{names} do not answer: {list(map(self._last_words, names))}")
            time.sleep(0.05)

    def close(self) -> None:
        """Ends all processes."""
        self.kill_all()

    def logs(self) -> dict[str, str]:
        """Returns all that each process printed."""
        return {
            name: self.log(name).read_text(errors="replace")
            for name in NAMES
            if self.log(name).exists()
        }

    def _last_words(self, name: str) -> str:
        lines = self.logs().get(name, "").splitlines()
        return lines[-1].replace(str(self._folder), "DIR")[:200] if lines else "no output"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[Any] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
