"""Critics of DPPG, which estimate the values from which advantages are computed.

A critic that is fitted to several users' data without noise carries the data of each user into all
later updates: an audit finds epsilon of at least 2.84 where 0.73 is claimed (docs/privacy.md,
section 3). A critic here is therefore a public constant, a fit to one user's own steps that is then
discarded, a fit in the public simulator, or a part of the release. The paper's critic is offered
too, and the certificate names it as a gap.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from sotto.rl.networks import Value, scaled
from sotto.rl.returns import discounted_returns
from sotto.rl.rollout import Trajectory


def constant_values(
    trajectory: Trajectory, constant: float
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """Returns the public constant for every observation and for every next one."""
    values = jnp.full(trajectory.rewards.shape, constant, jnp.float32)
    return values, values


def own_values(
    trajectory: Trajectory,
    scale: tuple[float, ...],
    constant: float,
    discount: float,
    penalty: float = 1.0,
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
    gram = features.T @ features + penalty * jnp.eye(features.shape[1], dtype=jnp.float32)
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


def fit(
    critic: Value,
    observations: Float[Array, "T obs"],
    targets: Float[Array, " T"],
    alive: Float[Array, " T"],
    *,
    learning_rate: float,
    steps: int,
) -> Value:
    """Makes `steps` full-batch Adam steps, from fresh moments, on the squared error over scale.

    Returns:
        The change of the critic, as a pytree like it.
    """
    count = jnp.maximum(jnp.sum(alive), 1.0)
    optimizer = optax.adam(learning_rate, eps=1e-5)

    def loss(candidate: Value) -> Float[Array, ""]:
        error = (candidate(observations) - targets) / candidate.scale
        return 0.5 * jnp.sum(jnp.square(error) * alive) / count

    def step(
        carry: tuple[Value, optax.OptState], _: None
    ) -> tuple[tuple[Value, optax.OptState], None]:
        candidate, moments = carry
        updates, moments = optimizer.update(jax.grad(loss)(candidate), moments)
        return (eqx.apply_updates(candidate, updates), moments), None

    (fitted, _), _ = jax.lax.scan(step, (critic, optimizer.init(critic)), None, length=steps)
    change: Value = jax.tree.map(jnp.subtract, fitted, critic)
    return change
