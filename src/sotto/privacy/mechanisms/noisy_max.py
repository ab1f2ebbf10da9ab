"""Noisy maximum: chooses one of many candidates, and releases nothing but the choice.

Each candidate has a secret value. Independent one-sided noise, Exp(rate) per unit of sensitivity,
is added to each, and the largest sum wins (McKenna and Sheldon 2020; Ding et al. 2021). Values are
rounded to a public grid, noise is geometric on it and sampled exactly from random integers, and
the first of several winners counts.

Guarantee:
    The unit is whatever moves the difference of any two values by at most `sensitivity`. Then
    P(choice) <= e^epsilon P'(choice) for every candidate, without any delta, however many
    candidates there are. Rounding to the grid and float64 errors up to a quarter of a step in each
    value are paid for. The proof is Theorem 6b of docs/privacy.md, section 13.
"""

import math

import numpy as np
from jaxtyping import Float, Int64
from pydantic import Field, field_validator

from sotto.frozen import FrozenModel
from sotto.privacy.accounting.events import ApproximateDP
from sotto.privacy.mechanisms.sparse_vector import GRID, RATE_GRID, UNIT, geometric, rounded_rate

_MOVED = 3
"""Steps by which rounding (2) and float64 (1) move the difference of two values between worlds."""

_UP = 1 + 1e-9
"""Factor of sensitivities that covers the float64 rounding of sums of up to `MOST` terms."""

MOST = 2**22
"""Largest number of secret numbers in a value."""

_LEAST, _LARGEST = 1e-200, 1e200  # sensitivities whose grid float64 represents in full precision


class NoisyMax(FrozenModel):
    """The noise of one choice, and its cost.

    Attributes:
        candidates: number of candidates.
        sensitivity: most that the difference of two values moves between neighbours.
        rate: inverse scale of the noise, per unit of sensitivity; a multiple of 2^-30.
    """

    candidates: int = Field(ge=2)
    sensitivity: float = Field(ge=_LEAST, le=_LARGEST)
    rate: float = Field(gt=0, le=64)

    @field_validator("rate")
    @classmethod
    def _on_the_grid(cls, value: float) -> float:
        if value != rounded_rate(value):
            raise ValueError(f"the rate is a multiple of 2^-30, got {value}")
        return value

    @classmethod
    def calibrated(cls, candidates: int, sensitivity: float, epsilon: float) -> "NoisyMax":
        """Returns the choice with the least noise that costs at most `epsilon`.

        Raises:
            ValueError: if epsilon is below 1e-9 or not finite, or the sensitivity is below 1e-200
                or above 1e200.
        """
        if not 1e-9 <= epsilon < math.inf:
            raise ValueError(
                f"a choice costs an epsilon of at least 1e-9, and not {epsilon:g}; take more"
            )
        if not _LEAST <= sensitivity <= _LARGEST:
            raise ValueError(
                f"a choice needs a sensitivity from {_LEAST:g} to {_LARGEST:g}, got {sensitivity:g}"
            )
        rate = min(64.0, rounded_rate(epsilon / _cost(1.0)))
        if _cost(rate) > epsilon:  # by the rounding of the division
            rate -= RATE_GRID
        return cls(candidates=candidates, sensitivity=sensitivity, rate=rate)

    @property
    def epsilon(self) -> float:
        """Cost of one choice, with delta 0."""
        return _cost(self.rate)

    def event(self, releases: int) -> ApproximateDP:
        """Returns the cost of `releases` choices, each with fresh noise."""
        return ApproximateDP(epsilon=self.epsilon, delta=0.0, count=releases)

    @property
    def grid(self) -> float:
        """Spacing of the public grid of values."""
        return self.sensitivity * GRID

    def resolves(self, error: float) -> bool:
        """Whether values that are computed with errors up to `error` are covered."""
        return 4 * error <= self.grid

    def on_grid(self, values: Float[np.ndarray, "*any"]) -> Int64[np.ndarray, "*any"]:
        """Returns values in steps of the grid, rounded."""
        return np.asarray(np.rint(values / self.grid).astype(np.int64))

    def choose(
        self, values: Float[np.ndarray, "*trials candidates"], generator: np.random.Generator
    ) -> Int64[np.ndarray, "*trials"]:
        """Draws fresh noise, and returns the number of the winner."""
        steps = self.on_grid(values)
        noise = geometric(generator, self.rate, steps.shape)
        return np.asarray(np.argmax(steps + noise, axis=-1))


def _cost(rate: float) -> float:
    return rate * (UNIT + _MOVED) / UNIT


# --- values that are public weights times secret numbers -----------------------------------------


def moved_by_all(weights: Float[np.ndarray, "candidates n"], radius: float) -> float:
    """Bounds the difference of two values if every secret number moves by at most the radius."""
    apart = max(float(np.abs(weights - one).sum(axis=1).max()) for one in weights)
    return radius * apart * _UP


def moved_by_one(weights: Float[np.ndarray, "candidates n"], radius: float) -> float:
    """Bounds the difference of two values if one secret number moves by at most the radius."""
    return radius * float((weights.max(axis=0) - weights.min(axis=0)).max()) * _UP


def values_of(
    weights: Float[np.ndarray, "candidates n"], secret: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " candidates"]:
    """Returns the weighted sums of the secret numbers. The sums of products are rounded once."""
    return np.array([math.fsum(row * secret) for row in weights])


def largest_error(weights: Float[np.ndarray, "candidates n"], largest: float) -> float:
    """Bounds the float64 error of `values_of`, and of their division by the grid, times the grid.

    Products, sums and quotients are off by 2^-53 of their magnitude each.

    Args:
        weights: public weights.
        largest: bound on the magnitude of the secret numbers.
    """
    total = float(np.abs(weights).sum(axis=1).max())
    return 4 * 2.0**-53 * total * largest * _UP
