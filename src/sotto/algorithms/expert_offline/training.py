"""Trains from protected experts by votes, stable prefixes or DP-SGD, or without privacy.

Each seed is a separate run with its own ledger. A training first releases votes or prefixes, if its
method has any, and writes them to disk before it uses them. Then it learns. Iterating over `train`
yields the progress after each part.

Source: Sharma et al. 2024, "Preserving Expert-Level Privacy in Offline Reinforcement Learning". The
proofs, with corrections to the paper, are in docs/privacy.md, sections 14 (prefixes) and 15
(votes).
"""

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.base import Progress
from sotto.algorithms.expert_offline import dp_sgd
from sotto.algorithms.expert_offline.config import LEARNING_PARTS, ExpertOfflineConfig
from sotto.algorithms.expert_offline.dp_sgd import DPSGDState, LogPool
from sotto.algorithms.expert_offline.prefixes import prefix_mechanism, stable_transitions
from sotto.algorithms.expert_offline.states import (
    GATHERING,
    LEARNING,
    LearnerState,
    Sources,
    State,
    StudentState,
    capacity,
    dp_sgd_config,
    first_policy,
    initial_states,
)
from sotto.algorithms.expert_offline.votes import KeptVotes, poll, vote_multiplier
from sotto.algorithms.offline import learner as offline
from sotto.algorithms.settings import known
from sotto.data.trajectories import Transitions
from sotto.keys import keys_of, new_key
from sotto.privacy.accounting.composition import Event
from sotto.privacy.errors import NothingReleased
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.stable_prefixes import StablePrefixMechanism
from sotto.privacy.release.stream import Stream
from sotto.privacy.units import EXPERT
from sotto.trees import at, stacked

# --- before training -----------------------------------------------------------------------------


def env_steps(config: ExpertOfflineConfig) -> int:
    """Returns a bound on the environment steps of a training."""
    if config.uses_votes and config.states == "students":
        asking = config.lanes * known(config.rollout_cap)
        choosing = config.choice_episodes * known(config.evaluation_cap)
        first = choosing if config.first_policy is not None else 0
        return int(known(config.rounds) * (asking + choosing)) + first
    return capacity(config) if config.plays else 0


def check(config: ExpertOfflineConfig) -> None:
    """Calibrates all noise and reads the first policy, so that what cannot be is refused before
    anything is created.

    Args:
        config: completed settings.

    Raises:
        ValueError: no noise meets the target, or the first policy does not fit.
    """
    first_policy(config)
    if config.uses_votes:
        vote_multiplier(config)
    if config.uses_prefixes:
        prefix_mechanism(config)
    if config.uses_dp_sgd:
        gradient_multiplier(config)


@functools.lru_cache(maxsize=8)
def gradient_multiplier(
    config: ExpertOfflineConfig, charged: StablePrefixMechanism | None = None
) -> float:
    """Returns the noise multiplier of DP-SGD, composed with the prefixes to the whole budget.

    Args:
        config: completed settings.
        charged: mechanism of the prefixes that the ledger holds; None means that of the settings.
    """
    shapes = jax.eval_shape(
        lambda key: offline.initial_state(config.offline, key).network, new_key(0)
    )
    size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    others: list[Event] = []
    if config.uses_prefixes:
        others.append((charged or prefix_mechanism(config)).event(config.releases))
    return dp_sgd.noise_multiplier(dp_sgd_config(config), size, others)


def create_ledger(
    config: ExpertOfflineConfig, where: Path | str, run_id: str | None = None
) -> Ledger:
    """Creates a ledger of experts with the budget of completed settings."""
    budget = Budget(epsilon=known(config.target_epsilon), delta=known(config.delta))
    return Ledger.create(where, run_id, unit=EXPERT, budget=budget)


# --- training ------------------------------------------------------------------------------------


