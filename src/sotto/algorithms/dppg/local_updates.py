"""User's update in DPPG, from their own steps only (Rio et al. 2025, Algorithm 3).

Nothing here is private by itself: the release bounds and noises the update, whatever it is.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.rl.minibatches import minibatches
from sotto.rl.networks import Policy
from sotto.rl.rollout import Trajectory
from sotto.trees import at


def objective(
    policy: Policy,
    config: DPPGConfig,
    trajectory: Trajectory,
    old_log_probs: Float[Array, " T"],
    advantages: Float[Array, " T"],
) -> Float[Array, ""]:
    """Returns surrogate objective plus entropy bonus over a user's living steps (Algorithm 3)."""
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
    """Returns one ascent step, which is so long that clipping sets its length."""
    old = policy(trajectory.observations).log_prob(trajectory.actions)
    gradient = jax.grad(objective)(policy, config, trajectory, old, advantages)
    rate = learning_rate(config, updates)
    step: Policy = jax.tree.map(lambda g: rate * g, gradient)
    return step


def learning_rate(config: DPPGConfig, updates: Int[Array, ""]) -> Float[Array, ""] | float:
    """Returns the local learning rate after `updates` updates, from a public schedule."""
    if config.learning_rate_schedule is None:
        return config.learning_rate
    divisor, period, least = config.learning_rate_schedule
    decayed = config.learning_rate * jnp.exp(-math.log(divisor) * (updates // period))
    return jnp.maximum(decayed, least)


def visit_average(policy: Policy, trajectory: Trajectory, advantages: Float[Array, " T"]) -> Policy:
    """Returns actions weighted by their advantages, and averaged over the visits to their state.

    It is for a linear policy on one-hot states. The gradient of the log-likelihood has e_a - pi;
    here it is e_a - 1/n, divided by the number of visits. So a state that was visited once counts
    as much as one that was visited often, and a nearly deterministic policy learns as fast as a
    uniform one. All steps count for the bias, which is what states without visits use.
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


def local_minibatches(config: DPPGConfig, key: PRNGKeyArray) -> Int[Array, "steps rows"]:
    """Returns the user's steps that each step of Adam sees."""
    return minibatches(key, config.steps_per_user, config.local_epochs, config.local_minibatches)


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
    """Returns the update of Algorithm 3: epochs of Adam over minibatches, within the S-ball.

    The policy is projected to the ball after every step. With carry_moments, Adam's moments start
    from the previous released update and its square (appendix C.2.3), and its step count from the
    number of steps in all earlier updates. Each user gets a fresh copy.
    """
    old = policy(trajectory.observations).log_prob(trajectory.actions)
    orders = local_minibatches(config, key)
    optimizer = optax.scale_by_adam(eps=1e-5)
    moments = optimizer.init(policy)
    if config.carry_moments:
        moments = optax.ScaleByAdamState(
            count=updates * len(orders),
            mu=previous,
            nu=jax.tree.map(jnp.square, previous),
        )

    def step(carry: tuple[Policy, Any], rows: Int[Array, " m"]) -> tuple[tuple[Policy, Any], None]:
        candidate, moments = carry
        batch = at((trajectory, old, advantages), rows)
        gradient = jax.grad(objective)(candidate, config, *batch)
        ascent, moments = optimizer.update(gradient, moments)
        moved = jax.tree.map(lambda p, a: p + config.learning_rate * a, candidate, ascent)
        return (_project(moved, policy, radius), moments), None

    (trained, _), _ = jax.lax.scan(step, (policy, moments), orders)
    change: Policy = jax.tree.map(jnp.subtract, trained, policy)
    return change


def _project(moved: Policy, centre: Policy, radius: float) -> Policy:
    """Returns the nearest policy within `radius` of `centre`."""
    difference = jax.tree.map(jnp.subtract, moved, centre)
    norm = optax.tree.norm(difference)
    scale = jnp.minimum(1.0, radius / jnp.maximum(norm, 1e-12))
    projected: Policy = jax.tree.map(lambda c, d: c + scale * d, centre, difference)
    return projected
