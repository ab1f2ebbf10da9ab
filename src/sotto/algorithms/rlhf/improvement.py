"""Tunes the language model against a released reward model, and scales the change to a target KL.

Both are post-processing: they use the released weights, the public base model and public prompts,
and nothing about the protected people. They cost no privacy, however long they take.

For each public prompt the base model draws several completions. The released reward model prefers
one of them most and one least. Each update is a step of Adam on a minibatch of such pairs. The loss
is -log sigmoid(BETA (log-ratio of the best - log-ratio of the worst)), where log-ratios are to the
base model. This is direct preference optimisation (Rafailov et al. 2023, equation 7).
"""

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.rlhf.config import RLHFConfig
from sotto.algorithms.rlhf.features import Whitening, raw_features
from sotto.algorithms.rlhf.feedback import Rated
from sotto.algorithms.rlhf.keys import Use, key_of
from sotto.algorithms.rlhf.people import BATCH, People, complete, in_batches, log_ratios
from sotto.rl.language import Adapter, Completions, Decoder, LowRank, log_probabilities

BETA = 0.1
MINIBATCH = 32
"""Number of pairs in one update."""
SCALES = (2.0**-5, 2.0**10)
"""Smallest and largest factor by which the whole change is scaled to meet a target KL."""
_KL_PROMPTS = 256
_MEASUREMENTS = 6
_CLOSE = 1.04
"""Ratio to the target that is near enough."""


class Candidates(NamedTuple):
    """Completions of public prompts by the base model, of shape [prompts, candidates, ...]."""

    rated: Rated
    """Prompts and completions, with zero in place of ratings."""
    raw: Float[np.ndarray, "prompts candidates raw"]
    """Their raw features."""


def draw_candidates(config: RLHFConfig, people: People) -> Candidates:
    """Returns completions of public prompts, with their raw features."""
    return _drawn(
        people, config.improvement_prompts, config.candidates, config.new_tokens, config.seed
    )


@lru_cache(maxsize=1)  # whitening and improvement need the same ones, and they take minutes
def _drawn(people: People, wanted: int, candidates: int, new_tokens: int, seed: int) -> Candidates:
    count = min(wanted, len(people.public_prompts))
    prompts, mask = (
        np.repeat(one[:count], candidates, axis=0)
        for one in (people.public_prompts, people.public_mask)
    )
    key = key_of(seed, Use.CANDIDATES)
    tokens, real = complete(people.language, None, prompts, mask, new_tokens, key)
    nothing = np.zeros(len(prompts), np.float32)
    rated = Rated(prompts, mask, tokens, real, nothing, np.ones(len(prompts), bool))
    features = in_batches(partial(_read, people.language.decoder), BATCH, *rated)

    def by_prompt(leaf: np.ndarray) -> np.ndarray:
        return leaf.reshape(count, candidates, *leaf.shape[1:])

    return Candidates(Rated(*map(by_prompt, rated)), by_prompt(features))


@jax.jit
def _read(base: Decoder, *rows: Array) -> Array:
    return raw_features(base, Rated(*rows))


def pairs(candidates: Candidates, whitening: Whitening, weights: Array) -> Rated:
    """Returns the best and the worst completion of each public prompt, [prompts, 2, ...].

    Args:
        candidates: the completions.
        whitening: map from raw features to those of the reward model.
        weights: the released reward model.
    """
    scores = candidates.raw @ np.asarray(whitening.projection) @ np.asarray(weights)
    chosen = np.stack([scores.argmax(axis=1), scores.argmin(axis=1)], axis=1)
    every = np.arange(len(chosen))[:, None]
    return Rated(*(leaf[every, chosen] for leaf in candidates.rated))


def first_moments(config: RLHFConfig, adapter: Adapter) -> Any:
    """Returns the state of the optimiser before the first update."""
    return _optimiser(config.improvement_learning_rate).init(adapter)


