"""Cells: a public partition of observations into finitely many states.

A column of categories has a cell for each category. A column of numbers is cut into equal parts of
its declared bounds. The cells are all combinations of these.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from sotto.algorithms.evaluation.densities import Density
from sotto.algorithms.evaluation.policies import Constant, Target, largest_probabilities
from sotto.data.imports.declaration import Categories, Declaration

_MOST = 2**20
"""Most numbers in the table of transitions."""


class Cells(eqx.Module):
    """The map from an observation to the number of its cell."""

    low: Float[Array, " obs"]
    """Lower bound of each entry of an observation."""
    rate: Float[Array, " obs"]
    """Parts in a unit of each entry."""
    last: Float[Array, " obs"]
    """Number of the last part of each entry."""
    stride: Float[Array, " obs"]
    """Cells between a part of an entry and the next one."""
    middles: Float[Array, "cells obs"]
    """An observation in the middle of each cell."""
    finite: bool = eqx.field(static=True)
    """Whether all observations in a cell are the same."""

    @property
    def count(self) -> int:
        """Number of cells."""
        return int(self.middles.shape[0])

    @classmethod
    def of(cls, declaration: Declaration, parts: tuple[int, ...]) -> "Cells":
        """Returns the cells of a log.

        Args:
            declaration: public facts about the log, with actions that are categories.
            parts: number of parts of each column of numbers, or one for all of them.

        Raises:
            ValueError: the parts do not fit the columns, or there are too many cells.
        """
        numbers = [one.column for one in declaration.observation if not isinstance(one, Categories)]
        if len(parts) == 1:
            parts *= max(len(numbers), 1)
        if len(parts) != len(numbers) or any(one < 1 for one in parts):
            wanted = (
                f"one whole number for each of {', '.join(numbers)} or one for all, such as 4"
                if numbers
                else "none, since all observations of this log are categories"
            )
            raise ValueError(
                f"marginalised needs finitely many cells of observations; --cells must be {wanted}"
            )
        remaining = iter(parts)
        sizes = [
            len(one.categories) if isinstance(one, Categories) else next(remaining)
            for one in declaration.observation
        ]
        count, actions = math.prod(sizes), int(declaration.action_space.n)
        if declaration.horizon * count * actions * (count + 1) > _MOST:
            raise ValueError(
                f"{count:,} cells, {actions} actions and {declaration.horizon} steps make a table "
                f"of more than {_MOST:,} numbers; give fewer --cells, or import fewer columns"
            )
        places = np.indices(sizes).reshape(len(sizes), count)
        low, rate, last, stride, middles = [], [], [], [], []
        for number, (column, size) in enumerate(zip(declaration.observation, sizes, strict=True)):
            step = math.prod(sizes[number + 1 :])
            if isinstance(column, Categories):  # one entry for each category, 0 or 1
                low += [0.0] * size
                rate += [1.0] * size
                last += [1.0] * size
                stride += [step * one for one in range(size)]
                middles += list(np.eye(size)[places[number]].T)
                continue
            width = (column.high - column.low) / size
            low, rate, last = [*low, column.low], [*rate, 1 / width], [*last, size - 1]
            stride.append(step)
            middles.append(column.low + (places[number] + 0.5) * width)
        return cls(
            low=jnp.asarray(low, jnp.float32),
            rate=jnp.asarray(rate, jnp.float32),
            last=jnp.asarray(last, jnp.float32),
            stride=jnp.asarray(stride, jnp.float32),
            middles=jnp.asarray(np.stack(middles, axis=-1), jnp.float32),
            finite=not numbers,
        )

    def __call__(self, observations: Float[Array, "steps obs"]) -> Int[Array, " steps"]:
        """Returns the number of the cell of each observation."""
        parts = jnp.clip(jnp.floor((observations - self.low) * self.rate), 0, self.last)
        return jnp.sum(parts * self.stride, axis=-1).astype(jnp.int32)


class Correction(eqx.Module):
    """The returns and ratios of one policy in the cells."""

    cells: Cells
    expected: Float[Array, "T S A"]
    """Return Q_t from each step on."""
    ratios: Float[Array, "T S+1"]
    """Ratio omega_t of the policy's and the log's probability of a cell; the last one is that of
    being gone."""

    def __call__(self, observations: Float[Array, "T obs"]) -> Float[Array, "T A"]:
        """Returns the expected return of each action, from each step on."""
        here = one_hot(self.cells(observations), self.cells.count)
        return jnp.sum(here[:, :, None] * self.expected, axis=1)

    def ratio(
        self, observations: Float[Array, "T obs"], present: Bool[Array, " T"]
    ) -> Float[Array, " T"]:
        """Returns omega_t at each step of a person."""
        here = one_hot(self.cells(observations), self.cells.count)
        return jnp.where(present, jnp.sum(here * self.ratios[:, :-1], axis=1), self.ratios[:, -1])


def one_hot(numbers: Int[Array, " n"], count: int) -> Float[Array, "n count"]:
    """Returns a 1 at the place of each number."""
    return (numbers[:, None] == jnp.arange(count, dtype=numbers.dtype)).astype(jnp.float32)


def probabilities(policy: Target, cells: Cells) -> Float[np.ndarray, "S A"]:
    """Returns the probability of each action in the middle of each cell.

    Raises:
        ValueError: one is not a finite number.
    """
    assert not isinstance(policy, Density)
    found = np.asarray(policy(cells.middles), np.float64)
    if not np.isfinite(found).all():
        raise ValueError("a policy has probabilities that are not finite numbers")
    return found


class Reach(NamedTuple):
    """The most that a person's log can add up to, whatever it is.

    Attributes:
        low, high: bounds of the corrected value, with clipped weights.
        lost: bound of the sum of lost weights times errors.
        error: bound of the discounted error of one step.
    """

    low: float
    high: float
    lost: float
    error: float


def reach(
    correction: Correction,
    policy: Target,
    propensity: float,
    clip: float,
    rewards: tuple[float, float],
    discount: float,
) -> Reach:
    """Returns bounds over all logs, by dynamic programming over the cells.

    If the policy may differ within a cell, its probabilities may be any up to the largest ones, and
    its return in the cell is between those of the actions.

    Args:
        correction: returns and ratios.
        policy: the policy.
        propensity: lower bound of the probabilities in the log.
        clip: largest weight.
        rewards: bounds of a reward.
        discount: factor of later rewards.
    """
    least = most = probabilities(policy, correction.cells)
    exact = correction.cells.finite or isinstance(policy, Constant)
    if not exact:
        least = np.zeros_like(least)
        most = np.broadcast_to(largest_probabilities(policy, least.shape[1]), least.shape)
    expected = np.asarray(correction.expected, np.float64)
    ratios = np.asarray(correction.ratios, np.float64)[:, :-1, None]
    steps, count, _ = expected.shape
    later = np.zeros((2, steps + 1, count + 1))
    if exact:
        later[:, :-1, :-1] = np.sum(least * expected, axis=-1)
    else:
        later[0, :-1, :-1], later[1, :-1, :-1] = expected.min(axis=-1), expected.max(axis=-1)
    worst, best = (
        reward + discount * one[1:, None, None, :] - expected[..., None]
        for reward, one in zip(rewards, later, strict=True)
    )
    small = np.minimum(ratios * least, clip)[..., None]
    whole = (ratios * most / propensity)[..., None]
    large = np.minimum(whole, clip)
    factors = (discount ** np.arange(steps))[:, None, None, None]
    high = _largest_sum(factors * np.maximum(small * best, large * best))
    low = -_largest_sum(-factors * np.minimum(small * worst, large * worst))
    size = np.maximum(np.abs(worst), np.abs(best))
    lost = _largest_sum(factors * (whole - large) * size)
    return Reach(
        low=float(np.min(later[0, 0, :-1] + low)),
        high=float(np.max(later[1, 0, :-1] + high)),
        lost=float(np.max(lost)),
        error=float(np.max(factors * size)),
    )


def _largest_sum(gains: Float[np.ndarray, "T S A S+1"]) -> Float[np.ndarray, " S"]:
    """Returns the largest sum of gains along a path, from each first cell."""
    after = np.zeros(gains.shape[-1])
    for gain in gains[::-1]:
        after[:-1] = np.max(gain + after, axis=(1, 2))
    return after[:-1]
