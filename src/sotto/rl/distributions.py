"""Distributions over actions.

Sampling turns given noise into an action, so that a rollout can draw all of its randomness before
its loop. `Categorical` takes one uniform in [0, 1), and `DiagonalGaussian` takes one standard
normal per dimension. This is exploration noise; the noise that protects people is added in
`sotto.privacy`.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Categorical(eqx.Module):
    """A distribution over n actions, given by unnormalised log-probabilities."""

    logits: Float[Array, "*batch n"]

    def sample(self, noise: Float[Array, "*batch 1"]) -> Int[Array, "*batch"]:
        """Returns the action at quantile `noise` of the cumulative distribution."""
        cumulative = jnp.cumsum(jax.nn.softmax(self.logits), axis=-1)
        return jnp.sum(noise >= cumulative[..., :-1], axis=-1, dtype=jnp.int32)

    def log_prob(self, action: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Returns the log-probability of `action`."""
        # A mask is faster than a gather on CPU for few actions, and so is its gradient.
        n = self.logits.shape[-1]
        chosen = action[..., None] == jax.lax.iota(action.dtype, n)
        return jnp.sum(jnp.where(chosen, jax.nn.log_softmax(self.logits), 0.0), axis=-1)

    def entropy(self) -> Float[Array, "*batch"]:
        """Returns the Shannon entropy in nats."""
        log_probs = jax.nn.log_softmax(self.logits)
        # If a probability is exactly zero, its logit may be -inf; 0 log 0 is 0.
        terms = jnp.exp(log_probs) * jnp.where(jnp.isneginf(log_probs), 0.0, log_probs)
        return -jnp.sum(terms, axis=-1)

    def mode(self) -> Int[Array, "*batch"]:
        """Returns the most probable action, the first of several."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)


class DiagonalGaussian(eqx.Module):
    """Independent normal distributions, one for each dimension of the action."""

    mean: Float[Array, "*batch a"]
    log_std: Float[Array, "*batch a"]

    def sample(self, noise: Float[Array, "*batch a"]) -> Float[Array, "*batch a"]:
        """Returns mean + std * noise."""
        return self.mean + jnp.exp(self.log_std) * noise

    def log_prob(self, action: Float[Array, "*batch a"]) -> Float[Array, "*batch"]:
        """Returns the log-density of `action`, which is not clipped to any box."""
        deviation = (action - self.mean) * jnp.exp(-self.log_std)
        return -jnp.sum(
            0.5 * jnp.square(deviation) + self.log_std + 0.5 * math.log(2 * math.pi), axis=-1
        )

    def entropy(self) -> Float[Array, "*batch"]:
        """Returns the differential entropy in nats."""
        return jnp.sum(self.log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def mode(self) -> Float[Array, "*batch a"]:
        """Returns the mean."""
        return self.mean


Distribution = Categorical | DiagonalGaussian
