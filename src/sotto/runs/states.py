"""The states that a run's checkpoints hold, read back."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from sotto.algorithms.base import Algorithm
from sotto.errors import RunError
from sotto.runs import checkpoints
from sotto.runs.directory import Experiment, Run


def load(algorithm: Algorithm[Any], config: Any, experiment: Experiment, updates: int) -> PyTree:
    """The states of all runs after `updates` updates, leaves of shape [runs, ...].

    Args:
        algorithm: the experiment's.
        config: its settings.
        experiment: the runs.
        updates: updates made; the checkpoints' name.

    Raises:
        RunError: a checkpoint is damaged or missing.
    """
    like = jax.tree.map(
        lambda x: x[0], algorithm.initial_states(config, experiment.settings.seeds[:1])
    )
    states = [checkpoints.load(run.checkpoints, updates, like) for run in experiment.runs]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def last_checkpoint(experiment: Experiment) -> int:
    """Updates behind the newest checkpoint that all runs have.

    Raises:
        RunError: there is none.
    """
    done = last_common_checkpoint(experiment.runs)
    if done == 0:
        raise RunError(
            f"{experiment.path} has no checkpoint yet; go on with: "
            f"sotto train {experiment.settings.algorithm} --out {experiment.path} --resume"
        )
    return done


def last_common_checkpoint(runs: Sequence[Run]) -> int:
    """Updates behind the newest checkpoint that all runs have; 0 before the first.

    Runs trained side by side go on together, so killed between two saves they go back to one.
    Two checkpoints are kept: there is always a common one, except before the first.

    Raises:
        RunError: some were resumed alone, and there is none in common.
    """
    common = set.intersection(*(set(checkpoints.steps(run.checkpoints)) for run in runs))
    if not common and all(checkpoints.steps(run.checkpoints) for run in runs):
        raise RunError(
            "the seeds of this experiment have no checkpoint in common; resume each by its own "
            "directory (--out .../seed-K --resume)"
        )
    return max(common, default=0)
