"""Jobs whose results are kept as they finish, side by side in processes.

A job names everything that its result depends on; what is kept is not made again, so that a stopped
command goes on where it was.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from sotto.processes import finished

_SECONDS_BETWEEN_REPORTS = 15

Say = Callable[[str], None]
"""Told in words what happens."""


class Job(Protocol):
    """Something to train, and to keep. It is sent to other processes; str() says what it is."""

    @property
    def folder(self) -> Path:
        """Where results are kept."""

    @property
    def done(self) -> bool:
        """Whether all of it is kept."""

    @property
    def seconds(self) -> float:
        """About how long the rest takes."""

    def train(self) -> None:
        """Trains what is not kept, and keeps it."""


def train_all(phases: Sequence[Sequence[Job]], workers: int, say: Say) -> None:
    """Trains what is not kept, one phase after another.

    Args:
        phases: jobs of a phase may read what those before have kept.
        workers: processes; 1 trains in this one.
        say: told beforehand how long it takes, and then what is done.
    """
    every = [job for phase in phases for job in phase]
    for folder in {job.folder for job in every}:
        folder.mkdir(parents=True, exist_ok=True)
    missing = [[job for job in phase if not job.done] for phase in phases]
    left = [job for phase in missing for job in phase]
    say(_announcement(len(every) - len(left), left, workers))
    started, count = time.monotonic(), 0
    for phase in missing:
        for job, _ in finished(_train, phase, workers):
            count += 1
            seconds = time.monotonic() - started
            say(f"{count}/{len(left)} done: {job}; {seconds:.0f} s so far")


def _train(job: Job) -> None:
    job.train()


def _announcement(kept: int, missing: Sequence[Job], workers: int) -> str:
    had = f" ({kept} kept from before)" if kept else ""
    if not missing:
        return f"nothing to train{had}"
    at_once = min(workers, len(missing))
    minutes = math.ceil(sum(job.seconds for job in missing) / at_once / 60)
    trainings = "1 training" if len(missing) == 1 else f"{len(missing)} trainings"
    return (
        f"{trainings}{had}, about {minutes} min with {at_once} "
        f"{'process' if at_once == 1 else 'processes'}; stop any time, the same command goes on"
    )


def reporting(name: str) -> Callable[[float], None]:
    """Progress on stderr, now and then."""
    last = time.monotonic()

    def report(share: float) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_REPORTS:
            last = time.monotonic()
            print(f"    {name}: {share:.0%}", file=sys.stderr, flush=True)

    return report


def write_json(path: Path, values: Any) -> None:
    """Replaces the file at once; what is not finite becomes a string or null, as JSON has none."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(plain(values), indent=1, allow_nan=False) + "\n")
    partial.replace(path)


def plain(value: Any) -> Any:
    """Plain data without numbers that JSON has not: infinity as "inf", NaN as null."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
