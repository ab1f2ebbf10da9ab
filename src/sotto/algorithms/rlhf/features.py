"""Public features of completions, which the released reward model weighs.

The features come from the residual stream of the frozen base model: its mean over all tokens of
prompt and completion, before the first block, where it says which words there are, and after most
blocks, where it says what the model makes of them. Both means are scaled to equal variance. They
are projected on the directions in which completions of one prompt differ most, and scaled to
variance one in each direction. Directions and scales are computed on completions of public prompts.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from sotto.rl.language import Decoder, block_features

DEPTHS = (0.0, 0.8)
"""Shares of the model's blocks after which the residual stream is read."""
_LEAST = 1e-9
"""Least variance, relative to the largest, of a direction that is not rounding."""
_TINY = 1e-30
"""Deviation in place of zero, where completions do not differ at one of the depths."""


class Whitening(NamedTuple):
    """Map from the residual stream's numbers to features."""

    projection: Float[Array, "raw features"]


class RewardModel(eqx.Module):
    """Released linear model of people's ratings."""

    whitening: Whitening
    weights: Float[Array, " features"]

    @jax.jit
    def rewards(self, base: Decoder, *rows: Array) -> Float[Array, " rows"]:
        """Returns the reward of each completion. Differences within a prompt have meaning.

        Args:
            base: the base model.
            rows: prompts, completions and their masks, in the order of `raw_features`.
        """
        return raw_features(base, *rows) @ self.whitening.projection @ self.weights


def raw_features(
    base: Decoder,
    prompts: Int[Array, "rows tokens"],
    prompt_mask: Bool[Array, "rows tokens"],
    completions: Int[Array, "rows new"],
    completion_mask: Bool[Array, "rows new"],
) -> Float[Array, "rows raw"]:
    """Returns means of the residual stream over each row's tokens, one depth after the other."""
    tokens = jnp.concatenate([prompts, completions], axis=1)
    mask = jnp.concatenate([prompt_mask, completion_mask], axis=1)
    blocks = [round(depth * base.architecture.blocks) for depth in DEPTHS]
    means = [block_features(base, tokens, mask, block)[:, 0] for block in blocks]
    return jnp.concatenate(means, axis=1)


def fit_whitening(raw: Float[np.ndarray, "prompts candidates raw"], features: int) -> Whitening:
    """Returns the whitening of completions of public prompts.

    Args:
        raw: raw features of several completions of each public prompt.
        features: number of features to keep.

    Raises:
        ValueError: there are fewer completions, or fewer numbers, than features, or completions do
            not differ in so many directions.
    """
    raw = raw.astype(np.float64)  # before the mean, or equal numbers would differ by its rounding
    centred = (raw - raw.mean(axis=1, keepdims=True)).reshape(-1, raw.shape[2])
    freedom = raw.shape[0] * (raw.shape[1] - 1)
    if features > min(freedom, raw.shape[2]):
        raise ValueError(
            f"{features} features need as many differences of completions, and as many numbers in "
            f"the residual stream; there are {freedom} and {raw.shape[2]}; use fewer features"
        )
    depths = np.split(centred, len(DEPTHS), axis=1)
    deviations = [max(float(np.sum(one**2) / freedom) ** 0.5, _TINY) for one in depths]
    scales = 1 / np.repeat(deviations, [one.shape[1] for one in depths])
    values, vectors = np.linalg.eigh(centred.T @ centred / freedom * scales * scales[:, None])
    leading = slice(None, -features - 1, -1)
    if values[-features] <= _LEAST * values[-1]:
        raise ValueError(
            f"completions of the public prompts do not differ in {features} directions; use fewer "
            "features, or more different prompts"
        )
    projection = scales[:, None] * vectors[:, leading] * values[leading] ** -0.5
    return Whitening(jnp.asarray(projection, jnp.float32))
