"""A certified Lipschitz constant of a policy network: how far a row moves with its observation.

It is never a sampled constant, which is a lower bound, and never the result of power iteration,
which approaches the norm from below.

Guarantee:
    Let pi(x) = softmax(W_n^T s(... s(W_1^T diag(scale) x + b_1) ...) + b_n) with s tanh, ReLU or
    anything else of slope at most 1. Then |pi(x) - pi(y)|_2 <= certified_lipschitz(...) |x - y|_2.
    The Jacobian of softmax is the covariance of the actions' indicators. Its norm is the largest
    variance of u_A, A drawn from the row, over unit vectors u. That is at most
    (max u - min u)^2 / 4, and max u - min u is at most sqrt(2), which gives 1/2. The chain rule
    does the rest (docs/privacy.md, section 12).
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

_INFLATION = 1 + 1e-6  # far above the error of a full singular value decomposition


def certified_lipschitz(
    weights: Sequence[Float[np.ndarray, "_ _"]],
    observation_scale: Sequence[float] | Float[np.ndarray, " _"],
) -> float:
    """Returns an upper bound on the L2 Lipschitz constant of observation -> row of probabilities.

    Args:
        weights: of the layers, first to last, each [inputs, outputs].
        observation_scale: public factors that observations are multiplied with, one for each
            entry.

    Raises:
        ValueError: shapes that do not follow each other, or numbers that are not finite.
    """
    layers = [np.asarray(weight, dtype=np.float64) for weight in weights]
    scale = np.asarray(observation_scale, dtype=np.float64)
    if not layers or layers[0].shape[0] != scale.size:
        raise ValueError(
            "the first weight matrix must be [inputs, outputs] with one observation scale per input"
        )
    if any(one.shape[1] != next_.shape[0] for one, next_ in itertools.pairwise(layers)):
        raise ValueError("the weight matrices must each be [inputs, outputs], first to last")
    layers[0] = scale[:, None] * layers[0]
    if not all(np.isfinite(layer).all() for layer in layers):
        raise ValueError("a network with weights that are not finite has no Lipschitz constant")
    return 0.5 * math.prod(_spectral_norm(layer) for layer in layers)


def _spectral_norm(matrix: np.ndarray) -> float:
    return float(np.linalg.svd(matrix, compute_uv=False)[0]) * _INFLATION
