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
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from sotto.frozen import Declared
from sotto.privacy.mechanisms.functions.rounding import LARGEST_BETA, SMALLEST_BETA

HAT_STEP = math.sqrt(6.0)
"""Product of beta and the distance of two nodes at which a hat basis is least sensitive."""


@dataclass(frozen=True)
class Sensitivity(Declared):
    """A bound on the distance of two neighbours' values, all actions together.

    Attributes:
        value: the bound; positive and finite.
        beta: of the kernel that defines the norm; None for the Euclidean norm of a vector.
        because: reason for the bound, in a sentence for the certificate.
        change: largest change of a reward that the bound is for: the radius of a reward function,
            or the width of the range of one reward.
        dimensions: of the cube on which the functions live, under a kernel.
        size, actions: how many values, and how many actions, the bound is for; None: whoever gives
            the bound answers for it.
        nodes: number of even nodes on [0, 1] between which the functions are linear; None: the
            bound is for nodes at any places.
    """

    value: float
    beta: float | None
    because: str
    change: float
    dimensions: int = 1
    size: int | None = None
    actions: int | None = None
    nodes: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("a sensitivity", self.value)
        _positive("the change of a reward", self.change)
        if self.beta is not None and not SMALLEST_BETA <= self.beta <= LARGEST_BETA:
            raise ValueError(
                f"beta must be between {SMALLEST_BETA:.3g} and {LARGEST_BETA:.3g}, which float64 "
                f"resolves; got {self.beta}"
            )


def vector_sensitivity(nodes: int, actions: int, radius: float) -> Sensitivity:
    """Returns radius sqrt(nodes actions), if rewards, and each value, move by at most `radius`."""
    _counts(nodes, actions)
    return Sensitivity(
        _positive("radius", radius) * math.sqrt(nodes * actions),
        None,
        f"each of {nodes} x {actions} values moves by at most {radius:g}",
        radius,
        size=nodes * actions,
        actions=actions,
    )


def hat_basis_beta(nodes: int) -> float:
    """Returns the beta at which functions linear between `nodes` even nodes are least sensitive."""
    return HAT_STEP * (nodes - 1)


def hat_basis_sensitivity(nodes: int, actions: int, radius: float) -> Sensitivity:
    """Returns the exact sensitivity of functions linear between even nodes on [0, 1].

    The kernel is the best one, `hat_basis_beta`.

    Rewards, and each nodal value, move by at most `radius`. The squared norm is convex in the
    nodal values, so it is largest where each is +-radius. An interval of length h then adds
    beta h / 2 (same sign) or 2 / (beta h) + beta h / 6 (opposite signs), and all intervals may take
    the larger:
    radius^2 m (1 + (n - 1) max(..)). At beta h = sqrt(6) that is least,
    radius^2 m (1 + (n - 1) sqrt(6) / 2).

    Args:
        nodes: at least 2.
        actions: number of functions.
        radius: of the nodal values.
    """
    _counts(nodes, actions)
    if nodes < 2:
        raise ValueError(f"a hat basis needs at least 2 nodes, got {nodes}")
    beta = hat_basis_beta(nodes)
    step = beta / (nodes - 1)
    squared = 1 + (nodes - 1) * max(step / 2, 2 / step + step / 6)
    return Sensitivity(
        _positive("radius", radius) * math.sqrt(actions * squared),
        beta,
        f"each of {nodes} x {actions} nodal values moves by at most {radius:g}, and functions are "
        "linear between even nodes on [0, 1]",
        radius,
        size=nodes * actions,
        actions=actions,
        nodes=nodes,
    )


def is_even(axis: Float[np.ndarray, " n"], nodes: int) -> bool:
    """Whether positions are `nodes` even nodes on [0, 1], up to rounding in float64."""
    return len(axis) == nodes and np.allclose(axis, np.linspace(0, 1, nodes), rtol=0, atol=2e-14)


def generic_sensitivity(sup: float, lipschitz: float, actions: int, change: float) -> Sensitivity:
    """Returns the sensitivity of functions on [0, 1] with bounded, Lipschitz differences.

    It squares to m (M^2 (1 + beta/2) + Lambda^2 / (2 beta)), which is least at beta = Lambda / M,
    the beta of the kernel here: m (M^2 + M Lambda).

    Args:
        sup: bound M on the difference of neighbouring functions.
        lipschitz: bound Lambda on the Lipschitz constant of the *difference*, which is up to twice
            that of one function.
        actions: number of functions.
        change: largest change of a reward that these bounds are for.
    """
    _positive("sup", sup)
    _positive("lipschitz", lipschitz)
    _counts(1, actions)
    beta = lipschitz / sup
    norm = math.hypot(sup * math.sqrt(1 + beta / 2), lipschitz / math.sqrt(2 * beta))
    return Sensitivity(
        math.sqrt(actions) * norm,
        beta,
        f"each of {actions} functions moves by at most {sup:g}, and its slope by at most "
        f"{lipschitz:g}",
        change,
        actions=actions,
    )


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive finite number, got {value}")
    return value


def _counts(nodes: int, actions: int) -> None:
    if nodes < 1 or actions < 1:
        raise ValueError(f"nodes and actions must be at least 1, got {nodes} and {actions}")
