"""PPO, the baseline without privacy (Schulman et al. 2017, arXiv:1707.06347).

The clipped surrogate of equation 7 with GAE, a separate critic, advantages normalised over each
batch, and Adam with global norm clipping. Everything here is a pure function of a state and a key:
`init` makes the state, `update` is one iteration (`collect`, then `optimise`), `train_chunk` runs
many inside one compiled scan; `vmap` any of them over seeds. Nothing is private: the normalisation
over users and the critic alone would leak.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from sotto.algorithms.settings import (
    Count,
    Discount,
    NotNegative,
    Positive,
    Probability,
    Seed,
    Settings,
    Signed,
)
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.registry import make
from sotto.rl.networks import Policy, Value
from sotto.rl.returns import gae, running_returns
from sotto.rl.rollout import EpisodeState, Trajectory, continue_rollout, start


@dataclass(frozen=True)
class PPOConfig(Settings):
    """Settings of PPO; the defaults solve CartPole-v1 in 100k steps and suit Acrobot-v1."""

    env_id: str = "CartPole-v1"
    """The environment."""
    seed: Seed = 0
    """Seed of the initial networks, the environments and the actions."""
    total_steps: Count = 100_000
    """Environment steps over the whole training, summed over environments."""
    num_envs: Count = 8
    """Environments that run side by side."""
    num_steps: Count = 128
    """Steps of each environment per update."""
    learning_rate: Positive = 1e-3
    """Adam's learning rate, at the start if it is annealed."""
    anneal_learning_rate: bool = True
    """Bring the learning rate linearly to zero over the training."""
    num_epochs: Count = 5
    """Passes over the collected steps per update."""
    num_minibatches: Count = 4
    """Minibatches per pass."""
    discount: Discount = 0.99
    """Gamma."""
    gae_lambda: Probability = 0.95
    """Lambda of the generalised advantage estimates."""
    clip_ratio: Positive = 0.2
    """How far the probability ratio may usefully move from 1."""
    entropy_coefficient: Signed = 0.0
    """Weight of the entropy bonus."""
    value_coefficient: NotNegative = 0.5
    """Weight of the critic's loss, which is in units of the value scale."""
    max_grad_norm: Positive = 0.5
    """Global norm to which each gradient is clipped."""
    hidden: tuple[Count, ...] = (64, 64)
    """Hidden layers of the policy and of the critic."""
    normalise_advantages: bool = True
    """Bring the advantages of each update to mean zero and standard deviation one."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """What makes steps of gradients, with its usual settings."""

    def check(self) -> None:
        """Refuses settings that contradict each other."""
        if self.steps_per_update % self.num_minibatches:
            raise ValueError(
                f"num_minibatches must divide num_envs * num_steps = {self.steps_per_update}; "
                f"{self.num_minibatches} does not"
            )
        if self.total_steps < self.steps_per_update:
            raise ValueError(
                f"total_steps must be at least num_envs * num_steps = {self.steps_per_update}, "
                "which one update collects"
            )

    @property
    def steps_per_update(self) -> int:
        """Environment steps per update."""
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        """Updates in the whole training: total_steps, rounded down to whole updates."""
        return self.total_steps // self.steps_per_update


class Networks(NamedTuple):
    """What is trained."""

    policy: Policy
    value: Value


class PPOState(NamedTuple):
    """Everything that one update hands to the next."""

    networks: Networks
    optimizer_state: optax.OptState
    lanes: EpisodeState
    """Where each environment is, with a leading axis of num_envs."""
    returns_so_far: Float[Array, " num_envs"]
    """Undiscounted return of each unfinished episode."""
    updates: Int[Array, ""]
    """Updates made."""


class PPOMetrics(NamedTuple):
    """What one update reports."""

    episode_return: Float[Array, ""]
    """Mean undiscounted return of the episodes that ended in this update; NaN if none did."""
    episodes: Int[Array, ""]
    """How many ended."""
    entropy: Float[Array, ""]
    """Mean entropy of the policy in nats, over the last epoch."""
    kl: Float[Array, ""]
    """Estimated KL(old || new) in nats, over the last epoch."""
    value_loss: Float[Array, ""]
    """The critic's loss, over the last epoch."""


class _Batch(NamedTuple):
    observations: Array
    actions: Array
    log_probs: Array
    advantages: Array
    targets: Array


class Collected(NamedTuple):
    """What one update's rollouts leave behind."""

    batch: _Batch
    """All steps, flattened over environments and time."""
    lanes: EpisodeState
    returns_so_far: Float[Array, " num_envs"]
    episode_return: Float[Array, ""]
    """Mean undiscounted return of the episodes that ended; NaN if none did."""
    episodes: Int[Array, ""]


Penalty = Callable[[Networks, PyTree], Float[Array, ""]]
"""A term added to the loss: a function of the networks and of rows, averaged over rows."""


