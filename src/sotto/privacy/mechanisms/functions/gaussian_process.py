"""Sample paths of the Gaussian process with kernel sigma^2 exp(-beta |x - y|_1).

* `Paths`: on a line, at any points in any order; a point keeps its value.
* `grid.sample_grid`: on a grid in any number of dimensions, at once.
* `scattered.ScatteredPaths`: at scattered points in any number of dimensions.

Values are integers on a grid. Each is its conditional mean, computed in float64 and rounded, plus a
draw of `noise.rounded_normal` with the conditional standard deviation (`values`). They have the
joint law of the process. Points too close for float64 get some more noise (`rounding`). Noise comes
from the operating system's entropy unless a generator is given.

Guarantee:
    The unit is the one of the function's release (docs/privacy.md, section 13). On a line the
    process is Markov. Given the nearest stored points at distances u and w, the value between them
    is normal with mean A z_left + B z_right and variance sigma^2 V,

        A = e^(-beta u) (1 - e^(-2 beta w)) / D    B = e^(-beta w) (1 - e^(-2 beta u)) / D
        V = (1 - e^(-2 beta u)) (1 - e^(-2 beta w)) / D     D = 1 - e^(-2 beta (u + w))

    where a side without a point is at distance infinity: beyond the ends the value depends on the
    nearest end alone. The points of a batch that share a gap follow one another from left to right.
    The standard deviation is at least `LEAST_SPREAD` sigma, and scattered points have additional
    independent noise of variance `NUGGET` sigma^2. So no variance is a difference of near numbers,
    and the noise is at least that of the process. The proofs are Theorems 6 and 6a of
    docs/privacy.md, section 13.

Source: Wang and Hegde 2019, Equation (2). To the right of the last stored point, their code takes
the *first* stored point for the nearest one. For g(.2), g(.8), g(.9) it has Cov(g(.8), g(.9)) =
.50, not .905.
"""

import math
from array import array
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64
from pydantic import Field

from sotto.frozen import FrozenModel
from sotto.privacy.mechanisms.functions import rounding as path_rounding
from sotto.privacy.mechanisms.functions.rounding import LEAST_SPREAD
from sotto.privacy.mechanisms.functions.sorted_points import SortedPoints
from sotto.privacy.mechanisms.functions.values import (
    FINEST,
    MOVED,
    Sample,
    line,
    power_below,
    recursion,
)
from sotto.privacy.mechanisms.noise import GeneratorSource, Singles, rounded_normal

_BATCH_SHARE = 200  # a batch below this part of the stored points is inserted point by point
_FEW = 8


class Kernel(FrozenModel):
    """The kernel sigma^2 exp(-beta |x - y|_1).

    Attributes:
        beta: inverse correlation length, from 2^-64 to 2^64.
        sigma: standard deviation at every point.
    """

    beta: float = Field(ge=path_rounding.SMALLEST_BETA, le=path_rounding.LARGEST_BETA)
    sigma: float = Field(gt=0, allow_inf_nan=False)


