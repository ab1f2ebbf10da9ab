"""Models that the rounds give: weights, start states, and an environment to learn in.

Everything here is post-processing of releases. The mean change of the observation, the mean reward
and the probability of an end are linear in the features.

The noise is known, so there are several models: each is fitted to the last round with fresh noise
of the same law added. A policy that does well in all of them relies on nothing that the noise put
into one.

Sources: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 6.5, for fits to
redrawn data (the parametric bootstrap); Kidambi et al. 2020, "MOReL: Model-Based Offline
Reinforcement Learning", for several models; Janner et al. 2019, "When to Trust Your Model", for
short rollouts from logged states.
"""

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
from sotto.algorithms.offline_people.rounds import Known, updated
from sotto.algorithms.settings import known
from sotto.rl.envs.base import Coins, Environment, flip, toss

MODELS = 8
DISCOUNT = 0.98
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
    before: Known,
    released: Float[np.ndarray, " n"],
    sigma: float,
    key: PRNGKeyArray,
) -> Model:
    """Returns the models that fit the last round.

    Args:
        config: settings.
        before: public state with which the last round was made.
        released: noisy mean contribution of the people of that round.
        sigma: standard deviation of the noise in each number.
        key: randomness of the noise that is added, and of the first particles.
    """
    noise_key, start_key = jax.random.split(key)
    fresh = jax.random.normal(noise_key, (MODELS, *released.shape), jnp.float32)
    redrawn = released + sigma * np.asarray(fresh, np.float64)
    fits = [updated(config, before, one, sigma, math.sqrt(2)) for one in redrawn]
    after = updated(config, before, released, sigma)
    gram = np.asarray(after.gram, np.float64).sum(axis=0)
    starts = _starts(config, before.scales, gram, start_key)
    return Model(before.scales, jnp.stack([one.weights for one in fits]), starts)


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
