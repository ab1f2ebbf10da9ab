"""Rounds of releases. Each releases what the model fitted to the earlier ones leaves unexplained.

Let G_p and C_p be a person's mean products of features with features and with targets
(`moments.person_moments`). Least squares needs their means G and C. A person's own G_p and C_p are
long, and so would be the noise. So people answer in rounds. After each round the server knows an
estimate of G and weights W of the features, and the next people contribute

    (G_p - G) / u_1  and  (C_p - G_p W) / u_2

The second is the residual of the model on the person's own rows. It gets shorter as W gets better,
so its unit u_2 and its noise get smaller. A histogram of the length of the residual gives the unit
of the next round. In the first round G and W are zero, and both units are 1.

Guarantee:
    See `sotto.privacy.release.release`. The unit is everything that one person logged. A person is
    in one round, and the contribution has the public clip norm 1 (docs/privacy.md, section 23).
"""

import itertools
import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.offline_people.config import OfflinePeopleConfig
from sotto.algorithms.offline_people.moments import (
    Logged,
    Scales,
    group_release,
    person_moments,
    products,
    there,
)
from sotto.algorithms.settings import known as given
from sotto.privacy.release.release import Release

ROUNDS = 3
CLIP_NORM = 1.0
LENGTHS = 24
"""Bins of the length of a residual: bin b holds lengths from 2^(-(b + 1) / 2) to 2^(-b / 2)."""
_COUNTED = 0.1
"""Norm of the part that counts lengths."""
_GRAM_LENGTH = 0.4
"""Typical length of the difference between a person's G_p and the mean."""
_GRAM_SHARE = 0.4
"""Share of the squared clip norm for that difference."""
_SECOND_LENGTH = 0.1
"""Length for which the residuals of the second round have room."""
_ROOM = 1.5
"""Room for residuals in later rounds, in units of their median length."""
_CUT = 3.0
"""Directions of G with less than this many standard deviations of the noise are left out."""
_SMALLEST = 1e-3
"""Smallest eigenvalue of G that is used, since start states match the moments only roughly."""
_SEEN = 4.0
"""Ends are in the model if one of their residuals has this many standard deviations of noise."""


class Known(NamedTuple):
    """Public state of a round: functions of earlier releases."""

    scales: Scales
    gram: Float[Array, "A d d"]
    """Estimate of the mean of psi psi^T for each category of action."""
    weights: Float[Array, "A d targets"]
    base: Float[Array, "d targets"]
    """Weights that give the mean reward and the mean probability of an end, and no change."""
    units: Float[Array, "2"]
    """Units of the two parts of a contribution."""
    precision: Float[Array, ""]
    """One over the variance of the noise in each number of `gram`."""


def blank(config: OfflinePeopleConfig, scales: Scales) -> Known:
    """Returns the public state before the first round."""
    kinds, features, targets = _shape(config)
    return Known(
        scales,
        jnp.zeros((kinds, features, features)),
        jnp.zeros((kinds, features, targets)),
        jnp.zeros((features, targets)),
        jnp.ones(2),
        jnp.zeros(()),
    )


def size(config: OfflinePeopleConfig) -> int:
    """Returns how many numbers a round releases."""
    kinds, features, targets = _shape(config)
    return kinds * features * (features + targets) + LENGTHS


def packed(
    gram: Float[Array, "A d d"], residual: Float[Array, "A d targets"], counts: Float[Array, " b"]
) -> Float[Array, " n"]:
    """Returns the three parts of a contribution as one vector."""
    return jnp.concatenate([jnp.ravel(gram), jnp.ravel(residual), counts])


def round_release(config: OfflinePeopleConfig, number: int) -> Release:
    """Returns the release of a round, counted from 0. Its state is `Known`, its log a vector."""
    person = partial(person_residual, config)
    name = f"round {number + 1}"
    return group_release(config, name, 1 + number, person, CLIP_NORM, size(config))


def person_residual(
    config: OfflinePeopleConfig, known: Known, unit: Logged, key: PRNGKeyArray
) -> Float[Array, " n"]:
    """Returns one person's contribution; zero for somebody without rows that count."""
    features = known.gram.shape[1]
    own = person_moments(config, known.scales, unit, key)
    gram, crossed = own[..., :features], own[..., features:]
    residual = crossed - jnp.einsum("adf,aft->adt", gram, known.weights)
    present = there(unit)
    length = jnp.sqrt(jnp.sum(jnp.square(residual)))
    level = jnp.floor(-2 * jnp.log2(jnp.maximum(length, jnp.float32(1e-9))))
    chosen = jnp.clip(level, 0, LENGTHS - 1).astype(jnp.int32) == jax.lax.iota(jnp.int32, LENGTHS)
    return packed(
        (gram - present * known.gram) / known.units[0],
        residual / known.units[1],
        present * _COUNTED * chosen.astype(jnp.float32),
    )


