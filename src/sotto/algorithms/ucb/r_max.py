"""R-MAX (Brafman and Tennenholtz 2002) on private counters: what noise may hide counts as the best.

A user who visits a state and action often says little more about it than one who visits it once,
and adds as much to the sensitivity. So a user contributes shares: where each state and action that
they took led to, and its mean reward. All shares together are clipped to norm 1, which is a
twentieth of what plain counts of 20 steps need.

Few states follow any state and action, and noise in the counters of all others would add up. So a
counter below `SURE` standard deviations of its noise counts as zero.

Guarantee:
    Both functions are computed on either side of the release, whose guarantee is that of
    `sotto.algorithms.ucb.calibrated`: contributions are clipped there, whatever they are.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

CLIP_NORM = 1.0
"""L2 bound on one user's shares. Almost all users have longer ones, so it only sets the unit."""
MEAN_REWARD_WEIGHT = 2.0
"""Weight of mean rewards among the shares."""
SURE = 2.5
"""Standard deviations of noise below which a counter counts as zero."""
UNKNOWN = 2.0
"""Standard deviations of noise that count as visits which had reward 1 and led nowhere."""


def shares(
    size: tuple[int, int],
    here: Int[Array, " H"],
    action: Int[Array, " H"],
    reward: Float[Array, " H"],
    after: Int[Array, " H"],
) -> tuple[Float[Array, "S A S"], Float[Array, "S A"]]:
    """Returns one user's shares of transitions, and mean rewards times `MEAN_REWARD_WEIGHT`.

    Args:
        size: numbers of states and actions.
        here, action, reward, after: the user's episode.
    """
    visits = jnp.zeros(size, jnp.float32).at[here, action].add(1.0)
    weight = 1 / visits[here, action]
    transitions = jnp.zeros((*size, size[0]), jnp.float32).at[here, action, after].add(weight)
    rewards = (
        jnp.zeros(size, jnp.float32).at[here, action].add(MEAN_REWARD_WEIGHT * weight * reward)
    )
    return transitions, rewards


def model(
    transitions: Float[Array, "S A S"], rewards: Float[Array, "S A"], deviation: Float[Array, ""]
) -> tuple[Float[Array, "S A"], Float[Array, "S A S"]]:
    """Returns optimistic rewards and transitions.

    Args:
        transitions, rewards: noisy sums of shares.
        deviation: standard deviation of the noise in each of them.
    """
    surely = jnp.where(transitions > SURE * deviation, transitions, 0.0)
    unknown = UNKNOWN * deviation
    total = jnp.sum(surely, axis=-1) + unknown
    best = (rewards / MEAN_REWARD_WEIGHT + unknown) / total
    nowhere = jnp.eye(transitions.shape[0], dtype=jnp.float32)[:, None, :]
    return jnp.clip(best, 0.0, 1.0), (surely + unknown * nowhere) / total[..., None]