@lru_cache  # the same object each time, so that `_update` is compiled once
def _optimiser(learning_rate: float) -> optax.GradientTransformation:
    """Returns Adam, with gradients clipped to norm 1 against outliers."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(learning_rate))


def preference_loss(adapter: Adapter, base: Decoder, batch: Rated) -> Float[Array, ""]:
    """Returns the loss of direct preference optimisation; leaves are of shape [pairs, 2, ...]."""
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    said = Completions(flat.completions, flat.completion_mask)
    given = base, flat.prompts, flat.prompt_mask, said
    ratio = (log_probabilities(*given, adapter) - log_probabilities(*given)).sum(axis=1)
    best, worst = ratio.reshape(-1, 2).T
    return -jax.nn.log_sigmoid(BETA * (best - worst)).mean()


class Improved(NamedTuple):
    """Adapter after an update, with the state of the optimiser and the loss before the update."""

    adapter: Adapter
    moments: Any
    loss: float


def improve(
    config: RLHFConfig, base: Decoder, preferred: Rated, start: Improved, updates: range
) -> Iterator[Improved]:
    """Yields after each update of the adapter on pairs of completions.

    Args:
        config: settings.
        base: the frozen base model.
        preferred: a better and a worse completion of each prompt, leaves of shape [pairs, 2, ...].
        start: the adapter before the first update.
        updates: numbers of the updates, which decide the minibatches.
    """
    now, optimiser = start, _optimiser(config.improvement_learning_rate)
    for number in updates:
        rows = minibatch(config, len(preferred.ratings), number)
        batch = Rated(*(leaf[rows] for leaf in preferred))
        now = _update(optimiser, now.adapter, now.moments, base, batch)
        yield now._replace(loss=float(now.loss))


@partial(jax.jit, static_argnums=0)
def _update(
    optimiser: optax.GradientTransformation,
    adapter: Adapter,
    moments: Any,
    base: Decoder,
    batch: Rated,
) -> Improved:
    loss, gradient = jax.value_and_grad(preference_loss)(adapter, base, batch)
    step, moments = optimiser.update(gradient, moments)
    return Improved(optax.apply_updates(adapter, step), moments, loss)


def minibatch(config: RLHFConfig, count: int, update: int) -> Int[np.ndarray, " pairs"]:
    """Returns the pairs of one update. Each pass over the pairs has another order.

    A pass leaves out the last pairs of its order that do not fill a minibatch.
    """
    size = min(MINIBATCH, count)
    each = count // size
    order = np.random.default_rng([config.seed, update // each]).permutation(count)
    return order[(update % each) * size :][:size]


def scaled(adapter: Adapter, factor: float | Array) -> Adapter:
    """Returns the change of the model, made larger or smaller."""
    low_rank = tuple(
        {name: LowRank(one.down, one.up * factor, one.scale) for name, one in block.items()}
        for block in adapter.low_rank
    )
    steering = tuple(None if vector is None else vector * factor for vector in adapter.steering)
    return Adapter(low_rank, steering)


def kl(config: RLHFConfig, people: People, adapter: Adapter, key: PRNGKeyArray) -> float:
    """Returns the estimated KL divergence from the base model on public prompts, in nats."""
    rows = np.arange(_KL_PROMPTS) % len(people.public_prompts)
    prompts, mask = people.public_prompts[rows], people.public_mask[rows]
    said = complete(people.language, adapter, prompts, mask, config.new_tokens, key)
    return float(log_ratios(people.language, adapter, prompts, mask, said).mean())


def scaled_to_target(
    config: RLHFConfig, people: People, adapter: Adapter, key: PRNGKeyArray
) -> tuple[Adapter, float]:
    """Returns the change scaled such that its KL divergence is about `kl_target`, and the factor.

    The factor is the one with the closest divergence among at most `_MEASUREMENTS` that are
    measured. It stays within `SCALES`.
    """
    measured: dict[float, float] = {}
    factor = 1.0
    for _ in range(_MEASUREMENTS):
        found = kl(config, people, scaled(adapter, factor), key)
        measured[factor] = max(found, config.kl_target / 16) / config.kl_target
        if 1 / _CLOSE < measured[factor] < _CLOSE:
            break
        factor = _next_factor(measured, factor)
        if factor in measured:
            break
    # Among equally close ones the last is taken: the largest, where a change is too small to tell.
    factor = min(reversed(measured), key=lambda one: abs(np.log(measured[one])))
    return scaled(adapter, factor), factor


def _next_factor(measured: dict[float, float], last: float) -> float:
    """Returns the factor to measure next, from each factor's divergence relative to the target.

    The divergence of a small change grows like its square. Where that rule leaves the interval that
    is known to hold the factor, the interval is halved.
    """
    factor = float(np.clip(last * measured[last] ** -0.5, *SCALES))
    small = max((one for one, ratio in measured.items() if ratio < 1), default=SCALES[0])
    large = min((one for one, ratio in measured.items() if ratio >= 1), default=SCALES[1])
    return factor if small <= factor <= large else float((small * large) ** 0.5)