def train(
    config: ExpertOfflineConfig,
    seeds: Sequence[int],
    ledgers: Sequence[Ledger],
    sources: Sources,
    states: State | None = None,
    done: int = 0,
    folders: Sequence[Path] | None = None,
) -> Iterator[Progress]:
    """Trains from `states` to the end.

    Args:
        config: completed settings.
        seeds: seeds, one for each run.
        ledgers: ledgers from `create_ledger`, one for each run, opened again to resume. Empty
            without privacy.
        sources: experts and their log.
        states: states from which to continue; None starts a new training.
        done: number of parts before `states`.
        folders: folders for the files of votes and prefixes, one for each run. A training that was
            killed reads them and continues at no cost. Without folders, releases after `states` are
            lost. Noisy steps that were charged and lost are not made again.

    Raises:
        PrivacyError: the budget does not cover the training, or a charged release was lost.
    """
    states = initial_states(config, seeds) if states is None else states
    stream = None
    if isinstance(states, DPSGDState):  # before prefixes are charged, which are of the same experts
        stream, states = _open_gradients(config, ledgers, sources, states)
    if done == 0 and (config.uses_votes or config.uses_prefixes):
        kept: Sequence[Path | None] = [None] * len(seeds) if folders is None else folders
        states, released = _gather(config, seeds, ledgers, sources, states, kept)
        done = 1
        yield Progress(done, states, released, learned=isinstance(states, StudentState))
    match states:
        case LearnerState():
            yield from _learn(config, seeds, sources, states, done)
        case DPSGDState():
            assert stream is not None
            yield from _learn_with_noise(config, seeds, stream, sources, states, done)


def _gather(
    config: ExpertOfflineConfig,
    seeds: Sequence[int],
    ledgers: Sequence[Ledger],
    sources: Sources,
    states: State,
    folders: Sequence[Path | None],
) -> tuple[State, dict[str, np.ndarray]]:
    """Releases the votes or prefixes of every run, and returns the states with them."""
    gather, kind = _gather_prefixes, "prefixes"
    if config.uses_votes:
        gather, kind = _gather_votes, "votes"
    gathered, numbers = [], []
    for run, (seed, ledger, folder) in enumerate(zip(seeds, ledgers, folders, strict=True)):
        file = None if folder is None else folder / f"{ledger.run_id}.{kind}"
        before = at(states, run)
        after, facts = gather(config, seed, ledger, sources, before, file)
        gathered.append(after)
        numbers.append(facts)
    columns = {name: np.array([[float(one[name])] for one in numbers]) for name in numbers[0]}
    return stacked(gathered), columns


def _gather_votes(
    config: ExpertOfflineConfig,
    seed: int,
    ledger: Ledger,
    sources: Sources,
    state: State,
    file: Path | None,
) -> tuple[State, dict[str, int]]:
    """Returns one run's state after the votes, rounds that were lost, and the chosen student."""
    voters, weights = sources.voters(config), sources.weights(config)
    votes = KeptVotes(voters, weights, ledger, config, file, sources.about)
    polled = poll(config, votes, keys_of([seed], GATHERING)[0], seed)
    facts = {"lost_rounds": votes.lost, "chosen_student": polled.chosen}
    if polled.transitions is None or isinstance(state, StudentState):
        return StudentState(polled.student), facts
    return _with_data(config, state, polled.transitions), facts


def _gather_prefixes(
    config: ExpertOfflineConfig,
    seed: int,
    ledger: Ledger,
    sources: Sources,
    state: State,
    file: Path | None,
) -> tuple[State, dict[str, int]]:
    """Returns one run's state with the released prefixes, and their number of transitions."""
    assert sources.experts is not None
    key = keys_of([seed], GATHERING)[0]
    found = stable_transitions(config, sources.experts, ledger, key, seed, file)
    if len(found.actions) == 0:
        raise NothingReleased(
            f"none of the {config.releases} prefixes of seed {seed} has a step, so there is "
            "nothing to learn from; start again with more epsilon, fewer releases or more experts"
        )
    return _with_data(config, state, found), {"released_transitions": len(found.actions)}


