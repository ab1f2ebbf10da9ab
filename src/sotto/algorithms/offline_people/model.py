"""Models that noisy moments give: least squares, start states, and an environment to learn in.

Everything here is post-processing of releases. The mean change of the observation, the mean reward
and the probability of an end are linear in the features. Directions of the features in which the
moments are not well above their noise are left out.

The noise is known, so there are several models: each is fitted to the moments with fresh noise of
the same law added. A policy that does well in all of them relies on nothing that the noise put
into one.

Sources: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 6.5, for fits to
redrawn data (the parametric bootstrap); Kidambi et al. 2020, "MOReL: Model-Based Offline
Reinforcement Learning", for several models; Janner et al. 2019, "When to Trust Your Model", for
short rollouts from logged states.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.offline_people.config import OfflinePeopleConfig
from sotto.algorithms.offline_people.moments import (
    BINS,
    FAR,
    LARGEST,
    SHARE,
    Scales,
    inputs,
    monomials,
    products,
)
from sotto.algorithms.settings import known
from sotto.rl.envs.base import Coins, Environment, flip, toss

MODELS = 8
DISCOUNT = 0.98
_CUT = 8.0
"""Directions of G with less than this many standard deviations of the noise are left out."""
_SMALLEST = 2e-3
"""Smallest eigenvalue of G that is used, since start states match the moments only roughly."""
_SEEN = 4.0
"""Ends are in the model if one of their moments has this many standard deviations of the noise."""
_SPREAD = 2.6
_PARTICLES = 1024
_STEPS = 400


class Model(NamedTuple):
    """Weights of the features in each model, for each category of action; and logged states."""

    scales: Scales
    weights: Float[Array, "models A d k"]
    """Changes of the observation in units of the spread, rewards from 0 to 1, ends."""
    starts: Float[Array, "particles obs"]
    """States whose moments are those of the logged states, in units of the public bounds."""


def scales_of(released: Float[np.ndarray, "obs k"], sigma: float) -> Scales:
    """Returns the scales, from what `moments.scales_release` released.

    Args:
        released: noisy means over places.
        sigma: standard deviation of the noise in each number.
    """
    size = len(released)
    share = float(np.clip(released[:, 0].mean() * math.sqrt(size) / SHARE, 0.01, 1))
    centre = released[:, 1] / share
    second = released[:, 2 : 2 + size] / share
    covariance = (second + second.T) / 2 - np.outer(centre, centre)
    values, vectors = np.linalg.eigh(covariance)
    floor = max(1e-4, 2 * math.sqrt(size) * sigma / share)
    whitening = vectors @ np.diag(np.maximum(values, floor) ** -0.5 / 2) @ vectors.T
    shares = released[:, -BINS:]
    shares = np.where(shares > 3 * sigma, shares, 0)
    squares = 4.0 ** (0.5 - np.arange(BINS))
    total = shares.sum(axis=1)
    mean = np.where(total > 0, shares @ squares / np.where(total > 0, total, 1), 1)
    spread = _SPREAD * np.sqrt(mean)
    return Scales(*(jnp.asarray(x, jnp.float32) for x in (centre, whitening, spread, share)))


def fit(
    config: OfflinePeopleConfig,
    scales: Scales,
    moments: Float[np.ndarray, "A d k"],
    sigma: float,
    key: PRNGKeyArray,
) -> Model:
    """Returns the models that fit the moments.

    Args:
        config: settings.
        scales: scales with which the moments were made.
        moments: noisy mean moments of people.
        sigma: standard deviation of the noise in each number.
        key: randomness of the noise that is added, and of the first particles.
    """
    noise_key, start_key = jax.random.split(key)
    fresh = jax.random.normal(noise_key, (MODELS, *moments.shape), jnp.float32)
    redrawn = moments + sigma * np.asarray(fresh, np.float64)
    weights = [least_squares(config, one, math.sqrt(2) * sigma) for one in redrawn]
    starts = _starts(config, scales, _gram(config, moments).sum(axis=0), start_key)
    return Model(scales, jnp.asarray(np.stack(weights), jnp.float32), starts)


def least_squares(
    config: OfflinePeopleConfig, moments: Float[np.ndarray, "A d k"], sigma: float
) -> Float[np.ndarray, "A d targets"]:
    """Returns the weights that explain changes, rewards and ends by the features.

    Rewards and ends are explained beyond their means. A direction that is left out then counts as
    the mean, and not as a reward of zero.

    Args:
        config: settings.
        moments: noisy moments.
        sigma: standard deviation of the noise in each number.
    """
    features = moments.shape[1]
    gram, targets = _gram(config, moments), moments[:, :, features:].copy()
    if not (np.abs(targets[..., -1]) > _SEEN * sigma).any():
        targets[..., -1] = 0  # the value of an end must not be earned by noise
    base = np.zeros(targets.shape[1:])
    base[0, -2:] = targets[:, 0, -2:].sum(axis=0) / gram[:, 0, 0].sum()
    least = max(_CUT * sigma, _SMALLEST)
    weights = []
    for one, crossed in zip(gram, targets, strict=True):
        values, vectors = np.linalg.eigh(one)
        inverse = np.where(values > least, 1 / np.maximum(values, least), 0)
        weights.append(base + vectors @ np.diag(inverse) @ vectors.T @ (crossed - one @ base))
    return np.stack(weights)


def _gram(
    config: OfflinePeopleConfig, moments: Float[np.ndarray, "A d k"]
) -> Float[np.ndarray, "A d d"]:
    """Returns the noisy means of psi psi^T, in which equal products have the mean of their entries.

    The product of two monomials is a monomial, and most of them come from several pairs: x y is
    1 times x y, and x times y. Their entries differ by noise alone.
    """
    chosen = products(config)
    named = [[tuple(sorted(one + other)) for other in chosen] for one in chosen]
    numbers = {name: place for place, name in enumerate(sorted(set(itertools.chain(*named))))}
    which = np.array([[numbers[name] for name in row] for row in named])
    counts = np.bincount(which.ravel())
    gram = moments[:, :, : len(chosen)]
    return np.stack([(np.bincount(which.ravel(), one.ravel()) / counts)[which] for one in gram])


def _starts(
    config: OfflinePeopleConfig, scales: Scales, gram: Float[np.ndarray, "d d"], key: PRNGKeyArray
) -> Float[Array, "particles obs"]:
    """Returns states whose mean weighted psi psi^T is G, found by gradient descent on states."""
    chosen, size = products(config), len(known(config.low))
    variables = max(map(max, filter(None, chosen))) + 1
    target = jnp.asarray(gram / np.trace(gram), jnp.float32)
    optimizer = optax.adam(optax.linear_schedule(0.05, 0.0, _STEPS))

    def bounded(values: Array) -> Array:
        return jnp.clip(values, -LARGEST, LARGEST)

    def loss(values: Array) -> Array:
        psi = monomials(bounded(values), chosen)
        psi = psi / jnp.linalg.norm(psi, axis=1, keepdims=True)
        return jnp.sum(jnp.square(psi.T @ psi / _PARTICLES - target))

    def step(carry: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], None]:
        values, state = carry
        updates, state = optimizer.update(jax.grad(loss)(values), state)
        return (values + updates, state), None

    @jax.jit
    def matched(values: Array) -> Array:
        return bounded(jax.lax.scan(step, (values, optimizer.init(values)), None, _STEPS)[0][0])

    found = matched(0.5 * jax.random.normal(key, (_PARTICLES, variables), jnp.float32))
    x = found[:, :size] @ jnp.linalg.inv(scales.whitening) + scales.centre
    return jnp.clip(x, -1, 1)


class ModelState(NamedTuple):
    """Observation in units of the public bounds, coins for ends, and the number of the model."""

    x: Float[Array, " obs"]
    coins: Coins
    number: Int[Array, ""]


@dataclass(frozen=True, kw_only=True)
class LearnedEnvironment(Environment[ModelState, Model]):
    """The models as an environment, whose physics parameters are a `Model`.

    Each episode is in one of the models. Rewards are in units of their public range, from 0 to 1.
    At an end of an episode the reward also has the value of earning exactly zero for ever.
    """

    config: OfflinePeopleConfig

    def reset(self, uniforms: Float[Array, "3"], params: Model) -> ModelState:
        """Returns a logged state in one of the models."""
        chosen = (uniforms[0] * len(params.starts)).astype(jnp.int32)
        number = (uniforms[1] * len(params.weights)).astype(jnp.int32)
        return ModelState(params.starts[chosen], toss(uniforms[2]), number)

    def step(
        self, state: ModelState, action: Array, params: Model
    ) -> tuple[ModelState, Float[Array, ""], Array]:
        """Takes the mean step of the model, with a random end."""
        values = inputs(self.config, state.x, action, params.scales)
        psi = monomials(values, products(self.config))
        kind = action if self.config.actions else 0
        found = psi @ params.weights[state.number, kind]
        chance = jnp.clip(found[-1], 0, 1)
        # The target of a change is zero at an end, so its mean over rows that go on is larger.
        change = jnp.clip(found[:-2] / jnp.maximum(1 - chance, 0.5), -FAR, FAR)
        coins, coin = flip(state.coins)
        ends = coin < chance
        low, high = known(self.config.reward_bounds)
        zero_for_ever = jnp.float32(-low / (high - low) / (1 - DISCOUNT))
        reward = jnp.clip(found[-2], 0, 1) + jnp.where(ends, zero_for_ever * DISCOUNT, 0)
        x = jnp.clip(state.x + change * params.scales.spread, -1, 1)
        return ModelState(x, coins, state.number), reward, ends

    def observe(self, state: ModelState, params: Model) -> Float[Array, " obs"]:
        """Returns the observation in the units of the log."""
        del params
        return in_units(self.config, state.x)


def in_units(
    config: OfflinePeopleConfig, x: Float[Array, "*batch obs"]
) -> Float[Array, "*batch obs"]:
    """Returns observations in the units of the log, from units of the public bounds."""
    low, high = jnp.asarray(known(config.low)), jnp.asarray(known(config.high))
    return (low + (x + 1) / 2 * (high - low)).astype(jnp.float32)


def environment(config: OfflinePeopleConfig, params: Model, steps: int) -> LearnedEnvironment:
    """Returns the models as an environment with episodes of at most `steps` steps."""
    return LearnedEnvironment(
        id="the learned models",
        observation_size=len(known(config.low)),
        action=config.action,
        default_params=params,
        reset_size=3,
        max_episode_steps=steps,
        observation_centre=config.centre,
        observation_scale=config.scale,
        reward_per_step=0.5,
        config=config,
    )
