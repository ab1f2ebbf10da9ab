"""Distances of neighbouring functions, in the norm that the noise needs.

Noise with kernel K(x, y) = exp(-beta |x - y|_1) on [0, 1]^d hides a difference of functions by its
norm in the reproducing-kernel Hilbert space H of K. A plain noisy vector hides it by its Euclidean
norm. A `Sensitivity` bounds that norm over all neighbours, all actions together.

Guarantee:
    On [0, 1] the norm is |f|_H^2 = (f(0)^2 + f(1)^2) / 2 + int f'^2 / (2 beta) + beta/2 int f^2,
    and f is in H if and only if it is finite. In d dimensions H is the tensor product, and a
    function needs all its mixed derivatives. The proofs are in docs/privacy.md, section 13,
    "Sensitivities".

Source: Wang and Hegde 2019, Lemma 6.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Literal

import numpy as np
from jaxtyping import Float

from sotto.privacy.errors import PrivacyError
from sotto.privacy.mechanisms.functions.rounding import LARGEST_BETA, SMALLEST_BETA

HAT_STEP = math.sqrt(6.0)
"""Product of beta and the distance of two nodes at which a hat basis is least sensitive."""


@dataclass(frozen=True)
class Sensitivity:
    """A bound on the distance of two neighbours' values, all actions together.

    Attributes:
        value: the bound; positive and finite.
        beta: of the kernel that defines the norm; None for the Euclidean norm of a vector.
        because: reason for the bound, in a sentence for the certificate.
        dimensions: of the cube on which the functions live, under a kernel.
    """

    value: float
    beta: float | None
    because: str
    dimensions: int = 1

    def __post_init__(self) -> None:
        _positive("a sensitivity", self.value)
        if self.beta is not None and not SMALLEST_BETA <= self.beta <= LARGEST_BETA:
            raise ValueError(
                f"beta must be between {SMALLEST_BETA:.3g} and {LARGEST_BETA:.3g}, which float64 "
                f"resolves; got {self.beta}"
            )


class NotInSpace(PrivacyError):
    """Raised for functions outside the space of the kernel, which no amount of noise would hide."""


# --- norms ---------------------------------------------------------------------------------------


def norm_1d(nodes: Float[np.ndarray, " n"], values: Float[np.ndarray, " n"], beta: float) -> float:
    """Returns the exact norm of a function on [0, 1] that is linear between nodes.

    Args:
        nodes: strictly increasing, from 0 to 1.
        values: of the function at the nodes.
        beta: of the kernel.
    """
    nodes, values = np.asarray(nodes, dtype=np.float64), np.asarray(values, dtype=np.float64)
    steps = np.diff(nodes)
    if nodes.ndim != 1 or nodes.shape != values.shape or nodes.size < 2 or not (steps > 0).all():
        raise ValueError("nodes must increase strictly, with one value for each of them")
    if (nodes[0], nodes[-1]) != (0.0, 1.0):
        raise ValueError(f"nodes go from 0 to 1, got {nodes[0]:g} to {nodes[-1]:g}")
    _positive("beta", beta)
    left, right = values[:-1], values[1:]
    slopes = float(np.sum((right - left) ** 2 / steps))
    squares = float(np.sum(steps * (left**2 + left * right + right**2))) / 3
    ends = float(values[0] ** 2 + values[-1] ** 2) / 2
    return math.sqrt(ends + slopes / (2 * beta) + beta / 2 * squares)


# --- sensitivities -------------------------------------------------------------------------------


def vector_sensitivity(nodes: int, actions: int, radius: float) -> Sensitivity:
    """Returns radius sqrt(nodes actions), if each value moves by at most `radius`."""
    _counts(nodes, actions)
    return Sensitivity(
        _positive("radius", radius) * math.sqrt(nodes * actions),
        None,
        f"each of {nodes} x {actions} values moves by at most {radius:g}",
    )


def hat_basis_beta(nodes: int) -> float:
    """Returns the beta at which functions linear between `nodes` even nodes are least sensitive."""
    return HAT_STEP * (nodes - 1)


def hat_basis_sensitivity(
    nodes: int, actions: int, radius: float, beta: float | None = None
) -> Sensitivity:
    """Returns the exact sensitivity of functions linear between even nodes on [0, 1].

    Each nodal value moves by at most `radius`. The squared norm is convex in the nodal values, so
    it is largest where each is +-radius. An interval of length h then adds beta h / 2 (same sign)
    or 2 / (beta h) + beta h / 6 (opposite signs), and all intervals may take the larger:
    radius^2 m (1 + (n - 1) max(..)). At beta h = sqrt(6) that is least,
    radius^2 m (1 + (n - 1) sqrt(6) / 2).

    Args:
        nodes: at least 2.
        actions: number of functions.
        radius: of the nodal values.
        beta: of the kernel (default: the best one, `hat_basis_beta`).
    """
    _counts(nodes, actions)
    if nodes < 2:
        raise ValueError(f"a hat basis needs at least 2 nodes, got {nodes}")
    beta = hat_basis_beta(nodes) if beta is None else _positive("beta", beta)
    step = beta / (nodes - 1)
    squared = 1 + (nodes - 1) * max(step / 2, 2 / step + step / 6)
    return Sensitivity(
        _positive("radius", radius) * math.sqrt(actions * squared),
        beta,
        f"each of {nodes} x {actions} nodal values moves by at most {radius:g}, and functions are "
        "linear between nodes",
    )


def generic_sensitivity(
    sup: float, lipschitz: float, actions: int, beta: float | None = None
) -> Sensitivity:
    """Returns the sensitivity of functions on [0, 1] with bounded, Lipschitz differences.

    It squares to m (M^2 (1 + beta/2) + Lambda^2 / (2 beta)), which is least at beta = Lambda / M:
    m (M^2 + M Lambda).

    Args:
        sup: bound M on the difference of neighbouring functions.
        lipschitz: bound Lambda on the Lipschitz constant of the *difference*, which is up to twice
            that of one function.
        actions: number of functions.
        beta: of the kernel (default: the best one).
    """
    _positive("sup", sup)
    _positive("lipschitz", lipschitz)
    _counts(1, actions)
    beta = lipschitz / sup if beta is None else _positive("beta", beta)
    norm = math.hypot(sup * math.sqrt(1 + beta / 2), lipschitz / math.sqrt(2 * beta))
    return Sensitivity(
        math.sqrt(actions) * norm,
        beta,
        f"each of {actions} functions moves by at most {sup:g}, and its slope by at most "
        f"{lipschitz:g}",
    )


def mixed_partials_sensitivity(
    bounds: Mapping[Collection[int], float], dimensions: int, actions: int, beta: float
) -> Sensitivity:
    """Returns the sensitivity of functions on [0, 1]^d with bounded mixed derivatives.

    |f|_H^2 <= sum over subsets S of the axes of
    (1 + beta/2)^(d - |S|) (2 beta)^-|S| sup |d_S f|^2, for each action.

    Args:
        bounds: bound on |d_S f| for every subset S of the axes 0..d-1, the empty one included.
        dimensions: d.
        actions: number of functions.
        beta: of the kernel exp(-beta |x - y|_1).

    Raises:
        NotInSpace: a subset has no bound, so the norm has none.
    """
    _counts(dimensions, actions)
    _positive("beta", beta)
    known = {frozenset(axes): bound for axes, bound in bounds.items()}
    axes = range(dimensions)
    subsets = chain.from_iterable(combinations(axes, size) for size in range(dimensions + 1))
    terms = []
    for subset in subsets:
        bound = known.get(frozenset(subset), math.inf)
        if not 0 <= bound < math.inf:
            raise NotInSpace(
                f"the mixed derivative along axes {list(subset)} has no finite bound, so the "
                f"functions may not be in the space of the kernel in {dimensions} dimensions; "
                "bound all of them, or release values on nodes as a vector"
            )
        size = len(subset)
        terms.append(bound * math.sqrt((1 + beta / 2) ** (dimensions - size) / (2 * beta) ** size))
    return Sensitivity(
        math.sqrt(actions) * math.hypot(*terms),
        beta,
        f"all mixed derivatives of {actions} functions in {dimensions} dimensions are bounded",
        dimensions,
    )


def require_in_space(activation: Literal["relu", "tanh"], dimensions: int) -> None:
    """Refuses networks whose functions are not in the space of the kernel.

    A ReLU network bends along lines that are not parallel to the axes. In more than one dimension
    its mixed derivative is then a measure on such a line, not a function, and its norm is infinite.
    On finer and finer grids it grows without bound, and noise of any size reveals everything.

    Raises:
        NotInSpace: a ReLU network in more than one dimension.
    """
    _counts(dimensions, 1)
    if activation == "relu" and dimensions > 1:
        raise NotInSpace(
            f"ReLU networks in {dimensions} dimensions are not in the space of the kernel (their "
            "norm is infinite), so this noise would hide nothing; use tanh with bounded weights, "
            "or release values on nodes as a vector"
        )


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive finite number, got {value}")
    return value


def _counts(nodes: int, actions: int) -> None:
    if nodes < 1 or actions < 1:
        raise ValueError(f"nodes and actions must be at least 1, got {nodes} and {actions}")
