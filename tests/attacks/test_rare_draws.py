"""A sampling rate that is no multiple of 2^-53: who is drawn must not be more likely than stated.

A coin in float64 is k 2^-53. Below a rate of 1e-17 lies k = 0, which comes up eleven times as
often. Nothing charged for that; it is far below every delta that the accountant resolves.
"""

import math
from typing import Any

import numpy as np
import pytest

from sotto.privacy.mechanisms.correlated import NoiseSequence
from sotto.privacy.mechanisms.gaussian import Grid
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.release.draws import Draws, batches
from sotto.privacy.statements import Correlation, Poisson

SIDE = 2.0**-53


class Coins:
    """A source whose coins are all the same; noise is noise."""

    def __init__(self, coin: float) -> None:
        self.coin = coin
        self._real = GeneratorSource(0)

    def next(self) -> Any:
        real, coin = self._real.next(), self.coin

        class One:
            def random(self, shape: Any) -> np.ndarray:
                return np.full(shape, coin)

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        return One()


def drawn(rate: float, coin: float) -> bool:
    participation = Poisson(sampling_rate=rate, population=3)
    draws = Draws(
        Coins(coin),  # type: ignore[arg-type]
        NoiseSequence(Correlation(), 1),
        {"g": 1},
        {"g": 1.0},
        {"g": Grid(2.0**-20)},
        runs=1,
        horizon=1,
        chunk=1,
        participation=participation,
        batches=batches(participation, None, 1),
        pool=None,
        unit=(),
    )
    persons = draws.take(1).persons
    assert persons is not None
    return bool((persons >= 0).any())


@pytest.mark.unchecked_types
@pytest.mark.parametrize("rate", [1e-17, 1e-12, 0.001, 0.3, 0.5, 1 - 2**-53])
def test_coins_below_a_rate_are_no_more_than_it_says(rate: float) -> None:
    sides = math.floor(rate / SIDE)  # how many of the 2^53 coins may be drawn
    assert not drawn(rate, sides * SIDE)
    assert sides == 0 or drawn(rate, (sides - 1) * SIDE)
