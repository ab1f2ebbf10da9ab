"""Generation of completions, their log-probabilities and their divergence from another model."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from sotto.rl.language.adapters import Adapter
from sotto.rl.language.model import (
    Cache,
    Decoder,
    causal,
    check_length,
    last_of,
    output,
    positions_of,
    residual_stream,
)
from sotto.rl.language.sampling import most_likely, sample


class Completions(eqx.Module):
    """Tokens that a model generated."""

    tokens: Int[Array, "batch new"]
    mask: Bool[Array, "batch new"]
    """Whether each token belongs to the completion; false after the first end-of-text token."""


def generate(
    model: Decoder,
    prompts: Int[Array, "batch time"],
    mask: Bool[Array, "batch time"],
    new_tokens: int,
    keys: Key[Array, " batch"] | None,
    *,
    end: tuple[int, ...] = (),
    temperature: float = 1.0,
    adapter: Adapter | None = None,
) -> Completions:
    """Returns a completion of each prompt.

    Call it under `jax.jit`, with `new_tokens`, `end` and `temperature` static. The completion of
    each row depends on that row's prompt and key alone, up to rounding.

    Args:
        model: the language model.
        prompts: tokens, padded on either side.
        mask: whether each token is real; each row needs at least one.
        new_tokens: number of tokens to generate in each row.
        keys: key of each row. None chooses the most likely token each time.
        end: tokens that end a text. An end token is the last of its completion; the tokens after it
            repeat it and are masked.
        temperature: divisor of the logits; at 1 the tokens come from the model's distribution.
        adapter: a change to the model.

    Raises:
        ValueError: prompt and completion exceed the model's positions, no token is asked for, or
            the temperature is not positive.
    """
    batch, length = prompts.shape
    if new_tokens < 1:
        raise ValueError(f"ask for at least one new token, got {new_tokens}")
    if not temperature > 0:
        raise ValueError(
            f"the temperature must be positive, got {temperature}; for the most likely tokens "
            "give no keys"
        )
    slots = length + new_tokens
    check_length(model, slots)

    def choose(last: Float[Array, "batch width"], step: Int[Array, ""] | int) -> Array:
        scores = output(model, last)
        if keys is None:
            return most_likely(scores)
        fresh = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, step), (2,)))(keys)
        return sample(scores / temperature, fresh)

    def is_end(tokens: Int[Array, " batch"]) -> Bool[Array, " batch"]:
        return jnp.isin(tokens, jnp.asarray(end, tokens.dtype))

    visible = jnp.pad(causal(mask), ((0, 0), (0, 0), (0, new_tokens)))
    stream, cache = residual_stream(
        model, prompts, positions_of(mask), visible, adapter, Cache.empty(model, batch, slots)
    )
    last = last_of(mask)[:, None, None]
    first = choose(jnp.take_along_axis(stream, last, axis=1)[:, 0], 0)
    used = jnp.pad(mask, ((0, 0), (0, new_tokens)))
    count = mask.sum(1)

    def advance(
        carry: tuple[Array, Array, Cache | None], step: Int[Array, ""]
    ) -> tuple[tuple[Array, Array, Cache | None], tuple[Array, Array]]:
        token, done, cache = carry
        slot = length + step - 1
        seen = used | ((jnp.arange(slots) >= length) & (jnp.arange(slots) <= slot))
        position = (count + step - 1)[:, None]
        stream, cache = residual_stream(
            model, token[:, None], position, seen[:, None], adapter, cache, slot
        )
        done = done | is_end(token)
        token = jnp.where(done, token, choose(stream[:, 0], step))
        return (token, done, cache), (token, ~done)

    start = (first, jnp.zeros((batch,), bool), cache)
    _, (tokens, kept) = lax.scan(advance, start, jnp.arange(1, new_tokens))
    return Completions(
        jnp.concatenate([first[None], tokens]).T,
        jnp.concatenate([jnp.ones((1, batch), bool), kept]).T,
    )


def log_probabilities(
    model: Decoder,
    prompts: Int[Array, "batch time"],
    mask: Bool[Array, "batch time"],
    completions: Completions,
    adapter: Adapter | None = None,
) -> Float[Array, "batch new"]:
    """Returns the log-probability of each token of the completions; 0 where masked.

    The gradient with respect to the adapter passes through.

    Raises:
        ValueError: prompt and completion exceed the model's positions.
    """
    scores = _next_scores(model, prompts, mask, completions, adapter)
    chosen = jnp.take_along_axis(scores, completions.tokens[..., None], axis=-1)[..., 0]
    return jnp.where(completions.mask, chosen - jax.nn.logsumexp(scores, axis=-1), 0.0)


def token_divergences(
    model: Decoder,
    prompts: Int[Array, "batch time"],
    mask: Bool[Array, "batch time"],
    completions: Completions,
    adapter: Adapter,
) -> Float[Array, "batch new"]:
    """Returns the KL divergence of the changed model from `model` at each token; 0 where masked.

    At each token it is the divergence between the distributions of this token, given those before
    it. For completions that the changed model sampled, the sum over tokens has the KL divergence
    between the models' completions as its mean. It varies less than the log-ratio of their
    probabilities, which has the same mean (Amini et al. 2025, section 4).

    Raises:
        ValueError: prompt and completion exceed the model's positions.
    """
    given = prompts, mask, completions
    changed = jax.nn.log_softmax(_next_scores(model, *given, adapter))
    before = jax.nn.log_softmax(_next_scores(model, *given, None))
    each = jnp.sum(jnp.exp(changed) * (changed - before), axis=-1)
    return jnp.where(completions.mask, each, 0.0)


def _next_scores(
    model: Decoder,
    prompts: Int[Array, "batch time"],
    mask: Bool[Array, "batch time"],
    completions: Completions,
    adapter: Adapter | None,
) -> Float[Array, "batch new tokens"]:
    """Returns the logits of each token of the completions, given those before it."""
    tokens = jnp.concatenate([prompts, completions.tokens], axis=1)
    real = jnp.concatenate([mask, completions.mask], axis=1)
    check_length(model, tokens.shape[1])
    stream, _ = residual_stream(model, tokens, positions_of(real), causal(real), adapter)

    # The first token of a completion follows the last real token of the prompt.
    length = prompts.shape[1]
    before = jnp.take_along_axis(stream, last_of(mask)[:, None, None], axis=1)
    before = jnp.concatenate([before, stream[:, length:-1]], axis=1)
    return output(model, before)
