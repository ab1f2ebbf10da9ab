"""sotto against other libraries on their own ground, in one command: docs/benchmarks.md.

    python benchmarks/peers.py                 all rooms, about 40 minutes on two quiet cores
    python benchmarks/peers.py --quick         every room in short, into runs/benchmarks
    python benchmarks/peers.py --only speed    one room again; the others are kept
    python benchmarks/peers.py --render        the page again, from the kept results
    python benchmarks/peers.py --json          the kept results on standard output

Rooms: ppo, private-rl, speed, accuracy, accounting. A room is kept in docs/benchmarks.json when
it is finished, so an interrupted run loses one room. `make bench` installs the peers first.
"""

import importlib
import json
import os
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import tyro
from against.kept import keep, load, require
from against.page import page
from against.pictures import draw

ROOT = Path(__file__).parents[1]
ROOMS = {
    "ppo": ("ppo", "measure", ("stable_baselines3", "torch", "rejax")),
    "private-rl": ("private_rl", "measure", ("jax_privacy",)),
    "speed": ("supervised", "speed", ("opacus", "torch", "sklearn")),
    "accuracy": ("supervised", "accuracy", ("opacus", "torch", "sklearn")),
    "accounting": ("accounting", "measure", ("opacus", "torch")),
}
"""Module and function of each room, and the peers that it needs."""


@dataclass(frozen=True)
class Settings:
    """What is measured, and where it is kept."""

    only: Literal["ppo", "private-rl", "speed", "accuracy", "accounting"] | None = None
    """One room; the kept results of the others stay."""
    quick: bool = False
    """Fewer and shorter repeats, whose numbers mean nothing, kept apart in runs/benchmarks."""
    render: bool = False
    """Measure nothing; write page and pictures from the kept results."""
    json: bool = False
    """Print the kept results as one JSON object at the end."""


def main(asked: Settings) -> None:
    folder = ROOT / "runs" / "benchmarks" if asked.quick else ROOT / "docs"
    kept = folder / "benchmarks.json"
    chosen = [] if asked.render else [asked.only] if asked.only else list(ROOMS)
    require(*sorted({name for room in chosen for name in ROOMS[room][2]}))
    with redirect_stdout(sys.stderr):
        for room in chosen:
            print(f"{room}", flush=True)
            module, function, _ = ROOMS[room]
            began = time.perf_counter()
            rows = getattr(importlib.import_module(f"against.{module}"), function)(asked.quick)
            keep(kept, room, rows, quick=asked.quick, seconds=time.perf_counter() - began)
        found = load(kept)
        if not found:
            raise SystemExit(f"nothing is kept in {kept} yet: run without --render first")
        (folder / "benchmarks.md").write_text(page(found, draw(found, folder / "figures")))
    print(json.dumps(found) if asked.json else f"The page: {folder / 'benchmarks.md'}")


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
