"""Trained agents: policies with numpy inputs and outputs, and language models."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sotto.algorithms.base import Algorithm
from sotto.algorithms.settings import Seed
from sotto.algorithms.values import checks_arguments
from sotto.errors import RunError
from sotto.keys import new_key
from sotto.rl.language.agent import LanguageAgent
from sotto.rl.rollout import Actor
from sotto.runs import checkpoints
from sotto.runs.agents.export import export
from sotto.runs.directory import Experiment, Named, open_experiment
from sotto.runs.guarantees import exported
from sotto.runs.registry import algorithm_named
from sotto.runs.start import config_of
from sotto.trees import at


class Agent:
    """One policy of a trained run. Make one with `sotto.load`.

    Attributes:
        policy: JAX policy, a map from observations to distributions over actions.
        name: name of the policy in the run.
        updates: number of updates before it.
        experiment: the run; None for a policy that is not from a run directory.
    """

    def __init__(
        self,
        policy: Actor,
        name: str,
        updates: int,
        seed: int | None = None,
        experiment: Experiment | None = None,
    ) -> None:
        self.policy, self.name, self.updates = policy, name, updates
        self.experiment = experiment
        entropy = int.from_bytes(os.urandom(4)) if seed is None else seed
        self._key = new_key(entropy)
        self._act = eqx.filter_jit(_act)

    def act(self, observation: Any, *, greedy: bool = True) -> np.ndarray:
        """Returns the action for an observation, or for each of a batch.

        Args:
            observation: array of shape [obs] or [batch, obs].
            greedy: whether to take the policy's most likely action; otherwise one is sampled.

        Returns:
            Discrete actions as int32 of shape [] or [batch], or others of shape [a] or [batch, a].

        Raises:
            ValueError: an observation is not finite, or has another shape.
            TypeError: the algorithm's `policies` gives something else than functions.
        """
        if not callable(self.policy):
            raise TypeError(
                f"the policy {self.name!r} is no function of an observation, so it cannot act; let "
                "`policies` of its algorithm return one, such as a sotto.Policy"
            )
        try:
            seen = np.asarray(observation, np.float32)
        except (TypeError, ValueError):
            seen = np.empty((), np.float32)
        if seen.ndim not in (1, 2) or not np.isfinite(seen).all():
            raise ValueError(
                "an observation must be a finite vector, or a batch of shape [batch, obs]"
            )
        self._key, key = jax.random.split(self._key)
        return np.asarray(self._act(self.policy, jnp.asarray(seen), key, greedy))

    @checks_arguments
    def export(self, file: Path | str) -> None:
        """Writes the policy into a file that can be used without sotto and JAX.

        The header says which run the policy is from, and what the run's ledger certifies now
        (`sotto.rl.policy_files`).

        Example:
            sotto.load("runs/x").export("policy.npz")

        Args:
            file: file that ends in `.npz` (numpy arrays with a JSON header) or in `.onnx`, which
                needs `pip install 'sotto[onnx]'`. `sotto.rl.policy_files` shows how to read it.

        Raises:
            ValueError: the file has another ending, or the policy is not a network.
            ModuleNotFoundError: ONNX is not installed.
        """
        about = {"policy": self.name, "updates": self.updates} | exported(self.experiment)
        export(self.policy, Path(file), about)


@checks_arguments
def load(
    path: Path | str,
    *,
    policy: str | None = None,
    seed: Seed | None = None,
    env_id: str | None = None,
) -> Agent:
    """Loads the agent of a trained run.

    Args:
        path: run directory, or that of one of several seeds (`runs/x/seed-3`).
        policy: name of the policy; the default is the algorithm's recommended one.
        seed: seed of sampled actions; by default every agent samples differently.
        env_id: name of the run's environment. It is needed if the name contains a module
            ("module:Name"), since a module is never imported because a file names it.

    Raises:
        ValueError: the environment would import a module that `env_id` does not name.
        RunError: there is no run, checkpoint or policy of this name, or there are several seeds.
    """
    experiment, algorithm = _opened(path, env_id)
    if not algorithm.acts:
        raise RunError(f"{path} has a language model, which does not act; use sotto.load_language")
    one, name, updates = _policy(algorithm, config_of(experiment), experiment, policy)
    return Agent(one, name, updates, seed, experiment)


def last_state(path: Path | str, *, env_id: str | None = None) -> tuple[Algorithm[Any], Any, Any]:
    """Returns the algorithm of a run, its settings, and its last stored public state.

    Args:
        path: run directory, or that of one of several seeds.
        env_id: as for `load`.

    Raises:
        ValueError, RunError: as for `load`.
    """
    experiment, algorithm = _opened(path, env_id)
    config = config_of(experiment)
    updates = checkpoints.last_checkpoint(experiment)
    states = checkpoints.load_all(algorithm, config, experiment, updates)
    return algorithm, config, at(states, 0)


def _opened(path: Path | str, env_id: str | None) -> tuple[Experiment, Algorithm[Any]]:
    experiment = open_experiment(Path(path), Named(env_id=env_id))
    if len(experiment.runs) > 1:
        first = experiment.runs[0].path
        raise RunError(
            f"{path} has {len(experiment.runs)} seeds; load one of them, such as {first}"
        )
    return experiment, algorithm_named(experiment.settings.algorithm)


@checks_arguments
def load_language(
    path: Path | str,
    *,
    policy: str | None = None,
    seed: Seed | None = None,
    model: Path | str | None = None,
) -> LanguageAgent:
    """Loads the tuned language model of a run of rlhf.

    Args:
        path: run directory.
        policy: name of the policy: "last", or "average" of the last released changes.
        seed: seed of the completions; by default every call samples differently.
        model: the base model, a folder or a GGUF file. It is needed if the run's is not smollm2,
            because a file that only config.json names is not read.

    Raises:
        ValueError: the base model must be named, or cannot be read.
        RunError: there is no run of rlhf, checkpoint or policy of this name.
    """
    experiment = open_experiment(Path(path))
    algorithm: Any = algorithm_named(experiment.settings.algorithm)
    if algorithm.acts:
        raise RunError(
            f"{path} is a run of {algorithm.name}, which has no language model; give a run of rlhf"
        )
    config = algorithm.to_generate(config_of(experiment), None if model is None else str(model))
    try:
        tuned, name, updates = _policy(algorithm, config, experiment, policy)
    except RunError as error:
        if model is None:
            raise
        raise RunError(f"{error}; or {model} is not the model of this run") from error
    return LanguageAgent(
        algorithm.language(config),
        tuned.adapter,
        name,
        updates,
        seed,
        reranked=config.reranked,
        reward=tuned.reward.rewards,
    )


def _policy(
    algorithm: Algorithm[Any], config: Any, experiment: Experiment, policy: str | None
) -> tuple[Any, str, int]:
    """Returns a policy of the last checkpoint, its name, and the number of updates before it."""
    updates = checkpoints.last_checkpoint(experiment)
    policies = algorithm.policies(checkpoints.load_all(algorithm, config, experiment, updates))
    name = policy or algorithm.default_policy
    if name not in policies:
        raise RunError(
            f"a run of {algorithm.name} has no policy {name!r}; it has {', '.join(policies)}"
        )
    return at(policies[name], 0), name, updates


def _act(
    policy: Callable[..., Any], seen: Float[Array, "*batch obs"], key: Array, greedy: bool
) -> Array:
    distribution = policy(seen)
    if greedy:
        chosen: Array = distribution.mode()
        return chosen
    noise = policy.noise(key, seen.shape[:-1])  # type: ignore[attr-defined]
    sampled: Array = distribution.sample(noise)
    return sampled
