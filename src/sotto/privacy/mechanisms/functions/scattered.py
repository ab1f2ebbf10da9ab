"""Sample paths of the process of `gaussian_process` at scattered points in any dimension.

Guarantee:
    The unit is that of the function's release. The noise is that of the process, plus independent
    noise of variance `NUGGET` sigma^2 at every point, so that no variance is a difference of near
    numbers. `Sample.rounding` is how far rounding values to the grid moves neighbours apart. The
    proofs are Theorems 6 and 6a of docs/privacy.md, section 13.
"""

import numpy as np
from jaxtyping import Float, Float64
from scipy.linalg import solve_triangular

from sotto.privacy.mechanisms.functions.gaussian_process import Kernel
from sotto.privacy.mechanisms.functions.rounding import NUGGET, dot
from sotto.privacy.mechanisms.functions.values import (
    FINEST,
    MOVED,
    Sample,
    power_below,
)
from sotto.privacy.mechanisms.noise import GeneratorSource, rounded_normal

_LARGEST_SCATTER = 16_384  # points, for a Cholesky factor of 2 GiB


class ScatteredPaths:
    """Independent sample paths at scattered points in d dimensions, by a growing Cholesky factor.

    Each point has additional noise of variance `NUGGET` sigma^2, however close another point is.
    A batch of q points after n others costs O(n^2 q); the whole takes memory for n^2 / 2 numbers.

    Attributes:
        kernel: of each path.
        dimensions: d.
        paths: number of paths.
        grid: spacing of the grid of values; by default 2^-40 of sigma.
    """

    def __init__(
        self,
        kernel: Kernel,
        dimensions: int,
        paths: int = 1,
        generator: np.random.Generator | None = None,
        grid: float | None = None,
    ) -> None:
        if dimensions < 1 or paths < 1:
            raise ValueError("there must be at least one dimension and one path")
        self.kernel = kernel
        self.dimensions = dimensions
        self.paths = paths
        self.grid = power_below(kernel.sigma) * FINEST if grid is None else grid
        self._generator = GeneratorSource().next() if generator is None else generator
        self._row: dict[bytes, int] = {}
        self._points = np.empty((0, dimensions))
        self._values = np.empty((0, paths))
        self._factor = np.empty((0, 0))  # lower Cholesky factor of exp(-beta |x - y|_1) + nugget
        self._white = np.empty((0, paths))  # factor^-1 values / sigma

    def __len__(self) -> int:
        return len(self._row)

    def __call__(self, points: Float[np.ndarray, "q d"]) -> Float64[np.ndarray, "q paths"]:
        """Returns values at these points; a point that was asked before keeps its value."""
        points = self._checked(points)
        new = {key: one for one in points if (key := one.tobytes()) not in self._row}
        if new:
            fresh = np.array(list(new.values()))
            self.insert(fresh, self.sample(fresh).values)
        return self._values[[self._row[one.tobytes()] for one in points]]

    def sample(self, points: Float[np.ndarray, "q d"]) -> Sample:
        """Draws values at distinct new points jointly; `insert` keeps them.

        Raises:
            ValueError: there is no room for them. Nothing is drawn.
        """
        points = self._checked(points)
        self._reserve(len(self) + len(points))
        across, corner = self._extension(points)
        spread = np.diag(corner)[:, None]
        ratios = spread * self.kernel.sigma / self.grid
        fresh = rounded_normal(self._generator, (len(points), self.paths), ratios)
        white = fresh * self.grid / (spread * self.kernel.sigma)
        weights = np.hstack([across, np.tril(corner, -1)])
        means = self.kernel.sigma * dot(weights, np.concatenate([self._white[: len(self)], white]))
        return Sample(means, fresh, self.grid, self._rounding(across, corner))

    def rounding(self, points: Float[np.ndarray, "q d"]) -> float:
        """Returns `Sample.rounding` of a sample at these points."""
        return self._rounding(*self._extension(self._checked(points)))

    def _rounding(self, across: np.ndarray, corner: np.ndarray) -> float:
        """Returns `Sample.rounding` from rows of the inverse factor: 1 and weights, over spread."""
        held, count = across.shape[1], len(corner)
        inverse = solve_triangular(corner, np.eye(count), lower=True)
        before = np.zeros((count, 0))
        if held:
            factor = self._factor[:held, :held]
            before = inverse @ solve_triangular(factor, across.T, lower=True, trans="T").T
        weights = np.abs(inverse).sum(axis=1) + np.abs(before).sum(axis=1)
        moved = MOVED * self.grid / self.kernel.sigma * weights
        return self.paths * float(moved @ moved)

    def insert(
        self, points: Float[np.ndarray, "q d"], values: Float[np.ndarray, "q paths"]
    ) -> None:
        """Keeps values at distinct new points; later values are conditioned on them."""
        points = self._checked(points)
        across, corner = self._extension(points)
        start, stop = len(self), len(self) + len(points)
        self._reserve(stop)
        for i, row in enumerate(np.hstack([across, corner])):  # each row needs the rows before it
            now = start + i
            rest = values[i] / self.kernel.sigma - dot(row[None, :now], self._white[:now])[0]
            self._white[now] = rest / row[now]
        self._points[start:stop], self._values[start:stop] = points, values
        self._factor[start:stop, :start] = across
        self._factor[start:stop, start:stop] = corner
        self._row |= {one.tobytes(): start + i for i, one in enumerate(points)}

    def _extension(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the new rows of the Cholesky factor, split into old columns and new corner."""
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
        return points + 0.0  # makes -0.0 and 0.0 the same point

    def _reserve(self, size: int) -> None:
        """Makes room for so many points, at least twice as many as before."""
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
