"""Learning from experts, each of whom is protected: votes, stable prefixes, DP-SGD, references.

Each seed is a run of its own, with a ledger of its own. A training first gathers what is released
at once (votes or prefixes), which is on disk before it is used, and then learns. Iterating over
`train` yields what may be logged after each part.

Source: Sharma et al. 2024, "Preserving Expert-Level Privacy in Offline Reinforcement Learning";
what is sound of it, and why votes are the default: theory notes, sections 1 to 3.
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
    evaluate,
    initial_states,
    policies,
    stacked,
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

__all__ = [
    "Sources",
    "check",
    "create_ledger",
    "env_steps",
    "evaluate",
    "initial_states",
    "policies",
    "train",
]


# --- before training -----------------------------------------------------------------------------


def env_steps(config: ExpertOfflineConfig) -> int:
    """Most environment steps of a training."""
    if config.uses_votes and config.states == "students":
        asking = config.lanes * known(config.rollout_cap)
        choosing = config.choice_episodes * known(config.evaluation_cap)
        return int(known(config.rounds) * (asking + choosing))
    return capacity(config) if config.plays else 0


def check(config: ExpertOfflineConfig) -> None:
    """Calibrates everything once, before anything is made.

    Args:
        config: filled settings.

    Raises:
        ValueError: no noise meets the target.
    """
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
    """Returns the noise multiplier of DP-SGD for all of the budget that prefixes leave, jointly.

    Args:
        config: filled settings.
        charged: mechanism of the prefixes that the ledger holds; None: the one of the settings.
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
    """A new ledger with the budget of filled settings, of experts."""
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
    """Trains from `states` on, `done` parts into the training, to the end.

    Args:
        config: filled settings.
        seeds: one per run.
        ledgers: one per run, from `create_ledger`, or re-opened to resume; none without privacy.
        sources: the experts and their log.
        states: where to go on from; None starts afresh.
        done: parts behind `states`.
        folders: one per run, for files of votes and prefixes. A training that was killed finds
            them there and goes on at no cost; without them, what was not in `states` is lost.
            Noisy steps that were charged and lost are not made again.

    Raises:
        PrivacyError: the budget does not cover the training, or what it was charged for is lost.
    """
    states = initial_states(config, seeds) if states is None else states
    stream = None
    if isinstance(states, DPSGDState):  # before prefixes are charged, which are of the same experts
        stream, states = _open_gradients(config, ledgers, sources, states)
    if done == 0 and (config.uses_votes or config.uses_prefixes):
        kept: Sequence[Path | None] = [None] * len(seeds) if folders is None else folders
        gather = _gather_votes if config.uses_votes else _gather_prefixes
        states, released = gather(config, seeds, ledgers, sources, states, kept)
        done = 1
        yield Progress(done, states, released, learned=isinstance(states, StudentState))
    match states:
        case LearnerState():
            yield from _learn(config, seeds, sources, states, done)
        case DPSGDState():
            assert stream is not None
            yield from _learn_with_noise(config, seeds, stream, sources, states, done)


def _gather_votes(
    config: ExpertOfflineConfig,
    seeds: Sequence[int],
    ledgers: Sequence[Ledger],
    sources: Sources,
    states: State,
    folders: Sequence[Path | None],
) -> tuple[State, dict[str, np.ndarray]]:
    voters, weights = sources.voters(config), sources.weights(config)
    gathered: list[State] = []
    lost = []
    for run, seed in enumerate(seeds):
        folder = folders[run]
        file = None if folder is None else folder / f"{ledgers[run].run_id}.votes"
        votes = KeptVotes(voters, weights, ledgers[run], config, file)
        lost.append(votes.lost)
        polled = poll(config, votes, keys_of([seed], GATHERING)[0], seed)
        if polled.transitions is None or isinstance(states, StudentState):
            gathered.append(StudentState(polled.student))
        else:
            gathered.append(_with_data(config, states, run, polled.transitions))
    return stacked(gathered), {"lost_rounds": np.array(lost, np.float64)[:, None]}


def _gather_prefixes(
    config: ExpertOfflineConfig,
    seeds: Sequence[int],
    ledgers: Sequence[Ledger],
    sources: Sources,
    states: State,
    folders: Sequence[Path | None],
) -> tuple[State, dict[str, np.ndarray]]:
    assert sources.experts is not None
    gathered, counts = [], []
    for run, seed in enumerate(seeds):
        folder = folders[run]
        file = None if folder is None else folder / f"{ledgers[run].run_id}.prefixes"
        key = keys_of([seed], GATHERING)[0]
        found = stable_transitions(config, sources.experts, ledgers[run], key, seed, file)
        if len(found.actions) == 0:
            raise NothingReleased(
                f"none of the {config.releases} prefixes of seed {seed} has a step, so that there "
                "is nothing to learn from; start again with more epsilon, fewer releases or more "
                "experts"
            )
        counts.append(len(found.actions))
        gathered.append(_with_data(config, states, run, found))
    return stacked(gathered), {"released_transitions": np.array(counts, np.float64)[:, None]}


def _with_data(config: ExpertOfflineConfig, states: State, run: int, found: Transitions) -> State:
    """One run's state with released transitions, repeated until they fill its room."""
    rows = np.arange(capacity(config)) % len(found.actions)
    data = jax.tree.map(lambda x: jnp.asarray(x)[rows], found)
    state = jax.tree.map(lambda x: x[run], states)
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
    """Steps without noise: on what was released, or without privacy on the log."""
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
    """`steps` gradient steps of every run, and the mean loss; data are shared by all or not."""

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
    )


def _learn_with_noise(
    config: ExpertOfflineConfig,
    seeds: Sequence[int],
    stream: Stream,
    sources: Sources,
    states: DPSGDState,
    done: int,
) -> Iterator[Progress]:
    """Noisy steps on the log, and public ones between them, until all are charged."""
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
