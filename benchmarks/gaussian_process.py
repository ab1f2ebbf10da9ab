"""Sample paths of a Gaussian process: a million points one by one, in batches, and on a grid.

Single points are asked of one path, in random order, by number and as arrays of one; memory and
time per point are shown as the path grows. The batch is a million grid values at once. The peer
draws a grid by a Cholesky factor, at a size that it can take.

    python benchmarks/gaussian_process.py --points 1000000
"""

import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import tyro

from sotto.privacy.mechanisms.functions.gaussian_process import Kernel, Paths
from sotto.privacy.mechanisms.functions.grid import sample_grid


@dataclass(frozen=True)
class Settings:
    """What to draw."""

    points: int = 1_000_000
    beta: float = 24.5
    repeats: int = 5
    cholesky: int = 2_000
    """Points of the peer, whose time grows with the cube."""


def seconds(function: Callable[[], object]) -> float:
    """CPU seconds, so that other processes on the machine do not count."""
    began = time.process_time()
    function()
    return time.process_time() - began


def resident() -> int:
    """Bytes of this process in memory (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def singles(points: np.ndarray, kernel: Kernel) -> None:
    """One path, point by point, shown each time it has grown tenfold."""
    print(f"{'stored':>12}{'seconds so far':>16}{'us/query':>10}{'bytes/point':>13}")
    path, done, spent, empty = Paths(kernel), 0, 0.0, resident()

    def ask(piece: list[float]) -> None:
        for point in piece:
            path.at(point)

    for size in (len(points) // 10**k for k in (3, 2, 1, 0)):
        took = 0.0
        for start in range(done, size, 1000):
            piece = points[start : min(size, start + 1000)].tolist()
            took += seconds(partial(ask, piece))
        spent += took
        per_point = (resident() - empty) / size
        print(f"{size:>12,}{spent:>16.2f}{1e6 * took / (size - done):>10.2f}{per_point:>13.0f}")
        done = size


def main(settings: Settings) -> None:
    generator = np.random.default_rng(0)
    scattered = generator.random(settings.points)
    grid = np.linspace(0.0, 1.0, settings.points)
    kernel = Kernel(beta=settings.beta, sigma=1.0)
    print(f"{os.cpu_count()} cores (load {os.getloadavg()[0]:.1f}), CPU seconds\n")
    singles(scattered, kernel)

    def arrays_of_one() -> None:
        path = Paths(kernel)
        for point in scattered:
            path(point[None])

    half = Paths(kernel)
    half(scattered)
    small = settings.cholesky
    coarse = np.linspace(0.0, 1.0, small)
    distance = np.abs(coarse[:, None] - coarse)
    tasks: dict[str, tuple[Callable[[], object], int]] = {
        "arrays of one point": (arrays_of_one, 1),
        "grid, one batch": (lambda: Paths(kernel)(grid), settings.repeats),
        "grid, asked again": (lambda: half(scattered), settings.repeats),
        "random order, one batch": (
            lambda: Paths(kernel)(scattered),
            settings.repeats,
        ),
        "grid, two paths": (lambda: Paths(kernel, 2)(grid), settings.repeats),
        "grid 1000 x 1000": (
            lambda: sample_grid([np.linspace(0, 1, 1000)] * 2, settings.beta, 1.0, generator),
            settings.repeats,
        ),
        f"Cholesky, {small} points": (
            lambda: np.linalg.cholesky(np.exp(-settings.beta * distance) + 1e-9 * np.eye(small)),
            settings.repeats,
        ),
    }
    print(f"\n{settings.points:,} points:")
    for name, (run, repeats) in tasks.items():
        print(f"{name:<26}{median(seconds(run) for _ in range(repeats)):>8.3f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
