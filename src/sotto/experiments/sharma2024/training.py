"""Training and evaluation of one method of Sharma et al. 2024, with several seeds."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.presets import filled
from sotto.algorithms.expert_offline.states import Sources
from sotto.algorithms.expert_offline.training import check, create_ledger, evaluate, policies, train
from sotto.experiments.certified import certificates
from sotto.keys import new_key


class Trained(NamedTuple):
    """Result of a completed training.

    Attributes:
        config: its filled settings.
        returns: greedy returns of the averaged policy in the default environment.
        curve: mean return after each part of the training that learned.
        epsilon: largest epsilon of the runs' certificates; infinite without privacy.
        status: status of the certificates; `none` without privacy.
    """

    config: ExpertOfflineConfig
    returns: Float[np.ndarray, "seeds episodes"]
    curve: Float[np.ndarray, "seeds parts"]
    epsilon: float
    status: str


def train_arm(
    config: ExpertOfflineConfig,
    seeds: Sequence[int],
    sources: Sources,
    folder: Path,
    episodes: int,
) -> Trained:
    """Trains several seeds, each with a separate ledger, and evaluates them.

    Args:
        config: settings; open ones are filled in. Its `dataset` and `experts` are not read; they
            only state which data there are.
        seeds: one for each run; `config.seed` is not used.
        sources: experts and their log; clones are made once for all methods.
        folder: folder whose folders `seed-K` hold ledgers, certificates and released data.
        episodes: number of episodes of the final evaluation of each seed.

    Raises:
        PrivacyError, ValueError: the settings cannot be run.
    """
    config = filled(config, sources.facts)
    check(config)
    folders = [folder / f"seed-{seed}" for seed in seeds]
    for one in folders:
        one.mkdir(parents=True, exist_ok=True)
    ledgers = [create_ledger(config, one / "ledger.sqlite") for one in folders if config.is_private]
    curve = []
    for progress in train(config, seeds, ledgers, sources, folders=folders):
        policy = policies(progress.states)["ema"]
        if progress.learned:
            key = jax.random.fold_in(new_key(20260), progress.updates)
            found = evaluate(config, policy, key, config.evaluation_episodes, True)
            curve.append(found.mean(axis=1))
    returns = evaluate(config, policy, new_key(12345), episodes, True)
    said = certificates(ledgers, folders)
    status = said["status"] if ledgers else "none"
    epsilon = math.inf if said["epsilon"] is None else said["epsilon"]
    return Trained(config, returns, np.stack(curve, axis=1), epsilon, status)
