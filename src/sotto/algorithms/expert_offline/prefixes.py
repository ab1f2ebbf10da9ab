"""Stable prefixes as the data of an offline learner.

The prefixes are released once and kept on disk. They come from new rollouts
(`sotto.privacy.release.prefixes`), and not from the log of which DP-SGD learns. The two sets of
trajectories are disjoint, since the release does not accept a log.
"""

import functools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.votes import world
from sotto.algorithms.settings import known
from sotto.data.trajectories import Transitions
from sotto.privacy.claims.experts import PREFIXES
from sotto.privacy.errors import LedgerOlder, PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.mechanisms.prefix_calibration import (
    Target,
    calibrate_consensus,
    calibrate_floor,
    calibrate_random_stop,
)
from sotto.privacy.mechanisms.stable_prefixes import StablePrefixMechanism
from sotto.privacy.release.prefixes import PrefixRelease, StablePrefixes
from sotto.privacy.release.storage import ReleaseFile
from sotto.rl.networks import Policy

_NAME = "stable prefixes"


@functools.lru_cache(maxsize=8)
def prefix_mechanism(config: ExpertOfflineConfig) -> StablePrefixMechanism:
    """Returns the mechanism for the prefixes' share of epsilon and delta.

    It is calibrated for one expert fewer than there are, so that it runs in the neighbouring world
    too, where one of them is absent.

    Raises:
        ValueError: there are too few experts for the target.
    """
    share = config.prefix_share if config.uses_dp_sgd else 1.0
    target = Target(
        known(config.expert_count) - 1,
        config.releases,
        share * known(config.target_epsilon),
        share * known(config.delta),
        known(config.rollout_cap),
    )
    match config.prefix_rule:
        case "floor":
            return calibrate_floor(target, config.floor)
        case "random-stop":
            return calibrate_random_stop(target, config.hazard)
        case "consensus":
            return calibrate_consensus(target)


def stable_transitions(
    config: ExpertOfflineConfig,
    experts: Policy,
    ledger: Ledger,
    key: PRNGKeyArray,
    seed: int,
    file: Path | None = None,
) -> Transitions:
    """Returns the transitions of released prefixes, without padding.

    The prefixes are on disk before they are used. A training that was killed later reads them.

    Args:
        config: completed settings.
        experts: policies with a leading axis of experts.
        ledger: ledger of the run, which is charged if the prefixes are not on disk.
        key, seed: public randomness of the simulator.
        file: file of the prefixes; None keeps them in memory.

    Raises:
        PrivacyError: the budget does not cover the prefixes, or they were charged and lost.
    """
    if file is not None and ReleaseFile.exists(file):
        charged = [one.releases for one in ledger.streams if one.statement.name == _NAME]
        if charged != [config.releases]:
            raise LedgerOlder(
                f"the ledger of run {ledger.run_id}", f"{file}", config.releases, sum(charged)
            )
        return _transitions(_read(file, ledger.run_id))
    if any(one.releases for one in ledger.streams if one.statement.name == _NAME):
        raise PrivacyError(
            f"run {ledger.run_id} was charged for stable prefixes that were never written: nothing "
            "was released, and the charge stays; start a new run"
        )
    release = PrefixRelease(
        name=_NAME,
        mechanism=prefix_mechanism(config),
        releases=config.releases,
        horizon=known(config.rollout_cap),
        actions=known(config.actions),
        population=known(config.population),
        protects=(PREFIXES(),),
    )
    opened = release.open(ledger)
    with world(config, key, seed) as where:
        prefixes = opened.release(experts, greedy, where)
    if file is not None:
        _write(file, ledger.run_id, prefixes)
    return _transitions(prefixes)


def greedy(expert: Policy, observations: Float[Array, "q obs"]) -> Int[Array, " q"]:
    """Returns one expert's greedy actions."""
    actions: Int[Array, " q"] = expert(observations).mode().astype(jnp.int32)
    return actions


def _transitions(prefixes: StablePrefixes) -> Transitions:
    """Returns the steps of all prefixes; a prefix that was cut does not end in a termination."""
    rows, steps = np.nonzero(np.arange(prefixes.actions.shape[1]) < prefixes.lengths[:, None])
    last = steps + 1 == prefixes.lengths[rows]
    return Transitions(
        observations=jnp.asarray(prefixes.observations[rows, steps], jnp.float32),
        actions=jnp.asarray(prefixes.actions[rows, steps], jnp.int32),
        rewards=jnp.asarray(prefixes.rewards[rows, steps], jnp.float32),
        next_observations=jnp.asarray(prefixes.observations[rows, steps + 1], jnp.float32),
        terminated=jnp.asarray(last & prefixes.terminated[rows]),
    )


# --- the file ------------------------------------------------------------------------------------


def _write(file: Path, run_id: str, prefixes: StablePrefixes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    shapes = [list(array.shape) for array in prefixes]
    flat = np.concatenate([np.asarray(array, np.float64).ravel() for array in prefixes])
    header = {"kind": "stable-prefixes", "run": run_id, "shapes": shapes}
    ReleaseFile.create(file, header, flat)


def _read(file: Path, run_id: str) -> StablePrefixes:
    store = ReleaseFile.open(file)
    said = (store.header.get("kind"), store.header.get("run"))
    if said != ("stable-prefixes", run_id) or len(store) != 1:
        raise PrivacyError(f"{file} holds no stable prefixes of run {run_id}; start a new run")
    ((_, flat),) = store.read()
    shapes: list[list[int]] = store.header["shapes"]
    pieces = np.split(flat, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
    kinds: tuple[Any, ...] = (np.float32, np.int32, np.float32, np.int32, np.bool_)
    return StablePrefixes(
        *(
            piece.reshape(shape).astype(kind)
            for piece, shape, kind in zip(pieces, shapes, kinds, strict=True)
        )
    )
