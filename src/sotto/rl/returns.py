"""Returns and advantages of one user's trajectory; `vmap` over users.

An episode that terminates has no value beyond its end. One that is truncated, by the time limit or
by the end of the trajectory, is continued by the value of the state it had reached.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sotto.rl.rollout import Trajectory


def gae(
    trajectory: Trajectory,
    values: Float[Array, " T"],
    next_values: Float[Array, " T"],
    discount: float | Float[Array, ""],
    gae_lambda: float | Float[Array, ""],
) -> Float[Array, " T"]:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16), zero where not alive.

    Args:
        trajectory: one user's steps.
        values: the critic at `trajectory.observations`.
        next_values: the critic at `trajectory.next_observations`.
        discount: gamma.
        gae_lambda: lambda; 0 is one-step, 1 is the return minus the baseline.
    """
    alive = trajectory.alive
    bootstrap = jnp.where(trajectory.terminated, 0.0, next_values)
    residuals = jnp.where(alive, trajectory.rewards + discount * bootstrap - values, 0.0)
    carries_on = jnp.where(trajectory.terminated | trajectory.truncated, 0.0, discount * gae_lambda)

    def back(later: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        residual, factor = inputs
        advantage = residual + factor * later
        return advantage, advantage

    zero = jnp.zeros_like(residuals[0])
    _, advantages = jax.lax.scan(back, zero, (residuals, carries_on), reverse=True)
    return jnp.where(alive, advantages, 0.0)


def discounted_returns(
    trajectory: Trajectory, next_values: Float[Array, " T"], discount: float
) -> Float[Array, " T"]:
    """Discounted reward-to-go, bootstrapped where an episode is cut off; zero where not alive."""
    # With lambda = 1 the critic at the visited states cancels, so any values serve: take zero,
    # and let the critic enter only where the trajectory is cut.
    ends = trajectory.terminated | trajectory.truncated
    last = jnp.arange(ends.shape[0], dtype=jnp.int32) == ends.shape[0] - 1
    cut = (trajectory.truncated | last) & trajectory.alive & ~trajectory.terminated
    values = jnp.zeros_like(next_values)
    return gae(trajectory, values, jnp.where(cut, next_values, values), discount, 1.0)


def normalise_advantages(
    advantages: Float[Array, " T"], alive: Bool[Array, " T"], epsilon: float = 1e-8
) -> Float[Array, " T"]:
    """Zero mean and unit variance over one user's living steps, zero elsewhere.

    Across users this would let one user's data change another's contribution, which a clip on
    each contribution does not bound: it belongs inside one user.
    """
    count = jnp.maximum(jnp.sum(alive, dtype=jnp.float32), 1.0)
    mean = jnp.sum(jnp.where(alive, advantages, 0.0)) / count
    centred = jnp.where(alive, advantages - mean, 0.0)
    variance = jnp.sum(jnp.square(centred)) / count
    return centred / (jnp.sqrt(variance) + epsilon)


def running_returns(
    trajectory: Trajectory, carried: Float[Array, ""]
) -> tuple[Float[Array, " T"], Float[Array, ""]]:
    """The undiscounted return of the current episode after each step, and what to carry on.

    Where `terminated | truncated`, the value is the return of a whole episode. `carried` is the
    return so far of an episode that began in an earlier trajectory of the same lane (0 at first).
    """

    def step(total: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, ended = inputs
        total = total + reward
        return jnp.where(ended, 0.0, total), total

    ended = trajectory.terminated | trajectory.truncated
    carried, totals = jax.lax.scan(step, carried, (trajectory.rewards, ended))
    return totals, carried
