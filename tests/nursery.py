"""Processes that are killed at any moment, and the lines that they wrote before."""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest


class Nursery:
    """A process that forks another one for each line of work. Its script calls `fork_for_each`.

    The forked processes append lines to a file.
    """

    def __init__(self, script: Path, where: str, out: Path) -> None:
        self._out = out
        out.touch()
        self._nursery = subprocess.Popen(
            [sys.executable, str(script), where, str(out)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, work: str) -> int:
        """Returns the number of a new process that does this work."""
        assert self._nursery.stdin
        assert self._nursery.stdout
        self._nursery.stdin.write(f"{work}\n")
        self._nursery.stdin.flush()
        return int(self._nursery.stdout.readline())

    def lines(self) -> list[list[str]]:
        """Returns the words of each line that was written."""
        return [line.split() for line in self._out.read_text().splitlines()]

    def close(self) -> None:
        assert self._nursery.stdin
        self._nursery.stdin.close()
        self._nursery.wait(10)


def fork_for_each(work: Callable[[str, int, list[str]], None]) -> None:
    """Reads lines and does each in a process of its own: work(where, file to write, words)."""
    where, path = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaps children that end
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                work(where, out, line.split())
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        print(child, flush=True)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(process: int, seconds: float) -> None:
    """Fails if the process does not end in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not is_running(process):
            return
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    pytest.fail(f"a process did not end within {seconds} seconds")
