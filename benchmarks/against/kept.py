"""Kept results of the comparison, one JSON file with a room after the other; medians, ratios."""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Case = Callable[[], float]
"""Measures once and returns a rate."""

PACKAGES = (
    *("jax", "jax-privacy", "dp-accounting", "torch", "opacus"),
    *("stable-baselines3", "rejax", "gymnax", "gymnasium", "scikit-learn"),
)


def require(*modules: str) -> None:
    """Refuses to begin where a peer is not installed.

    Raises:
        SystemExit: one is missing; the message says how to install it.
    """
    if missing := [name for name in modules if find_spec(name) is None]:
        raise SystemExit(
            f"this compares with {', '.join(missing)}, which is not installed: run `make bench`, "
            "or install requirements/benchmarks.lock beside requirements/dev.lock"
        )


def machine() -> str:
    """Returns the machine in words: cores, processor, memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processor, memory = platform.machine(), ""
    cpu, total = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    if cpu.exists():
        names = [one for one in cpu.read_text().splitlines() if one.startswith("model name")]
        processor = names[0].partition(":")[2].strip() if names else processor
    if total.exists():
        memory = f", {int(total.read_text().split()[1]) / 2**20:.0f} GiB of memory"
    return f"{cores} cores of {processor}{memory}"


def commit() -> str:
    """Returns the commit of the checkout, or "unknown" outside one."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def load(path: Path) -> dict[str, Any]:
    """Returns the kept rooms; none if there is no file yet."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def keep(path: Path, room: str, rows: list[Row], *, quick: bool, seconds: float) -> None:
    """Adds a finished room to the kept ones, in place of an earlier one of the same name."""
    kept = load(path)
    kept[room] = {
        "rows": rows,
        "quick": quick,
        "seconds": round(seconds, 1),
        "machine": machine(),
        "commit": commit(),
        "load": round(os.getloadavg()[0], 2),
        "versions": {name: version(name) for name in PACKAGES},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(kept, indent=1) + "\n")
    new.replace(path)


def alternated(cases: dict[str, Case], repeats: int) -> dict[str, list[float]]:
    """Measures every case `repeats` times, turn by turn, so that all meet the same moments."""
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(repeats):
        for name, case in cases.items():
            rates[name].append(case())
            print(f"  {repeat + 1}/{repeats}  {name}: {rates[name][-1]:,.0f}", flush=True)
    return rates


def rate(work: Callable[[], int]) -> Case:
    """Returns a case: the number that the work returns, divided by the seconds it took."""

    def case() -> float:
        begin = time.perf_counter()
        done = work()
        return done / (time.perf_counter() - begin)

    return case


def median(values: Sequence[float]) -> float:
    """Returns the median."""
    return float(statistics.median(values))


def ratio(rates: Sequence[float], peer: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median of the ratios of each turn, and the smallest and the largest one."""
    each = [one / other for one, other in zip(rates, peer, strict=True)]
    return median(each), min(each), max(each)
