"""Noise over time: independent, or correlated by a matrix factorization.

The noise of release i is `scale * (C^-1 w)_i`, where w is independent standard normal noise. C is
lower-triangular and one of three matrices: the identity; the square root of the (decayed)
prefix-sum workload A = C C, whose noise cancels in the sums of releases that a learner uses; or the
binary tree of `binary_tree`. All but the tree are Toeplitz.

Guarantee:
    The unit is a person, under the adjacency of the stream. With `scale = noise_multiplier *
    clip_norm * sensitivity(C)` the whole stream is Gaussian differentially private for each person
    with multiplier `noise_multiplier`, also when later contributions depend on earlier releases.
    The proof is Theorem 2' of docs/privacy.md, section 4 (see also Denisov et al. 2022):
    multiplying the stream by C is a bijection, after which one person shifts w / noise by a total
    L2 norm of at most 1 / noise_multiplier on every path.

    Stopping early is free. The ledger refuses more than `horizon` releases, which are not covered.

    Releases are integers. The draws w are integers of `noise.rounded_normal` on a grid 256 times
    finer than that of the releases. The part of a row that earlier draws make is rounded to that
    finer grid. `rounding` bounds how much further this moves neighbours apart.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64, Int64

from sotto.privacy.mechanisms import binary_tree
from sotto.privacy.mechanisms.noise import MAGNITUDE
from sotto.privacy.statements import Correlation, Once, Participation, Poisson, Returning

_MEMORY_LIMIT = 8 * 2**30

REFINEMENT = 2**8
"""Spacing of the releases' grid, in units of the finer grid that prefix-sum noise is drawn on."""

_LARGEST_ROW = 2.0**38
"""Bound on a row of noise on the finer grid: its releases stay below 2^30."""


def strategy_coefficients(correlation: Correlation, horizon: int) -> Float64[np.ndarray, " n"]:
    """Returns the first column of C: the square root of the workload `sum_j decay^(i-j) x_j`."""
    return _decayed(_square_root, correlation, horizon)


def noising_coefficients(correlation: Correlation, horizon: int) -> Float64[np.ndarray, " n"]:
    """Returns the first column of C^-1, so that noise_i = sum_j b_j w_(i-j)."""
    return _decayed(_inverse_square_root, correlation, horizon)


@functools.lru_cache
def _square_root(horizon: int) -> Float64[np.ndarray, " n"]:
    """Returns the first column of the square root of the prefix-sum workload."""
    from jax_privacy.matrix_factorization import toeplitz  # takes a second to import

    # One program. Operation by operation it would be fifteen.
    program = jax.jit(toeplitz.optimal_max_error_strategy_coefs, static_argnums=0)
    with jax.enable_x64(True):
        found = program(horizon)
    return np.asarray(found)  # read-only, as JAX's arrays are


def _inverse_square_root(horizon: int) -> Float64[np.ndarray, " n"]:
    """Returns the first column of its inverse, A^-1 C, where A^-1 takes differences."""
    return np.diff(_square_root(horizon), prepend=0.0)


def _decayed(
    column: Callable[[int], np.ndarray], correlation: Correlation, horizon: int
) -> Float64[np.ndarray, " n"]:
    if correlation.kind == "independent":
        return np.ones(1)
    if correlation.kind == "binary-tree":
        raise ValueError("a binary tree has no Toeplitz coefficients; take prefix_deviations")
    return np.asarray(column(horizon) * correlation.workload_decay ** np.arange(horizon))


def prefix_deviations(correlation: Correlation, horizon: int) -> Float64[np.ndarray, " n"]:
    """Returns the standard deviations of the noise in the sums of the first 1, ..., n releases.

    They are in units of the scale, noise_multiplier * clip_norm * sensitivity.
    """
    if correlation.kind == "independent":
        variances = np.arange(1.0, horizon + 1)
    elif correlation.kind == "binary-tree":
        variances = binary_tree.prefix_nodes(horizon).astype(np.float64)
    else:
        summed = np.cumsum(noising_coefficients(correlation, horizon))
        variances = np.cumsum(np.square(summed))
    return np.asarray(np.sqrt(variances))


def sensitivity(correlation: Correlation, participation: Participation, horizon: int) -> float:
    """Returns the largest L2 norm that one person (clip norm 1) adds to C x.

    The maximum is over all participations. For C Toeplitz with non-negative, non-increasing
    coefficients the worst pattern has as many participations as allowed, as early and as close as
    allowed (Kalinin and Lampert 2024, Theorem 2). Poisson sampling is accounted release by release,
    so there it is 1.
    """
    if correlation.kind == "binary-tree":
        if not isinstance(participation, Once):
            raise ValueError("a binary tree is for people who take part once; use prefix-sum noise")
        return binary_tree.sensitivity(horizon)
    if isinstance(participation, Poisson):
        return 1.0
    with jax.enable_x64(True):
        column = jnp.asarray(strategy_coefficients(correlation, horizon))
        match participation:
            case Once():  # the first column of C is the longest
                squared = jnp.dot(column, column)
            case Returning(max_participations=count, min_separation=separation):
                from jax_privacy.matrix_factorization import toeplitz

                squared = toeplitz.minsep_sensitivity_squared(
                    column,
                    min_sep=min(separation, horizon),
                    max_participations=count,
                    n=horizon,
                )
        return math.sqrt(float(squared))