def updated(
    config: OfflinePeopleConfig,
    known: Known,
    released: Float[np.ndarray, " n"],
    sigma: float,
    caution: float = 1.0,
) -> Known:
    """Returns the public state after a round.

    The residual corrects W in the directions of the features in which G is well above its noise.
    In the others nothing is known, and there W returns to `base`: what the noise of earlier rounds
    put there would promise rewards that nobody earned.

    Args:
        config: settings.
        known: public state with which the round was made.
        released: noisy mean contribution of the people with rows.
        sigma: standard deviation of the noise in each number of it.
        caution: factor of the thresholds below which something counts as noise.
    """
    gram, weights, base, units, precision = (np.array(x, np.float64) for x in known[1:])
    parts = np.split(np.asarray(released, np.float64), np.cumsum([gram.size, weights.size]))
    noise = sigma * units
    fresh = 1 / max(noise[0], 1e-9) ** 2
    share = fresh / (precision + fresh)
    gram = shared(config, gram + share * parts[0].reshape(gram.shape) * units[0])
    precision = precision + fresh
    residual = parts[1].reshape(weights.shape) * units[1]
    if not (np.abs(residual[..., -1]) > caution * _SEEN * noise[1]).any():
        residual[..., -1] = 0  # the value of an end must not be earned by noise
    first = not weights.any()
    if first:
        base[0, -2:] = residual[:, 0, -2:].sum(axis=0) / gram[:, 0, 0].sum()
    least = max(caution * _CUT / math.sqrt(precision), _SMALLEST)
    corrected = []
    for one, old, left in zip(gram, weights, residual, strict=True):
        values, vectors = np.linalg.eigh(one)
        kept, inverse = vectors[:, values > least], 1 / values[values > least]
        step = kept.T @ (old - base) + inverse[:, None] * (kept.T @ left)
        corrected.append(base + kept @ step)
    length = _SECOND_LENGTH if first else _ROOM * _median(parts[2], sigma, units[1])
    after = (gram, np.stack(corrected), base, _units(length), precision)
    return Known(known.scales, *(jnp.asarray(x, jnp.float32) for x in after))


def shared(
    config: OfflinePeopleConfig, gram: Float[np.ndarray, "A d d"]
) -> Float[np.ndarray, "A d d"]:
    """Returns noisy means of psi psi^T, in which equal products have the mean of their entries.

    The product of two monomials is a monomial, and most of them come from several pairs: x y is
    1 times x y, and x times y. Their entries differ by noise alone.
    """
    chosen = products(config)
    named = [[tuple(sorted(one + other)) for other in chosen] for one in chosen]
    numbers = {name: place for place, name in enumerate(sorted(set(itertools.chain(*named))))}
    which = np.array([[numbers[name] for name in row] for row in named])
    counts = np.bincount(which.ravel())
    return np.stack([(np.bincount(which.ravel(), one.ravel()) / counts)[which] for one in gram])


def _median(counts: Float[np.ndarray, " b"], sigma: float, unit: float) -> float:
    """Returns the median length of residuals, or that of the present unit if all is noise."""
    seen = np.where(counts > 3 * sigma, counts, 0)[::-1]  # the shortest first
    if not seen.any():
        return float(unit * math.sqrt(1 - _GRAM_SHARE - _COUNTED**2) / _ROOM)
    below = np.concatenate([[0], np.cumsum(seen)])
    edges = np.arange(LENGTHS, -1, -1) / -2
    return float(2 ** np.interp(below[-1] / 2, below, edges))


def _units(length: float) -> Float[np.ndarray, "2"]:
    """Returns the units with which typical differences, and residuals of this length, have room."""
    rest = 1 - _GRAM_SHARE - _COUNTED**2
    return np.array([_GRAM_LENGTH / math.sqrt(_GRAM_SHARE), length / math.sqrt(rest)])


def _shape(config: OfflinePeopleConfig) -> tuple[int, int, int]:
    return config.actions or 1, len(products(config)), len(given(config.low)) + 2
