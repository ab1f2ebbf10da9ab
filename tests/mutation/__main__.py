"""`make mutate`: does a test fail for every small mistake in the core of the vault?

Each mutant of `mutants.py` is written into a copy of the package and the tests that stand for its
file are run until one fails. A mutant that no test notices is a survivor: a missing test, or a
change that changes nothing. Those of the second kind are listed in `equivalent.json` with the
reason. The run prints the survivors that are not listed and fails if there are any.

A mutant's tests run in a fork of a process that has imported JAX already, those of `slow.txt` last,
and end at the first failure. All of them take over an hour on two cores; `--sample 100` takes ten
minutes.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutants import Mutant, mutants

ROOT = Path(__file__).parent.parent.parent
EQUIVALENT = Path(__file__).parent / "equivalent.json"
"""For each file, changes that no test can notice, each with the reason."""

TESTS = {
    "mechanisms/gaussian.py": "privacy/gaussian privacy/releases privacy/factored",
    "release/release.py": "privacy/door_opening privacy/releases privacy/factored",
    "release/declaration.py": "privacy/door_opening privacy/releases privacy/factored",
    "release/stream.py": (
        "privacy/open_streams privacy/releases privacy/door_opening privacy/factored"
    ),
    "release/factored.py": "privacy/factored_limits privacy/factored privacy/releases",
    "ledger/spending.py": (
        "privacy/account privacy/spending privacy/statements attacks/later_streams privacy/ledger"
    ),
    "ledger/costs.py": "privacy/account privacy/spending attacks/later_streams privacy/ledger",
    "ledger/records.py": "privacy/spending privacy/ledger",
    "ledger/entries.py": (
        "privacy/entries privacy/ledger privacy/ledger_postgresql privacy/answer_ledger"
    ),
    "ledger/ledger.py": (
        "privacy/entries privacy/ledger attacks/later_streams attacks/after_the_rebuilding"
    ),
    "ledger/allowances.py": "privacy/shared_budget privacy/shared_faults",
    "ledger/shared_account.py": "privacy/shared_budget privacy/shared_faults",
    "ledger/joining.py": "privacy/shared_budget privacy/shared_faults people/campaign_on_budget",
    "statements.py": "privacy/statements privacy/claims privacy/certificate privacy/spending",
}
"""The files that are mutated and the tests that run for each, the slow ones last."""

UNTIMED = "not quick and not killed_at_any_moment"
"""Leaves out tests that fail without a mutant where the machine is busy."""

SECONDS = 600
"""A mutant whose tests run for longer hangs, which counts as noticed."""

UNCHANGED = "nothing is changed"

Job = tuple[str, Mutant]


def main() -> int:
    """Runs the mutants and prints what survived."""
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__.split("\n")[0])
    parser.add_argument("--files", nargs="*", default=list(TESTS), choices=list(TESTS))
    parser.add_argument("--sample", type=int, help="this many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="JSON file for the result of every mutant")
    arguments = parser.parse_args()
    jobs = [(name, mutant) for name in arguments.files for mutant in mutants(_source(name))]
    if arguments.sample is not None:
        jobs = random.Random(arguments.seed).sample(jobs, min(arguments.sample, len(jobs)))
    unchanged = [(name, Mutant(0, "", UNCHANGED, _source(name))) for name in arguments.files]
    equivalent = json.loads(EQUIVALENT.read_text())
    rows = []
    for (name, mutant), noticed in _run(unchanged + jobs, arguments.processes):
        if mutant.change == UNCHANGED:
            if noticed:
                sys.exit(f"the tests of {name} fail without a mutant")
            continue
        reason = equivalent.get(name, {}).get(f"{mutant.function}: {mutant.change}")
        outcome = "killed" if noticed else "equivalent" if reason else "survived"
        place = f"{name}:{mutant.line} {mutant.function}"
        rows.append({"file": name, "place": place, "change": mutant.change, "outcome": outcome})
        if outcome == "survived":
            print(f"survived: {place}: {mutant.change}", flush=True)
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    return _summary(rows)


def _source(name: str) -> str:
    return (ROOT / "src/sotto/privacy" / name).read_text()


def _summary(rows: list[dict[str, object]]) -> int:
    print(f"{'file':28} mutants  killed  equivalent  survived")
    for name in [*dict.fromkeys(row["file"] for row in rows), "all"]:
        outcomes = [row["outcome"] for row in rows if name in (row["file"], "all")]
        killed, same, left = (outcomes.count(o) for o in ("killed", "equivalent", "survived"))
        print(f"{name:28} {len(outcomes):7} {killed:7} {same:11} {left:9}")
    return int(any(row["outcome"] == "survived" for row in rows))


def _run(jobs: list[Job], processes: int) -> Iterator[tuple[Job, bool]]:
    """Yields each job and whether a test noticed it, as they end."""
    import_once()
    with tempfile.TemporaryDirectory() as folder:
        places = [_copy(Path(folder) / str(index)) for index in range(processes)]
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(folder) / "compiled")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        running: dict[int, tuple[Job, Path, float]] = {}
        waiting = list(jobs)
        while waiting or running:
            if waiting and places:
                place, job = places.pop(), waiting.pop(0)
                running[_start(place, job)] = (job, place, time.monotonic() + SECONDS)
                continue
            time.sleep(0.05)
            for child, (job, place, deadline) in list(running.items()):
                ended, status = os.waitpid(child, os.WNOHANG)
                if not ended and time.monotonic() < deadline:
                    continue
                if not ended:
                    os.killpg(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)  # what its tests started
                del running[child]
                places.append(place)
                shutil.copy(ROOT / "src/sotto/privacy" / job[0], place / "sotto/privacy" / job[0])
                yield job, not ended or os.waitstatus_to_exitcode(status) != 0


def import_once() -> None:
    """Imports what all tests need and no mutant changes, so that forks need not."""
    sys.path.insert(0, str(ROOT / "tests"))
    import conftest  # noqa: F401  # the environment that JAX is started in
    import dp_accounting.pld  # noqa: F401
    import equinox  # noqa: F401
    import hypothesis
    import jax.numpy  # noqa: F401
    import pydantic  # noqa: F401
    import randomgen  # noqa: F401
    import scipy.stats  # noqa: F401
    import sqlalchemy  # noqa: F401

    hypothesis.settings.register_profile("busy", deadline=None)
    hypothesis.settings.load_profile("busy")


def _copy(place: Path) -> Path:
    shutil.copytree(ROOT / "src/sotto", place / "sotto")
    return place


def _start(place: Path, job: Job) -> int:
    """Returns the number of a process whose exit status is that of the mutant's tests."""
    name, mutant = job
    child = os.fork()
    if child:
        return child
    os.setsid()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    sys.dont_write_bytecode = True  # the next mutant of this file may be as long and as new
    os.environ |= {"PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    file = place / "sotto/privacy" / name
    file.write_text(mutant.text)
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
    sys.path.insert(0, str(place))
    os.chdir(ROOT)
    places = [test.rpartition("/") for test in TESTS[name].split()]
    tests = [f"tests/{folder}/test_{test}.py" for folder, _, test in places]
    arguments = ["-x", "-q", "-p", "no:xdist", "--timeout=100", "-k", UNTIMED, *tests]
    os._exit(int(pytest.main(arguments, plugins=[SlowLast()])))


class SlowLast:
    """Lets the tests of `slow.txt` run after all others, which notice most mutants sooner."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sorts the tests, after `conftest.py` has marked the slow ones."""
        items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


if __name__ == "__main__":
    sys.exit(main())
