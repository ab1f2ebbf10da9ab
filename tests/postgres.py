"""A throw-away PostgreSQL server for tests, from the installed server binaries.

It lives in a temporary directory, listens on a Unix socket there and nowhere else, and stops when
the tests end, also if they are killed: its shell waits for the end of its standard input, which the
operating system closes with the process that holds it.
"""

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import psycopg
import sqlalchemy as sa

MISSING = (
    "these tests start a PostgreSQL server of their own, and found none: apt-get install postgresql"
)
_START_SECONDS = 60
_RUN = 'bin=$1; shift; "$bin/postgres" "$@" & cat > /dev/null; kill -QUIT $!; wait $!'


def binaries() -> Path | None:
    """Where PostgreSQL's server programs are; the newest where there are several."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((path.parent for path in versions), default=None, key=lambda p: int(p.parent.name))


class Server:
    """A running server, started by its constructor. It can be killed and started again."""

    def __init__(self) -> None:
        found = binaries()
        assert found, MISSING
        self._databases = itertools.count()
        # PostgreSQL refuses to run as root; Debian's package brings a user for it.
        self._user = _unprivileged() if os.geteuid() == 0 else None
        self._directory = Path(tempfile.mkdtemp(prefix="sotto-pg-"))  # sockets have short paths
        self._data = self._directory / "data"
        if self._user is not None:
            os.chown(self._directory, self._user.pw_uid, self._user.pw_gid)
        self._bin = found
        quick = ("--username=sotto", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
        made = self._popen([found / "initdb", *quick, self._data], stderr=subprocess.STDOUT)
        output, _ = made.communicate()
        if made.returncode:
            raise RuntimeError(f"initdb failed: {output}")
        self.start()

    def start(self) -> None:
        """Starts the server on its data, and waits until it answers."""
        settings = ("listen_addresses=", f"unix_socket_directories={self._directory}")
        options = itertools.chain.from_iterable(("-c", setting) for setting in settings)
        log = (self._directory / "log").open("a")
        command = ["/bin/sh", "-c", _RUN, "sh", self._bin, "-D", self._data, *options]
        self._server = self._popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self._conninfo("postgres")).close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline or self._server.poll() is not None:
                    text = (self._directory / "log").read_text()
                    self.stop()
                    raise RuntimeError(f"PostgreSQL did not start: {text}") from error
                time.sleep(0.05)

    def new_database(self) -> str:
        """SQLAlchemy URL of a new, empty database."""
        name = f"test{next(self._databases)}"
        with psycopg.connect(self._conninfo("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql+psycopg://sotto@/{name}?host={self._directory}"

    def processes(self) -> list[int]:
        """The numbers of its processes, the one that starts the others first."""
        try:
            first = int((self._data / "postmaster.pid").read_text().split()[0])
            process = psutil.Process(first)
            return [first, *(one.pid for one in process.children(recursive=True))]
        except (OSError, psutil.NoSuchProcess, ValueError, IndexError):
            return []

    def kill(self) -> None:
        """Kills all its processes with SIGKILL."""
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait(30)

    def stop(self) -> None:
        """Stops the server and removes all it wrote."""
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait(30)
        shutil.rmtree(self._directory)

    def _conninfo(self, database: str) -> str:
        return f"host={self._directory} user=sotto dbname={database}"

    def _popen(self, command, **streams) -> subprocess.Popen:
        streams = {"stdout": subprocess.PIPE, "text": True, "cwd": self._directory, **streams}
        if self._user is not None:
            streams |= {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        return subprocess.Popen(command, **streams)


def cut_off(connection: sa.Connection) -> int:
    """Ends every other connection to the same database, and returns how many there were."""
    query = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    ended: int = connection.exec_driver_sql(query).scalar_one()
    return ended


def _unprivileged() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