class Paths:
    """Independent sample paths on a line at shared points, one path for each action.

    Attributes:
        kernel: of each path.
        paths: number of paths.
        grid: spacing of the grid of values; by default 2^-40 of sigma.
    """

    def __init__(
        self,
        kernel: Kernel,
        paths: int = 1,
        generator: np.random.Generator | None = None,
        grid: float | None = None,
    ) -> None:
        if paths < 1:
            raise ValueError(f"there must be at least one path, got {paths}")
        self.kernel = kernel
        self.paths = paths
        self.grid = power_below(kernel.sigma) * FINEST if grid is None else grid
        self._generator = GeneratorSource().next() if generator is None else generator
        self._stored = SortedPoints(paths)
        self._singles = Singles(self._generator)

    def __len__(self) -> int:
        return len(self._stored)

    def __call__(self, points: Float[np.ndarray, " q"]) -> Float64[np.ndarray, "q paths"]:
        """Returns values at these points; a point that was asked before keeps its value."""
        points = line(points)
        if len(points) < _FEW or len(points) * _BATCH_SHARE <= len(self._stored):
            rows = [self.at(point) for point in points.tolist()]
            return np.array(rows, dtype=np.float64).reshape(-1, self.paths)
        if np.all(points[1:] > points[:-1]):
            return self._batch(points)
        distinct, back = np.unique(points, return_inverse=True)
        return self._batch(distinct)[back]

    def at(self, point: float) -> "array[float]":
        """Returns the values at one point, in O(log n)."""
        if not math.isfinite(point):
            raise ValueError(f"a point must be a finite number, got {point}")
        place = self._stored.place(point)
        left, right = place.left, place.right
        if place.known and right is not None:
            return right[1]
        weight_left, weight_right, spread = _bridge(
            self.kernel.beta,
            math.inf if left is None else point - left[0],
            math.inf if right is None else right[0] - point,
        )
        ratio = spread * self.kernel.sigma / self.grid
        values = array("d", bytes(8 * self.paths))
        for path in range(self.paths):
            mean = 0.0
            if left is not None:
                mean += weight_left * left[1][path]
            if right is not None:
                mean += weight_right * right[1][path]
            values[path] = (round(mean / self.grid) + self._singles.draw(ratio)) * self.grid
        self._stored.insert(place, point, values)
        return values

    def sample(self, points: Float[np.ndarray, " q"]) -> Sample:
        """Draws values at new points jointly; `insert` keeps them."""
        points = line(points)
        order = np.argsort(points)
        back = np.argsort(order)
        means, fresh, grid, rounding = self._draw(points[order])
        return Sample(means[back], fresh[back], grid, rounding)

    def rounding(self, points: Float[np.ndarray, " q"]) -> float:
        """Returns `Sample.rounding` of a sample at these points."""
        return self._rounding(self._gaps(np.sort(line(points))).spread)

    def insert(self, points: Float[np.ndarray, " q"], values: Float[np.ndarray, "q paths"]) -> None:
        """Keeps values at new points; later values are conditioned on them."""
        points = line(points)
        order = np.argsort(points)
        if len(points) * _BATCH_SHARE > len(self._stored):
            self._stored.merge(points[order], np.asarray(values, dtype=np.float64)[order])
            return
        for point, row in zip(points.tolist(), values, strict=True):
            place = self._stored.place(point)
            if place.known:
                raise ValueError(f"the path has a value at {point} already")
            self._stored.insert(place, point, array("d", row.tolist()))

    def _batch(self, points: Float64[np.ndarray, " q"]) -> Float64[np.ndarray, "q paths"]:
        """Returns values at sorted distinct points."""
        stored, values = self._stored.arrays()
        if not len(stored):
            drawn = self._draw(points).values
            self._stored.merge(points, drawn)
            return drawn
        position = np.searchsorted(stored, points)
        known = stored[np.minimum(position, len(stored) - 1)] == points
        result = np.empty((len(points), self.paths))
        result[known] = values[position[known]]
        result[~known] = self._draw(points[~known]).values
        self._stored.merge(points[~known], result[~known])
        return result

    def _gaps(self, points: Float64[np.ndarray, " q"]) -> "_Gaps":
        """Returns the gaps of sorted new points, from left to right within each gap."""
        stored, _ = self._stored.arrays()
        gap = np.searchsorted(stored, points)
        ends = np.concatenate([[-math.inf], stored, [math.inf]])
        first = np.diff(gap, prepend=-1) > 0
        before = np.where(first, ends[gap], np.roll(points, 1))
        return _Gaps(
            gap, first, *_bridges(self.kernel.beta, points - before, ends[gap + 1] - points)
        )

    def _rounding(self, spread: Float64[np.ndarray, " q"]) -> float:
        """Returns `Sample.rounding`; the weights of two neighbours add up to at most 1."""
        moved = 2 * MOVED * self.grid / (self.kernel.sigma * spread)
        return self.paths * float(np.sum(moved**2))

    def _draw(self, points: Float64[np.ndarray, " q"]) -> Sample:
        """Draws joint values at sorted new points, from left to right within each gap."""
        gap, first, weight_left, weight_right, spread = self._gaps(points)
        _, values = self._stored.arrays()
        ratios = spread * self.kernel.sigma / self.grid
        fresh = rounded_normal(self._generator, (len(points), self.paths), ratios[:, None])
        end_values = np.vstack([np.zeros(self.paths), values, np.zeros(self.paths)])
        means = weight_right[:, None] * end_values[gap + 1]
        means[first] += weight_left[first, None] * end_values[gap[first]]
        if len(points) > 1:
            weights = np.where(first, 0.0, weight_left)
            path = recursion(weights, means + fresh * self.grid)
            means[1:] += weights[1:, None] * path[:-1]
        return Sample(means, fresh, self.grid, self._rounding(spread))


class _Gaps(NamedTuple):
    """Gap of each point, whether it is the first point there, and its bridge."""

    gap: Int64[np.ndarray, " q"]
    first: np.ndarray
    weight_left: Float64[np.ndarray, " q"]
    weight_right: Float64[np.ndarray, " q"]
    spread: Float64[np.ndarray, " q"]


def _bridge(beta: float, left: float, right: float) -> tuple[float, float, float]:
    """Returns A, B and the standard deviation between two points at these distances."""
    open_left, open_right = -math.expm1(-2 * beta * left), -math.expm1(-2 * beta * right)
    whole = -math.expm1(-2 * beta * (left + right))
    return (
        math.exp(-beta * left) * open_right / whole,
        math.exp(-beta * right) * open_left / whole,
        max(LEAST_SPREAD, math.sqrt(open_left * open_right / whole)),
    )


def _bridges(
    beta: float, left: Float64[np.ndarray, " q"], right: Float64[np.ndarray, " q"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the numbers of `_bridge` for many points."""
    open_left, open_right = -np.expm1(-2 * beta * left), -np.expm1(-2 * beta * right)
    whole = -np.expm1(-2 * beta * (left + right))
    return (
        np.exp(-beta * left) * open_right / whole,
        np.exp(-beta * right) * open_left / whole,
        np.maximum(LEAST_SPREAD, np.sqrt(open_left * open_right / whole)),
    )
