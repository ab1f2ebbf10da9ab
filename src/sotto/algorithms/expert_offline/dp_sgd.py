"""DP-SGD over experts: offline learning from logs of which each expert's is protected.

Every noisy step draws experts, in secret and with a public rate, one transition of each, and
releases the noisy sum of their clipped gradients over a public divisor. Steps on public transitions
(prefixes that were released before) come in between: a public schedule says where, and they cost
nothing.

Guarantee:
    Unit expert, zero-out: an expert's slot is there, or contributes nothing. N noisy steps cost
    N Poisson-sampled Gaussian releases at rate q = batch / experts, whatever comes in between:
    which steps are noisy is public, so the steps without noise do not amplify (theory notes,
    section 2: N at rate q, never all steps at a smaller rate). With cyclic batches experts take
    turns in a public order instead, nothing is amplified, and noise may be correlated over time:
    the whole stream is one Gaussian release (Theorem 2').

Source: Sharma et al. 2024, Algorithm 4, with Poisson sampling where the text has batches of fixed
size; Abadi et al. 2016.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Int32, PRNGKeyArray

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
from sotto.data.trajectories import ExpertLog, Transitions, places, transitions
from sotto.keys import new_key
from sotto.privacy.accounting.composition import (
    Event,
    Gaussian,
    SampledGaussian,
    calibrate_noise_multiplier,
)
from sotto.privacy.claims import experts as claims
from sotto.privacy.errors import LedgerOlder
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.mechanisms.noise import GeneratorSource, calibrate_with_sampler, sampler_delta
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.privacy.statements import Correlation, Part, Poisson, Returning
from sotto.privacy.units import EXPERT
from sotto.rl.networks import Policy


@dataclass(frozen=True)
class DPSGDExpertsConfig(Settings):
    """Settings of DP-SGD over experts; all are public.

    Attributes:
        experts: how many slots there are for experts, a public number.
        epsilon, delta: what all noisy steps together may cost, other events included.
        steps: noisy steps, over which the budget is spent.
        batch: experts in a step: on average, or with cyclic batches at most.
        clip_norm: of one expert's gradient.
        public_steps: steps without noise, on public transitions, spread over the training.
        average_decay: of the moving average of released networks, which is the result.
        batches: "poisson", drawn in secret; or "cyclic", with noise correlated over time.
        population: whether the experts are simulated or real.
        schedule_seed: says between which noisy steps the public ones come.
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
    population: Literal["simulated", "real"] = "simulated"
    schedule_seed: Seed = 0

    def check(self) -> None:
        """Refuses a batch of everybody, and a delta that says nothing."""
        if self.batch >= self.experts:
            raise ValueError(f"batch must be below the {self.experts} experts, got {self.batch}")
        if self.delta * self.experts >= 1:
            raise ValueError(
                f"delta must be below 1/{self.experts}; publishing one of them at random meets it"
            )

    @property
    def sampling_rate(self) -> float:
        """Probability that a step draws an expert."""
        return self.batch / self.experts

    @property
    def period(self) -> int:
        """Cyclic batches: steps from one turn of an expert to the next."""
        return -(-self.experts // self.batch)

    @property
    def participation(self) -> Poisson | Returning:
        """Who takes part in a step."""
        if self.batches == "poisson":
            return Poisson(sampling_rate=self.sampling_rate, population=self.experts)
        turns = -(-self.steps // self.period)
        return Returning(max_participations=turns, min_separation=self.period)


class DPSGDState(NamedTuple):
    """A function of releases and of public data. It can be stored, and gone on with."""

    learner: OfflineState
    average: Policy
    """Moving average of released networks."""
    made: Int[Array, ""]
    """Noisy steps made."""
    public: Transitions | tuple[()]
    """Public transitions; nothing if there are no public steps."""
    schedule: Int32[Array, " steps"]
    """Public steps after each noisy one."""


def initial_state(
    config: DPSGDExpertsConfig,
    offline: OfflineConfig,
    key: PRNGKeyArray,
    public: Transitions | tuple[()] = (),
) -> DPSGDState:
    """The state before any step.

    Args:
        config, offline: settings.
        key: of the first weights.
        public: transitions that were released, or are nobody's; needed where there are
            `public_steps`.

    Raises:
        ValueError: public steps without public transitions, or the other way round.
    """
    if bool(jax.tree.leaves(public)) != (config.public_steps > 0):
        raise ValueError("give public transitions where there are public steps, and only there")
    learner = learning.initial_state(offline, key)
    return DPSGDState(
        learner,
        learner.network,
        jnp.zeros((), jnp.int32),
        jax.tree.map(jnp.asarray, public),
        jnp.asarray(public_schedule(config)),
    )


def public_schedule(config: DPSGDExpertsConfig) -> Int32[np.ndarray, " steps"]:
    """How many public steps come after each noisy one: decided beforehand, and no function of data.

    A mixed training thus has exactly `steps` noisy steps, and that many are charged.
    """
    places_of = np.random.default_rng(config.schedule_seed).integers(
        config.steps, size=config.public_steps
    )
    return np.bincount(places_of, minlength=config.steps).astype(np.int32)


def noise_multiplier(config: DPSGDExpertsConfig, size: int, others: Sequence[Event] = ()) -> float:
    """The least multiplier of the noise for the budget.

    Args:
        config: settings.
        size: parameters of the network.
        others: events of the same ledger that the budget pays for, too.
    """

    def least(delta: float) -> float:
        return calibrate_noise_multiplier(
            lambda z: [*others, *_events(config, z)], config.epsilon, delta
        )

    met = config.steps if config.batches == "poisson" else 1

    def sampler(multiplier: float) -> float:
        return met * sampler_delta(multiplier, config.steps * size)

    return calibrate_with_sampler(least, sampler, config.delta)


_MICROBATCH = 320  # float32 sums over many more people need more noise (factored.sum_rounding)


def gradient_release(
    config: DPSGDExpertsConfig,
    offline: OfflineConfig,
    learner: OfflineLearner,
    multiplier: float,
) -> Release:
    """The release of noisy clipped gradients.

    Unit data of the door: one transition, and whether the expert has any.

    Args:
        config, offline: settings.
        learner: what is learned.
        multiplier: of the noise, from `noise_multiplier`.
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
        does_not_protect=(claims.SLOTS(),),
        assumptions=(claims.OWN_LOGS.assumption(),),
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
    noise_seed: int | None = None,
) -> tuple[Stream, DPSGDState]:
    """The open stream of gradients, one run for each ledger.

    A training that goes on from a stored state goes on with its stream, too, which was charged for
    all steps when it made the first. Steps that were charged and lost are not made again, and with
    cyclic batches, noise of the earlier process is not there any more: that is refused.

    Args:
        config, offline, learner: settings.
        ledgers: of `EXPERT`, one for each run.
        states: [runs, ...], all after the same number of steps.
        pool: the experts' log.
        multiplier: from `noise_multiplier`.
        chunk: noisy steps of one call of `advance`.
        noise_seed: for tests only; voids the certificate.

    Returns:
        The stream, and the states after as many steps as it has made.

    Raises:
        PrivacyError: the ledger holds fewer steps than the states have made, does not cover them,
            or noise is correlated and some was lost.
    """
    release = gradient_release(config, offline, learner, multiplier)
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
        noise_seed=noise_seed,
        resume=interrupted,
    )
    made = int(np.max(np.asarray(states.made)))
    if stream.released < made:
        raise LedgerOlder("the ledger", "the state to go on from", made, stream.released)
    return stream, states._replace(made=jnp.full(len(ledgers), stream.released, jnp.int32))


def advance(
    config: DPSGDExpertsConfig,
    stream: Stream,
    states: DPSGDState,
    keys: Array,
    pool: "LogPool",
    chunk: int,
) -> DPSGDState:
    """The next chunk of noisy steps, and the public ones between them.

    Args:
        config: settings.
        stream: from `open_gradients`.
        states: [runs, ...], as the last call returned them.
        keys: typed keys [runs], of minibatches of public transitions; never of noise.
        pool: the log that the stream was opened for.
        chunk: noisy steps; fewer at the end.
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
    """Whose turn it is in these steps: expert e in every step that is e modulo the period."""
    slots = -(-config.experts // config.period)
    turn = (first + np.arange(count, dtype=np.int32)) % config.period
    experts = turn[:, None] + config.period * np.arange(slots, dtype=np.int32)
    return np.where(experts < config.experts, experts, -1).astype(np.int32)


class LogPool:
    """A log of experts as the door asks for it: one transition of each expert, drawn uniformly.

    The log stays where it is, on the host; what is copied are the transitions that are drawn.
    Slots beyond the log's experts are empty.
    """

    def __init__(self, log: ExpertLog) -> None:
        self._log = log

    def draw(
        self, persons: Int[np.ndarray, " n"], generator: np.random.Generator
    ) -> tuple[Transitions, np.ndarray]:
        """One transition of each of these experts, and whether there is one (else it is any)."""
        log = self._log
        uniform = generator.random(len(persons))  # one each, whoever has nothing
        inside = (persons >= 0) & (persons < log.experts)
        experts = np.where(inside, persons, 0)
        steps = log.steps[experts]
        there = inside & (steps > 0)
        ordinals = np.minimum((uniform * steps).astype(np.int64), steps - 1)[there]
        # An expert without transitions gets the padding at their own first place.
        episodes, moments = np.zeros((2, len(persons)), np.int64)
        episodes[there], moments[there] = places(log, experts[there], ordinals)
        return transitions(log, experts, episodes, moments), there


def _server(
    config: DPSGDExpertsConfig,
    offline: OfflineConfig,
    learner: OfflineLearner,
    state: Any,
    released: Any,
) -> tuple[Any, tuple[()]]:
    """Post-processing: a step of Adam, the public steps that come next, and the average."""
    after = learning.apply_gradient(offline, learner, state.learner, released["gradient"])
    if config.public_steps:
        key = new_key(config.schedule_seed)

        def public_step(_: Any, inner: OfflineState) -> OfflineState:
            some = learning.minibatch(offline, state.public, jax.random.fold_in(key, inner.steps))
            return learning.gradient_step(offline, learner, inner, some)[0]

        after = jax.lax.fori_loop(0, state.schedule[state.made], public_step, after)
    average = learning.averaged(state.average, after.network, state.made, config.average_decay)
    return DPSGDState(after, average, state.made + 1, state.public, state.schedule), ()


def _events(config: DPSGDExpertsConfig, multiplier: float) -> list[Event]:
    if config.batches == "cyclic":
        return [Gaussian(noise_multiplier=multiplier)]
    rate, count = config.sampling_rate, config.steps
    return [SampledGaussian(noise_multiplier=multiplier, sampling_rate=rate, count=count)]
