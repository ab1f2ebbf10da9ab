"""Returns and advantages of one user's trajectory; apply `vmap` for several users.

The value beyond the end of a terminated episode is zero. The value beyond the end of a truncated
episode (by the time limit, or by the end of the trajectory) is the critic's value of the state that
it reached.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from sotto.rl.rollout import Trajectory

_AT_LEAST = 1e-4  # added to the standard deviation, so that equal advantages stay near zero


def gae(
    trajectory: Trajectory,
    values: Float[Array, " T"],
    next_values: Float[Array, " T"],
    discount: float | Float[Array, ""],
    gae_lambda: float | Float[Array, ""],
) -> Float[Array, " T"]:
    """Returns generalised advantage estimates (Schulman et al. 2016, eq. 16), zero if not alive.

    Args:
        trajectory: one user's steps.
        values: the critic's values of `trajectory.observations`.
        next_values: the critic's values of `trajectory.next_observations`.
        discount: gamma.
        gae_lambda: lambda; 0 gives one-step advantages, and 1 the return minus the value.
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
    trajectory: Trajectory, next_values: Float[Array, " T"], discount: float | Float[Array, ""]
) -> Float[Array, " T"]:
    """Returns the discounted reward-to-go, zero if not alive; truncated episodes bootstrap."""
    # With lambda = 1 the critic's values of the visited states cancel. They are set to zero here,
    # so that the critic enters only where an episode is truncated.
    ends = trajectory.terminated | trajectory.truncated
    last = jnp.arange(ends.shape[0], dtype=jnp.int32) == ends.shape[0] - 1
    cut = (trajectory.truncated | last) & trajectory.alive & ~trajectory.terminated
    values = jnp.zeros_like(next_values)
    return gae(trajectory, values, jnp.where(cut, next_values, values), discount, 1.0)


def normalise_advantages(
    advantages: Float[Array, " T"], alive: Bool[Array, " T"]
) -> Float[Array, " T"]:
    """Scales one user's advantages to mean zero and variance one over the steps that are alive.

    Normalise within one user only. Across users, one user's data would change the contributions of
    others, and clipping each contribution would not bound that.
    """
    count = jnp.maximum(jnp.sum(alive, dtype=jnp.float32), 1.0)
    mean = jnp.sum(jnp.where(alive, advantages, 0.0)) / count
    centred = jnp.where(alive, advantages - mean, 0.0)
    variance = jnp.sum(jnp.square(centred)) / count
    return centred / (jnp.sqrt(variance) + _AT_LEAST)


def running_returns(
    trajectory: Trajectory, carried: Float[Array, ""]
) -> tuple[Float[Array, " T"], Float[Array, ""]]:
    """Returns the undiscounted return so far of the current episode after each step.

    Where `terminated | truncated`, the value is the return of a whole episode. `carried` is the
    return so far of an episode that began in an earlier trajectory of the same environment, 0 at
    first. The second result is the value to carry to the next trajectory.
    """

    def step(total: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, ended = inputs
        total = total + reward
        return jnp.where(ended, 0.0, total), total

    ended = trajectory.terminated | trajectory.truncated
    carried, totals = jax.lax.scan(step, carried, (trajectory.rewards, ended))
    return totals, carried