def _with_data(config: ExpertOfflineConfig, state: State, found: Transitions) -> State:
    """Returns one run's state with released transitions, repeated to the capacity."""
    rows = np.arange(capacity(config)) % len(found.actions)
    data = jax.tree.map(lambda x: jnp.asarray(x)[rows], found)
    if isinstance(state, DPSGDState):
        return state._replace(public=data)
    assert isinstance(state, LearnerState)
    return state._replace(transitions=data)


def _learn(
    config: ExpertOfflineConfig,
    seeds: Sequence[int],
    sources: Sources,
    states: LearnerState,
    done: int,
) -> Iterator[Progress]:
    """Makes steps without noise, on released transitions or, without privacy, on the log."""
    size = math.ceil(known(config.gradient_steps) / LEARNING_PARTS)
    keys = keys_of(seeds, LEARNING)
    on_log = not config.is_private
    data = sources.transitions if on_log else states.transitions
    assert isinstance(data, Transitions)
    while done < config.num_updates:
        states, losses = _train_chunk(config, states, data, keys, size, on_log)
        done += 1
        seen = {"loss": np.asarray(losses)[:, None]}
        yield Progress(done, states, {} if on_log else seen, simulated=seen if on_log else {})


@functools.partial(jax.jit, static_argnames=("config", "steps", "shared"))
def _train_chunk(
    config: ExpertOfflineConfig,
    states: LearnerState,
    data: Transitions,
    keys: PRNGKeyArray,
    steps: int,
    shared: bool,
) -> tuple[LearnerState, Float[Array, " runs"]]:
    """Makes `steps` gradient steps of every run; returns the states and the mean losses.

    `shared` says whether all runs learn from the same data; otherwise data have an axis of runs.
    """

    def one(
        state: LearnerState, data: Transitions, key: PRNGKeyArray
    ) -> tuple[LearnerState, Float[Array, ""]]:
        learner, average, loss = offline.train_chunk(
            config.offline, config.offline_learner, state.learner, state.average, data, key, steps
        )
        return state._replace(learner=learner, average=average), loss

    trained: tuple[LearnerState, Array] = jax.vmap(one, in_axes=(0, None if shared else 0, 0))(
        states, data, keys
    )
    return trained


def _open_gradients(
    config: ExpertOfflineConfig, ledgers: Sequence[Ledger], sources: Sources, states: DPSGDState
) -> tuple[Stream, DPSGDState]:
    """Opens the stream of noisy steps, or goes on with it."""
    assert sources.log is not None
    streams = [stream.statement.prefixes for one in ledgers for stream in one.streams]
    charged = [one for one in streams if one is not None]  # an earlier version's may differ
    return dp_sgd.open_gradients(
        dp_sgd_config(config),
        config.offline,
        config.offline_learner,
        ledgers,
        states,
        LogPool(sources.log),
        multiplier=gradient_multiplier(config, *charged[:1]),
        chunk=math.ceil(config.noisy_steps / LEARNING_PARTS),
        about=sources.about,
    )


def _learn_with_noise(
    config: ExpertOfflineConfig,
    seeds: Sequence[int],
    stream: Stream,
    sources: Sources,
    states: DPSGDState,
    done: int,
) -> Iterator[Progress]:
    """Makes noisy steps on the log, and public steps between them, until all are charged."""
    assert sources.log is not None
    settings, pool = dp_sgd_config(config), LogPool(sources.log)
    size = math.ceil(config.noisy_steps / LEARNING_PARTS)
    keys = keys_of(seeds, LEARNING)
    while done < config.num_updates:
        if stream.released < config.noisy_steps:
            states = dp_sgd.advance(settings, stream, states, keys, pool, size)
        done += 1
        steps = np.full((len(seeds), 1), float(stream.released))
        yield Progress(done, states, {"noisy_steps": steps})
