"""Critics of DPPG, which estimate the values from which advantages are computed.

A critic that is fitted to several users' data without noise carries the data of each user into all
later updates: an audit finds epsilon of at least 2.84 where 0.73 is claimed (docs/privacy.md,
section 3). A critic here is therefore a public constant, a fit to one user's own steps that is then
discarded, a fit in the public simulator, or a part of the release. The paper's critic is offered
too, and the certificate names it as a gap.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from sotto.rl.networks import Value, scaled
from sotto.rl.returns import discounted_returns
from sotto.rl.rollout import Trajectory

DESCRIBED = "a critic, which estimates users' returns"
"""Words of the certificate for a critic that is a part of the release."""


def constant_values(
    trajectory: Trajectory, constant: float | Float[Array, ""]
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """Returns the public constant for every observation and for every next one."""
    values = jnp.full(trajectory.rewards.shape, constant, jnp.float32)
    return values, values


def own_values(
    trajectory: Trajectory,
    scale: tuple[float, ...],
    constant: float | Float[Array, ""],
    discount: float | Float[Array, ""],
    centre: tuple[float, ...] | None = None,
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """Returns values from a ridge regression of one user's own returns on quadratic features.

    The fit only sees one user, and is discarded after their update, so it costs no privacy.
    """
    features = (
        _quadratic(scaled(trajectory.observations, scale, centre)) * trajectory.alive[:, None]
    )
    unfinished, _ = constant_values(trajectory, constant)
    targets = jnp.where(
        trajectory.alive, discounted_returns(trajectory, unfinished, discount) - constant, 0.0
    )
    gram = features.T @ features + jnp.eye(features.shape[1], dtype=jnp.float32)
    weights = jnp.linalg.solve(gram, features.T @ targets)
    after = _quadratic(scaled(trajectory.next_observations, scale, centre))
    return constant + features @ weights, constant + after @ weights


def _quadratic(observations: Float[Array, "T obs"]) -> Float[Array, "T features"]:
    """Returns 1, half of the scaled observations, and a quarter of each of their products."""
    columns = [observations[:, i] for i in range(observations.shape[1])]
    products = [
        0.25 * columns[i] * columns[j] for i in range(len(columns)) for j in range(i, len(columns))
    ]
    ones = jnp.ones_like(columns[0])
    return jnp.stack([ones, *(0.5 * column for column in columns), *products], axis=-1)


class AdamMoments(NamedTuple):
    """Moments of Adam for a critic, which go on from one update to the next."""

    mean: Value
    square: Value


def no_moments(critic: Value) -> AdamMoments:
    """Returns the moments before the first step."""
    zero = jax.tree.map(jnp.zeros_like, critic)
    return AdamMoments(zero, zero)


def fit(
    critic: Value,
    observations: Float[Array, "T obs"],
    targets: Float[Array, " T"],
    alive: Float[Array, " T"],
    *,
    learning_rate: float,
    steps: int | Int[Array, "steps rows"],
    moments: AdamMoments | None = None,
    before: Int[Array, ""] | int = 0,
) -> tuple[Value, AdamMoments]:
    """Makes steps of Adam on the squared error over scale.

    Args:
        critic: where they start.
        observations, targets: of the steps of one user.
        alive: 1 for a step that counts, and 0 for others.
        learning_rate: of Adam.
        steps: number of steps on all rows, or the rows of each step's minibatch.
        moments: of Adam at the start. None: fresh ones.
        before: number of steps that made these moments.

    Returns:
        The change of the critic, as a pytree like it, and the moments after the last step.
    """
    optimizer = optax.adam(learning_rate, eps=1e-5)
    mean, square = no_moments(critic) if moments is None else moments
    begun = optax.ScaleByAdamState(jnp.asarray(before, jnp.int32), mean, square)

    def loss(candidate: Value, rows: Array | slice) -> Float[Array, ""]:
        error = (candidate(observations[rows]) - targets[rows]) / candidate.scale
        weight = alive[rows]
        return 0.5 * jnp.sum(jnp.square(error) * weight) / jnp.maximum(jnp.sum(weight), 1.0)

    def step(
        carry: tuple[Value, optax.OptState], rows: Array | None
    ) -> tuple[tuple[Value, optax.OptState], None]:
        candidate, state = carry
        gradient = jax.grad(loss)(candidate, slice(None) if rows is None else rows)
        updates, state = optimizer.update(gradient, state)
        return (eqx.apply_updates(candidate, updates), state), None

    first = (critic, (begun, *optimizer.init(critic)[1:]))
    rows, length = (None, steps) if isinstance(steps, int) else (steps, None)
    (fitted, (after, *_)), _ = jax.lax.scan(step, first, rows, length)
    change: Value = jax.tree.map(jnp.subtract, fitted, critic)
    return change, AdamMoments(after.mu, after.nu)
