"""Exploration of parameters: users follow the policy with noise, or move it in two directions.

`perturbed` is the policy that a user follows with noise of their own. The rest is a user's update
from one episode in each of two directions. It is the part of augmented random search that one user
can do alone (Mania, Guy & Recht 2018, arXiv:1803.07055, Algorithm 1 without its choice of top
directions). A user draws a direction of length one. They play one greedy episode with the released
policy moved along the direction, and one with the policy moved against it. Then they contribute

    learning_rate * (return along - return against) / advantage_scale * direction.

Here a return is the sum of rewards without survival_bonus for each step, which Mania et al. leave
out, too. Without an advantage_scale, the sign of the difference replaces the quotient. So a
contribution is one number and a direction that does not depend on data. A policy with few
parameters can learn from it in environments where gradients along sampled actions are too noisy.

Nothing here is private by itself: the release bounds and noises the update, whatever it is.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.networks import Policy
from sotto.rl.rollout import rollout


class Explored(NamedTuple):
    """Two episodes of one user, or of several users with a leading axis."""

    direction: Policy
    """Direction of length one. It is zero for the standard deviation of actions, which greedy
    episodes do not use."""
    returns: Float[Array, "*users 2"]
    """Undiscounted returns along the direction and against it."""
    steps: Float[Array, "*users 2"]
    """Number of decisions in each of the two episodes."""
    ended: Float[Array, "*users 2"]
    """1 if the episode ended by itself, 0 if it was cut off."""


def perturbed(policy: Policy, scale: float, key: PRNGKeyArray) -> Policy:
    """Returns the policy that one user follows, with their own exploration noise, if any."""
    if scale == 0:
        return policy
    leaves = jax.tree.leaves(policy)
    keys = iter(jax.random.split(key, len(leaves)))
    noisy: Policy = jax.tree.map(
        lambda x: x + scale * jax.random.normal(next(keys), x.shape, x.dtype), policy
    )
    return noisy


def direction(policy: Policy, key: PRNGKeyArray) -> Policy:
    """Draws a uniformly random direction of length one in the space of the network's parameters."""
    leaves, structure = jax.tree.flatten(policy.network)
    keys = jax.random.split(key, len(leaves))
    drawn = [jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)]
    length = optax.tree.norm(drawn)
    network = jax.tree.unflatten(structure, [x / length for x in drawn])
    nothing = jax.tree.map(jnp.zeros_like, policy)
    found: Policy = eqx.tree_at(lambda p: p.network, nothing, network)
    return found


def both_ways(config: DPPGConfig, policy: Policy, direction: Policy) -> Policy:
    """Returns the policy moved along the direction and against it, with a leading axis of two.

    The distance is parameter_noise * sqrt(number of parameters). Independent normal noise with
    standard deviation parameter_noise in every parameter moves the policy about as far.
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(policy.network))
    distance = config.parameter_noise * size**0.5
    pair: Policy = jax.tree.map(
        lambda p, d: jnp.stack([p + distance * d, p - distance * d]), policy, direction
    )
    return pair


def explore(config: DPPGConfig, env: AnyEnvironment, policy: Policy, key: PRNGKeyArray) -> Explored:
    """Plays both episodes of one simulated user in an environment that is written in JAX."""
    direction_key, play_key = jax.random.split(key)
    drawn = direction(policy, direction_key)

    def play(moved: Policy, key: PRNGKeyArray) -> tuple[Array, Array, Array]:
        steps = config.steps_per_user // 2
        seen = rollout(env, env.default_params, moved, key, steps, one_episode=True, greedy=True)
        return (
            jnp.sum(seen.rewards),
            jnp.sum(seen.alive, dtype=jnp.float32),
            jnp.any(seen.terminated | seen.truncated).astype(jnp.float32),
        )

    pair = both_ways(config, policy, drawn)
    return Explored(drawn, *jax.vmap(play)(pair, jax.random.split(play_key)))


def update(config: DPPGConfig, explored: Explored) -> Policy:
    """Returns the user's contribution, before the release clips it."""
    returns = explored.returns - config.survival_bonus * explored.steps
    difference = returns[0] - returns[1]
    if config.advantage_scale is None:
        weight = config.learning_rate * jnp.sign(difference)
    else:
        weight = config.learning_rate * difference / config.advantage_scale
    contribution: Policy = jax.tree.map(lambda d: weight * d, explored.direction)
    return contribution


def diagnostics(config: DPPGConfig, explored: Explored) -> dict[str, Array]:
    """Returns sums over one simulated user's steps, for the experimenter's learning curve.

    Steps are those of the environment: each decision counts as action_repeat of them.
    """
    return {
        "steps": config.action_repeat * jnp.sum(explored.steps),
        "reward": jnp.sum(explored.returns),
        "episodes": jnp.sum(explored.ended),
    }


def local(
    config: DPPGConfig,
    env: AnyEnvironment,
    state: Any,
    unit: Explored | tuple[()],
    key: PRNGKeyArray,
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Returns one user's contribution to the release, and diagnostics.

    Args:
        config: settings.
        env: the training environment.
        state: the public state, whose policy is explored.
        unit: episodes that were collected outside JAX. (): the user is simulated here.
        key: the user's own randomness.
    """
    explored = unit if isinstance(unit, Explored) else explore(config, env, state.policy, key)
    return {"policy": update(config, explored)}, diagnostics(config, explored)
