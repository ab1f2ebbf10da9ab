"""A process that forks commands of `sotto`, because a fork is faster than the imports.

    python -m faulty.nursery

Each line on standard input is a JSON object with the command's `words`, the file of its `clock` and
the file of its `log`. The answer is the number of the process that runs the command. Processes end
with this one.
"""

import ctypes
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from faulty.clock import Clock

_PR_SET_PDEATHSIG = 1
_clock: Callable[[], float] = time.time


def _now() -> float:
    return _clock()


def _work(words: list[str], clock: Path, log: Path) -> int:
    """Runs a command of sotto in this forked process, and returns its exit code."""
    global _clock
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, out), (2, out)):
        os.dup2(source, target)
    _clock = Clock(clock).now
    from sotto.cli import main

    return main(words)


def run() -> None:
    """Forks a process for each line."""
    time.time = _now  # before the imports: the services take this function as their clock
    import sotto.cli.live.campaign
    import sotto.people.app
    import sotto.people.updater
    import sotto.serving.server  # noqa: F401

    warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaps children that end
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = _work(asked["words"], Path(asked["clock"]), Path(asked["log"]))
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)
        print(child, flush=True)


if __name__ == "__main__":
    run()
