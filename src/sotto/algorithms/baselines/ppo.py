"""PPO, a baseline without privacy (Schulman et al. 2017, arXiv:1707.06347).

It has the clipped surrogate of equation 7 with GAE, a separate critic, advantages normalised over
each batch, and Adam with clipped gradients. All functions are pure functions of a state and a key.
`init` makes the state, `update` is one iteration (`collect`, then `optimise`), and `train_chunk`
makes many updates in one compiled scan. `vmap` maps any of them over seeds.

Nothing is private here: normalisation over users leaks, and so does the critic.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from sotto.algorithms.baselines.common import (
    AnnealLearningRate,
    BaselineSettings,
    DiscountFactor,
    EntropyCoefficient,
    LearningRate,
    MaxGradNorm,
    NormaliseAdvantages,
    ValueCoefficient,
    chunks_of,
    ended_episodes,
    rollouts,
)
from sotto.algorithms.settings import Count, Positive, Probability
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.registry import make
from sotto.rl.minibatches import minibatches
from sotto.rl.networks import Policy, Value
from sotto.rl.returns import gae
from sotto.rl.rollout import EpisodeState, Trajectory, start_all
from sotto.trees import at, flattened


@dataclass(frozen=True)
class PPOConfig(BaselineSettings):
    """Settings of PPO. The defaults solve CartPole-v1 in 100k steps and suit Acrobot-v1."""

    learning_rate: LearningRate = 1e-3
    anneal_learning_rate: AnnealLearningRate = True
    num_epochs: Count = 5
    """Number of passes over the collected steps per update."""
    num_minibatches: Count = 4
    """Number of minibatches in each pass."""
    discount: DiscountFactor = 0.99
    gae_lambda: Probability = 0.95
    """Lambda of the generalised advantage estimates."""
    clip_ratio: Positive = 0.2
    """Distance from 1 beyond which a change of the probability ratio gains nothing."""
    entropy_coefficient: EntropyCoefficient = 0.0
    value_coefficient: ValueCoefficient = 0.5
    max_grad_norm: MaxGradNorm = 0.5
    hidden: tuple[Count, ...] = (64, 64)
    """Hidden layers of the policy and of the critic."""
    normalise_advantages: NormaliseAdvantages = True
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Optimiser that takes the gradient steps, with its usual settings."""

    def check(self) -> None:
        """Refuses settings that contradict each other."""
        super().check()
        if self.steps_per_update % self.num_minibatches:
            raise ValueError(
                f"num_minibatches must divide num_envs * num_steps = {self.steps_per_update}; "
                f"{self.num_minibatches} does not"
            )


class Networks(NamedTuple):
    """Networks that are trained."""

    policy: Policy
    value: Value


class PPOState(NamedTuple):
    """Training state after an update."""

    networks: Networks
    optimizer_state: optax.OptState
    lanes: EpisodeState
    """State of each parallel environment, with a leading axis of num_envs."""
    returns_so_far: Float[Array, " num_envs"]
    """Undiscounted return of each unfinished episode."""
    updates: Int[Array, ""]
    """Number of updates so far."""


class PPOMetrics(NamedTuple):
    """Metrics of one update."""

    episode_return: Float[Array, ""]
    """Mean undiscounted return of the episodes that ended in this update, NaN if none did."""
    episodes: Int[Array, ""]
    """Number of episodes that ended in this update."""
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
    """Rollouts of one update, ready for `optimise`."""

    batch: _Batch
    """All steps, flattened over environments and time."""
    lanes: EpisodeState
    """State of each parallel environment after the steps."""
    returns_so_far: Float[Array, " num_envs"]
    episode_return: Float[Array, ""]
    """Mean undiscounted return of the episodes that ended, NaN if none did."""
    episodes: Int[Array, ""]
    """Number of episodes that ended."""


Penalty = Callable[[Networks, PyTree], Float[Array, ""]]
"""Term that is added to the loss: a function of the networks and of rows, averaged over rows."""


def init(config: PPOConfig, key: PRNGKeyArray) -> PPOState:
    """Returns the state before training: fresh networks and environments.

    Raises:
        ValueError: the environment is not one of those written in JAX.
    """
    env = make(config.env_id)
    lane_key = jax.random.split(key, 3)[2]
    return begin(config, env, key, start_all(env, env.default_params, lane_key, config.num_envs))


