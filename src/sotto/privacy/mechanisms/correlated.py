"""Noise over time: independent, or correlated by a matrix factorization.

The noise of release i is `scale * (C^-1 w)_i`, where w is independent standard normal noise and C
is lower-triangular: the identity, the square root of the (decayed) prefix-sum workload A = C C, for
which noise cancels in the sums of releases that a learner actually uses, or the binary tree of
`binary_tree`. All but the tree are Toeplitz.

Guarantee:
    With `scale = noise_multiplier * clip_norm * sensitivity(C)` the whole stream is Gaussian
    differentially private for each person with multiplier `noise_multiplier`: multiplying the
    stream by C is a bijection, after which one person shifts w / noise by a total L2 norm of at
    most 1 / noise_multiplier, on every path, also when later contributions depend on earlier
    releases (theory notes, Theorem 2'; Denisov et al. 2022). Stopping early is free; more than
    `horizon` releases is not covered and is refused by the ledger.
"""

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy.matrix_factorization import toeplitz
from jaxtyping import Float64

from sotto.privacy.mechanisms import binary_tree
from sotto.privacy.noise import MAGNITUDE
from sotto.privacy.statements import Correlation, Once, Participation, Poisson, Returning

_MEMORY_LIMIT = 8 * 2**30


def strategy_coefficients(correlation: Correlation, horizon: int) -> Float64[np.ndarray, " n"]:
    """First column of C: the square root of the workload `sum_j decay^(i-j) x_j`."""
    if correlation.kind == "independent":
        return np.ones(1)
    _require_toeplitz(correlation)
    with jax.enable_x64(True):
        root = np.asarray(toeplitz.optimal_max_error_strategy_coefs(horizon))
    return np.asarray(root * correlation.workload_decay ** np.arange(horizon))


def noising_coefficients(correlation: Correlation, horizon: int) -> Float64[np.ndarray, " n"]:
    """First column of C^-1, so that noise_i = sum_j b_j w_(i-j)."""
    if correlation.kind == "independent":
        return np.ones(1)
    _require_toeplitz(correlation)
    with jax.enable_x64(True):
        inverse = np.asarray(toeplitz.optimal_max_error_noising_coefs(horizon))
    return np.asarray(inverse * correlation.workload_decay ** np.arange(horizon))


def _require_toeplitz(correlation: Correlation) -> None:
    if correlation.kind == "binary-tree":
        raise ValueError("a binary tree has no Toeplitz coefficients; take prefix_deviations")


def prefix_deviations(correlation: Correlation, horizon: int) -> Float64[np.ndarray, " n"]:
    """Standard deviation of the noise in the sum of the first 1, ..., n releases, over the scale.

    The scale is noise_multiplier * clip_norm * sensitivity, as above.
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
    """Largest L2 norm of what one person (clip norm 1) adds to C x, over all participations.

    For C Toeplitz with non-negative, non-increasing coefficients the worst pattern is as many
    participations as allowed, as early and as close as allowed (Kalinin & Lampert 2024, Thm 2).
    Poisson sampling is accounted release by release, so there it is 1.
    """
    if correlation.kind == "binary-tree":
        if not isinstance(participation, Once):
            raise ValueError("a binary tree is for people who take part once; use prefix-sum noise")
        return binary_tree.sensitivity(horizon)
    match participation:
        case Poisson():
            return 1.0
        case Once():
            count, separation = 1, horizon
        case Returning(max_participations=count, min_separation=separation):
            separation = min(separation, horizon)
    with jax.enable_x64(True):
        squared = toeplitz.minsep_sensitivity_squared(
            jnp.asarray(strategy_coefficients(correlation, horizon)),
            min_sep=separation,
            max_participations=count,
            n=horizon,
        )
        return math.sqrt(float(squared))


def require_memory(correlation: Correlation, runs: int, horizon: int, dimension: int) -> None:
    """Refuses noise over time whose draws, all of which are kept, would not fit in memory.

    It is asked before a stream is charged: the draws are made when it is too late to refuse them.

    Raises:
        ValueError: they would not.
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

    `next_rows(fresh)` turns the next draws w into the next rows of C^-1 w. The draws live in
    memory only: a resumed run starts a new sequence, with a new key and a new charge.
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

    def next_rows(
        self, fresh: Float64[np.ndarray, "runs rows d"]
    ) -> Float64[np.ndarray, "runs rows d"]:
        """The next `rows` rows of C^-1 w, given their fresh draws.

        Raises:
            ValueError: beyond the horizon the strategy was built for.
        """
        start, stop = self._drawn, self._drawn + fresh.shape[1]
        if stop > self.horizon:
            raise ValueError(f"the noise was built for {self.horizon} releases; there is no more")
        self._drawn = stop
        if self.correlation.kind == "independent":
            return fresh
        if self._draws is None:
            self._draws = np.zeros((fresh.shape[0], self.horizon, fresh.shape[2]))
        self._draws[:, start:stop] = fresh
        if self._tree:
            inverse_rows = binary_tree.noising_rows(start, stop)
        else:
            lag = np.arange(start, stop)[:, None] - np.arange(stop)
            inverse_rows = np.where(lag >= 0, self._coefficients[np.maximum(lag, 0)], 0.0)
        return np.asarray(inverse_rows @ self._draws[:, :stop])

    @property
    def largest(self) -> float:
        """A bound that no entry of C^-1 w can exceed."""
        if self._tree:
            return MAGNITUDE * binary_tree.largest_row_sum(self.horizon)
        return MAGNITUDE * float(np.abs(self._coefficients).sum())
