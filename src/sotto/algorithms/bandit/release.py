"""The release of one block of people, and the prior that the next block gets from the noisy sums.

Guarantee:
    See `sotto.privacy.release.release`. The unit is everything that one person logged, and a person
    is in one block. The prior is a function of noisy sums and public numbers (docs/privacy.md,
    section 24).
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.bandit.config import GAIN_NORM, GAIN_SHARE, BanditConfig
from sotto.algorithms.bandit.person import (
    SQUARES_WEIGHT,
    Prior,
    Rated,
    RoundMoments,
    mean_over,
    moments,
    play,
)
from sotto.algorithms.settings import known
from sotto.privacy.claims import logs as claims
from sotto.privacy.mechanisms import correlated
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Once, Part
from sotto.privacy.units import Adjacency, Unit

UNIT = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
"""Everything that one person logged; the person is there, or their place is empty."""

PRIOR_VARIANCE = 0.0015
"""Variance of a mean weight before the first release."""
_LEAST_SQUARE = 0.1
"""Least square of a feature that is believed, in units of their mean. It only affects utility."""
_PEOPLE = 1000
"""Most people that are mapped at once."""


class BanditState(NamedTuple):
    """Public state: sums over releases, and what was made of them."""

    sums: RoundMoments
    means: Float[Array, " d"]
    """Sum over the blocks in `sums` of the mean weights by which their people played."""
    gain: Float[Array, ""]
    """Noisy sum over people of the mean gain of their choices over random ones."""
    prior: Prior
    variance: Float[Array, ""]
    """Variance of the noise in each number of `sums`, a public constant."""
    gain_variance: Float[Array, ""]
    """Variance of the noise in `gain`, a public constant."""
    blocks: Int[Array, ""]
    """Number of blocks in the sums, without those that were lost."""
    bounds: Float[Array, "2 d"]
    """Declared lower and upper bounds of the features, for the released policy."""


def first_state(config: BanditConfig) -> BanditState:
    """Returns the state before the first release."""
    size = config.features
    none = jnp.zeros(size)
    prior = Prior(none, jnp.full(size, PRIOR_VARIANCE))
    bounds = jnp.asarray([known(config.low), known(config.high)], jnp.float32)
    zero = jnp.zeros(())
    return BanditState(
        RoundMoments(none, none), none, zero, prior, zero, zero, jnp.int32(0), bounds
    )


def block_release(config: BanditConfig, horizon: int) -> Release:
    """Returns the release of one block, for a stream of `horizon` blocks."""
    whole = config.noise_multiplier
    about = claims.about_log(config, claims.IDS, claims.COLUMNS, claims.SETTINGS)
    return Release(
        name="bandit block",
        local=partial(_local, config),
        server=added,
        unit=UNIT,
        parts={
            "moments": Part(
                clip_norm=config.clip_norm, noise_multiplier=whole / math.sqrt(1 - GAIN_SHARE)
            ),
            "gain": Part(clip_norm=GAIN_NORM, noise_multiplier=whole / math.sqrt(GAIN_SHARE)),
        },
        slots=config.slots,
        divisor=1.0,
        horizon=horizon,
        population=config.population,
        correlation=config.correlation,
        microbatch=min(_PEOPLE, config.slots),
        protects=(claims.JOINT(),),
        does_not_protect=(claims.PATTERNS(), claims.OWN_OFFERS(), *about.does_not_protect),
        assumptions=about.assumptions,
    )


def sum_variances(release: Release, part: str) -> Float[np.ndarray, " horizon"]:
    """Returns the variance of the noise in a sum of the first 1, 2, ... releases of a stream."""
    one = release.parts[part]
    scale = one.noise_multiplier * one.clip_norm
    scale *= correlated.sensitivity(release.correlation, Once(), release.horizon)
    deviations = correlated.prefix_deviations(release.correlation, release.horizon)
    return np.asarray(np.square(scale * deviations))


def _local(
    config: BanditConfig, state: BanditState, unit: Rated, key: PRNGKeyArray
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Returns one person's contribution, and the person's mean ratings."""
    rounds = play(config, state.prior, unit, key)
    chosen = mean_over(rounds.ratings, rounds.played)
    offered = mean_over(rounds.offered, rounds.played)
    worst, best = known(config.reward_bounds)
    shown = {"reward": chosen, "random": offered}
    return (
        {"moments": moments(rounds, state.prior.mean), "gain": chosen - offered},
        {name: worst + (best - worst) * value for name, value in shown.items()},
    )


def added(state: BanditState, released: dict[str, Any]) -> tuple[BanditState, dict[str, Array]]:
    """Adds a block to the sums."""
    sums = RoundMoments(*(a + b for a, b in zip(state.sums, released["moments"], strict=True)))
    after = state._replace(
        sums=sums,
        means=state.means + state.prior.mean,
        gain=state.gain + released["gain"],
        blocks=state.blocks + 1,
    )
    return after, {}


def prior_of(
    sums: RoundMoments, mean: Float[np.ndarray, " d"], variance: float, energy: float
) -> Prior:
    """Returns mean and variances of the mean weights, from noisy sums.

    In each feature the products are its weight, less the weight that was already explained, times
    the squares, with an error. The prior of the weight has mean zero and variance `PRIOR_VARIANCE`.
    The error is the noise and the differences between people. The latter have a squared norm of at
    most `energy` in all features together, of which a feature has the share of its squares.

    Args:
        sums: noisy sums over people.
        mean: mean over the blocks of the weights by which their people played.
        variance: of the noise in each number of `sums`.
        energy: largest sum over people of the squared norm of a contribution.
    """
    squares = np.asarray(sums.squares, np.float64) / SQUARES_WEIGHT
    squares = np.maximum(squares, max(_LEAST_SQUARE * float(np.mean(squares)), 1e-9))
    products = np.asarray(sums.products, np.float64) + squares * np.asarray(mean, np.float64)
    error = variance + energy * squares / np.sum(squares)
    left = PRIOR_VARIANCE / (np.square(squares) * PRIOR_VARIANCE + error)
    both = left * squares * products, left * error
    return Prior(*(jnp.asarray(x, jnp.float32) for x in both))
