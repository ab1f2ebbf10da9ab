"""Releases of private RLHF: what one person's feedback contributes, and what follows from it.

A person rates completions of the language model, y_1, ..., y_m. Three kinds of contribution are
known, one for each `method`:

* policy-gradient: the gradient of sum_i a_i log p(y_i | x_i) / m, where a_i is the rating, less the
  KL penalty, less the mean of the person's other ones (leave-one-out baseline, Ahmadian et al.
  2024). It is DPPG (Rio et al. 2025, Algorithm 2) with a language model as the policy.
* best-of-n: the gradient of log p(y | x) of the person's best-rated completion.
* reward-model: the sum of (f_i - mean f) (r_i - mean r) / (m - 1), where r_i are the person's
  ratings and f_i public features of what they rated. Features are whitened on completions of public
  prompts, so the mean of contributions is the least-squares fit of ratings by features.

All baselines and means are over one person's own completions. No value head, no whitening over
people, no adaptive coefficient and no running scale of rewards carries data from one person to
another.

Guarantee:
    See `sotto.privacy.release.release`. The unit is everything that one person contributed: their
    prompts, completions and ratings. Each person takes part in one release.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.calibration import gaussian_multiplier
from sotto.algorithms.rlhf import critic
from sotto.algorithms.rlhf.config import RLHFConfig
from sotto.algorithms.rlhf.features import Whitening, raw_features
from sotto.algorithms.rlhf.feedback import Rated
from sotto.privacy.claims import language as claims
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Correlation, Part
from sotto.rl.language import Adapter, Completions, Decoder, log_probabilities


class RLHFState(NamedTuple):
    """Public state of a training: first free of data, later a function of releases."""

    adapter: Adapter
    """Last released change of the language model."""
    average: Adapter
    """Average of the last released changes."""
    weights: Float[Array, " features"]
    """Released reward model: weights of the whitened features. Zero for other methods."""
    critic: Float[Array, " inputs"] | tuple[()]
    """The paper's critic, which is not private. (): there is none."""
    directions: Float[Array, "directions parameters"] | tuple[()]
    """Public directions of people's updates, with orthonormal rows. (): all parameters."""
    whitening: Whitening
    """Public whitening of the features."""
    updates: Int[Array, ""]
    """Number of updates so far."""


class Open(NamedTuple):
    """State and frozen base model, both public, which the door passes on."""

    state: RLHFState
    base: Decoder


def make_release(config: RLHFConfig, multiplier: float) -> Release:
    """Returns the release of these settings, which can then be opened."""
    name = "reward" if config.method == "reward-model" else "policy"
    return Release(
        name=f"RLHF {config.method}",
        local=partial(_local, config),
        server=partial(_server, config),
        unit=config.privacy_unit,
        unprotected={"critic": critic.GAP} if config.critic == "paper" else None,
        parts={name: Part(clip_norm=config.clip_norm, noise_multiplier=multiplier)},
        slots=config.people_per_release,
        divisor=float(config.people_per_release),
        horizon=config.releases,
        population=config.population,
        correlation=Correlation(kind="prefix-sum") if _correlated(config) else Correlation(),
        microbatch=config.microbatch,
        protects=(claims.TUNED(),),
        does_not_protect=(claims.PATTERNS(), claims.WHILE_ASKED()),
        assumptions=(claims.PUBLIC_MODEL.assumption(), claims.OWN_COMPLETIONS.assumption()),
    )


def _correlated(config: RLHFConfig) -> bool:
    return config.correlated_noise and config.releases > 1


def noise_multiplier(config: RLHFConfig, dimension: int) -> float:
    """Returns the noise multiplier that meets the target epsilon, or the given one."""
    if config.noise_multiplier is not None:
        return config.noise_multiplier
    assert config.target_epsilon is not None
    return gaussian_multiplier(
        config.target_epsilon, config.delta, draws=dimension * config.releases
    )


def dimension(config: RLHFConfig, state: RLHFState) -> int:
    """Returns how many numbers a release has."""
    if config.improves:
        return config.features
    if isinstance(state.directions, tuple):
        return int(ravel_pytree(state.adapter)[0].size)
    return int(state.directions.shape[0])


