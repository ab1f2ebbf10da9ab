"""The faults, one method each. What a fault changes for a while is right again when it returns."""

import os
import random
import resource
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from faulty.service import NAMES, UPDATERS, WEB, Database, Service
from sotto.people.database.store import CampaignDatabase
from sotto.people.errors import StoreUnavailable

_MEGABYTE = 2**20


class Faults:
    """Everything that can happen to a service.

    Args:
        service: its processes.
        store: the campaign's database, to be read.
        server: PostgreSQL; None for SQLite.
        files: the files of SQLite.
        chance: decides when and how.
        pace: factor of the durations of faults.
    """

    def __init__(
        self,
        service: Service,
        store: CampaignDatabase,
        server: Database | None,
        files: list[Path],
        chance: random.Random,
        pace: float = 1.0,
    ) -> None:
        self._pace = pace
        self._service, self._store, self._server = service, store, server
        self._files, self._random = files, chance
        self.all: dict[str, tuple[int, Callable[[], None]]] = {
            "web killed": (5, self.kill_web),
            "updater killed": (5, self.kill_updater),
            "everything killed": (2, self.kill_everything),
            "process terminated": (2, self.terminate),
            "disk full": (5, self.fill_disk),
            "no file descriptors": (2, self.exhaust_descriptors),
            "clocks stepped": (4, self.step_clocks),
            "process stopped": (2, self.stop_process),
            "updater stopped, another takes over": (2, self.replace_stopped_updater),
            "certificate deleted": (1, self.delete_certificate),
        }
        if server is None:
            self.all["database locked"] = (2, self.lock_files)
        else:
            self.all |= {
                "database killed": (5, self.kill_server),
                "one process of the database killed": (3, self.kill_backend),
                "database stopped": (2, self.stop_server),
            }

    # --- processes -------------------------------------------------------------------------------

    def kill_web(self) -> None:
        """Kills a web process."""
        self._service.kill(self._random.choice(WEB))

    def kill_updater(self) -> None:
        """Kills an updater, and lets its lease end."""
        self._service.kill(self._random.choice(self._service.running(UPDATERS) or UPDATERS))
        self.end_lease()

    def kill_everything(self) -> None:
        """Kills all processes of the service at once, and sometimes the database too."""
        self._service.kill_all()
        if self._server is not None and self._random.random() < 0.5:
            self._server.kill()
            self._server.start()
        self.end_lease()

    def terminate(self) -> None:
        """Ends a process as a supervisor does, which lets it finish; kills it if it does not."""
        name = self._random.choice(self._service.running() or NAMES)
        self._service.send(name, self._random.choice([signal.SIGTERM, signal.SIGINT]))
        deadline = time.monotonic() + 15
        while self._service.process(name) is not None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._service.ended = [one for one in self._service.ended if not one.startswith(name)]
        self._service.kill(name)
        self.end_lease()

    def stop_process(self) -> None:
        """Stops a process for a while."""
        name = self._random.choice(self._service.running() or NAMES)
        self._service.send(name, signal.SIGSTOP)
        self._wait(0.1, 1.5)
        self._service.send(name, signal.SIGCONT)

    def replace_stopped_updater(self) -> None:
        """Stops an updater at any moment until its lease is over and another one works."""
        running = self._service.running(UPDATERS)
        if not running:
            return
        stopped = self._random.choice(running)
        other = UPDATERS[1 - UPDATERS.index(stopped)]
        self._service.start(other)
        self._service.send(stopped, signal.SIGSTOP)
        self.end_lease()
        self._wait(1.0, 5.0)
        self._service.send(stopped, signal.SIGCONT)
        self._wait(0.0, 0.5)
        if self._random.random() < 0.7:
            self._service.kill(self._random.choice(UPDATERS))
            self.end_lease()

    # --- resources -------------------------------------------------------------------------------

    def fill_disk(self) -> None:
        """Lets no file grow beyond a size, for a while. The kernel limits each process by itself.

        With a small limit a file cannot even be changed beyond it, which is worse than a full disk.
        """
        sizes = [file.stat().st_size for file in self._files if file.exists()]
        if sizes and self._random.random() < 0.6:
            most = self._random.choice(sizes) + self._random.randrange(-4096, 16384)
        else:
            most = self._random.randrange(0, _MEGABYTE)
        limit = (max(0, most), resource.RLIM_INFINITY)
        processes = [*map(self._service.process, NAMES)]
        if self._server is not None:
            processes += self._server.processes()
        self._limited(processes, resource.RLIMIT_FSIZE, limit)

    def exhaust_descriptors(self) -> None:
        """Lets a process open no further file or connection, for a while."""
        process = self._service.process(self._random.choice(NAMES))
        if process is None:
            return
        with suppress(OSError):
            used = max(int(one.name) for one in Path(f"/proc/{process}/fd").iterdir()) + 1
            hard = resource.prlimit(process, resource.RLIMIT_NOFILE)[1]
            limit = (used + self._random.randrange(-2, 3), hard)
            self._limited([process], resource.RLIMIT_NOFILE, limit)

    def _limited(self, processes: list[int | None], kind: int, limit: tuple[int, int]) -> None:
        """Sets a limit of processes for a while."""
        before = {}
        for process in processes:
            with suppress(OSError):
                if process is not None:
                    before[process] = resource.prlimit(process, kind, limit)
        self._wait(0.1, 1.5)
        for process, earlier in before.items():
            with suppress(OSError):
                resource.prlimit(process, kind, earlier)

    def delete_certificate(self) -> None:
        """Removes certificate.json, which the next release writes again."""
        self._service.certificate.unlink(missing_ok=True)

    # --- time ------------------------------------------------------------------------------------

    def end_lease(self) -> None:
        """Lets time pass until the lease of an updater is over, whatever its clock was."""
        with suppress(StoreUnavailable):
            until = self._store.counts().updater_until or 0.0
            ahead = until - self._service.now.now()
            self._service.set_time(self._service.now.offset + max(0.0, min(ahead, 1e5)) + 0.1)

    def step_clocks(self) -> None:
        """Steps the clock of one process, or of all, for a while.

        Places and leases that were given by a clock that was ahead end by the right clock. So as
        much time passes afterwards.
        """
        step = self._random.choice([-1, 1]) * 10 ** self._random.uniform(0, 4.5)
        names = [*NAMES] if self._random.random() < 0.4 else [self._random.choice(NAMES)]
        for name in names:
            self._service.clocks[name].offset += step
        self._wait(0.1, 1.5)
        self._service.set_time(self._service.now.offset + max(0.0, step))

    def _wait(self, least: float, most: float) -> None:
        time.sleep(self._pace * self._random.uniform(least, most))

    # --- the database ----------------------------------------------------------------------------

    def lock_files(self) -> None:
        """Holds the lock of an SQLite file, as a tool that copies it may, for a while."""
        file = self._random.choice(self._files)
        with (
            closing(sqlite3.connect(file, timeout=10, isolation_level=None)) as connection,
            suppress(sqlite3.OperationalError),
        ):
            connection.execute(self._random.choice(["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"]))
            self._wait(0.1, 7.0 if self._random.random() < 0.1 else 1.0)
            connection.execute("ROLLBACK")

    def kill_server(self) -> None:
        """Kills all processes of PostgreSQL, and starts it again after a while."""
        assert self._server is not None
        self._server.kill()
        self._wait(0.0, 1.0)
        self._server.start()

    def kill_backend(self) -> None:
        """Kills one process of PostgreSQL, which then recovers by itself."""
        assert self._server is not None
        processes = self._server.processes()[1:]
        if processes:
            with suppress(ProcessLookupError):
                _send(self._random.choice(processes), signal.SIGKILL)

    def stop_server(self) -> None:
        """Stops all processes of PostgreSQL for a while."""
        assert self._server is not None
        stopped = self._server.processes()
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in stopped:
                with suppress(ProcessLookupError):
                    _send(process, number)
            if number == signal.SIGSTOP:
                self._wait(0.1, 2.0)


def _send(process: int, number: signal.Signals) -> None:
    os.kill(process, number)
