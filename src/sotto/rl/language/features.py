"""Features of texts: a language model's residual stream inside its blocks."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from sotto.rl.language.adapters import Adapter
from sotto.rl.language.model import (
    Decoder,
    causal,
    check_length,
    last_of,
    positions_of,
    residual_stream,
)


def block_features(
    model: Decoder,
    tokens: Int[Array, "batch time"],
    mask: Bool[Array, "batch time"],
    block: int,
    adapter: Adapter | None = None,
) -> Float[Array, "batch 2 width"]:
    """Returns two vectors of each text: the mean over its tokens, and that of its last token.

    They are taken from the residual stream after the first `block` blocks, before normalisation.
    The gradient with respect to the adapter passes through. Call it under `jax.jit`, with `block`
    static.

    Args:
        model: the language model.
        tokens: rows of tokens, padded on either side.
        mask: whether each token is real; each row needs at least one.
        block: number of blocks that the tokens pass through; 0 for the embedded tokens themselves.
        adapter: a change to the model.

    Raises:
        ValueError: the model has fewer blocks, or a row is longer than the model's positions.
    """
    if not 0 <= block <= len(model.blocks):
        raise ValueError(f"features come from after block 0 to {len(model.blocks)}, got {block}")
    check_length(model, tokens.shape[1])
    stream, _ = residual_stream(
        model, tokens, positions_of(mask), causal(mask), adapter, blocks=block
    )
    real = mask[..., None]
    mean = jnp.where(real, stream, 0.0).sum(1) / real.sum(1)
    last = jnp.take_along_axis(stream, last_of(mask)[:, None, None], axis=1)[:, 0]
    return jnp.stack([mean, last], axis=1)