def _local(
    config: RLHFConfig, public: Open, unit: Rated, key: PRNGKeyArray
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Returns one person's contribution, and diagnostics of a simulated person."""
    del key  # the completions were drawn when the person rated them
    # A row without a token is not a number. An absent one is read as padding, and weighs nothing.
    unit = unit._replace(prompt_mask=unit.prompt_mask | ~unit.present[:, None])
    diagnostics = {"rating": _mean(unit.ratings, unit.present)}
    if config.improves:
        return {"reward": _reward_contribution(public, unit)}, diagnostics
    if config.critic == "none":
        weights = partial(_advantages, present=unit.present)
        return {"policy": _gradient(config, public, unit, weights)}, diagnostics
    assert not isinstance(public.state.critic, tuple)
    found, inputs = critic.values(public.base, public.state.critic, unit)
    rows = jnp.maximum(jnp.sum(unit.present), 1)
    policy = _gradient(
        config, public, unit, lambda values: jnp.where(unit.present, values - found, 0) / rows
    )
    return {"policy": policy, "critic": critic.step(found, inputs, unit)}, diagnostics


def _mean(values: Float[Array, " rows"], present: Array) -> Float[Array, ""]:
    return jnp.sum(jnp.where(present, values, 0)) / jnp.maximum(jnp.sum(present), 1)


def _reward_contribution(public: Open, unit: Rated) -> Float[Array, " features"]:
    """Returns the sum of products of centred features and centred ratings, over rows less one."""
    features = raw_features(public.base, *unit[:4]) @ public.state.whitening.projection
    rows = jnp.maximum(jnp.sum(unit.present), 2)
    features = features - jax.vmap(_mean, (1, None))(features, unit.present)
    ratings = unit.ratings - _mean(unit.ratings, unit.present)
    ratings = jnp.where(unit.present, ratings, 0)
    return ratings @ features / (rows - 1)


def _gradient(
    config: RLHFConfig, public: Open, unit: Rated, advantages: Callable[[Array], Array]
) -> Adapter | Array:
    """Returns the gradient of the weighted log-probabilities.

    It is a vector in the public directions, or without directions a tree like the adapter.
    """
    flat, unravel = ravel_pytree(public.state.adapter)
    directions = public.state.directions
    free: Any = public.state.adapter
    if not isinstance(directions, tuple):
        free = jnp.zeros(directions.shape[0])
    if config.method == "best-of-n":
        best = jnp.argmax(jnp.where(unit.present, unit.ratings, -1))
        unit = Rated(*(leaf[best][None] for leaf in unit))  # the gradient of others is not needed
    completions = Completions(unit.completions, unit.completion_mask)

    def log_probability(moved: Any) -> Float[Array, " rows"]:
        adapter = moved
        if moved is not None and not isinstance(directions, tuple):
            adapter = unravel(flat + moved @ directions)
        found = log_probabilities(public.base, unit.prompts, unit.prompt_mask, completions, adapter)
        return jnp.sum(found, axis=1)

    if config.method == "best-of-n":
        weights = unit.present.astype(jnp.float32)
    else:
        values = unit.ratings
        if config.kl_coefficient > 0:
            ratio = log_probability(free) - log_probability(None)
            values = values - config.kl_coefficient * ratio
        weights = jax.lax.stop_gradient(advantages(values))
    found: Adapter | Array = jax.grad(lambda moved: weights @ log_probability(moved))(free)
    return found


def _advantages(values: Float[Array, " rows"], present: Array) -> Float[Array, " rows"]:
    """Returns each value less the mean of the person's others, over the number of rows."""
    rows = jnp.sum(present)
    others = jnp.maximum(rows - 1, 1)
    baseline = (jnp.sum(jnp.where(present, values, 0)) - values) / others
    return jnp.where(present & (rows > 1), values - baseline, 0) / jnp.maximum(rows, 1)


def _server(
    config: RLHFConfig, public: Open, released: dict[str, Any]
) -> tuple[Open, dict[str, Array]]:
    """Returns the next public state. It is post-processing of the release."""
    state = public.state
    if config.improves:
        weights = released["reward"]
        after = state._replace(weights=weights, updates=state.updates + 1)
        return Open(after, public.base), {"update_norm": jnp.linalg.norm(weights)}
    flat, unravel = ravel_pytree(state.adapter)
    update = ravel_pytree(released["policy"])[0]
    step = update if isinstance(state.directions, tuple) else update @ state.directions
    after = _moved(config, state, unravel(flat + config.server_learning_rate * step))
    if not isinstance(state.critic, tuple):
        after = after._replace(critic=state.critic + released["critic"])
    return Open(after, public.base), {"update_norm": jnp.linalg.norm(update)}


def without_release(config: RLHFConfig, state: RLHFState) -> RLHFState:
    """Returns the state after a release that was charged and lost: the adapter stays as it is."""
    return _moved(config, state, state.adapter)


def _moved(config: RLHFConfig, state: RLHFState, adapter: Adapter) -> RLHFState:
    """Returns the state with the next adapter, and with the average of the last ones."""
    updates = state.updates + 1
    first = config.releases - max(1, round(config.tail_fraction * config.releases))
    count = jnp.maximum(updates - first, 1).astype(jnp.float32)
    average = jax.tree.map(lambda a, p: a + (p - a) / count, state.average, adapter)
    return state._replace(adapter=adapter, average=average, updates=updates)
