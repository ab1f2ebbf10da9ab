"""Tunes the language model against a released reward model, and scales the change to a target KL.

Both are post-processing: they use the released weights, the public base model and public prompts,
and nothing about the protected people. They cost no privacy, however long they take.

For each public prompt the base model draws several completions. The released reward model prefers
one of them most and one least. Each update is a step of Adam on a minibatch of such pairs, for the
loss -log sigmoid(BETA (log-ratio of the best - log-ratio of the worst)), with log-ratios to the base
model. It is direct preference optimisation (Rafailov et al. 2023, equation 7).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.rlhf.config import RLHFConfig
from sotto.algorithms.rlhf.features import Whitening, fit_whitening, raw_features
from sotto.algorithms.rlhf.feedback import Rated
from sotto.algorithms.rlhf.people import BATCH, People, complete, log_ratios
from sotto.rl.language import Adapter, Completions, Decoder, LowRank, log_probabilities

BETA = 0.1
MINIBATCH = 32
"""Number of pairs in one update."""
SCALES = (2.0**-5, 2.0**2)
"""Smallest and largest factor by which the whole change is scaled to meet a target KL."""
_KL_PROMPTS = 256
_HALVINGS = 6


class Candidates(NamedTuple):
    """Completions of public prompts by the base model, arrays of shape [prompts, candidates, ...]."""

    rated: Rated
    """The prompts and their completions, with ratings of zero."""
    raw: Float[np.ndarray, "prompts candidates raw"]
    """Their raw features."""


def draw_candidates(config: RLHFConfig, people: People, key: PRNGKeyArray) -> Candidates:
    """Returns completions of public prompts, with their raw features."""
    count = min(config.improvement_prompts, len(people.public_prompts))
    prompts, mask = (
        np.repeat(one[:count], config.candidates, axis=0)
        for one in (people.public_prompts, people.public_mask)
    )
    tokens, real = complete(people.language, None, prompts, mask, config.new_tokens, key)
    nothing = np.zeros(len(prompts), np.float32)
    rated = Rated(prompts, mask, tokens, real, nothing, np.ones(len(prompts), bool))
    size = min(BATCH, len(prompts))
    read = jax.jit(raw_features)
    raw = []
    for start in range(0, len(prompts), size):
        rows = np.arange(start, start + size) % len(prompts)
        raw.append(np.asarray(read(people.language.decoder, Rated(*(x[rows] for x in rated)))))
    features = np.concatenate(raw)[: len(prompts)]

    def by_prompt(leaf: np.ndarray) -> np.ndarray:
        return leaf.reshape(count, config.candidates, *leaf.shape[1:])

    return Candidates(Rated(*map(by_prompt, rated)), by_prompt(features))


def whitening_of(config: RLHFConfig, candidates: Candidates) -> Whitening:
    """Returns the public whitening of features, from completions of public prompts."""
    return fit_whitening(candidates.raw, config.features)


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


def optimiser(config: RLHFConfig) -> optax.GradientTransformation:
    """Returns Adam, with gradients clipped to norm 1 against outliers."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(config.improvement_learning_rate))


def preference_loss(adapter: Adapter, base: Decoder, batch: Rated) -> Float[Array, ""]:
    """Returns the loss of direct preference optimisation on pairs, leaves of shape [pairs, 2, ...]."""
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    said = Completions(flat.completions, flat.completion_mask)
    given = base, flat.prompts, flat.prompt_mask, said
    ratio = (log_probabilities(*given, adapter) - log_probabilities(*given)).sum(axis=1)
    best, worst = ratio.reshape(-1, 2).T
    return -jax.nn.log_sigmoid(BETA * (best - worst)).mean()


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
    """Returns the change scaled to `kl_target` by bisection, and the factor.

    The largest factor is used if even that does not reach the target, and 0 if every factor that is
    tried exceeds it.
    """

    def meets(factor: float) -> bool:
        return kl(config, people, scaled(adapter, factor), key) <= config.kl_target

    smallest, largest = SCALES
    if meets(largest):
        return scaled(adapter, largest), largest
    found, low, high = 0.0, np.log(smallest), np.log(largest)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if meets(factor := float(np.exp(middle))):
            found, low = factor, middle
        else:
            high = middle
    return scaled(adapter, found), found
