"""Trains Q-learning that protects rewards, with several seeds in parallel.

Each seed is a separate run with its own steps, ledger, noise and certificate. Iterating over
`train` yields the progress after each chunk. The first chunk of a round is its release, so that the
released values are stored before they are used, and a resumed training continues with them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from sotto.algorithms.base import Progress
from sotto.algorithms.functional_q import choice, release
from sotto.algorithms.functional_q import functions as functional_q_functions
from sotto.algorithms.functional_q.accounts import RunAccount
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.nodes import GridValues
from sotto.algorithms.functional_q.paper import Algorithm1, PaperState
from sotto.algorithms.functional_q.rounds import collect_steps, train_on_released_rewards
from sotto.algorithms.functional_q.states import (
    COLLECTING,
    RELEASING,
    STARTING,
    OutputState,
    RewardState,
    State,
    action_values,
    folded_keys,
    initial_states,
)
from sotto.keys import keys_of
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.trees import at, stacked

_PAPER_CHUNKS = 25


def check(config: FunctionalQConfig) -> None:
    """Refuses settings that do not fit the environment, before anything is created.

    Raises:
        ValueError: the settings cannot be trained with; the message says what to change.
    """
    grid = config.grid
    _ = config.rewards
    if config.noise == "process" and len(grid.nodes) != 1:
        raise ValueError(
            f"sample paths are calibrated in one dimension, and states of {config.env_id} have "
            f"{len(grid.nodes)}; choose --noise vector, and another --mode than paper"
        )
    if config.unit == "transition" and config.delta * config.samples >= 1:
        raise ValueError(
            f"delta {config.delta:g} is vacuous for {config.samples} transitions, since publishing "
            f"one of them at random would meet it; give --delta below {1 / config.samples:g}"
        )
    if config.mode == "reward-release" and config.unit == "transition":
        release.reward_multiplier(config)
    elif config.mode == "policy-choice":
        choice.check(config)
    elif config.learner == "network":
        functional_q_functions.network_release(config)
    elif config.mode != "paper" and config.target_epsilon is not None:
        release.calibrated(config, config.features * config.iterations)


def create_ledger(
    config: FunctionalQConfig, where: Path | str, run_id: str | None = None
) -> Ledger:
    """Creates a ledger with the budget and the unit of these settings."""
    budget = Budget(epsilon=config.budget_epsilon, delta=config.delta)
    return Ledger.create(where, run_id, unit=config.privacy_unit, budget=budget)


def train(
    config: FunctionalQConfig,
    seeds: Sequence[int],
    ledgers: Sequence[Ledger],
    states: State | None = None,
    done: int = 0,
    folders: Sequence[Path] | None = None,
) -> Iterator[Progress]:
    """Trains from `states` to the end.

    Args:
        config: settings.
        seeds: seeds, one for each run.
        ledgers: ledgers from `create_ledger`, one for each run, opened again to resume.
        states: states from which to continue; None starts a new training. Releases in them are not
            made again.
        done: number of updates before `states`.
        folders: folders for the files of released values, one for each run. A training that was
            killed reads them and continues at no cost. Without folders, releases after `states` are
            lost.

    Raises:
        PrivacyError: the budget does not cover the training. A release that was charged and lost by
            a kill stays charged. Then new transitions are collected and released, and the budget
            for a reward function may be used up.
        ValueError: the settings do not fit the environment.
    """
    states = initial_states(config, seeds) if states is None else states
    kept: Sequence[Path | None] = [None] * len(ledgers) if folders is None else folders
    accounts = [RunAccount(*both) for both in zip(ledgers, kept, strict=True)]
    match states:
        case RewardState():
            yield from train_on_released_rewards(config, seeds, accounts, states, done)
        case OutputState():
            yield _release_output(config, seeds, accounts)
        case PaperState():
            yield from _train_as_printed(config, seeds, ledgers, states, done)


# --- the other modes -----------------------------------------------------------------------------


def _release_output(
    config: FunctionalQConfig, seeds: Sequence[int], accounts: Sequence[RunAccount]
) -> Progress:
    """Collects steps uniformly at random, and releases what exact rewards say, once or in turns."""
    functions = {
        "output-release": functional_q_functions.release_output,
        "per-iteration": functional_q_functions.release_iterations,
        "policy-choice": choice.release_choice,
    }
    charges = [account.place(0).charge for account in accounts]
    lanes = jax.vmap(partial(release.start_lanes, config))(keys_of(seeds, STARTING))
    nothing = initial_states(config, seeds)
    keys = folded_keys(seeds, COLLECTING, charges)
    logged, _ = collect_steps(
        config.environment, config.lane_steps, action_values(nothing), lanes, keys, 1.0
    )
    tables = [
        functions[config.mode](replace(config, seed=seed), at(logged, run), account)
        for run, (seed, account) in enumerate(zip(seeds, accounts, strict=True))
    ]
    states = OutputState(GridValues(jnp.asarray(np.stack(tables), jnp.float32), config.grid))
    return Progress(1, states, env_steps=config.samples)


def _train_as_printed(
    config: FunctionalQConfig,
    seeds: Sequence[int],
    ledgers: Sequence[Ledger],
    states: PaperState,
    done: int,
) -> Iterator[Progress]:
    keys = keys_of(seeds, RELEASING)
    runs = [
        Algorithm1(config, at(states, run), ledger, keys[run]) for run, ledger in enumerate(ledgers)
    ]
    chunk = math.ceil(config.num_updates / _PAPER_CHUNKS)
    while done < config.num_updates:
        count = min(chunk, config.num_updates - done)
        done += count
        seen = np.array([[one.advance() for _ in range(count)] for one in runs])
        states = stacked([one.state for one in runs])
        simulated = {"reward": seen[..., 0], "noise": seen[..., 1]}
        yield Progress(done, states, simulated=simulated, env_steps=done * config.batch)