def init(config: PPOConfig, key: PRNGKeyArray) -> PPOState:
    """Fresh networks and environments.

    Raises:
        ValueError: the environment is not one of those written in JAX.
    """
    env = make(config.env_id)
    lane_keys = jax.random.split(jax.random.split(key, 3)[2], config.num_envs)
    return begin(config, env, key, jax.vmap(lambda k: start(env, env.default_params, k))(lane_keys))


def begin(config: PPOConfig, env: AnyEnvironment, key: PRNGKeyArray, lanes: Any) -> PPOState:
    """Fresh networks for an environment, whose lanes are given.

    Args:
        config: settings.
        env: its public facts are used, and nothing is run.
        key: for the networks.
        lanes: where its environments are; nothing for one that runs outside JAX.
    """
    policy_key, value_key, _ = jax.random.split(key, 3)
    networks = Networks(
        policy=Policy(
            env.observation_size,
            env.action,
            config.hidden,
            policy_key,
            observation_scale=env.observation_scale,
            observation_centre=env.observation_centre,
        ),
        value=Value(
            env.observation_size,
            config.hidden,
            value_key,
            observation_scale=env.observation_scale,
            observation_centre=env.observation_centre,
            # The return of an endless ordinary episode: targets are then of order one.
            scale=abs(env.reward_per_step) / (1 - config.discount),
        ),
    )
    return PPOState(
        networks=networks,
        optimizer_state=_optimizer(config).init(eqx.filter(networks, eqx.is_array)),
        lanes=lanes,
        returns_so_far=jnp.zeros((config.num_envs,), jnp.float32),
        updates=jnp.zeros((), jnp.int32),
    )


def update(config: PPOConfig, state: PPOState, key: PRNGKeyArray) -> tuple[PPOState, PPOMetrics]:
    """One iteration: every environment takes num_steps steps, then num_epochs passes over them."""
    rollout_key, shuffle_key = jax.random.split(key)
    return optimise(config, state, collect(config, state, rollout_key), shuffle_key)


def collect(config: PPOConfig, state: PPOState, key: PRNGKeyArray) -> Collected:
    """Every environment takes num_steps steps with the current policy."""
    trajectory, lanes = _rollouts(make(config.env_id), config, state, key)
    return gather(config, state, trajectory, lanes)


def gather(config: PPOConfig, state: PPOState, trajectory: Trajectory, lanes: Any) -> Collected:
    """What `optimise` needs of num_steps steps of every environment, wherever they were made.

    Args:
        config: settings.
        state: the state whose policy made them.
        trajectory: arrays of shape [num_envs, num_steps, ...].
        lanes: where the environments are now.
    """
    totals, returns_so_far = jax.vmap(running_returns)(trajectory, state.returns_so_far)
    ended = trajectory.terminated | trajectory.truncated
    episodes = jnp.sum(ended, dtype=jnp.int32)
    return Collected(
        batch=_prepare(config, state.networks, trajectory),
        lanes=lanes,
        returns_so_far=returns_so_far,
        # 0 / 0 is NaN where no episode ended, and says so.
        episode_return=jnp.sum(jnp.where(ended, totals, 0.0)) / episodes,
        episodes=episodes,
    )


def optimise(
    config: PPOConfig,
    state: PPOState,
    collected: Collected,
    key: PRNGKeyArray,
    penalty: Penalty | None = None,
    rows: PyTree = None,
) -> tuple[PPOState, PPOMetrics]:
    """num_epochs passes over what was collected.

    Args:
        config: settings.
        state: the state that collected.
        collected: from `collect`.
        key: for shuffling.
        penalty: added to PPO's loss.
        rows: what it is a function of, shuffled into minibatches like the steps are: arrays whose
            first axis, the same for all, is a multiple of num_minibatches.
    """
    networks, optimizer_state, (entropy, kl, value_loss) = _optimise(
        config, state.networks, state.optimizer_state, collected.batch, key, penalty, rows
    )
    after = PPOState(
        networks, optimizer_state, collected.lanes, collected.returns_so_far, state.updates + 1
    )
    metrics = PPOMetrics(collected.episode_return, collected.episodes, entropy, kl, value_loss)
    return after, metrics


@partial(jax.jit, static_argnames=("config", "num_updates"))
def train_chunk(
    config: PPOConfig, state: PPOState, key: PRNGKeyArray, num_updates: int
) -> tuple[PPOState, PPOMetrics]:
    """`num_updates` updates in one compiled scan; metrics have a leading axis of num_updates.

    Each update's key is derived from `key` and the number of updates made before it, so the result
    does not depend on how a training is cut into chunks.
    """

    def step(state: PPOState, _: None) -> tuple[PPOState, PPOMetrics]:
        return update(config, state, jax.random.fold_in(key, state.updates))

    return jax.lax.scan(step, state, None, length=num_updates)


