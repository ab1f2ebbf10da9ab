"""Tunes the language model against a released reward model, and scales the change to a target KL.

Both are post-processing: they use the released weights, the public base model and public prompts,
and nothing about the protected people. They cost no privacy, however long they take.

For each public prompt the base model draws several completions, and the released reward model rates
them. At a given KL divergence, the rewards are largest where log-ratios to the base model are
proportional to rewards. To first order, the log-ratio of a completion is its score, the gradient of
its log-probability, times the change of the parameters. So the change is a ridge regression of
rewards on scores, both centred within each prompt. This is a step of natural policy gradient
(Kakade 2001), with the reward model as critic.
"""

from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.rlhf.answers import TunedModel, answers, divergences
from sotto.algorithms.rlhf.config import RLHFConfig, kl_of_choice
from sotto.algorithms.rlhf.directions import late_steering, score
from sotto.algorithms.rlhf.features import Whitening, raw_features
from sotto.algorithms.rlhf.feedback import Rated
from sotto.algorithms.rlhf.keys import Use, key_for
from sotto.algorithms.rlhf.people import People, complete
from sotto.rl.language import Adapter, Decoder, LowRank
from sotto.rl.language.batches import BATCH, in_batches

RIDGE = 1.0
"""Ridge of the regression, relative to the mean eigenvalue of the scores' second moments."""
SCALES = (2.0**-5, 2.0**10)
"""Smallest and largest factor by which the whole change is scaled to meet a target KL."""
_SCORED = 32
"""Number of completions whose scores are computed at once."""
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
    scores: Float[np.ndarray, "prompts candidates parameters"]
    """Their scores with respect to an adapter that changes nothing."""


def draw_candidates(config: RLHFConfig, people: People) -> Candidates:
    """Returns completions of public prompts, with their raw features and their scores."""
    return _drawn(
        people,
        config.improvement_prompts,
        config.candidates,
        config.new_tokens,
        config.seed,
        config.blocks,
    )


@lru_cache(maxsize=1)  # whitening and improvement need the same ones, and they take minutes
def _drawn(
    people: People,
    wanted: int,
    candidates: int,
    new_tokens: int,
    seed: int,
    blocks: tuple[int, ...],
) -> Candidates:
    count = min(wanted, len(people.public_prompts))
    prompts, mask = (
        np.repeat(one[:count], candidates, axis=0)
        for one in (people.public_prompts, people.public_mask)
    )
    key = key_for(seed, Use.CANDIDATES)
    tokens, real = complete(people.language, None, prompts, mask, new_tokens, key)
    nothing = np.zeros(len(prompts), np.float32)
    flat = Rated(prompts, mask, tokens, real, nothing, np.ones(len(prompts), bool))
    features = in_batches(partial(_read, people.language.decoder), BATCH, *flat[:4])

    def by_prompt(leaf: np.ndarray) -> np.ndarray:
        return leaf.reshape(count, candidates, *leaf.shape[1:])

    rated = Rated(*map(by_prompt, flat))
    unchanged = late_steering(people.language.decoder.architecture, blocks)
    return Candidates(rated, by_prompt(features), scores(people, unchanged, rated))


@jax.jit
def _read(base: Decoder, *rows: Array) -> Array:
    return raw_features(base, *rows)


def rewards(
    candidates: Candidates, whitening: Whitening, weights: Array
) -> Float[np.ndarray, "prompts candidates"]:
    """Returns the rewards of completions, whose differences within a prompt have meaning.

    Args:
        candidates: the completions.
        whitening: map from raw features to those of the reward model.
        weights: the released reward model.
    """
    found: np.ndarray = candidates.raw @ np.asarray(whitening.projection) @ np.asarray(weights)
    return found


def scores(
    people: People, adapter: Adapter, rated: Rated
) -> Float[np.ndarray, "prompts candidates parameters"]:
    """Returns the score of each completion: the gradient of its log-probability.

    Args:
        people: holds the base model.
        adapter: the adapter, with respect to whose parameters the gradient is.
        rated: completions, leaves of shape [prompts, candidates, ...].

    Raises:
        ValueError: a score is not a number.
    """
    rows = [leaf.reshape(-1, 1, *leaf.shape[2:]) for leaf in rated[:4]]
    each = partial(_scores, adapter, people.language.decoder)
    found: np.ndarray = in_batches(each, _SCORED, *rows, what="completions scored")
    if not np.isfinite(found).all():  # before the release, which would be paid for in vain
        raise ValueError("the language model's gradients are not numbers; use another model")
    return found.reshape(*rated.ratings.shape, -1)


