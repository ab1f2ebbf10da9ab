"""The paper's critic: a value of each prompt, fitted to everybody's ratings without noise.

It is not private, so a training that uses it only states the paper's claim. It exists to compare.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sotto.algorithms.rlhf.feedback import Rated
from sotto.privacy.statements import Gap
from sotto.rl.language import Decoder, block_features

GAP = Gap(
    name="non-private critic",
    why="the value of a prompt is fitted to everybody's ratings without noise and shapes every "
    "later update",
)
LEARNING_RATE = 0.5
"""Step size of the critic. The squared norm of its inputs is 2, so larger steps may diverge."""


def blank(width: int) -> Float[Array, " inputs"]:
    """Returns the critic of a base model of this width before it is fitted: all values are 0.5."""
    return jnp.zeros(width + 1, jnp.float32).at[0].set(0.5)


def values(
    base: Decoder, critic: Float[Array, " inputs"], rated: Rated
) -> tuple[Float[Array, " rows"], Float[Array, "rows inputs"]]:
    """Returns the value of each row's prompt, and the inputs of the critic.

    The inputs are 1 and the base model's residual stream at the prompt's last token, scaled to
    norm 1.
    """
    stream = block_features(base, rated.prompts, rated.prompt_mask, len(base.blocks))[:, 1]
    unit = stream / jnp.linalg.norm(stream, axis=1, keepdims=True)
    inputs = jnp.concatenate([jnp.ones_like(unit[:, :1]), unit], axis=1)
    return inputs @ critic, inputs


def step(
    found: Float[Array, " rows"], inputs: Float[Array, "rows inputs"], rated: Rated
) -> Float[Array, " inputs"]:
    """Returns one person's step of the critic towards that person's ratings."""
    errors = jnp.where(rated.present, rated.ratings - found, 0)
    moved: Array = LEARNING_RATE * errors @ inputs / jnp.maximum(jnp.sum(rated.present), 1)
    return jax.lax.stop_gradient(moved)
