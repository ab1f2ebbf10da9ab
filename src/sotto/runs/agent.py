"""A trained agent that acts: numpy in, numpy out."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sotto.errors import RunError
from sotto.keys import new_key
from sotto.rl.rollout import Actor
from sotto.runs import states
from sotto.runs.directory import Named, open_experiment
from sotto.runs.export import export
from sotto.runs.registry import algorithm_named
from sotto.runs.start import config_of


class Agent:
    """One policy of a trained run. Make one with `sotto.load`.

    Attributes:
        policy: the JAX policy, from observations to distributions over actions.
        name: which of the run's policies it is.
        updates: updates behind it.
    """

    def __init__(self, policy: Actor, name: str, updates: int, seed: int | None = None) -> None:
        self.policy, self.name, self.updates = policy, name, updates
        entropy = int.from_bytes(os.urandom(4)) if seed is None else seed
        self._key = new_key(entropy)
        self._act = eqx.filter_jit(_act)

    def act(self, observation: Any, *, greedy: bool = True) -> np.ndarray:
        """The action for an observation, or for each of a batch.

        Args:
            observation: of shape [obs] or [batch, obs].
            greedy: the policy's most likely action; otherwise one is sampled.

        Returns:
            Actions: [] or [batch] of int32 where they are discrete, else [a] or [batch, a].

        Raises:
            ValueError: an observation is not finite, or has another shape.
        """
        seen = np.asarray(observation, np.float32)
        if seen.ndim not in (1, 2) or not np.isfinite(seen).all():
            raise ValueError("an observation is a finite vector, or a batch of them: [batch, obs]")
        self._key, key = jax.random.split(self._key)
        return np.asarray(self._act(self.policy, jnp.asarray(seen), key, greedy))

    def export(self, file: Path | str) -> None:
        """Writes the policy into a file that is used without sotto or JAX.

        Example:
            sotto.load("runs/x").export("policy.npz")

        Args:
            file: `.npz`, numpy arrays with a JSON header; or `.onnx`, which needs
                `pip install 'sotto[onnx]'`. `sotto.runs.export` says how to read them.

        Raises:
            ValueError: another ending, or a policy that is not a network.
            ModuleNotFoundError: ONNX is not installed.
        """
        export(self.policy, Path(file), {"policy": self.name, "updates": self.updates})


def load(
    path: Path | str,
    *,
    policy: str | None = None,
    seed: int | None = None,
    env_id: str | None = None,
) -> Agent:
    """The agent of a trained run.

    Args:
        path: run directory, or that of one of several seeds (`runs/x/seed-3`).
        policy: which of its policies; by default the one that is meant to be used.
        seed: of sampled actions; by default they differ from one agent to the next.
        env_id: the run's environment, needed where its name has a module in it ("module:Name"),
            which is not imported because a file says so.

    Raises:
        ValueError: the environment would import a module, and `env_id` does not name it.
        RunError: no run, several seeds, no checkpoint, or no such policy.
    """
    experiment = open_experiment(Path(path), Named(env_id=env_id))
    if len(experiment.runs) > 1:
        first = experiment.runs[0].path
        raise RunError(f"{path} holds {len(experiment.runs)} seeds; load one of them, as {first}")
    settings = experiment.settings
    algorithm = algorithm_named(settings.algorithm)
    config = config_of(experiment)
    updates = states.last_checkpoint(experiment)
    policies = algorithm.policies(states.load(algorithm, config, experiment, updates))
    name = policy or algorithm.default_policy
    if name not in policies:
        raise RunError(
            f"a run of {settings.algorithm} has no policy {name!r}; it has {', '.join(policies)}"
        )
    one: Any = jax.tree.map(lambda x: x[0], policies[name])
    return Agent(one, name, updates, seed)


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