def begin(config: PPOConfig, env: AnyEnvironment, key: PRNGKeyArray, states: Any) -> PPOState:
    """Returns the state before training, with fresh networks and the given environments.

    Args:
        config: settings.
        env: the environment, of which only public facts are used.
        key: for the networks.
        states: states of the parallel environments; () if they run outside JAX.
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
            # The return of an endless ordinary episode, so that targets are of order one.
            scale=(abs(env.reward_per_step) or 1.0) / (1 - config.discount),
        ),
    )
    return PPOState(
        networks=networks,
        optimizer_state=_optimizer(config).init(eqx.filter(networks, eqx.is_array)),
        lanes=states,
        returns_so_far=jnp.zeros((config.num_envs,), jnp.float32),
        updates=jnp.zeros((), jnp.int32),
    )


def update(config: PPOConfig, state: PPOState, key: PRNGKeyArray) -> tuple[PPOState, PPOMetrics]:
    """Takes num_steps steps in every environment, and makes num_epochs passes over them."""
    env = make(config.env_id)
    return update_in(env, env.default_params, config, state, key)


def update_in(
    env: AnyEnvironment, params: Any, config: PPOConfig, state: PPOState, key: PRNGKeyArray
) -> tuple[PPOState, PPOMetrics]:
    """Makes an update as `update` does, in any environment, with physics that may be traced."""
    rollout_key, shuffle_key = jax.random.split(key)
    collected = collect(env, params, config, state, rollout_key)
    return optimise(config, state, collected, shuffle_key)


def collect(
    env: AnyEnvironment, params: Any, config: PPOConfig, state: PPOState, key: PRNGKeyArray
) -> Collected:
    """Takes num_steps steps in every environment with the current policy."""
    policy = state.networks.policy
    return gather(config, state, *rollouts(env, params, config, policy, state.lanes, key))


def gather(config: PPOConfig, state: PPOState, trajectory: Trajectory, after: Any) -> Collected:
    """Prepares num_steps steps of every environment for `optimise`.

    Args:
        config: settings.
        state: the state whose policy took the steps.
        trajectory: the steps, arrays of shape [num_envs, num_steps, ...].
        after: states of the environments after the steps.
    """
    episode_return, episodes, returns_so_far = ended_episodes(trajectory, state.returns_so_far)
    return Collected(
        batch=_prepare(config, state.networks, trajectory),
        lanes=after,
        returns_so_far=returns_so_far,
        episode_return=episode_return,
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
    """Makes num_epochs passes over the collected steps.

    Args:
        config: settings.
        state: the state that collected the steps.
        collected: the steps, from `collect`.
        key: for shuffling.
        penalty: a term that is added to PPO's loss.
        rows: the penalty's rows, which are shuffled into minibatches like the steps. All arrays
            have the same first axis, a multiple of num_minibatches.
    """
    networks, optimizer_state, (entropy, kl, value_loss) = _optimise(
        config, state.networks, state.optimizer_state, collected.batch, key, penalty, rows
    )
    after = PPOState(
        networks, optimizer_state, collected.lanes, collected.returns_so_far, state.updates + 1
    )
    metrics = PPOMetrics(collected.episode_return, collected.episodes, entropy, kl, value_loss)
    return after, metrics


train_chunk = chunks_of(update)


def _optimizer(config: PPOConfig) -> optax.GradientTransformation:
    learning_rate: Any = config.learning_rate
    if config.anneal_learning_rate:
        # The length is that of the settings, also where a finished training has got more steps:
        # the rate then leaves zero and goes on as if the training had been that long from the
        # start. So it depends on the settings and the update only, however often it is resumed.
        steps = config.num_updates * config.num_epochs * config.num_minibatches
        learning_rate = optax.linear_schedule(config.learning_rate, 0.0, steps)
    optimizer = (
        optax.adam(learning_rate, eps=1e-5)
        if config.optimizer == "adam"
        else optax.rmsprop(learning_rate, decay=0.99, eps=1e-5)
    )
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optimizer)


def _prepare(config: PPOConfig, networks: Networks, trajectory: Trajectory) -> _Batch:
    """Returns advantages and critic targets of all steps, flattened over environments and time."""
    values = networks.value(trajectory.observations)
    next_values = networks.value(trajectory.next_observations)
    advantages = jax.vmap(gae, in_axes=(0, 0, 0, None, None))(
        trajectory, values, next_values, config.discount, config.gae_lambda
    )
    targets = advantages + values
    if config.normalise_advantages:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    return flattened(
        _Batch(
            observations=trajectory.observations,
            actions=trajectory.actions,
            log_probs=networks.policy(trajectory.observations).log_prob(trajectory.actions),
            advantages=advantages,
            targets=targets,
        )
    )


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
    """Makes all epochs over one batch. The diagnostics are means over the last epoch."""
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
        chosen = at(batch, rows[0])
        chosen_rows = at(penalty_rows, rows[1])
        gradients, diagnostics = gradient(networks, chosen, chosen_rows)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        return (eqx.apply_updates(networks, updates), optimizer_state), diagnostics

    def rows_of(key: PRNGKeyArray, count: int) -> Int[Array, "minibatches m"]:
        return minibatches(key, count, config.num_epochs, config.num_minibatches)

    count = next((len(leaf) for leaf in jax.tree.leaves(penalty_rows)), 0)
    rows = rows_of(key, config.steps_per_update), rows_of(jax.random.fold_in(key, 1), count)
    carry, diagnostics = jax.lax.scan(minibatch, (networks, optimizer_state), rows)
    last = jax.tree.map(lambda x: jnp.mean(x[-config.num_minibatches :]), diagnostics)
    return *carry, last
