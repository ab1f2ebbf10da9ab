"""Sample paths of the Gaussian process with kernel sigma^2 exp(-beta |x - y|_1).

* `Path`, `Paths`: on a line, wherever they are asked, in any order; a point keeps its value.
* `sample_grid`: on a grid in any number of dimensions, at once.
* `ScatteredPaths`: at scattered points in any number of dimensions.

What has been asked so far has the joint law of the process, but for noise that is added between
points too close for float64 (`path_rounding`); entropy is the operating system's unless a generator
is given.

Guarantee:
    On a line the process is Markov: given the nearest stored points at distances u and w, the
    value between them is normal with mean A z_left + B z_right and variance sigma^2 V,

        A = e^(-beta u) (1 - e^(-2 beta w)) / D    B = e^(-beta w) (1 - e^(-2 beta u)) / D
        V = (1 - e^(-2 beta u)) (1 - e^(-2 beta w)) / D     D = 1 - e^(-2 beta (u + w))

    where a side without a point is at distance infinity: beyond the ends the value depends on the
    nearest end alone. The points of a batch that share a gap follow one another from left to right.
    The standard deviation is at least `LEAST_SPREAD` sigma; scattered points have independent noise
    of variance `NUGGET` sigma^2 on top of the process. So no variance is a difference of near
    numbers, and the noise is at least the process's (docs/privacy.md, Theorem 6a).

Source: Wang and Hegde 2019, Equation (2). Their code takes the *first* stored point for the nearest
one to the right of the last, so that g(.2), g(.8), g(.9) have Cov(g(.8), g(.9)) = .50, not .905.
"""

import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float64
from pydantic import BaseModel, ConfigDict, Field
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dtbtrs

from sotto.privacy.mechanisms import path_rounding
from sotto.privacy.mechanisms.path_rounding import LEAST_SPREAD, NUGGET, dot
from sotto.privacy.mechanisms.sorted_points import SortedPoints
from sotto.privacy.noise import GeneratorSource, standard_normal

_BATCH_SHARE = 200  # batches smaller than this part of what is stored go in point by point
_FEW = 8
_NORMALS = 8192  # drawn at once for single points
_LARGEST_SCATTER = 16_384  # points: a Cholesky factor of 2 GiB


