"""What a run needs to know of an algorithm, and a small adapter for each.

Those of PPO and A2C are in `sotto.runs.baselines`, those of kickstarting and of Q-learning in
`sotto.runs.kickstart` and in `sotto.runs.functional_q`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from sotto.algorithms.dppg import training
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.privacy.keys import new_key
from sotto.privacy.ledger.ledger import Ledger
from sotto.rl.envs.registry import make
from sotto.rl.rollout import Actor, evaluate
from sotto.runs.directory import AnyLedger


@dataclass(frozen=True)
class Chunk:
    """What one chunk of training leaves behind; every array's first axis is runs.

    Attributes:
        updates: updates made so far.
        states: public states.
        released: functions of releases, [runs, updates of the chunk] each.
        evaluation: mean return of each released policy, [runs] each.
        simulated: about simulated people, [runs, updates of the chunk] each.
        env_steps: taken so far, where that is not a multiple of the updates.
    """

    updates: int
    states: PyTree
    released: dict[str, np.ndarray]
    evaluation: dict[str, np.ndarray]
    simulated: dict[str, np.ndarray]
    env_steps: int | None = None


class Algorithm(Protocol):
    """An algorithm as a run sees it: settings in, chunks out."""

    config_type: type[Any]
    """The dataclass of its settings."""
    default_policy: str
    """Which of its policies is meant to be used."""

    def updates(self, config: Any) -> int:
        """Updates of the whole training."""

    def steps_per_update(self, config: Any) -> int:
        """Most environment steps behind one update, a public number."""

    def resolved(self, config: Any) -> Any:
        """The settings with everything filled in that another run decides; they are then stored.

        Raises:
            ValueError: settings that cannot be run; nothing has been made.
        """

    def has_ledger(self, config: Any) -> bool:
        """Whether a run of these settings is charged to a ledger of its own."""

    def create_ledger(self, config: Any, where: Path | str, run_id: str) -> AnyLedger:
        """The ledger of a new run that has one."""

    def initial_states(self, config: Any, seeds: Sequence[int]) -> PyTree:
        """The states before training, leaves of shape [runs, ...]."""

    def chunks(
        self,
        config: Any,
        seeds: Sequence[int],
        ledgers: Sequence[Any],
        states: PyTree,
        done: int,
    ) -> Iterator[Chunk]:
        """Trains from `states` on, `done` updates into the training, to the end."""

    def policies(self, states: PyTree) -> Mapping[str, Actor]:
        """The policies that may be used, by name, with a leading axis of runs."""

    def evaluate(
        self, config: Any, policy: Any, key: PRNGKeyArray, episodes: int, greedy: bool
    ) -> Float[np.ndarray, "runs episodes"]:
        """Returns of whole episodes on fresh simulated people."""


class _DPPG:
    config_type = DPPGConfig
    default_policy = "ema"

    def resolved(self, config: DPPGConfig) -> DPPGConfig:
        training.training_environment(config)
        return config

    def has_ledger(self, config: DPPGConfig) -> bool:
        del config
        return True

    def updates(self, config: DPPGConfig) -> int:
        return config.updates

    def steps_per_update(self, config: DPPGConfig) -> int:
        return config.steps_per_update

    def create_ledger(self, config: DPPGConfig, where: Path | str, run_id: str) -> Ledger:
        return training.create_ledger(config, where, run_id)

    def initial_states(self, config: DPPGConfig, seeds: Sequence[int]) -> PyTree:
        return training.initial_states(config, seeds)

    def chunks(
        self,
        config: DPPGConfig,
        seeds: Sequence[int],
        ledgers: Sequence[Ledger],
        states: PyTree,
        done: int,
    ) -> Iterator[Chunk]:
        for progress in training.Training(config, seeds, ledgers, states, done):
            yield Chunk(
                progress.updates,
                progress.states,
                progress.log,
                progress.evaluation or {},
                _simulated(progress.diagnostics),
            )

    def policies(self, states: PyTree) -> dict[str, Actor]:
        return training.policies(states)

    def evaluate(
        self, config: DPPGConfig, policy: Actor, key: PRNGKeyArray, episodes: int, greedy: bool
    ) -> Float[np.ndarray, "runs episodes"]:
        return training.evaluate_policy(config, policy, key, episodes, greedy=greedy)


def _simulated(sums: dict[str, np.ndarray] | None) -> dict[str, np.ndarray]:
    """Sums over each user as means over users: [runs, releases, users] to [runs, releases]."""
    if sums is None:
        return {}
    reward, ended = sums["reward"].sum(axis=2), sums["episodes"].sum(axis=2)
    return {
        "steps_per_user": sums["steps"].mean(axis=2),
        "reward_per_user": sums["reward"].mean(axis=2),
        # Includes the reward of episodes cut off at steps_per_user; undefined where none ended.
        "reward_per_ended_episode": np.divide(
            reward, ended, out=np.full(reward.shape, np.nan), where=ended > 0
        ),
    }


def evaluate_native(
    env_id: str, policies: Actor, key: PRNGKeyArray, episodes: int, greedy: bool
) -> Float[np.ndarray, "runs episodes"]:
    """Returns of whole episodes of policies (with a leading axis) in an environment in JAX."""
    return np.asarray(_evaluate(env_id, policies, key, episodes, greedy))


def evaluation(
    algorithm: Algorithm, config: Any, states: PyTree, updates: int, episodes: int
) -> Float[np.ndarray, " runs"]:
    """Mean greedy return of the last policies, after so many updates."""
    key = jax.random.fold_in(new_key(20260), updates)
    policy = algorithm.policies(states)["last"]
    return np.asarray(algorithm.evaluate(config, policy, key, episodes, True).mean(axis=1))


def keys_of(seeds: Sequence[int], purpose: int) -> PRNGKeyArray:
    """One key for each seed."""
    keys = jax.vmap(new_key)(jnp.asarray(seeds, jnp.uint32))
    return jax.vmap(lambda key: jax.random.fold_in(key, purpose))(keys)


@eqx.filter_jit
def _evaluate(
    env_id: str, policies: Actor, key: PRNGKeyArray, episodes: int, greedy: bool
) -> Float[jax.Array, "runs episodes"]:
    env = make(env_id)

    def one(policy: Actor) -> Float[jax.Array, " episodes"]:
        return evaluate(env, env.default_params, policy, key, episodes, greedy)

    returns: Float[jax.Array, "runs episodes"] = eqx.filter_vmap(one)(policies)
    return returns


DPPG_RUNS: Algorithm = _DPPG()
"""Private policy gradient."""
