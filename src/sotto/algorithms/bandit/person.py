"""One person of the bandit: offers, choices by own ratings and a public prior, and a contribution.

A row of the log is a rated item with features x, scaled by public bounds to [0, 1], and then shrunk
into the unit ball. A round offers the items of `candidates` rows, which are drawn from the person's
rows, each row at most once. So the rating of every offered item is known, and the replay is exact:
no probabilities of logged actions are needed. Rows do not name their item, so an item that a person
rated twice is two rows, and may be offered twice.

A person's rating of an item is modelled as level + w . x + noise. The prior of w is public (mean
and variances, functions of earlier releases), and each of the person's rounds updates it (Bayesian
linear regression). The person chooses the item with the largest mean. Nobody else sees these
choices.

The contribution has two moments, which are means over rounds: squares of the features of the chosen
items around their mean, and products of these features with what the public mean of w leaves
unexplained of the ratings. A second part is the gain of the choices over all offered items. Means
of the own rounds are subtracted because people differ in level.

Guarantee:
    Everything here is a function of one person's rows, that person's random numbers and the public
    prior. The contribution is clipped by the door (docs/privacy.md, section 24).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from sotto.algorithms.bandit.config import BanditConfig
from sotto.algorithms.settings import known
from sotto.data.imports.records import Records

SPREAD = 0.005
"""Variance of a weight between people."""
NOISE = 0.06
"""Variance of a rating around a person's model, in units of the range of ratings."""
LEVEL = 0.5
"""Mean of people's levels."""
LEVEL_VARIANCE = 0.1
SQUARES_WEIGHT = 0.1
"""Weight of squares of features in a contribution, against that of products with ratings."""


class Rated(NamedTuple):
    """Rated items of one person, or of people with a leading axis; padding is zero."""

    items: Float[Array, "items d"]
    ratings: Float[Array, " items"]
    present: Bool[Array, " items"]


class Prior(NamedTuple):
    """Public mean of the weights, and the variance of its error in each feature."""

    mean: Float[Array, " d"]
    variance: Float[Array, " d"]


class RoundMoments(NamedTuple):
    """Moments of a person's own rounds, or noisy sums of several people's."""

    squares: Float[Array, " d"]
    """Squares of features, times `SQUARES_WEIGHT`."""
    products: Float[Array, " d"]


class Rounds(NamedTuple):
    """The rounds of one person."""

    items: Float[Array, "T d"]
    """Features of the chosen items."""
    ratings: Float[Array, " T"]
    offered: Float[Array, " T"]
    """Mean rating of the offered items."""
    played: Bool[Array, " T"]


def rated(config: BanditConfig, records: Records) -> Rated:
    """Returns the features and ratings of all people, leaves of shape [people, items, ...]."""
    acted = records.actions
    if records.declaration.discrete:
        acted = acted[..., None] == np.arange(records.declaration.action_space.n)
    both = np.concatenate([records.observations, acted], axis=-1, dtype=np.float32)
    bounds = jnp.asarray([known(config.low), known(config.high)], jnp.float32)
    worst, best = known(config.reward_bounds)
    there = records.present
    ratings = (records.rewards - worst) / (best - worst) * there
    items = np.asarray(in_ball(jnp.asarray(both), bounds)) * there[..., None]
    return Rated(*map(jnp.asarray, (items, ratings.astype(np.float32), there)))


def in_ball(
    features: Float[Array, "*batch d"], bounds: Float[Array, "2 d"]
) -> Float[Array, "*batch d"]:
    """Returns features scaled by their bounds to [0, 1] and shrunk into the unit ball."""
    unit = jnp.clip((features - bounds[0]) / (bounds[1] - bounds[0]), 0, 1)
    norms = jnp.sqrt(jnp.sum(jnp.square(unit), axis=-1, keepdims=True))
    return unit / jnp.maximum(1, norms)


def offers(
    config: BanditConfig, unit: Rated, key: PRNGKeyArray
) -> tuple[Float[Array, "T k d"], Float[Array, "T k"], Bool[Array, " T"]]:
    """Returns features and ratings of the items of each round, and whether the round is played."""
    uniforms = jax.random.uniform(key, unit.present.shape, jnp.float32)
    order = jnp.argsort(jnp.where(unit.present, uniforms, 2.0))  # those that are there come first
    shape = config.rounds, config.candidates
    rows = order[: config.rounds * config.candidates].reshape(shape)
    return unit.items[rows], unit.ratings[rows], jnp.all(unit.present[rows], axis=1)


def play(
    config: BanditConfig, prior: Prior, unit: Rated, key: PRNGKeyArray, *, learns: bool = True
) -> Rounds:
    """Plays the rounds of one person.

    Args:
        config: settings.
        prior: public prior of the person's weights.
        unit: rows of the person.
        key: of the offers.
        learns: whether the person's own ratings so far update the prior.
    """
    size = config.features
    mean = jnp.append(prior.mean, LEVEL)
    covariance = jnp.diag(jnp.append(prior.variance + SPREAD, LEVEL_VARIANCE))

    def one_round(
        belief: tuple[Array, Array], offer: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Array], Rounds]:
        mean, covariance = belief
        items, ratings, played = offer
        chosen = jnp.argmax(items @ mean[:size])
        item, rating = items[chosen], ratings[chosen]
        x = jnp.append(item, 1.0)
        seen = covariance @ x
        gain = jnp.where(learns & played, 1.0, 0.0) * seen / (x @ seen + NOISE)
        after = mean + gain * (rating - x @ mean), covariance - jnp.outer(gain, seen)
        return after, Rounds(item, rating, jnp.mean(ratings), played)

    rounds: Rounds = jax.lax.scan(one_round, (mean, covariance), offers(config, unit, key))[1]
    return rounds


def mean_over(values: Float[Array, " T *n"], played: Bool[Array, " T"]) -> Float[Array, "*n"]:
    """Returns the mean over the rounds that are played; zero if there are none."""
    there = played.astype(jnp.float32)
    return jnp.tensordot(there, values, 1) / jnp.maximum(jnp.sum(there), 1)


def moments(rounds: Rounds, mean: Float[Array, " d"]) -> RoundMoments:
    """Returns the contribution of one person's rounds, before it is clipped.

    Args:
        rounds: rounds of the person.
        mean: public mean of the weights, by which these rounds were played.
    """
    there = rounds.played
    items = (rounds.items - mean_over(rounds.items, there)) * there[:, None]
    left = rounds.ratings - mean_over(rounds.ratings, there) - items @ mean
    products = mean_over(items * left[:, None], there)
    return RoundMoments(SQUARES_WEIGHT * mean_over(jnp.square(items), there), products)