class Kernel(BaseModel):
    """sigma^2 exp(-beta |x - y|_1).

    Attributes:
        beta: inverse correlation length, from 2^-64 to 2^64.
        sigma: standard deviation at every point.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    beta: float = Field(ge=path_rounding.SMALLEST_BETA, le=path_rounding.LARGEST_BETA)
    sigma: float = Field(gt=0, allow_inf_nan=False)


class Paths:
    """Independent sample paths on a line, asked at the same points: one for each action.

    Attributes:
        kernel: of each.
        paths: how many.
    """

    def __init__(
        self, kernel: Kernel, paths: int = 1, generator: np.random.Generator | None = None
    ) -> None:
        if paths < 1:
            raise ValueError(f"there must be at least one path, got {paths}")
        self.kernel = kernel
        self.paths = paths
        self._generator = GeneratorSource().next() if generator is None else generator
        self._stored = SortedPoints(paths)
        self._normals: list[float] = []

    def __len__(self) -> int:
        return len(self._stored)

    def __call__(self, points: Float[np.ndarray, " q"]) -> Float64[np.ndarray, "q paths"]:
        """Values at these points: those of before where one was asked before."""
        points = _line(points)
        if len(points) < _FEW or len(points) * _BATCH_SHARE <= len(self._stored):
            rows = [self.at(point) for point in points.tolist()]
            return np.array(rows, dtype=np.float64).reshape(-1, self.paths)
        if np.all(points[1:] > points[:-1]):
            return self._batch(points)
        distinct, back = np.unique(points, return_inverse=True)
        return self._batch(distinct)[back]

    def at(self, point: float) -> "array[float]":
        """Values at one point; O(log n)."""
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
        spread *= self.kernel.sigma
        values = array("d", bytes(8 * self.paths))
        for path in range(self.paths):
            value = spread * self._normal()
            if left is not None:
                value += weight_left * left[1][path]
            if right is not None:
                value += weight_right * right[1][path]
            values[path] = value
        self._stored.insert(place, point, values)
        return values

    def sample(self, points: Float[np.ndarray, " q"]) -> Float64[np.ndarray, "q paths"]:
        """Values at points not asked before, jointly; they are not kept until `insert`."""
        points = _line(points)
        order = np.argsort(points)
        values = np.empty((len(points), self.paths))
        values[order] = self._draw(points[order])
        return values

    def insert(self, points: Float[np.ndarray, " q"], values: Float[np.ndarray, "q paths"]) -> None:
        """Keeps values at new points, which what comes later is conditioned on."""
        points = _line(points)
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
        """Values at sorted distinct points."""
        stored, values = self._stored.arrays()
        if not len(stored):
            drawn = self._draw(points)
            self._stored.merge(points, drawn)
            return drawn
        position = np.searchsorted(stored, points)
        known = stored[np.minimum(position, len(stored) - 1)] == points
        result = np.empty((len(points), self.paths))
        result[known] = values[position[known]]
        result[~known] = self._draw(points[~known])
        self._stored.merge(points[~known], result[~known])
        return result

    def _draw(self, points: Float64[np.ndarray, " q"]) -> Float64[np.ndarray, "q paths"]:
        """Joint values at sorted distinct points not stored: left to right within each gap."""
        stored, values = self._stored.arrays()
        noise = standard_normal(self._generator, (len(points), self.paths))
        if not len(points):
            return noise
        gap = np.searchsorted(stored, points)
        ends = np.concatenate([[-math.inf], stored, [math.inf]])
        end_values = np.vstack([np.zeros(self.paths), values, np.zeros(self.paths)])
        first = np.diff(gap, prepend=-1) > 0
        before = np.where(first, ends[gap], np.roll(points, 1))
        weight_left, weight_right, spread = _bridges(
            self.kernel.beta, points - before, ends[gap + 1] - points
        )
        constant = self.kernel.sigma * spread[:, None] * noise
        constant += weight_right[:, None] * end_values[gap + 1]
        constant[first] += weight_left[first, None] * end_values[gap[first]]
        return _recursion(np.where(first, 0.0, weight_left), constant)

    def _normal(self) -> float:
        if not self._normals:
            self._normals = standard_normal(self._generator, (_NORMALS,)).tolist()
        return self._normals.pop()


class Path:
    """One sample path on a line: `path(points)` has the shape of `points`.

    Args:
        beta, sigma: of the kernel sigma^2 exp(-beta |x - y|).
        generator: fresh entropy from the operating system by default.
    """

    def __init__(
        self, beta: float, sigma: float, generator: np.random.Generator | None = None
    ) -> None:
        self._paths = Paths(Kernel(beta=beta, sigma=sigma), 1, generator)

    def __len__(self) -> int:
        return len(self._paths)

    def __call__(self, points: Float[np.ndarray, " q"]) -> Float64[np.ndarray, " q"]:
        """Values at these points: those of before where one was asked before."""
        return self._paths(points)[:, 0]

    def at(self, point: float) -> float:
        """The value at one point; O(log n)."""
        return self._paths.at(point)[0]


def sample_grid(
    axes: Sequence[Float[np.ndarray, " n"]],
    beta: float,
    sigma: float,
    generator: np.random.Generator,
    paths: int | None = None,
) -> Float64[np.ndarray, "..."]:
    """Sample paths on a grid in d dimensions; time linear in the size of the grid.

    The kernel is a product over the axes, so its square root on a grid is a Kronecker product: an
    autoregression along each axis in turn.

    Args:
        axes: strictly increasing positions along each dimension.
        beta: of the kernel sigma^2 exp(-beta |x - y|_1).
        sigma: of the kernel.
        generator: fresh.
        paths: independent ones, along a last axis; None: one, without that axis.

    Returns:
        Values of shape [*lengths of axes] or [*lengths of axes, paths].
    """
    kernel = Kernel(beta=beta, sigma=sigma)
    shape = tuple(len(axis) for axis in axes)
    size = shape if paths is None else (*shape, paths)
    values = kernel.sigma * standard_normal(generator, size)
    for dimension, axis in enumerate(axes):
        axis = _line(axis)
        if not len(axis) or not np.all(np.diff(axis) > 0):
            raise ValueError("the positions along an axis must increase strictly")
        decay = np.exp(-kernel.beta * np.diff(axis, prepend=-math.inf))
        spread = np.sqrt(-np.expm1(-2 * kernel.beta * np.diff(axis, prepend=-math.inf)))
        moved = np.moveaxis(values, dimension, 0)
        flat = moved.reshape(shape[dimension], -1) * spread[:, None]
        values = np.moveaxis(_recursion(decay, flat).reshape(moved.shape), 0, dimension)
    return values


class ScatteredPaths:
    """Independent sample paths at scattered points in d dimensions, by a growing Cholesky factor.

    Each point has noise of variance `NUGGET` sigma^2 of its own, however close another one is.
    A batch of q points after n others costs O(n^2 q); all together take n^2 / 2 numbers.

    Attributes:
        kernel: of each.
        dimensions: d.
        paths: how many.
    """

    def __init__(
        self,
        kernel: Kernel,
        dimensions: int,
        paths: int = 1,
        generator: np.random.Generator | None = None,
    ) -> None:
        if dimensions < 1 or paths < 1:
            raise ValueError("there must be at least one dimension and one path")
        self.kernel = kernel
        self.dimensions = dimensions
        self.paths = paths
        self._generator = GeneratorSource().next() if generator is None else generator
        self._row: dict[bytes, int] = {}
        self._points = np.empty((0, dimensions))
        self._values = np.empty((0, paths))
        self._factor = np.empty((0, 0))  # lower Cholesky factor of exp(-beta |x - y|_1) + nugget
        self._white = np.empty((0, paths))  # factor^-1 values / sigma

    def __len__(self) -> int:
        return len(self._row)

    def __call__(self, points: Float[np.ndarray, "q d"]) -> Float64[np.ndarray, "q paths"]:
        """Values at these points: those of before where one was asked before."""
        points = self._checked(points)
        new = {key: one for one in points if (key := one.tobytes()) not in self._row}
        if new:
            fresh = np.array(list(new.values()))
            self.insert(fresh, self.sample(fresh))
        return self._values[[self._row[one.tobytes()] for one in points]]

    def sample(self, points: Float[np.ndarray, "q d"]) -> Float64[np.ndarray, "q paths"]:
        """Values at distinct new points, jointly; they are not kept until `insert`."""
        points = self._checked(points)
        across, corner = self._extension(points)
        drawn = standard_normal(self._generator, (len(points), self.paths))
        white = np.concatenate([self._white[: len(self)], drawn])
        return self.kernel.sigma * dot(np.hstack([across, corner]), white)

    def insert(
        self, points: Float[np.ndarray, "q d"], values: Float[np.ndarray, "q paths"]
    ) -> None:
        """Keeps values at distinct new points, which what comes later is conditioned on."""
        points = self._checked(points)
        across, corner = self._extension(points)
        start, stop = len(self), len(self) + len(points)
        self._reserve(stop)
        for i, row in enumerate(np.hstack([across, corner])):  # each needs those before it
            now = start + i
            rest = values[i] / self.kernel.sigma - dot(row[None, :now], self._white[:now])[0]
            self._white[now] = rest / row[now]
        self._points[start:stop], self._values[start:stop] = points, values
        self._factor[start:stop, :start] = across
        self._factor[start:stop, start:stop] = corner
        self._row |= {one.tobytes(): start + i for i, one in enumerate(points)}

    def _extension(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The new rows of the Cholesky factor: below the old factor, and the new corner."""
        size = len(self)
        across = (
            solve_triangular(
                self._factor[:size, :size],
                self._correlation(self._points[:size], points),
                lower=True,
                check_finite=False,
            ).T
            if size
            else np.empty((len(points), 0))
        )
        own = self._correlation(points, points) + NUGGET * np.eye(len(points))
        return across, np.linalg.cholesky(own - across @ across.T)

    def _correlation(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        distance = np.abs(one[:, None, :] - other[None, :, :]).sum(axis=-1)
        return np.asarray(np.exp(-self.kernel.beta * distance))

    def _checked(self, points: Float[np.ndarray, "q d"]) -> np.ndarray:
        points = np.asarray(points, dtype=np.float64)
        if points.ndim != 2 or points.shape[1] != self.dimensions or not np.isfinite(points).all():
            raise ValueError(
                f"points must be finite numbers [q, {self.dimensions}], got {points.shape}"
            )
        return points + 0.0  # one zero, not two

    def _reserve(self, size: int) -> None:
        """Room for so many points, at least doubled whenever it grows."""
        room = len(self._factor)
        if size <= room:
            return
        if size > _LARGEST_SCATTER:
            raise ValueError(
                f"{size} scattered points are more than {_LARGEST_SCATTER}; use a grid"
            )
        larger, held = min(max(size, 2 * room, 64), _LARGEST_SCATTER), len(self)
        for name in ("_points", "_values", "_white"):
            old = getattr(self, name)
            grown = np.zeros((larger, old.shape[1]))
            grown[:held] = old[:held]
            setattr(self, name, grown)
        factor = np.zeros((larger, larger))
        factor[:held, :held] = self._factor[:held, :held]
        self._factor = factor


def _line(points: Any) -> Float64[np.ndarray, " q"]:
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 1 or not np.isfinite(points).all():
        raise ValueError("points must be a list of finite numbers")
    return np.asarray(points)


def _bridge(beta: float, left: float, right: float) -> tuple[float, float, float]:
    """A, B and the standard deviation between two points at these distances."""
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
    """The same for many points."""
    open_left, open_right = -np.expm1(-2 * beta * left), -np.expm1(-2 * beta * right)
    whole = -np.expm1(-2 * beta * (left + right))
    return (
        np.exp(-beta * left) * open_right / whole,
        np.exp(-beta * right) * open_left / whole,
        np.maximum(LEAST_SPREAD, np.sqrt(open_left * open_right / whole)),
    )


def _recursion(
    weights: Float64[np.ndarray, " n"], constants: Float64[np.ndarray, "n k"]
) -> Float64[np.ndarray, "n k"]:
    """x_i = weights_i x_(i-1) + constants_i, by forward substitution (LAPACK)."""
    band = np.ones((2, len(weights)), order="F")
    band[1, :-1] = -weights[1:]
    solution, info = dtbtrs(band, constants, uplo="L", diag="U")
    assert info == 0
    return np.asarray(solution)