def rounding(
    correlation: Correlation,
    horizon: int,
    dimensions: dict[str, int],
    ratios: dict[str, float],
    noise_multiplier: float,
) -> float:
    """Returns the relative growth of the sensitivity that pays for integer noise over time.

    Independent noise and trees are combined exactly. Prefix-sum noise rounds the part of a row that
    earlier draws make by 1/2, in each of two worlds, and float64 adds n 2^-53 of the largest row.
    C carries both over to the draws. Its coefficients are within n 2^-50 of those that the
    sensitivity is computed with.

    Args:
        correlation: of the stream.
        horizon: length n of the stream.
        dimensions: how many numbers each part releases.
        ratios: standard deviation of each part's draws, in units of the finer grid.
        noise_multiplier: of the stream.
    """
    if correlation.kind != "prefix-sum":
        return 0.0
    operator = float(np.abs(strategy_coefficients(correlation, horizon)).sum())
    inverse = float(np.abs(noising_coefficients(correlation, horizon)).sum())
    moved = 1 + 2 * (horizon + 2) * 2.0**-53 * _LARGEST_ROW
    shift = math.sqrt(sum(horizon * d / ratios[name] ** 2 for name, d in dimensions.items()))
    coefficients = operator**2 * inverse * horizon**1.5 * 2.0**-50
    return float(noise_multiplier * operator * moved * shift + coefficients)


def require_memory(correlation: Correlation, runs: int, horizon: int, dimension: int) -> None:
    """Refuses correlated noise whose draws would not fit in memory, where all of them are kept.

    Call it before a stream is charged. Draws are made after the charge.

    Raises:
        ValueError: the draws would take more than 8 GiB.
    """
    needed = 8 * runs * horizon * dimension
    if correlation.kind != "independent" and needed > _MEMORY_LIMIT:
        raise ValueError(
            f"correlated noise over {horizon} releases of {dimension} numbers in {runs} runs keeps "
            f"{needed / 2**30:.0f} GiB of draws; use fewer releases, a smaller policy, fewer runs "
            "at once, or independent noise"
        )


@dataclass
class NoiseSequence:
    """The secret state of one correlated noise stream: the independent draws so far.

    `next_rows(fresh)` turns the next draws w into the next rows of C^-1 w, in integers. The draws
    live in memory only. A resumed run starts a new sequence, with a new key and a new charge.
    """

    correlation: Correlation
    horizon: int
    _tree: bool = field(init=False, repr=False)
    _coefficients: Float64[np.ndarray, " n"] = field(init=False, repr=False)
    _draws: Float64[np.ndarray, "runs horizon d"] | None = field(default=None, repr=False)
    _drawn: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        self._tree = self.correlation.kind == "binary-tree"
        if not self._tree:
            self._coefficients = noising_coefficients(self.correlation, self.horizon)

    @property
    def refinement(self) -> int:
        """Spacing of the rows' grid, in units of the draws' grid."""
        return REFINEMENT if self.correlation.kind == "prefix-sum" else 1

    def next_rows(
        self, fresh: Int64[np.ndarray, "runs rows d"]
    ) -> Int64[np.ndarray, "runs rows d"]:
        """Returns the next rows of C^-1 w, on the grid of the releases.

        A row is a rounded function of earlier draws plus its own fresh draw, whatever float64 does.

        Args:
            fresh: draws of these rows.

        Raises:
            ValueError: the rows go beyond the horizon that the strategy was built for.
        """
        start, stop = self._drawn, self._drawn + fresh.shape[1]
        if stop > self.horizon:
            raise ValueError(
                f"the noise was built for {self.horizon} releases and no more; open a new stream"
            )
        self._drawn = stop
        if self.correlation.kind == "independent":
            return fresh
        if self._draws is None:
            self._draws = np.zeros((fresh.shape[0], self.horizon, fresh.shape[2]))
        self._draws[:, start:stop] = fresh  # exact in float64, because they are below 2^53
        lag = np.arange(start, stop)[:, None] - np.arange(stop)
        if self._tree:
            inverse_rows = binary_tree.noising_rows(start, stop)
        else:
            inverse_rows = self._coefficients[np.maximum(lag, 0)]
        earlier = np.where(lag > 0, inverse_rows, 0.0) @ self._draws[:, :stop]
        rows = np.rint(earlier).astype(np.int64) + fresh
        return np.asarray((rows + self.refinement // 2) // self.refinement)

    @property
    def largest(self) -> float:
        """Bound on the magnitude of every entry of C^-1 w."""
        if self._tree:
            return MAGNITUDE * binary_tree.largest_row_sum(self.horizon)
        return MAGNITUDE * float(np.abs(self._coefficients).sum())
