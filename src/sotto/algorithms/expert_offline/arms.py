"""Arms of an experiment: settings, trained to the end over several seeds, and evaluated."""

import math
import time
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
from sotto.keys import new_key
from sotto.privacy.certificates import derive


class Arm(NamedTuple):
    """One arm of an experiment, trained to the end.

    Attributes:
        config: its filled settings.
        returns: greedy, of the averaged policy in the default environment.
        curve: mean return after each part that learned.
        epsilon: the worst of the runs' certificates; infinite without privacy.
        status: of that certificate; `none` without privacy.
        seconds: of training and evaluation.
    """

    config: ExpertOfflineConfig
    returns: Float[np.ndarray, "seeds episodes"]
    curve: Float[np.ndarray, "seeds parts"]
    epsilon: float
    status: str
    seconds: float


def train_arm(
    config: ExpertOfflineConfig,
    seeds: Sequence[int],
    sources: Sources,
    folder: Path,
    episodes: int = 100,
) -> Arm:
    """Trains an arm over several seeds, each with a ledger of its own, and evaluates it.

    Args:
        config: settings; what is left out is filled in. Its `dataset` and `experts` only say what
            there is, and are not read.
        seeds: one per run; `config.seed` is not read.
        sources: the experts and their log; clones in them are made once for all arms.
        folder: for ledgers, certificates and what is released, in `seed-K`; it must be new.
        episodes: of the final evaluation, for each seed.

    Raises:
        PrivacyError, ValueError: settings that cannot be run.
    """
    began = time.monotonic()
    config = filled(config, sources.facts)
    check(config)
    folders = [folder / f"seed-{seed}" for seed in seeds]
    for one in folders:
        one.mkdir(parents=True)
    ledgers = [create_ledger(config, one / "ledger.sqlite") for one in folders if config.is_private]
    curve = []
    for progress in train(config, seeds, ledgers, sources, folders=folders):
        policy = policies(progress.states)["ema"]
        if progress.learned:
            key = jax.random.fold_in(new_key(20260), progress.updates)
            found = evaluate(config, policy, key, config.evaluation_episodes, True)
            curve.append(found.mean(axis=1))
    returns = evaluate(config, policy, new_key(12345), episodes, True)
    certificates = [derive.derive(ledger) for ledger in ledgers]
    for one, derived in zip(folders, certificates, strict=False):
        derived.write(one / "certificate.json")
    worst = max(certificates, key=lambda one: one.epsilon, default=None)
    return Arm(
        config,
        returns,
        np.stack(curve, axis=1),
        math.inf if worst is None else worst.epsilon,
        "none" if worst is None else worst.status,
        time.monotonic() - began,
    )
