"""Grids of nodes: functions linear between them, averages at them, and what noisy sums say of them.

A grid and its weights are public: they depend on states and actions, never on rewards.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int
from scipy.linalg import cho_factor, cho_solve

from sotto.algorithms.settings import Count, Settings, Signed


@dataclass(frozen=True)
class Grid(Settings):
    """Even nodes in a box; the weights of a point are those of (multi)linear interpolation.

    A point beyond the box counts as the nearest one in it. A dimension of a single node is ignored.

    Attributes:
        low, high: the box.
        nodes: how many along each dimension.
    """

    low: tuple[Signed, ...]
    high: tuple[Signed, ...]
    nodes: tuple[Count, ...]

    def check(self) -> None:
        """Refuses what is no grid."""
        if not len(self.low) == len(self.high) == len(self.nodes) >= 1:
            raise ValueError(
                f"nodes, node_low and node_high need one number for each dimension; they have "
                f"{len(self.nodes)}, {len(self.low)} and {len(self.high)}"
            )
        if any(not low < high for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError("node_low must be below node_high in every dimension")

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return math.prod(self.nodes)

    @property
    def axes(self) -> tuple[np.ndarray, ...]:
        """Positions of the nodes along each dimension, the box scaled to [0, 1]."""
        return tuple(np.linspace(0.0, 1.0, n) if n > 1 else np.zeros(1) for n in self.nodes)

    def weights(
        self, points: Float[Any, "*batch d"]
    ) -> tuple[Int[Any, "*batch corners"], Float[Any, "*batch corners"]]:
        """The nodes around each point and their weights, which are not negative and sum to 1.

        numpy gives float64 weights for numpy points, JAX float32 ones for its own.
        """
        xp = np if isinstance(points, np.ndarray) else jnp
        index = xp.zeros((*points.shape[:-1], 1), np.int32)
        weight = xp.ones((*points.shape[:-1], 1), points.dtype)
        for axis, count in enumerate(self.nodes):
            if count == 1:
                continue
            low, high = self.low[axis], self.high[axis]
            place = (points[..., axis, None] - low) * ((count - 1) / (high - low))
            place = xp.clip(place, 0.0, float(count - 1))
            left = xp.clip(xp.floor(place).astype(np.int32), 0, count - 2)
            right_share = place - left
            index = xp.concatenate([index * count + left, index * count + left + 1], axis=-1)
            weight = xp.concatenate([weight * (1 - right_share), weight * right_share], axis=-1)
        return index, weight

    def spread(
        self, points: Float[Array, "*batch d"], values: Float[Array, "*batch"] | float = 1.0
    ) -> Float[Array, "*batch size"]:
        """`values` shared out among the nodes around each point."""
        index, weight = self.weights(points)
        nodes = jax.lax.iota(jnp.int32, self.size)
        here = index[..., :, None] == nodes
        shares = jnp.sum(jnp.where(here, weight[..., :, None], 0.0), axis=-2)
        return shares * jnp.asarray(values)[..., None]

    def interpolate(
        self, table: Float[Array, "size k"], points: Float[Array, "*batch d"]
    ) -> Float[Array, "*batch k"]:
        """Values between the nodes."""
        index, weight = self.weights(points)
        return jnp.sum(table[index] * weight[..., None], axis=-2)

    def matrix(self, points: Float[np.ndarray, "n d"]) -> scipy.sparse.csr_matrix:
        """The weights of many points as a sparse matrix [n, size]."""
        index, weight = self.weights(np.asarray(points, np.float64))
        rows = np.repeat(np.arange(len(index)), index.shape[1])
        shape = (len(index), self.size)
        return scipy.sparse.csr_matrix((weight.ravel(), (rows, index.ravel())), shape)


class GridValues(eqx.Module):
    """Action values that are linear between nodes."""

    table: Float[Array, "size actions"]
    grid: Grid = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*batch obs"]) -> Float[Array, "*batch actions"]:
        """The value of each action."""
        return self.grid.interpolate(self.table, observation)


def by_action(matrix: Any, actions: Int[np.ndarray, " n"], count: int) -> scipy.sparse.csr_matrix:
    """Weights over (node, action) pairs, from weights over nodes: [n, size * count]."""
    matrix = matrix.tocsr()
    columns = matrix.indices * count + np.repeat(actions, np.diff(matrix.indptr))
    shape = (matrix.shape[0], matrix.shape[1] * count)
    return scipy.sparse.csr_matrix((matrix.data, columns, matrix.indptr), shape)


def fit(
    sums: Float[np.ndarray, " features"],
    weights: Any,
    noise: float,
    prior: float,
) -> Float[np.ndarray, " features"]:
    """What the values at nodes are, given noisy sums; post-processing, for the weights are public.

    With W the weights of all transitions (rows) and G = W'W, the released sums are G x plus noise
    for rewards that are linear between nodes with values x. With a prior N(0, prior^2) on x, the
    most likely x is (G G / noise^2 + I / prior^2)^-1 G sums / noise^2: least squares where there
    are many visits, and 0 where there are none.

    Args:
        sums: W' rewards plus noise, rewards about the middle of their range.
        weights: W, sparse, one row for each transition.
        noise: standard deviation of the noise of each sum.
        prior: standard deviation of rewards about their middle.
    """
    visited = np.flatnonzero(np.asarray(weights.sum(axis=0)).ravel() > 0)
    found = np.zeros(weights.shape[1])
    if not len(visited):
        return found
    kept = weights[:, visited]
    gram = np.asarray((kept.T @ kept).todense())
    system = gram @ gram + (noise / prior) ** 2 * np.eye(len(visited))
    found[visited] = cho_solve(cho_factor(system), gram @ sums[visited])
    return found


def averages(
    weights: Any, values: Float[np.ndarray, " n"], elsewhere: float
) -> Float[np.ndarray, " features"]:
    """Weighted averages at the features; `elsewhere` is for those that nobody visited.

    The weights are not negative, so no average moves by more than the values do.
    """
    mass = np.asarray(weights.sum(axis=0)).ravel()
    total = weights.T @ values
    return np.where(mass > 0, total / np.where(mass > 0, mass, 1.0), elsewhere)


def largest_share(weights: Any) -> tuple[float, float]:
    """How much one row's value can move the averages: the largest single one, and the L2 norm."""
    mass = np.asarray(weights.sum(axis=0)).ravel()
    shares = weights.multiply(1.0 / np.where(mass > 0, mass, np.inf)).tocsr()
    squared = np.asarray(shares.multiply(shares).sum(axis=1)).ravel()
    return float(shares.max()), float(math.sqrt(squared.max()))


def mesh(grid: Grid) -> Float[np.ndarray, "size d"]:
    """The positions of all nodes, in the units of the observations, in the order of the weights."""
    lines = [
        np.linspace(low, high, n) if n > 1 else np.array([(low + high) / 2])
        for low, high, n in zip(grid.low, grid.high, grid.nodes, strict=True)
    ]
    return np.array(list(itertools.product(*lines)))
