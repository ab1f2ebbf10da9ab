"""DQN, the baseline without privacy (Mnih et al. 2015), with double and Huber options.

Each update collects steps epsilon-greedily into a replay buffer, then makes gradient steps on
minibatches from it. Everything is a pure function of a state and a key: `init` makes the state,
`update` is one update, `train_chunk` runs many inside one compiled scan; `vmap` any of them over
seeds. Nothing is private: the buffer holds rewards, and the network is fitted to them.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.baselines.q_learning import (
    EpsilonGreedy,
    Learner,
    LearnerSettings,
    QNetwork,
    Transitions,
    learn,
    start_learner,
)
from sotto.algorithms.settings import (
    Count,
    CountOrZero,
    Discount,
    Positive,
    Probability,
    Seed,
    Settings,
    Share,
)
from sotto.rl.envs.registry import make
from sotto.rl.returns import running_returns
from sotto.rl.rollout import EpisodeState, Trajectory, continue_rollout, start


@dataclass(frozen=True)
class DQNConfig(Settings):
    """Settings of DQN; the defaults solve CartPole-v1 in 100k steps."""

    env_id: str = "CartPole-v1"
    """The environment (one of those written in JAX, with discrete actions)."""
    seed: Seed = 0
    """Seed of the initial network, the environments and the actions."""
    total_steps: Count = 100_000
    """Environment steps over the whole training, summed over environments."""
    num_envs: Count = 8
    """Environments that run side by side."""
    num_steps: Count = 16
    """Steps of each environment per update."""
    gradient_steps: Count = 64
    """Gradient steps per update."""
    learning_starts: CountOrZero = 1024
    """Environment steps before the first gradient step."""
    buffer_size: Count = 100_000
    """Transitions the replay buffer holds, rounded up to whole updates; the newest stay."""
    minibatch: Count = 64
    """Transitions per gradient step."""
    learning_rate: Positive = 1e-3
    """Adam's learning rate, at the start if it is annealed."""
    anneal_learning_rate: bool = True
    """Bring the learning rate linearly to zero over the training."""
    discount: Discount = 0.99
    """Gamma."""
    target_period: Count = 128
    """Gradient steps between copies to the target network."""
    exploration: Probability = 1.0
    """Epsilon of epsilon-greedy at the start."""
    final_exploration: Probability = 0.05
    """Epsilon at the end."""
    exploration_fraction: Share = 0.2
    """Share of the training over which epsilon goes linearly from one to the other."""
    double: bool = True
    """Double Q-learning."""
    huber: bool = True
    """Huber's loss instead of the square."""
    max_grad_norm: Positive = 10.0
    """Global norm to which each gradient is clipped."""
    hidden: tuple[Count, ...] = (64, 64)
    """Hidden layers of the network."""

    def check(self) -> None:
        """Refuses settings that contradict each other."""
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

    @property
    def buffer_updates(self) -> int:
        """Updates whose transitions the buffer holds."""
        return min(-(-self.buffer_size // self.steps_per_update), self.num_updates)

    @property
    def learner(self) -> LearnerSettings:
        """How gradient steps are made."""
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
    """Everything that one update hands to the next."""

    learner: Learner
    buffer: Transitions
    """Replay buffer, a ring of whole updates."""
    lanes: EpisodeState
    """Where each environment is, with a leading axis of num_envs."""
    returns_so_far: Float[Array, " num_envs"]
    """Undiscounted return of each unfinished episode."""
    updates: Int[Array, ""]
    """Updates made."""


class DQNMetrics(NamedTuple):
    """What one update reports."""

    episode_return: Float[Array, ""]
    """Mean undiscounted return of the episodes that ended in this update; NaN if none did."""
    episodes: Int[Array, ""]
    """How many ended."""
    exploration: Float[Array, ""]
    """Epsilon."""
    loss: Float[Array, ""]
    """Mean loss in units of the squared value scale; NaN before learning starts."""


def init(config: DQNConfig, key: PRNGKeyArray) -> DQNState:
    """A fresh network, an empty buffer and fresh environments.

    Raises:
        ValueError: the environment is not one of those written in JAX, or its actions are not
            discrete.
    """
    env = make(config.env_id)
    network_key, lane_key = jax.random.split(key)
    scale = abs(env.reward_per_step) / (1 - config.discount)
    values = QNetwork(env, config.hidden, network_key, scale)
    rows = config.buffer_updates * config.steps_per_update
    seen = jnp.zeros((rows, env.observation_size), jnp.float32)
    return DQNState(
        learner=start_learner(config.learner, values),
        buffer=Transitions(
            observations=seen,
            actions=jnp.zeros((rows,), jnp.int32),
            rewards=jnp.zeros((rows,), jnp.float32),
            next_observations=seen,
            terminated=jnp.zeros((rows,), bool),
        ),
        lanes=jax.vmap(lambda k: start(env, env.default_params, k))(
            jax.random.split(lane_key, config.num_envs)
        ),
        returns_so_far=jnp.zeros((config.num_envs,), jnp.float32),
        updates=jnp.zeros((), jnp.int32),
    )


def update(config: DQNConfig, state: DQNState, key: PRNGKeyArray) -> tuple[DQNState, DQNMetrics]:
    """Every environment takes num_steps steps, then gradient_steps gradient steps are made."""
    rollout_key, learn_key = jax.random.split(key)
    epsilon = _exploration(config, state.updates)
    actor = EpsilonGreedy(state.learner.values, epsilon)
    trajectory, lanes = _rollouts(config, state.lanes, actor, rollout_key)
    totals, returns_so_far = jax.vmap(running_returns)(trajectory, state.returns_so_far)
    ended = trajectory.terminated | trajectory.truncated
    episodes = jnp.sum(ended, dtype=jnp.int32)

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
    # 0 / 0 is NaN where no episode ended, and says so.
    returned = jnp.sum(jnp.where(ended, totals, 0.0)) / episodes
    after = DQNState(learner, buffer, lanes, returns_so_far, made)
    return after, DQNMetrics(returned, episodes, epsilon, loss)


@partial(jax.jit, static_argnames=("config", "num_updates"))
def train_chunk(
    config: DQNConfig, state: DQNState, key: PRNGKeyArray, num_updates: int
) -> tuple[DQNState, DQNMetrics]:
    """`num_updates` updates in one compiled scan; metrics have a leading axis of num_updates.

    Each update's key is derived from `key` and the number of updates made before it, so the result
    does not depend on how a training is cut into chunks.
    """

    def step(state: DQNState, _: None) -> tuple[DQNState, DQNMetrics]:
        return update(config, state, jax.random.fold_in(key, state.updates))

    return jax.lax.scan(step, state, None, length=num_updates)


def _exploration(config: DQNConfig, updates: Int[Array, ""]) -> Float[Array, ""]:
    progress = updates / (config.exploration_fraction * config.num_updates)
    fall = config.exploration - config.final_exploration
    return config.exploration - fall * jnp.minimum(progress, 1.0)


def _rollouts(
    config: DQNConfig, lanes: EpisodeState, actor: EpsilonGreedy, key: PRNGKeyArray
) -> tuple[Trajectory, EpisodeState]:
    env = make(config.env_id)

    def one(lane: EpisodeState, key: PRNGKeyArray) -> tuple[Trajectory, EpisodeState]:
        return continue_rollout(env, env.default_params, actor, key, lane, config.num_steps)

    return jax.vmap(one)(lanes, jax.random.split(key, config.num_envs))


def _store(config: DQNConfig, state: DQNState, trajectory: Trajectory) -> Transitions:
    """Writes an update's transitions over the oldest ones."""
    seen = Transitions(
        trajectory.observations,
        trajectory.actions,
        trajectory.rewards,
        trajectory.next_observations,
        trajectory.terminated,
    )
    flat = jax.tree.map(lambda x: x.reshape(config.steps_per_update, *x.shape[2:]), seen)
    first = (state.updates % config.buffer_updates) * config.steps_per_update
    stored: Transitions = jax.tree.map(
        lambda ring, new: jax.lax.dynamic_update_slice_in_dim(ring, new, first, axis=0),
        state.buffer,
        flat,
    )
    return stored
