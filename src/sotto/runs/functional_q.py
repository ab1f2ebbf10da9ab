"""Q-learning as a run: DQN, which protects nobody, and the kind that protects rewards."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from sotto.algorithms.baselines import dqn
from sotto.algorithms.baselines.dqn import DQNConfig
from sotto.algorithms.baselines.q_learning import EpsilonGreedy
from sotto.algorithms.functional_q import training as functional_q_training
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.privacy.ledger.ledger import Ledger
from sotto.runs.adapters import Algorithm, Chunk, evaluate_native, evaluation, keys_of
from sotto.runs.directory import AnyLedger, RunError, open_experiment

_DQN_CHUNKS = 20
_EVALUATION_EPISODES = 64
_RELEASED = "released"  # folder of a run, with a file for each release


class _DQN:
    config_type = DQNConfig
    default_policy = "last"

    def resolved(self, config: DQNConfig) -> DQNConfig:
        self.initial_states(config, [config.seed])
        return config

    def has_ledger(self, config: DQNConfig) -> bool:
        del config
        return False

    def updates(self, config: DQNConfig) -> int:
        return config.num_updates

    def steps_per_update(self, config: DQNConfig) -> int:
        return config.batch_size

    def create_ledger(self, config: DQNConfig, where: Path | str, run_id: str) -> AnyLedger:
        del config, where, run_id
        raise RunError("a run of dqn has no ledger")

    def initial_states(self, config: DQNConfig, seeds: Sequence[int]) -> PyTree:
        return eqx.filter_jit(eqx.filter_vmap(partial(dqn.init, config)))(keys_of(seeds, 0))

    def chunks(
        self,
        config: DQNConfig,
        seeds: Sequence[int],
        ledgers: Sequence[Ledger],
        states: PyTree,
        done: int,
    ) -> Iterator[Chunk]:
        del ledgers
        keys = keys_of(seeds, 1)
        size = max(1, config.num_updates // _DQN_CHUNKS)
        while done < config.num_updates:
            # A last part as long as the others, or else shorter: another program.
            count = min(size, config.num_updates - done)
            states, metrics = jax.vmap(dqn.train_chunk, in_axes=(None, 0, 0, None))(
                config, states, keys, count
            )
            done += count
            returns = evaluation(self, config, states, done, _EVALUATION_EPISODES)
            simulated = {name: np.asarray(value) for name, value in metrics._asdict().items()}
            yield Chunk(done, states, {}, {"last": returns}, simulated)

    def policies(self, states: PyTree) -> dict[str, EpsilonGreedy]:
        return {"last": _greedy(states.learner.values)}

    def evaluate(
        self, config: DQNConfig, policy: Any, key: PRNGKeyArray, episodes: int, greedy: bool
    ) -> Float[np.ndarray, "runs episodes"]:
        return evaluate_native(config.env_id, policy, key, episodes, greedy)


def functional_q(out: Path | None = None) -> Algorithm:
    """Q-learning that protects rewards as an algorithm of runs.

    Args:
        out: the experiment to train, whose run directories keep what is released; needed to
            train, and for nothing else.
    """
    return _FunctionalQ(out)


class _FunctionalQ:
    config_type = FunctionalQConfig
    default_policy = "last"

    def __init__(self, out: Path | None) -> None:
        self._out = out

    def resolved(self, config: FunctionalQConfig) -> FunctionalQConfig:
        self.initial_states(config, [config.seed])
        functional_q_training.check(config)
        return config

    def has_ledger(self, config: FunctionalQConfig) -> bool:
        del config
        return True

    def updates(self, config: FunctionalQConfig) -> int:
        return config.num_updates

    def steps_per_update(self, config: FunctionalQConfig) -> int:
        return -(-config.samples // config.num_updates)

    def create_ledger(self, config: FunctionalQConfig, where: Path | str, run_id: str) -> Ledger:
        return functional_q_training.create_ledger(config, where, run_id)

    def initial_states(self, config: FunctionalQConfig, seeds: Sequence[int]) -> PyTree:
        return functional_q_training.initial_states(config, seeds)

    def chunks(
        self,
        config: FunctionalQConfig,
        seeds: Sequence[int],
        ledgers: Sequence[Ledger],
        states: PyTree,
        done: int,
    ) -> Iterator[Chunk]:
        if self._out is None:
            raise RunError("say which experiment is trained: functional_q(out) keeps its releases")
        folders = [run.path / _RELEASED for run in open_experiment(self._out).runs]
        training = functional_q_training.train(config, seeds, ledgers, states, done, folders)
        for progress in training:
            scores = {}
            if progress.learned:
                episodes = config.evaluation_episodes
                returns = evaluation(self, config, progress.states, progress.updates, episodes)
                scores = {"last": returns}
            yield Chunk(
                progress.updates,
                progress.states,
                progress.released,
                scores,
                progress.simulated,
                env_steps=progress.env_steps,
            )

    def policies(self, states: PyTree) -> dict[str, EpsilonGreedy]:
        return {"last": _greedy(functional_q_training.action_values(states))}

    def evaluate(
        self, config: FunctionalQConfig, policy: Any, key: PRNGKeyArray, episodes: int, greedy: bool
    ) -> Float[np.ndarray, "runs episodes"]:
        return evaluate_native(config.env_id, policy, key, episodes, greedy)


def _greedy(values: Any) -> EpsilonGreedy:
    """The greedy policy of each run's action values."""
    runs = jax.tree.leaves(values)[0].shape[0]
    return EpsilonGreedy(values, jnp.zeros((runs,), jnp.float32))


DQN_RUNS: Algorithm = _DQN()
"""The baseline without privacy."""