def _optimizer(config: PPOConfig) -> optax.GradientTransformation:
    learning_rate: Any = config.learning_rate
    if config.anneal_learning_rate:
        steps = config.num_updates * config.num_epochs * config.num_minibatches
        learning_rate = optax.linear_schedule(config.learning_rate, 0.0, steps)
    optimizer = (
        optax.adam(learning_rate, eps=1e-5)
        if config.optimizer == "adam"
        else optax.rmsprop(learning_rate, decay=0.99, eps=1e-5)
    )
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optimizer)


def _rollouts(
    env: AnyEnvironment, config: PPOConfig, state: PPOState, key: PRNGKeyArray
) -> tuple[Trajectory, EpisodeState]:
    def one(lane: EpisodeState, key: PRNGKeyArray) -> tuple[Trajectory, EpisodeState]:
        return continue_rollout(
            env, env.default_params, state.networks.policy, key, lane, config.num_steps
        )

    return jax.vmap(one)(state.lanes, jax.random.split(key, config.num_envs))


def _prepare(config: PPOConfig, networks: Networks, trajectory: Trajectory) -> _Batch:
    """Advantages and critic targets of all steps, flattened over environments and time."""
    values = networks.value(trajectory.observations)
    next_values = networks.value(trajectory.next_observations)
    advantages = jax.vmap(gae, in_axes=(0, 0, 0, None, None))(
        trajectory, values, next_values, config.discount, config.gae_lambda
    )
    targets = advantages + values
    if config.normalise_advantages:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    batch = _Batch(
        observations=trajectory.observations,
        actions=trajectory.actions,
        log_probs=networks.policy(trajectory.observations).log_prob(trajectory.actions),
        advantages=advantages,
        targets=targets,
    )
    flat: _Batch = jax.tree.map(lambda x: x.reshape(config.steps_per_update, *x.shape[2:]), batch)
    return flat


def _loss(
    networks: Networks, config: PPOConfig, batch: _Batch
) -> tuple[Float[Array, ""], tuple[Array, Array, Array]]:
    distribution = networks.policy(batch.observations)
    log_ratio = distribution.log_prob(batch.actions) - batch.log_probs
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
    surrogate = jnp.mean(jnp.minimum(ratio * batch.advantages, clipped * batch.advantages))
    entropy = jnp.mean(distribution.entropy())
    error = (networks.value(batch.observations) - batch.targets) / networks.value.scale
    value_loss = jnp.mean(jnp.square(error))
    loss = -surrogate - config.entropy_coefficient * entropy + config.value_coefficient * value_loss
    # Schulman's low-variance estimate, http://joschu.net/blog/kl-approx.html.
    kl = jnp.mean(ratio - 1 - log_ratio)
    return loss, (entropy, kl, value_loss)


def _optimise(
    config: PPOConfig,
    networks: Networks,
    optimizer_state: optax.OptState,
    batch: _Batch,
    key: PRNGKeyArray,
    penalty: Penalty | None,
    penalty_rows: PyTree,
) -> tuple[Networks, optax.OptState, tuple[Array, Array, Array]]:
    """All epochs over one batch; the diagnostics are means over the last one."""
    optimizer = _optimizer(config)

    def loss(
        networks: Networks, chosen: _Batch, chosen_rows: PyTree
    ) -> tuple[Array, tuple[Array, Array, Array]]:
        value, diagnostics = _loss(networks, config, chosen)
        if penalty is not None:
            value += penalty(networks, chosen_rows)
        return value, diagnostics

    gradient: Callable[..., tuple[Networks, tuple[Array, Array, Array]]] = eqx.filter_grad(
        loss, has_aux=True
    )

    def minibatch(
        carry: tuple[Networks, optax.OptState], rows: tuple[Int[Array, " m"], Int[Array, " n"]]
    ) -> tuple[tuple[Networks, optax.OptState], tuple[Array, Array, Array]]:
        networks, optimizer_state = carry
        chosen = jax.tree.map(lambda x: x[rows[0]], batch)
        chosen_rows = jax.tree.map(lambda x: x[rows[1]], penalty_rows)
        gradients, diagnostics = gradient(networks, chosen, chosen_rows)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        return (eqx.apply_updates(networks, updates), optimizer_state), diagnostics

    def minibatches(key: PRNGKeyArray, count: int) -> Int[Array, "minibatches m"]:
        keys = jax.random.split(key, config.num_epochs)
        orders = jax.vmap(lambda k: jax.random.permutation(k, count))(keys)
        size = count // config.num_minibatches
        return orders.reshape(config.num_epochs * config.num_minibatches, size)

    count = next((len(leaf) for leaf in jax.tree.leaves(penalty_rows)), 0)
    rows = minibatches(key, config.steps_per_update), minibatches(jax.random.fold_in(key, 1), count)
    carry, diagnostics = jax.lax.scan(minibatch, (networks, optimizer_state), rows)
    last = jax.tree.map(lambda x: jnp.mean(x[-config.num_minibatches :]), diagnostics)
    return *carry, last
