"""Drawing a million Dirichlet policies: here, by numpy one row at a time, and by numpy's gammas.

All three draw from the same bit generator. Each is timed several times, turn by turn, and the
medians are compared within one run.

    python benchmarks/dirichlet_sampling.py --rows 1000000 --actions 6
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import tyro

from sotto.privacy.mechanisms.dirichlet.sampling import log_dirichlet
from sotto.privacy.mechanisms.dirichlet.simplex import by_blocks
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.mechanisms.policies import Dirichlet, TruncatedDirichlet


@dataclass(frozen=True)
class Settings:
    """What to draw."""

    rows: int = 1_000_000
    actions: int = 6
    concentration: float = 5.0
    floor: float = 0.05
    loop_rows: int = 50_000
    """Rows of the loop, which is too slow for all of them; its time is scaled up."""
    repeats: int = 7


def draws(parameters: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """What is compared: Dirichlet rows that are finite at any concentration."""
    return np.asarray(np.exp(log_dirichlet(parameters, generator)))


def gammas(parameters: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """numpy's vectorised gamma variates, normalised: 0/0 at tiny concentrations."""
    variates = generator.standard_gamma(parameters)
    return np.asarray(variates / variates.sum(axis=1, keepdims=True))


def loop(parameters: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """numpy's Dirichlet, one row at a time."""
    return np.stack([generator.dirichlet(row) for row in parameters])


def seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main(settings: Settings) -> None:
    generator = GeneratorSource().next()
    policies = generator.dirichlet(np.ones(settings.actions), settings.rows)
    mechanism = Dirichlet(
        actions=settings.actions, concentration=settings.concentration, floor=settings.floor
    )
    parameters = settings.concentration * mechanism.restrict(policies)
    some = parameters[: settings.loop_rows]
    scale = settings.rows / len(some)
    contestants: dict[str, tuple[Callable[[], object], float]] = {
        "numpy, row by row": (partial(loop, some, generator), scale),
        "numpy, gammas": (partial(gammas, parameters, generator), 1.0),
        "sotto, draws": (partial(by_blocks, draws, parameters, generator), 1.0),
        "sotto, answers": (partial(mechanism.answer, policies, generator), 1.0),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(settings.repeats):
        for name, (run, factor) in contestants.items():
            times[name].append(factor * seconds(run))

    slowest, vectorised = median(times["numpy, row by row"]), median(times["numpy, gammas"])
    print(
        f"{settings.rows:,} rows of {settings.actions}, concentration {settings.concentration:g}, "
        f"{os.cpu_count()} cores (load {os.getloadavg()[0]:.1f}), medians of {settings.repeats}:"
    )
    print(f"{'':<20}{'seconds':>9}{'x row by row':>14}{'x gammas':>10}")
    for name, taken in times.items():
        one = median(taken)
        print(f"{name:<20}{one:>9.3f}{slowest / one:>14.1f}{vectorised / one:>10.2f}")
    print("answers: rows checked, mixed, drawn and rounded to the public grid.")

    batch = policies[:64]
    truncated = TruncatedDirichlet.sized(
        actions=settings.actions,
        concentration=1.0,
        floor=0.6 / settings.actions,
        threshold=0.06 / settings.actions,
    )
    print("\nBatches of 64 rows:")
    for name, answer in (("dirichlet", mechanism.answer), ("truncated", truncated.answer)):
        taken = [seconds(partial(answer, batch, generator)) for _ in range(200)]
        print(f"{name:<20}{1e6 * median(taken):>9.0f} us  ({64 / median(taken):,.0f} answers/s)")


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
