"""Work in several processes ends with the program that began it."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

PROGRAM = """
import multiprocessing, threading, time
from sotto.processes import finished

def tell():
    while len(multiprocessing.active_children()) < 2:
        time.sleep(0.05)
    time.sleep(2)
    print(*[one.pid for one in multiprocessing.active_children()], flush=True)

if __name__ == "__main__":
    threading.Thread(target=tell, daemon=True).start()
    list(finished(time.sleep, [120.0, 120.0], 2))
"""


def running(pid: int) -> bool:
    """Returns whether a process runs; a dead one that nobody has waited for does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_program_that_began_them(tmp_path, kind):
    """A killed program leaves no process that goes on to work for nobody."""
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        workers = [int(word) for word in program.stdout.readline().split()]
        assert len(workers) == 2
        assert all(running(pid) for pid in workers)
        os.kill(program.pid, kind)
        program.wait()
    end = time.monotonic() + 30
    while any(running(pid) for pid in workers):
        assert time.monotonic() < end, "a worker outlives the program"
        time.sleep(0.1)


def test_silence_discards_what_streams_held_back(tmp_path):
    """Python and C hold text back where the output is a file, and would print it afterwards."""
    code = """
import ctypes, sys
from sotto.files import silence
held, c = sys.stdout, ctypes.CDLL(None)
print("before")
with silence():
    held.write("said in Python\\n")
    c.printf(b"said in C\\n")
print("after")
"""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, env=plain, check=True)
    assert (tmp_path / "out").read_text() == "before\nafter\n"
