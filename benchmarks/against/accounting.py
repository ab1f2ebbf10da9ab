"""Epsilon of Poisson-sampled Gaussian releases by several accountants, and how long each takes.

The true epsilon lies between two privacy loss distributions of dp_accounting on a fine grid, one
rounded down and one rounded up. An accountant that returns less than the lower one is wrong.
"""

import time
from collections.abc import Callable
from typing import Any

import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant

from against.kept import Row, median
from sotto.privacy.accounting import loss_distributions
from sotto.privacy.accounting.composition import SampledGaussian, compose

DELTA = 1e-5
CASES = (
    (0.01, 1.0, 1000),
    (0.01, 0.7, 10_000),
    (0.178, 2.0, 168),
    (0.05, 0.6, 100),
    (0.5, 8.0, 500),
)
"""Sampling rate, noise multiplier, number of releases."""
FINE = 2e-5


def bounds(rate: float, noise: float, count: int) -> tuple[float, float]:
    """Returns a lower and an upper bound on the true epsilon."""
    found = [
        pld.from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            value_discretization_interval=FINE,
            pessimistic_estimate=pessimistic,
            use_connect_dots=False,
        )
        .self_compose(count)
        .get_epsilon_for_delta(DELTA)
        for pessimistic in (False, True)
    ]
    return float(found[0]), float(found[1])


def sotto(rate: float, noise: float, count: int) -> float:
    for kept in (loss_distributions._pld, loss_distributions._epsilon):
        kept.cache_clear()
    event = SampledGaussian(noise_multiplier=noise, sampling_rate=rate, count=count)
    return compose([event]).epsilon(DELTA)


def by_dp_accounting(accountant: Callable[[], Any], rate: float, noise: float, count: int) -> float:
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    return float(accountant().compose(event, count).get_epsilon(DELTA))


def by_opacus(name: str, rate: float, noise: float, count: int) -> float:
    from opacus.accountants import create_accountant

    accountant = create_accountant(mechanism=name)
    accountant.history = [(noise, rate, count)]
    return float(accountant.get_epsilon(delta=DELTA))


ACCOUNTANTS: dict[str, Callable[[float, float, int], float]] = {
    "sotto": sotto,
    "dp_accounting PLD": lambda *case: by_dp_accounting(PLDAccountant, *case),
    "dp_accounting RDP": lambda *case: by_dp_accounting(RdpAccountant, *case),
    "Opacus PRV": lambda *case: by_opacus("prv", *case),
    "Opacus RDP": lambda *case: by_opacus("rdp", *case),
}


def measure(quick: bool) -> list[Row]:
    """Returns a row for each accountant and case."""
    rows: list[Row] = []
    for case in CASES[2:4] if quick else CASES:
        low, high = bounds(*case)
        for name, accountant in ACCOUNTANTS.items():
            times, epsilon = [], 0.0
            for _ in range(2 if quick else 5):
                begin = time.perf_counter()
                epsilon = accountant(*case)
                times.append(1e3 * (time.perf_counter() - begin))
            rows.append(
                {
                    "name": name,
                    "case": list(case),
                    "epsilon": epsilon,
                    "milliseconds": median(times),
                    "range": [min(times), max(times)],
                    "true": [low, high],
                }
            )
            print(f"  {case} {name}: {epsilon:.4f} (true {low:.4f} to {high:.4f})", flush=True)
    return rows
