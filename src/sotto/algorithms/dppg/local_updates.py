"""A user's update in private policy gradient: from their own steps alone (Rio et al. 2025, Alg. 3).

Nothing here is private by itself, nor needs to be: whatever a user's update is, the door bounds it.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.dppg.config import DPPGConfig
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
    if config.clip_ratio is not None:
        clipped = jnp.clip(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
        surrogate = jnp.minimum(surrogate, clipped * advantages)
    gain = surrogate + config.entropy_coefficient * distribution.entropy()
    count = jnp.maximum(jnp.sum(trajectory.alive, dtype=jnp.float32), 1.0)
    return jnp.sum(jnp.where(trajectory.alive, gain, 0.0)) / count


def one_step(
    config: DPPGConfig,
    policy: Policy,
    trajectory: Trajectory,
    advantages: Float[Array, " T"],
    updates: Int[Array, ""],
) -> Policy:
    """One ascent step, long enough that the door's clip decides its length."""
    old = policy(trajectory.observations).log_prob(trajectory.actions)
    gradient = jax.grad(objective)(policy, config, trajectory, old, advantages)
    rate = learning_rate(config, updates)
    step: Policy = jax.tree.map(lambda g: rate * g, gradient)
    return step


def learning_rate(config: DPPGConfig, updates: Int[Array, ""]) -> Float[Array, ""] | float:
    """The local learning rate of the moment: a public schedule."""
    if config.learning_rate_schedule is None:
        return config.learning_rate
    divisor, period, least = config.learning_rate_schedule
    decayed = config.learning_rate * jnp.exp(-math.log(divisor) * (updates // period))
    return jnp.maximum(decayed, least)


def visit_average(policy: Policy, trajectory: Trajectory, advantages: Float[Array, " T"]) -> Policy:
    """Each action taken, weighed by its advantage and averaged over the visits to its state.

    For a linear policy on one-hot states: where the gradient of the log-likelihood has e_a - pi it
    has e_a - 1/n, and it divides by visits. So a state seen once says as much as one seen often,
    and a policy that is nearly deterministic, by noise for instance, learns as fast as a uniform
    one. The bias is a feature that every step visits: what to do where nobody has been yet.
    """
    n = policy.network.biases[0].size
    chosen = (trajectory.actions[:, None] == jnp.arange(n)).astype(jnp.float32) - 1 / n
    alive = trajectory.alive.astype(jnp.float32)
    pushes = chosen * (alive * advantages)[:, None]
    visits = jnp.maximum(alive @ trajectory.observations, 1.0)
    update: Policy = eqx.tree_at(
        lambda p: (p.network.weights, p.network.biases),
        policy,
        (
            ((trajectory.observations.T @ pushes) / visits[:, None],),
            (jnp.sum(pushes, axis=0) / jnp.maximum(jnp.sum(alive), 1.0),),
        ),
    )
    return update


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