@jax.jit
def _scores(adapter: Adapter, base: Decoder, *rows: Array) -> Float[Array, "rows parameters"]:
    found: Array = jax.vmap(partial(score, adapter, base, jnp.ones(1)))(*rows)
    return found


def tuned(
    adapter: Adapter,
    scores: Float[np.ndarray, "prompts candidates parameters"],
    rewards: Float[np.ndarray, "prompts candidates"],
    kl: float,
) -> Adapter:
    """Returns the adapter that the regression of rewards on scores gives.

    Args:
        adapter: an adapter that changes nothing.
        scores: scores of completions by the base model.
        rewards: their rewards.
        kl: KL divergence from the base model, which small changes meet.
    """
    flat, unravel = ravel_pytree(adapter)
    moved: Adapter = unravel(flat + jnp.asarray(regressed(scores, rewards, kl), flat.dtype))
    return moved


def regressed(
    scores: Float[np.ndarray, "prompts candidates parameters"],
    rewards: Float[np.ndarray, "prompts candidates"],
    kl: float,
) -> Float[np.ndarray, " parameters"]:
    """Returns the ridge regression of rewards on scores, both centred within each prompt.

    It is scaled such that half of the variance of a completion's log-ratio within its prompt, which
    is the KL divergence of small changes, equals `kl`. Rewards that are all alike change nothing.
    """
    x = (scores - scores.mean(axis=1, keepdims=True)).reshape(-1, scores.shape[2])
    x = x.astype(np.float64)
    y = (rewards - rewards.mean(axis=1, keepdims=True)).reshape(-1).astype(np.float64)
    moments = x.T @ x
    ridge = RIDGE * np.trace(moments) / len(moments)
    change = np.linalg.solve(moments + ridge * np.eye(len(moments)), x.T @ y)
    freedom = rewards.shape[0] * (rewards.shape[1] - 1)
    deviation = float(np.sum((x @ change) ** 2) / freedom) ** 0.5
    return change * (np.sqrt(2 * kl) / deviation) if deviation > 0 else change


def scaled(model: TunedModel, factor: float | Array) -> TunedModel:
    """Returns the model with its change made larger or smaller."""
    adapter = model.adapter
    low_rank = tuple(
        {name: LowRank(one.down, one.up * factor, one.scale) for name, one in block.items()}
        for block in adapter.low_rank
    )
    steering = tuple(None if vector is None else vector * factor for vector in adapter.steering)
    return TunedModel(Adapter(low_rank, steering), model.reward)


def kl(config: RLHFConfig, people: People, model: TunedModel, key: PRNGKeyArray) -> float:
    """Returns the estimated KL divergence from the base model on public prompts, in nats."""
    rows = np.arange(_KL_PROMPTS) % len(people.public_prompts)
    prompts, mask = people.public_prompts[rows], people.public_mask[rows]
    said = answers(config, people, model, prompts, mask, key)
    return float(divergences(config, people, model, prompts, mask, said).mean())


def scaled_to_target(
    config: RLHFConfig, people: People, model: TunedModel, key: PRNGKeyArray
) -> tuple[TunedModel, float]:
    """Returns the model with its change scaled to a KL divergence of about `kl_target`.

    Also returns the factor. It is the one with the closest divergence among at most
    `_MEASUREMENTS` that are measured. It stays within `SCALES`. No factor changes the
    divergence of the choice among `reranked` completions, so the change meets the rest.
    """
    choice = kl_of_choice(config.reranked)
    target = config.kl_target - choice
    measured: dict[float, float] = {}
    factor = 1.0
    for _ in range(_MEASUREMENTS):
        found = kl(config, people, scaled(model, factor), key) - choice
        measured[factor] = max(found, target / 16) / target
        if 1 / _CLOSE < measured[factor] < _CLOSE:
            break
        factor = _next_factor(measured, factor)
        if factor in measured:
            break
    # Among equally close ones the last is taken: the largest, where a change is too small to tell.
    factor = min(reversed(measured), key=lambda one: abs(np.log(measured[one])))
    return scaled(model, factor), factor


def _next_factor(measured: dict[float, float], last: float) -> float:
    """Returns the factor to measure next, from each factor's divergence relative to the target.

    The divergence of a small change grows like its square. Where that rule leaves the interval that
    is known to hold the factor, the interval is halved.
    """
    factor = float(np.clip(last * measured[last] ** -0.5, *SCALES))
    small = max((one for one, ratio in measured.items() if ratio < 1), default=SCALES[0])
    large = min((one for one, ratio in measured.items() if ratio >= 1), default=SCALES[1])
    return factor if small <= factor <= large else float((small * large) ** 0.5)
