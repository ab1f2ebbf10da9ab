"""Sample paths of the process of `gaussian_process` on a whole grid, at once.

Guarantee:
    The unit is that of the function's release. The nodes have the joint law of the process, so
    Theorem 6 of docs/privacy.md, section 13, applies. `grid_rounding` is how far rounding the nodes
    to the grid of values moves neighbours apart (Theorem 6a).
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64

from sotto.privacy.mechanisms.functions.gaussian_process import Kernel
from sotto.privacy.mechanisms.functions.values import (
    FINEST,
    MOVED,
    Sample,
    line,
    power_below,
    recursion,
)
from sotto.privacy.mechanisms.noise import rounded_normal

_LEAST_RATIO = 2.0**-500  # stands for a standard deviation that float64 cannot tell from 0


def sample_grid(
    axes: Sequence[Float[np.ndarray, " _"]],
    beta: float,
    sigma: float,
    generator: np.random.Generator,
    paths: int | None = None,
    grid: float | None = None,
) -> Sample:
    """Draws sample paths on a grid in d dimensions, in time linear in the size of the grid.

    The kernel is a product over the axes, so its square root on a grid is a Kronecker product: an
    autoregression along each axis in turn. The mean at a node, given the nodes before it, is made
    of the nodes one step back along any of the axes. Each axis explains, by the node one step
    back, a part of what the axes before it have left.

    Args:
        axes: strictly increasing positions along each dimension.
        beta: of the kernel sigma^2 exp(-beta |x - y|_1).
        sigma: of the kernel.
        generator: fresh.
        paths: number of independent paths, along a last axis; None draws one without that axis.
        grid: spacing of the grid of values, a power of two; by default 2^-40 of sigma.

    Returns:
        Values of shape [*lengths of axes] or [*lengths of axes, paths].
    """
    kernel = Kernel(beta=beta, sigma=sigma)
    grid = power_below(sigma) * FINEST if grid is None else grid
    shape = tuple(len(axis) for axis in axes)
    decays, spreads = zip(*(_autoregression(line(axis), kernel.beta) for axis in axes), strict=True)
    spread = np.ones(())
    for one in spreads:
        spread = spread[..., None] * one
    ratios = np.maximum(spread * kernel.sigma / grid, _LEAST_RATIO)
    fresh = rounded_normal(generator, (*shape, paths or 1), ratios[..., None])
    path = fresh * grid
    for dimension, decay in enumerate(decays):
        moved = np.moveaxis(path, dimension, 0)
        flat = moved.reshape(shape[dimension], -1)
        path = np.moveaxis(recursion(decay, flat).reshape(moved.shape), 0, dimension)
    means, left = np.zeros(path.shape), path
    for dimension, decay in enumerate(decays):
        moved = np.moveaxis(left, dimension, 0)
        behind = np.zeros(moved.shape)
        behind[1:] = decay[1:].reshape(-1, *(1,) * len(shape)) * moved[:-1]
        behind = np.moveaxis(behind, 0, dimension)
        means, left = means + behind, left - behind
    if paths is None:
        means, fresh = means[..., 0], fresh[..., 0]
    return Sample(means, fresh, grid, grid_rounding(axes, beta, sigma, grid) * (paths or 1))


def grid_rounding(
    axes: Sequence[Float[np.ndarray, " _"]], beta: float, sigma: float, grid: float
) -> float:
    """Returns `Sample.rounding` of one path on a grid, from public positions only."""
    inverse = 1.0
    for axis in axes:
        _, spread = _autoregression(line(axis), beta)
        inverse *= float(np.sum(np.maximum(spread, _LEAST_RATIO) ** -2.0))
    return float(inverse * (2 ** len(axes) * MOVED * grid / sigma) ** 2)


def _autoregression(
    axis: Float64[np.ndarray, " n"], beta: float
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Returns each node's weight of the node before it, and its standard deviation given that."""
    if not len(axis) or not np.all(np.diff(axis) > 0):
        raise ValueError("the positions along an axis must increase strictly")
    steps = np.diff(axis, prepend=-math.inf)
    return np.exp(-beta * steps), np.sqrt(-np.expm1(-2 * beta * steps))
