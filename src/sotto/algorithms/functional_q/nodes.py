"""Grids of nodes: interpolation between them, averages at them, and fits to noisy sums.

A grid and its weights are public, since they depend on states and actions, and not on rewards.
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
from sotto.rl.networks import require_length


@dataclass(frozen=True)
class Grid(Settings):
    """Evenly spaced nodes in a box. The weights of a point are those of multilinear interpolation.

    A point outside the box counts as the nearest point of the box. A dimension with a single node
    is ignored.

    Attributes:
        low, high: corners of the box.
        nodes: number of nodes along each dimension.
    """

    low: tuple[Signed, ...]
    high: tuple[Signed, ...]
    nodes: tuple[Count, ...]

    def check(self) -> None:
        """Refuses corners and nodes that do not make a grid."""
        if not len(self.low) == len(self.high) == len(self.nodes) >= 1:
            raise ValueError(
                f"nodes, node_low and node_high need one number for each dimension; they have "
                f"{len(self.nodes)}, {len(self.low)} and {len(self.high)} numbers"
            )
        if any(not low < high for low, high in zip(self.low, self.high, strict=True)):
            raise ValueError("node_low must be below node_high in every dimension")

    @property
    def size(self) -> int:
        """Number of nodes."""
        return math.prod(self.nodes)

    @property
    def axes(self) -> tuple[np.ndarray, ...]:
        """Positions of the nodes along each dimension, the box scaled to [0, 1]."""
        return tuple(np.linspace(0.0, 1.0, n) if n > 1 else np.zeros(1) for n in self.nodes)

    def weights(
        self, points: Float[Any, "*batch d"]
    ) -> tuple[Int[Any, "*batch corners"], Float[Any, "*batch corners"]]:
        """Returns the nodes around each point and their weights.

        The weights are not negative and sum to 1. Weights of numpy points are float64, those of JAX
        points float32.

        Raises:
            ValueError: a point has another number of dimensions than the grid.
        """
        require_length(points, len(self.nodes))
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
        """Distributes `values` among the nodes around each point."""
        index, weight = self.weights(points)
        nodes = jax.lax.iota(jnp.int32, self.size)
        here = index[..., :, None] == nodes
        shares = jnp.sum(jnp.where(here, weight[..., :, None], 0.0), axis=-2)
        return shares * jnp.asarray(values)[..., None]

    def interpolate(
        self, table: Float[Array, "size k"], points: Float[Array, "*batch d"]
    ) -> Float[Array, "*batch k"]:
        """Interpolates the values of a table at points."""
        index, weight = self.weights(points)
        return jnp.sum(table[index] * weight[..., None], axis=-2)

    def matrix(self, points: Float[np.ndarray, "n d"]) -> scipy.sparse.csr_matrix:
        """Returns the weights of many points as a sparse matrix [n, size]."""
        index, weight = self.weights(np.asarray(points, np.float64))
        rows = np.repeat(np.arange(len(index)), index.shape[1])
        shape = (len(index), self.size)
        return scipy.sparse.csr_matrix((weight.ravel(), (rows, index.ravel())), shape)


class GridValues(eqx.Module):
    """Action values that are linear between nodes."""

    table: Float[Array, "size actions"]
    grid: Grid = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*batch obs"]) -> Float[Array, "*batch actions"]:
        """Returns the value of each action."""
        return self.grid.interpolate(self.table, observation)


def by_action(matrix: Any, actions: Int[np.ndarray, " n"], count: int) -> scipy.sparse.csr_matrix:
    """Turns weights over nodes into weights over (node, action) pairs, [n, size * count]."""
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
    """Estimates the values at nodes from noisy sums and public weights, as post-processing.

    Let W be the weights, with a row for each transition, and G = W'W. If rewards are linear between
    nodes with values x, the released sums are G x plus noise. With a prior N(0, prior^2) on x, the
    most likely x is (G G / noise^2 + I / prior^2)^-1 G sums / noise^2. This is least squares where
    there are many visits, and 0 where there are none.

    Args:
        sums: W' rewards plus noise, for rewards minus the middle of their range.
        weights: W, a sparse matrix.
        noise: standard deviation of the noise in each sum.
        prior: standard deviation of rewards around their middle.
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
    """Returns weighted averages; features without weight get the value `elsewhere`.

    The weights are not negative, so no average moves by more than the values.
    """
    mass = np.asarray(weights.sum(axis=0)).ravel()
    total = weights.T @ values
    return np.where(mass > 0, total / np.where(mass > 0, mass, 1.0), elsewhere)


def largest_share(weights: Any) -> tuple[float, float]:
    """Returns the most that one row's value moves any average, and all averages in the L2 norm."""
    mass = np.asarray(weights.sum(axis=0)).ravel()
    shares = weights.multiply(1.0 / np.where(mass > 0, mass, np.inf)).tocsr()
    squared = np.asarray(shares.multiply(shares).sum(axis=1)).ravel()
    return float(shares.max()), float(math.sqrt(squared.max()))


def mesh(grid: Grid) -> Float[np.ndarray, "size d"]:
    """Returns the positions of all nodes in units of the observations, ordered as the weights."""
    lines = [
        np.linspace(low, high, n) if n > 1 else np.array([(low + high) / 2])
        for low, high, n in zip(grid.low, grid.high, grid.nodes, strict=True)
    ]
    return np.array(list(itertools.product(*lines)))
