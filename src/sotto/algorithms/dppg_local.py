"""A user's update in private policy gradient: from their own steps alone (Rio et al. 2025, Alg. 3).

Nothing here is private by itself, nor needs to be: whatever a user's update is, the door bounds it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.dppg_config import DPPGConfig
from sotto.rl.networks import Policy
from sotto.rl.rollout import Trajectory


def objective(
    policy: Policy,
    config: DPPGConfig,
    trajectory: Trajectory,
    old_log_probs: Float[Array, " T"],
    advantages: Float[Array, " T"],
) -> Float[Array, ""]:
    """Surrogate objective plus entropy bonus over a user's living steps (Algorithm 3)."""
    distribution = policy(trajectory.observations)
    ratio = jnp.exp(distribution.log_prob(trajectory.actions) - old_log_probs)
    surrogate = ratio * advantages
    if config.ratio_clip is not None:
        clipped = jnp.clip(ratio, 1 - config.ratio_clip, 1 + config.ratio_clip)
        surrogate = jnp.minimum(surrogate, clipped * advantages)
    gain = surrogate + config.entropy_coefficient * distribution.entropy()
    count = jnp.maximum(jnp.sum(trajectory.alive, dtype=jnp.float32), 1.0)
    return jnp.sum(jnp.where(trajectory.alive, gain, 0.0)) / count


def one_step(
    config: DPPGConfig, policy: Policy, trajectory: Trajectory, advantages: Float[Array, " T"]
) -> Policy:
    """One ascent step, long enough that the door's clip decides its length."""
    old = policy(trajectory.observations).log_prob(trajectory.actions)
    gradient = jax.grad(objective)(policy, config, trajectory, old, advantages)
    step: Policy = jax.tree.map(lambda g: config.learning_rate * g, gradient)
    return step


def local_adam(
    config: DPPGConfig,
    radius: float,
    policy: Policy,
    trajectory: Trajectory,
    advantages: Float[Array, " T"],
    previous: Policy,
    updates: Int[Array, ""],
    key: PRNGKeyArray,
) -> Policy:
    """Algorithm 3: epochs of Adam over minibatches, projected to the S-ball after every step.

    Adam's moments start from the previous released update and its square (appendix C.2.3), its
    step count from the steps all earlier users made; each user gets a fresh copy.
    """
    old = policy(trajectory.observations).log_prob(trajectory.actions)
    steps = config.local_epochs * config.local_minibatches
    optimizer = optax.scale_by_adam(eps=1e-5)
    moments = optax.ScaleByAdamState(
        count=updates * steps,
        mu=previous,
        nu=jax.tree.map(jnp.square, previous),
    )
    size = config.steps_per_user // config.local_minibatches
    orders = jax.vmap(lambda k: jax.random.permutation(k, config.steps_per_user))(
        jax.random.split(key, config.local_epochs)
    ).reshape(steps, size)

    def step(carry: tuple[Policy, Any], rows: Int[Array, " m"]) -> tuple[tuple[Policy, Any], None]:
        candidate, moments = carry
        batch = jax.tree.map(lambda x: x[rows], (trajectory, old, advantages))
        gradient = jax.grad(objective)(candidate, config, *batch)
        ascent, moments = optimizer.update(gradient, moments)
        moved = jax.tree.map(lambda p, a: p + config.learning_rate * a, candidate, ascent)
        return (_project(moved, policy, radius), moments), None

    (trained, _), _ = jax.lax.scan(step, (policy, moments), orders)
    change: Policy = jax.tree.map(jnp.subtract, trained, policy)
    return change


def _project(moved: Policy, centre: Policy, radius: float) -> Policy:
    """The nearest policy within `radius` of `centre`."""
    difference = jax.tree.map(jnp.subtract, moved, centre)
    norm = optax.tree.norm(difference)
    scale = jnp.minimum(1.0, radius / jnp.maximum(norm, 1e-12))
    projected: Policy = jax.tree.map(lambda c, d: c + scale * d, centre, difference)
    return projected
