"""DQN, a baseline without privacy (Mnih et al. 2015), with double Q-learning and Huber loss.

Each update collects steps epsilon-greedily into a replay buffer, and then makes gradient steps on
minibatches from it. All functions are pure functions of a state and a key. `init` makes the state,
`update` is one update, and `train_chunk` makes many updates in one compiled scan. `vmap` maps any
of them over seeds.

Nothing is private here: the buffer holds rewards, and the network is fitted to them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.baselines.common import (
    AnnealLearningRate,
    BaselineSettings,
    DiscountFactor,
    LearningRate,
    MaxGradNorm,
    NumSteps,
    chunks_of,
    ended_episodes,
    rollouts,
)
from sotto.algorithms.baselines.q_learning import (
    EpsilonGreedy,
    LearnerSettings,
    QLearner,
    QNetwork,
    Transitions,
    learn,
    start_learner,
)
from sotto.algorithms.settings import Count, CountOrZero, Probability, Share
from sotto.rl.envs.registry import make
from sotto.rl.rollout import EpisodeState, Trajectory, start_all
from sotto.trees import flattened


@dataclass(frozen=True)
class DQNConfig(BaselineSettings):
    """Settings of DQN. The defaults solve CartPole-v1 in 100k steps."""

    env_id: str = "CartPole-v1"
    """Environment: one that is written in JAX, with discrete actions."""
    num_steps: NumSteps = 16
    gradient_steps: Count = 64
    """Number of gradient steps per update."""
    learning_starts: CountOrZero = 1024
    """Number of environment steps before the first gradient step."""
    buffer_size: Count = 100_000
    """Number of newest transitions in the replay buffer, rounded up to whole updates."""
    minibatch: Count = 64
    """Number of transitions per gradient step."""
    learning_rate: LearningRate = 1e-3
    anneal_learning_rate: AnnealLearningRate = True
    discount: DiscountFactor = 0.99
    target_period: Count = 128
    """Number of gradient steps from one copy to the target network to the next."""
    exploration: Probability = 1.0
    """Probability of a random action (epsilon) at the start."""
    final_exploration: Probability = 0.05
    """Probability of a random action at the end."""
    exploration_fraction: Share = 0.2
    """Share of the training over which that probability goes linearly from first to last."""
    double: bool = True
    """Whether the network chooses the action that the target network values (double Q-learning)."""
    huber: bool = True
    """Whether the loss is Huber's. Otherwise it is the squared error."""
    max_grad_norm: MaxGradNorm = 10.0
    hidden: tuple[Count, ...] = (64, 64)
    """Hidden layers of the network."""

    @property
    def buffer_updates(self) -> int:
        """Number of updates whose transitions the buffer holds."""
        return min(-(-self.buffer_size // self.steps_per_update), self.num_updates)

    @property
    def learner(self) -> LearnerSettings:
        """Settings of the gradient steps."""
        total = self.num_updates * self.gradient_steps
        return LearnerSettings(
            learning_rate=self.learning_rate,
            anneal_steps=total if self.anneal_learning_rate else None,
            minibatch=self.minibatch,
            discount=self.discount,
            target_period=self.target_period,
            double=self.double,
            huber=self.huber,
            max_grad_norm=self.max_grad_norm,
        )


class DQNState(NamedTuple):
    """Training state after an update."""

    learner: QLearner
    buffer: Transitions
    """Replay buffer, a ring of whole updates."""
    lanes: EpisodeState
    """State of each parallel environment, with a leading axis of num_envs."""
    returns_so_far: Float[Array, " num_envs"]
    """Undiscounted return of each unfinished episode."""
    updates: Int[Array, ""]
    """Number of updates so far."""


class DQNMetrics(NamedTuple):
    """Metrics of one update."""

    episode_return: Float[Array, ""]
    """Mean undiscounted return of the episodes that ended in this update, NaN if none did."""
    episodes: Int[Array, ""]
    """Number of episodes that ended in this update."""
    exploration: Float[Array, ""]
    """Probability of a random action (epsilon)."""
    loss: Float[Array, ""]
    """Mean loss in units of the squared value scale, NaN before learning starts."""


def init(config: DQNConfig, key: PRNGKeyArray) -> DQNState:
    """Returns the state before training: a fresh network, an empty buffer, fresh environments.

    Raises:
        ValueError: the environment is not one of those written in JAX, or its actions are not
            discrete.
    """
    env = make(config.env_id)
    network_key, lane_key = jax.random.split(key)
    scale = (abs(env.reward_per_step) or 1.0) / (1 - config.discount)
    values = QNetwork(env, config.hidden, network_key, scale)
    rows = config.buffer_updates * config.steps_per_update
    seen = jnp.zeros((rows, env.observation_size), jnp.float32)
    return DQNState(
        learner=start_learner(config.learner.optimizer, values),
        buffer=Transitions(
            observations=seen,
            actions=jnp.zeros((rows,), jnp.int32),
            rewards=jnp.zeros((rows,), jnp.float32),
            next_observations=seen,
            terminated=jnp.zeros((rows,), bool),
        ),
        lanes=start_all(env, env.default_params, lane_key, config.num_envs),
        returns_so_far=jnp.zeros((config.num_envs,), jnp.float32),
        updates=jnp.zeros((), jnp.int32),
    )


def update(config: DQNConfig, state: DQNState, key: PRNGKeyArray) -> tuple[DQNState, DQNMetrics]:
    """Takes num_steps steps in every environment, and then makes gradient_steps gradient steps."""
    rollout_key, learn_key = jax.random.split(key)
    epsilon = _exploration(config, state.updates)
    actor = EpsilonGreedy(state.learner.values, epsilon)
    env = make(config.env_id)
    trajectory, lanes = rollouts(env, env.default_params, config, actor, state.lanes, rollout_key)
    episode_return, episodes, returns_so_far = ended_episodes(trajectory, state.returns_so_far)

    buffer = _store(config, state, trajectory)
    made = state.updates + 1
    filled = jnp.minimum(made, config.buffer_updates) * config.steps_per_update
    learner, loss = jax.lax.cond(
        made * config.steps_per_update > config.learning_starts,
        lambda: learn(
            config.learner, state.learner, buffer, filled, learn_key, config.gradient_steps
        ),
        lambda: (state.learner, jnp.float32(jnp.nan)),
    )
    after = DQNState(learner, buffer, lanes, returns_so_far, made)
    return after, DQNMetrics(episode_return, episodes, epsilon, loss)


train_chunk = chunks_of(update)


def _exploration(config: DQNConfig, updates: Int[Array, ""]) -> Float[Array, ""]:
    progress = updates / (config.exploration_fraction * config.num_updates)
    fall = config.exploration - config.final_exploration
    return config.exploration - fall * jnp.minimum(progress, 1.0)


def _store(config: DQNConfig, state: DQNState, trajectory: Trajectory) -> Transitions:
    """Writes an update's transitions over the oldest ones."""
    seen = Transitions(
        trajectory.observations,
        trajectory.actions,
        trajectory.rewards,
        trajectory.next_observations,
        trajectory.terminated,
    )
    flat = flattened(seen)
    first = (state.updates % config.buffer_updates) * config.steps_per_update
    stored: Transitions = jax.tree.map(
        lambda ring, new: jax.lax.dynamic_update_slice_in_dim(ring, new, first, axis=0),
        state.buffer,
        flat,
    )
    return stored
