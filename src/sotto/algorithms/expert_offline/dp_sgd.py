"""DP-SGD over experts: offline learning from logs, with each expert's log protected.

Every noisy step draws experts, in secret and with a public rate, and one transition of each. It
releases the noisy sum of their clipped gradients, divided by a public number. Between the noisy
steps a public schedule inserts steps on public transitions, such as prefixes that were released
before. These cost nothing.

Guarantee:
    The unit is the expert under zero-out adjacency: an expert's slot contributes, or is zero. N
    noisy steps cost N Poisson-sampled Gaussian releases at rate q = batch / experts
    (docs/privacy.md, section 6). The steps without noise between them do not amplify, since the
    public schedule shows which steps are noisy. With cyclic batches experts take turns in a public
    order. Then nothing is amplified, noise may be correlated over time, and the whole stream is one
    Gaussian release (docs/privacy.md, section 4, Theorem 2').

Source: Sharma et al. 2024, Algorithm 4, with Poisson sampling instead of batches of fixed size;
Abadi et al. 2016.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Int32, PRNGKeyArray

from sotto.algorithms.calibration import calibrated_multiplier
from sotto.algorithms.offline import learner as learning
from sotto.algorithms.offline.learner import OfflineConfig, OfflineLearner, OfflineState
from sotto.algorithms.settings import (
    Count,
    CountOrZero,
    Discount,
    Epsilon,
    Fraction,
    Positive,
    Seed,
    Settings,
)
from sotto.data.trajectories import ExpertLog, Transitions
from sotto.keys import new_key
from sotto.privacy.accounting.composition import Event, Gaussian, SampledGaussian
from sotto.privacy.claims import experts as claims
from sotto.privacy.claims.logs import NOT_IMPORTED, AboutLog
from sotto.privacy.errors import LedgerOlder
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.privacy.statements import Correlation, Part, Poisson, Returning
from sotto.privacy.units import EXPERT, PopulationKind
from sotto.rl.networks import Policy


@dataclass(frozen=True)
class DPSGDExpertsConfig(Settings):
    """Settings of DP-SGD over experts, which are public.

    Attributes:
        experts: number of slots for experts.
        epsilon, delta: budget for all noisy steps and all other events together.
        steps: number of noisy steps, over which the budget is spent.
        batch: mean number of experts of a step, or the largest number with cyclic batches.
        clip_norm: largest norm of one expert's gradient.
        public_steps: number of steps without noise, on public transitions.
        average_decay: decay of the moving average of released networks, which is the result.
        batches: "poisson" draws experts in secret; "cyclic" takes them in turn, with noise
            correlated over time.
        population: whether the experts are simulated or real.
        schedule_seed: seed of the public schedule that places the public steps.
    """

    experts: Count
    epsilon: Epsilon
    delta: Fraction
    steps: Count = 1_000
    batch: Count = 256
    clip_norm: Positive = 1.0
    public_steps: CountOrZero = 0
    average_decay: Discount = learning.AVERAGE_DECAY
    batches: Literal["poisson", "cyclic"] = "poisson"
    population: PopulationKind = "simulated"
    schedule_seed: Seed = 0

    def check(self) -> None:
        """Refuses a batch of all experts, and a delta without meaning."""
        if self.batch >= self.experts:
            raise ValueError(f"batch must be below the {self.experts} experts, got {self.batch}")
        if self.delta * self.experts >= 1:
            raise ValueError(
                f"delta must be below 1/{self.experts}, since publishing one of them at random "
                "would meet a larger one"
            )

    @property
    def sampling_rate(self) -> float:
        """Probability that a step draws an expert."""
        return self.batch / self.experts

    @property
    def period(self) -> int:
        """Number of steps between two turns of an expert, with cyclic batches."""
        return -(-self.experts // self.batch)

    @property
    def participation(self) -> Poisson | Returning:
        """Rule by which experts take part in the steps."""
        if self.batches == "poisson":
            return Poisson(sampling_rate=self.sampling_rate, population=self.experts)
        turns = -(-self.steps // self.period)
        return Returning(max_participations=turns, min_separation=self.period)


class DPSGDState(NamedTuple):
    """The state between two steps, which is a function of releases and of public data."""

    learner: OfflineState
    average: Policy
    """Moving average of released networks."""
    made: Int[Array, ""]
    """Number of noisy steps made."""
    public: Transitions | tuple[()]
    """Public transitions; empty without public steps."""
    schedule: Int32[Array, " steps"]
    """Number of public steps after each noisy step."""


def initial_state(
    config: DPSGDExpertsConfig,
    offline: OfflineConfig,
    key: PRNGKeyArray,
    public: Transitions | tuple[()] = (),
) -> DPSGDState:
    """Returns the state before any step.

    Args:
        config, offline: settings.
        key: randomness of the initial weights.
        public: public transitions, such as released ones. They are needed for `public_steps`.

    Raises:
        ValueError: there are public steps without public transitions, or transitions without steps.
    """
    if bool(jax.tree.leaves(public)) != (config.public_steps > 0):
        raise ValueError("give public transitions if public_steps is positive, and only then")
    learner = learning.initial_state(offline, key)
    return DPSGDState(
        learner,
        learner.network,
        jnp.zeros((), jnp.int32),
        jax.tree.map(jnp.asarray, public),
        jnp.asarray(public_schedule(config)),
    )


def public_schedule(config: DPSGDExpertsConfig) -> Int32[np.ndarray, " steps"]:
    """Returns the number of public steps after each noisy one, which does not depend on data.

    The training always has exactly `steps` noisy steps, and is charged for this number.
    """
    places_of = np.random.default_rng(config.schedule_seed).integers(
        config.steps, size=config.public_steps
    )
    return np.bincount(places_of, minlength=config.steps).astype(np.int32)


def noise_multiplier(config: DPSGDExpertsConfig, size: int, others: Sequence[Event] = ()) -> float:
    """Returns the least noise multiplier for the budget.

    Args:
        config: settings.
        size: number of parameters of the network.
        others: events of the same ledger for which the budget also pays.
    """
    return calibrated_multiplier(
        lambda z: [*others, _event(config, z)],
        config.epsilon,
        config.delta,
        draws=config.steps * size,
        met=config.steps if config.batches == "poisson" else 1,
    )


_MICROBATCH = 160
"""Most experts of one float32 sum. Larger sums need more noise, and so do more sums
(`factored.sum_rounding`)."""


def gradient_release(
    config: DPSGDExpertsConfig,
    offline: OfflineConfig,
    learner: OfflineLearner,
    multiplier: float,
    about: AboutLog = NOT_IMPORTED,
) -> Release:
    """Returns the release of noisy clipped gradients.

    The data of a unit are one transition, and whether the expert has any.

    Args:
        config, offline: settings.
        learner: loss on transitions.
        multiplier: noise multiplier, from `noise_multiplier`.
        about: sentences of the certificate about an imported log.
    """

    def local(state: Any, unit: Any, key: PRNGKeyArray) -> tuple[dict[str, Any], tuple[()]]:
        del key
        transition, there = unit
        network, target = state.learner.network, state.learner.target
        return {
            "gradient": learning.factored_gradient(learner, network, target, transition, there)
        }, ()

    cyclic = config.batches == "cyclic"
    return Release(
        name="gradients",
        local=local,
        server=partial(_server, config, offline, learner),
        unit=EXPERT,
        parts={"gradient": Part(clip_norm=config.clip_norm, noise_multiplier=multiplier)},
        slots=-(-config.experts // config.period) if cyclic else config.experts,
        divisor=float(config.batch),
        horizon=config.steps,
        population=config.population,
        participation=config.participation,
        microbatch=None if cyclic or config.batch <= _MICROBATCH else _MICROBATCH,
        correlation=Correlation(kind="prefix-sum") if cyclic else Correlation(),
        protects=(claims.LOGGED(),),
        does_not_protect=(claims.SLOTS(), *about.does_not_protect),
        assumptions=(claims.OWN_LOGS.assumption(), *about.assumptions),
    )


def open_gradients(
    config: DPSGDExpertsConfig,
    offline: OfflineConfig,
    learner: OfflineLearner,
    ledgers: Sequence[Ledger],
    states: DPSGDState,
    pool: "LogPool",
    *,
    multiplier: float,
    chunk: int,
    about: AboutLog = NOT_IMPORTED,
) -> tuple[Stream, DPSGDState]:
    """Opens the stream of gradients, with one run for each ledger.

    A training that continues from a stored state also continues its stream, which was charged for
    all steps at the first one. Steps that were charged and lost are not made again. With cyclic
    batches the noise of the earlier process is lost, so an interrupted stream is refused.

    Args:
        config, offline, learner: settings.
        ledgers: ledgers of `EXPERT`, one for each run.
        states: states [runs, ...], all after the same number of steps.
        pool: log of the experts.
        multiplier: noise multiplier, from `noise_multiplier`.
        chunk: noisy steps of one call of `advance`.
        about: sentences of the certificate about an imported log.

    Returns:
        The stream, and the states with the number of steps that the stream has made.

    Raises:
        PrivacyError: the ledger holds fewer steps than the states have made, the budget does not
            cover the steps, or correlated noise was lost.
    """
    release = gradient_release(config, offline, learner, multiplier, about)
    units: Any = pool
    if config.batches == "cyclic":
        units = pool.draw(np.zeros(release.slots, np.int32), np.random.default_rng(0))
    interrupted = any(
        record.statement.name == release.name for ledger in ledgers for record in ledger.streams
    )
    stream = release.open(
        ledgers,
        states,
        units,
        chunk=min(chunk, config.steps),
        resume=interrupted,
    )
    made = int(np.max(np.asarray(states.made)))
    if stream.released < made:
        raise LedgerOlder("the ledger", "the stored state", made, stream.released)
    return stream, states._replace(made=jnp.full(len(ledgers), stream.released, jnp.int32))


def advance(
    config: DPSGDExpertsConfig,
    stream: Stream,
    states: DPSGDState,
    keys: Array,
    pool: "LogPool",
    chunk: int,
) -> DPSGDState:
    """Makes the next chunk of noisy steps, and the public steps between them.

    Args:
        config: settings.
        stream: stream from `open_gradients`.
        states: states [runs, ...] that the last call returned.
        keys: typed keys [runs] for minibatches of public transitions. The noise has no key.
        pool: log for which the stream was opened.
        chunk: number of noisy steps; the last chunk may be shorter.
    """
    if config.batches == "poisson":
        return DPSGDState(*stream.run(states, keys)[0])
    runs, horizon = len(np.atleast_1d(states.made)), stream.statement.horizon
    count = min(chunk, horizon - stream.released)
    persons = cyclic_batches(config, stream.released, count)
    persons = np.broadcast_to(persons, (runs, *persons.shape))
    rows = pool.draw(np.ravel(persons), GeneratorSource().next())
    units = jax.tree.map(lambda x: x.reshape(*persons.shape, *x.shape[1:]), rows)
    return DPSGDState(*stream.run(states, keys, persons, units)[0])


def cyclic_batches(
    config: DPSGDExpertsConfig, first: int, count: int
) -> Int32[np.ndarray, "count slots"]:
    """Returns the experts of these steps; expert e takes part in steps that are e modulo period."""
    slots = -(-config.experts // config.period)
    turn = (first + np.arange(count, dtype=np.int32)) % config.period
    experts = turn[:, None] + config.period * np.arange(slots, dtype=np.int32)
    return np.where(experts < config.experts, experts, -1).astype(np.int32)


class LogPool:
    """A log of experts from which a release draws one transition of each expert uniformly.

    The log stays in host memory, and only drawn transitions are copied. Slots beyond the log's
    experts are empty.
    """

    def __init__(self, log: ExpertLog) -> None:
        self._found, self._steps, self._starts = log.transitions, log.steps, log.starts

    def draw(
        self, persons: Int[np.ndarray, " n"], generator: np.random.Generator
    ) -> tuple[Transitions, np.ndarray]:
        """Draws one transition of each of these experts.

        Returns:
            The transitions, and whether each expert has one. Without one, the entry is zero.
        """
        uniform = generator.random(len(persons))  # one number for each, also without transitions
        inside = (persons >= 0) & (persons < len(self._steps))
        experts = np.where(inside, persons, 0)
        steps = self._steps[experts]
        there = inside & (steps > 0)
        ordinals = np.minimum((uniform * steps).astype(np.int64), steps - 1)
        places = (self._starts[experts] + ordinals)[there]

        def drawn(array: np.ndarray) -> np.ndarray:
            rows = np.zeros((len(persons), *array.shape[1:]), array.dtype)
            rows[there] = array[places]
            return rows

        return Transitions(*(drawn(array) for array in self._found)), there


def _server(
    config: DPSGDExpertsConfig,
    offline: OfflineConfig,
    learner: OfflineLearner,
    state: Any,
    released: Any,
) -> tuple[Any, tuple[()]]:
    """Makes a step of Adam and the public steps after it, and updates the average."""
    after = learning.apply_gradient(offline, learner, state.learner, released["gradient"])
    if config.public_steps:
        key = new_key(config.schedule_seed)

        def public_step(_: Any, inner: OfflineState) -> OfflineState:
            some = learning.minibatch(offline, state.public, jax.random.fold_in(key, inner.steps))
            return learning.gradient_step(offline, learner, inner, some)[0]

        after = jax.lax.fori_loop(0, state.schedule[state.made], public_step, after)
    average = learning.averaged(state.average, after.network, state.made, config.average_decay)
    return DPSGDState(after, average, state.made + 1, state.public, state.schedule), ()


def _event(config: DPSGDExpertsConfig, multiplier: float) -> Event:
    if config.batches == "cyclic":
        return Gaussian(noise_multiplier=multiplier)
    rate, count = config.sampling_rate, config.steps
    return SampledGaussian(noise_multiplier=multiplier, sampling_rate=rate, count=count)
