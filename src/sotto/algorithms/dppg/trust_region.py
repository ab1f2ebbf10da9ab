"""Clip norms from trust regions (Rio et al. 2025, section 4.2), with corrections.

A released update is eta (g + xi) with |g| <= S and xi ~ N(0, (ratio S)^2 I_d). The ratio,
`noise_ratio`, is the noise's standard deviation divided by the clip norm. For independent noise and
an average over users, it is noise_multiplier / users. Each function returns the largest S with
which the update stays in the trust region with probability at least `confidence`, for every clipped
gradient g.

These functions affect utility only. The Fisher matrix must come from public data: from a simulator,
or from a policy before it depends on private data.
"""

import math
from typing import Literal

import numpy as np
from jaxtyping import Float

TrustRegion = Literal["l2-quantile", "l2-markov", "kl-quantile", "kl-markov"]


def l2_quantile(
    *,
    noise_ratio: float,
    dimension: int,
    radius: float,
    confidence: float = 0.9,
    learning_rate: float = 1.0,
) -> float:
    """Returns S of Prop 4.4: |step|^2 / 2 <= radius, by the noncentral chi-square quantile."""
    _check(noise_ratio, radius, confidence)
    from scipy.stats import ncx2  # takes a second to import, and few runs need it

    quantile = float(ncx2.ppf(confidence, dimension, noise_ratio**-2))
    return math.sqrt(2 * radius / quantile) / (learning_rate * noise_ratio)


def l2_markov(
    *,
    noise_ratio: float,
    dimension: int,
    radius: float,
    confidence: float = 0.9,
    learning_rate: float = 1.0,
) -> float:
    """Returns S of Prop 4.5: the same by Markov's inequality, 2.6 to 2.9 times smaller."""
    _check(noise_ratio, radius, confidence)
    mean = 1 + noise_ratio**2 * dimension
    return math.sqrt(2 * radius * (1 - confidence) / mean) / learning_rate


def kl_quantile(
    fisher: Float[np.ndarray, "d d"],
    *,
    noise_ratio: float,
    radius: float,
    confidence: float = 0.9,
    learning_rate: float = 1.0,
    draws: int = 20_000,
) -> float:
    """Returns S of Prop 4.7 in its quantile form: step^T F step / 2 <= radius.

    The quantile of the generalised chi-square law is simulated. The clipped gradient is along the
    top eigenvector of F, where the quadratic form is largest.
    """
    _check(noise_ratio, radius, confidence)
    eigenvalues = np.maximum(np.linalg.eigvalsh(fisher), 0.0)
    shift = np.zeros_like(eigenvalues)
    shift[-1] = 1.0
    noise = noise_ratio * np.random.default_rng(0).standard_normal((draws, eigenvalues.size))
    quantile = float(np.quantile((noise + shift) ** 2 @ eigenvalues, confidence))
    return math.sqrt(2 * radius / quantile) / learning_rate


def kl_markov(
    fisher: Float[np.ndarray, "d d"],
    *,
    noise_ratio: float,
    radius: float,
    confidence: float = 0.9,
    learning_rate: float = 1.0,
) -> float:
    """Returns S of Prop 4.7 by Markov's inequality, with the 1/2 that its last line drops."""
    _check(noise_ratio, radius, confidence)
    mean = float(np.linalg.eigvalsh(fisher)[-1]) + noise_ratio**2 * float(np.trace(fisher))
    return math.sqrt(2 * radius * (1 - confidence) / mean) / learning_rate


def _check(noise_ratio: float, radius: float, confidence: float) -> None:
    if not (noise_ratio > 0 and radius > 0 and 0 < confidence < 1):
        raise ValueError(
            "a trust region needs a positive noise ratio and radius, and a confidence in (0, 1)"
        )
