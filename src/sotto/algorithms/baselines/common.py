"""Settings and steps of training that PPO, A2C and DQN have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray
from pydantic import Field

from sotto.algorithms.settings import (
    Count,
    Discount,
    NotNegative,
    Positive,
    Seed,
    Settings,
    Signed,
)
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.returns import running_returns
from sotto.rl.rollout import Actor, EpisodeState, Trajectory, continue_rollout

_C = TypeVar("_C", bound="BaselineSettings")
_S = TypeVar("_S")
_M = TypeVar("_M")

TotalSteps = Annotated[
    Count,
    Field(description="Number of environment steps in the whole training, over all environments."),
]
NumEnvs = Annotated[Count, Field(description="Number of parallel environments.")]
NumSteps = Annotated[Count, Field(description="Number of steps of each environment per update.")]
LearningRate = Annotated[
    Positive,
    Field(description="Learning rate of the optimiser. With annealing, it is the first one."),
]
AnnealLearningRate = Annotated[
    bool,
    Field(
        description="Whether the learning rate falls linearly to zero over the training. A "
        "training that is continued with more total_steps goes on at the rate that a training of "
        "that length has at the same update."
    ),
]
DiscountFactor = Annotated[Discount, Field(description="Discount factor (gamma).")]
EntropyCoefficient = Annotated[Signed, Field(description="Weight of the entropy bonus.")]
ValueCoefficient = Annotated[
    NotNegative,
    Field(description="Weight of the critic's loss, which is in units of the value scale."),
]
MaxGradNorm = Annotated[
    Positive, Field(description="Largest norm of a gradient. Longer ones are scaled down to it.")
]
NormaliseAdvantages = Annotated[
    bool,
    Field(
        description="Whether the advantages of each update are brought to mean zero and standard "
        "deviation one."
    ),
]


@dataclass(frozen=True)
class BaselineSettings(Settings):
    """Settings of every baseline. Subclasses have other defaults, but the same order of fields."""

    env_id: str = "CartPole-v1"
    """Environment: one that is written in JAX, or any Gymnasium id with Box observations."""
    seed: Seed = 0
    """Seed of the initial networks, the environments and the actions."""
    total_steps: TotalSteps = 100_000
    num_envs: NumEnvs = 8
    num_steps: NumSteps = 128

    def check(self) -> None:
        """Refuses settings that contradict each other."""
        if self.total_steps < self.steps_per_update:
            raise ValueError(
                f"total_steps must be at least num_envs * num_steps = {self.steps_per_update}, "
                "which one update collects"
            )

    @property
    def steps_per_update(self) -> int:
        """Number of environment steps per update."""
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        """Number of updates in the whole training; steps beyond the last whole one are left out."""
        return self.total_steps // self.steps_per_update


def rollouts(
    env: AnyEnvironment,
    params: Any,
    config: BaselineSettings,
    actor: Actor,
    lanes: EpisodeState,
    key: PRNGKeyArray,
) -> tuple[Trajectory, EpisodeState]:
    """Takes num_steps steps in each parallel environment.

    Returns:
        The trajectories, arrays of shape [num_envs, num_steps, ...], and the environments' states.
    """

    def one(lane: EpisodeState, key: PRNGKeyArray) -> tuple[Trajectory, EpisodeState]:
        return continue_rollout(env, params, actor, key, lane, config.num_steps)

    return jax.vmap(one)(lanes, jax.random.split(key, config.num_envs))


def ended_episodes(
    trajectory: Trajectory, returns_so_far: Float[Array, " num_envs"]
) -> tuple[Float[Array, ""], Int[Array, ""], Float[Array, " num_envs"]]:
    """Returns the mean return and the number of ended episodes, and the returns of the others.

    The mean is undiscounted, and NaN if no episode ended.
    """
    totals, returns_so_far = jax.vmap(running_returns)(trajectory, returns_so_far)
    ended = trajectory.terminated | trajectory.truncated
    episodes = jnp.sum(ended, dtype=jnp.int32)
    return jnp.sum(jnp.where(ended, totals, 0.0)) / episodes, episodes, returns_so_far


def chunks_of(
    update: Callable[[_C, _S, PRNGKeyArray], tuple[_S, _M]],
) -> Callable[[_C, _S, PRNGKeyArray, int], tuple[_S, _M]]:
    """Returns a compiled function (config, state, key, num_updates) that makes several updates.

    Its metrics have a leading axis of num_updates. The key of each update is derived from `key` and
    the number of updates before it, so the result does not depend on how a training is cut.
    """

    @partial(jax.jit, static_argnames=("config", "num_updates"))
    def train_chunk(config: _C, state: _S, key: PRNGKeyArray, num_updates: int) -> tuple[_S, _M]:
        def step(state: Any, _: None) -> tuple[_S, _M]:
            return update(config, state, jax.random.fold_in(key, state.updates))

        return jax.lax.scan(step, state, None, length=num_updates)

    return train_chunk
