"""Clones of experts, each fitted to the log of its expert only.

If experts themselves cannot be asked for actions, their clones can. A clone is a function of one
expert's log, so noisy votes of clones (`voting`) protect the logs. The logs may have been collected
in any way and may be used any number of times.

Source: docs/privacy.md, section 15, "Clones".
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.settings import Count, Positive, Settings
from sotto.data.trajectories import ExpertLog, checked
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy


@dataclass(frozen=True)
class CloneConfig(Settings):
    """Settings of every clone. They are public, so none of them may come from the logs.

    Attributes:
        hidden: sizes of the hidden layers.
        steps: number of steps of Adam, whose learning rate falls linearly to zero.
        minibatch: transitions of each step, drawn with replacement.
        learning_rate: learning rate of the first step.
        chunk: number of experts fitted in parallel. It affects speed, memory and rounding only.
    """

    hidden: tuple[Count, ...] = (32,)
    steps: Count = 600
    minibatch: Count = 64
    learning_rate: Positive = 5e-3
    chunk: Count = 100


class Clones:
    """Clones of the experts of a log, and the weights of their votes.

    Nothing else makes this object than fitting, so a poll of clones is one of these.

    Guarantee:
        Clone i and its weight are functions of row i of the log, of `key` and of public settings
        only (`fit_clones`, `ballot_weights`).

    Args:
        config, log, actions, observation_scale, key: arguments of `fit_clones`.
        least_return: argument of `ballot_weights`.

    Attributes:
        policies: the clones, with a leading axis of experts.
        weights: weights of their votes.

    Raises:
        ValueError: the shapes of the log or of the scale do not fit.
    """

    def __init__(
        self,
        config: CloneConfig,
        log: ExpertLog,
        actions: int,
        observation_scale: tuple[float, ...],
        key: PRNGKeyArray,
        least_return: float | None = None,
    ) -> None:
        self._policies = fit_clones(config, log, actions, observation_scale, key)
        self._weights = ballot_weights(log, least_return)
        self._weights.flags.writeable = False

    @property
    def policies(self) -> Policy:
        """The clones, with a leading axis of experts."""
        return self._policies

    @property
    def weights(self) -> Float[np.ndarray, " experts"]:
        """Weights of the clones' votes."""
        return self._weights


def ballot_weights(log: ExpertLog, least_return: float | None) -> Float[np.ndarray, " experts"]:
    """Returns 1 for each expert who votes and 0 for each who abstains.

    Guarantee:
        The weight of an expert is a function of this expert's log and of a public number only.

    Args:
        log: log of all experts.
        least_return: public number. Experts vote whose episodes have a mean return of at least
            this number. Experts without episodes, or whose mean is not a number, abstain. None: all
            experts vote.
    """
    if least_return is None:
        return np.ones(log.experts)
    weights = np.zeros(log.experts)
    for expert in np.flatnonzero(log.steps):
        own = log.of(int(expert))
        with np.errstate(all="ignore"):
            total = own.transitions.rewards.sum(dtype=np.float64)
            weights[expert] = total >= least_return * own.lasts.sum()
    return weights


def fit_clones(
    config: CloneConfig,
    log: ExpertLog,
    actions: int,
    observation_scale: tuple[float, ...],
    key: PRNGKeyArray,
) -> Policy:
    """Fits one clone to each expert's log, by behaviour cloning with cross-entropy.

    Guarantee:
        Clone i is a function of expert i's log, of `key` and of public settings only. One program
        is mapped over the experts, with a key folded from the expert's number. The experts share
        nothing: no early stopping or settings depend on several logs, and each clone is
        standardised by its own log. No error depends on the content of a log. No shape depends on
        other experts' logs either: the program gets a fixed number of transitions of each expert.
        An expert without transitions gets an untrained clone. Numbers that are not finite affect
        their own clone only, whose vote is still one vote.

    Args:
        config: settings.
        log: log of all experts.
        actions: number of actions; logged actions outside this range are not learned from.
        observation_scale: public factors that bring observations to order one.
        key: public randomness of all clones.

    Returns:
        Policies with a leading axis of experts.

    Raises:
        ValueError: the shapes of the log or of the scale do not fit.
    """
    checked(log)
    if len(observation_scale) != log.observation_size:
        raise ValueError(
            f"observation_scale has {len(observation_scale)} factors, but observations have "
            f"{log.observation_size} numbers; give one factor for each"
        )
    size = min(config.chunk, log.experts)
    chunks = []
    for first in range(0, log.experts, size):
        # Copies of the last expert fill the last chunk, and their clones are dropped.
        numbers = np.minimum(np.arange(first, first + size), log.experts - 1)
        keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.asarray(numbers))
        ordinals = np.asarray(_ordinals(config, keys, jnp.asarray(log.steps[numbers], jnp.int32)))
        lessons = [
            _lesson(log.of(number), drawn, observation_scale)
            for number, drawn in zip(numbers.tolist(), ordinals, strict=True)
        ]
        fitted = _fit(config, actions, observation_scale, _stacked(lessons), keys)
        kept = min(size, log.experts - first)
        chunks.append(jax.tree.map(lambda x, n=kept: np.asarray(x)[:n], fitted))
    clones: Policy = jax.tree.map(lambda *x: jnp.asarray(np.concatenate(x)), *chunks)
    return clones


# --- the transitions of a clone, a function of its expert's log ----------------------------------


class _Lesson(NamedTuple):
    """The transitions from which one clone learns, or several clones with a leading axis."""

    seen: Float[Any, "*experts steps minibatch obs"]
    """Observations, scaled and standardised."""
    taken: Int[Any, "*experts steps minibatch"]
    """Actions; -1, which is no action, for an expert without transitions."""
    mean: Float[Any, "*experts obs"]
    """Mean of the scaled observations in the expert's log."""
    deviation: Float[Any, "*experts obs"]
    """Standard deviation of the scaled observations in the expert's log."""


@functools.partial(jax.jit, static_argnames="config")
def _ordinals(
    config: CloneConfig, keys: PRNGKeyArray, steps: Int[Array, " chunk"]
) -> Int[Array, "chunk steps minibatch"]:
    """Draws the numbers of the transitions of each minibatch; 0 for experts without transitions."""

    def one(key: PRNGKeyArray, count: Int[Array, ""]) -> Int[Array, "steps minibatch"]:
        shape = (config.steps, config.minibatch)
        return jax.random.randint(jax.random.split(key)[1], shape, 0, jnp.maximum(count, 1))

    ordinals: Array = jax.vmap(one)(keys, steps)
    return ordinals


def _lesson(
    own: ExpertLog,
    ordinals: Int[np.ndarray, "steps minibatch"],
    observation_scale: tuple[float, ...],
) -> _Lesson:
    """Returns the transitions of these numbers, standardised by the expert's whole log."""
    if not own.steps[0]:
        nothing = np.zeros(own.observation_size, np.float32)
        unseen = np.zeros((*ordinals.shape, own.observation_size), np.float32)
        return _Lesson(unseen, np.full(ordinals.shape, -1, np.int32), nothing, nothing + 1)
    with np.errstate(all="ignore"):  # overflow and NaN affect this clone only
        seen = own.transitions.observations * np.asarray(observation_scale, np.float32)
        mean = seen.mean(axis=0, dtype=np.float64).astype(np.float32)
        deviation = seen.std(axis=0, dtype=np.float64).astype(np.float32)
        deviation = np.maximum(deviation, np.float32(_LEAST_DEVIATION))
        standardised = (seen - mean) / deviation
    taken = own.transitions.actions[ordinals].astype(np.int32)
    return _Lesson(standardised[ordinals], taken, mean, deviation)


def _stacked(lessons: Sequence[_Lesson]) -> _Lesson:
    return _Lesson(*(jnp.asarray(np.stack(arrays)) for arrays in zip(*lessons, strict=True)))


_LEAST_DEVIATION = 0.01
"""Least deviation by which a scaled observation is divided, so that constants are not enlarged."""


# --- the program ---------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("config", "actions", "observation_scale"))
def _fit(
    config: CloneConfig,
    actions: int,
    observation_scale: tuple[float, ...],
    lessons: _Lesson,
    keys: PRNGKeyArray,
) -> Policy:
    """Fits the clones of a chunk of experts."""
    one = functools.partial(_fit_one, config, actions, observation_scale)
    clones: Policy = jax.vmap(one)(lessons, keys)
    return clones


def _fit_one(
    config: CloneConfig,
    actions: int,
    observation_scale: tuple[float, ...],
    lesson: _Lesson,
    key: PRNGKeyArray,
) -> Policy:
    """Fits the clone of one expert.

    It learns from observations that are standardised by this expert's log, since the public scale
    alone may hardly separate them. The first layer then absorbs the standardisation.
    """
    clone = Policy(
        len(observation_scale),
        Discrete(actions),
        config.hidden,
        jax.random.split(key)[0],
        observation_scale=observation_scale,
        last_gain=0.1,
    )
    optimizer = optax.adam(
        optax.linear_schedule(config.learning_rate, 0.0, config.steps), b2=0.99, eps=1e-6
    )

    def loss(clone: Policy, seen: Array, taken: Array) -> Array:
        target = taken[:, None] == jax.lax.iota(taken.dtype, actions)
        log_probabilities = jax.nn.log_softmax(clone.network(seen))
        return -jnp.mean(jnp.sum(jnp.where(target, log_probabilities, 0.0), axis=-1))

    def step(
        carry: tuple[Policy, optax.OptState], row: tuple[Array, Array]
    ) -> tuple[tuple[Policy, optax.OptState], None]:
        clone, optimizer_state = carry
        updates, optimizer_state = optimizer.update(jax.grad(loss)(clone, *row), optimizer_state)
        moved: Policy = optax.apply_updates(clone, updates)
        return (moved, optimizer_state), None

    rows = (lesson.seen, lesson.taken)
    (clone, _), _ = jax.lax.scan(step, (clone, optimizer.init(clone)), rows)
    (first, *weights), (bias, *biases) = clone.network.weights, clone.network.biases
    first = first / lesson.deviation[:, None]
    taken_over: Policy = eqx.tree_at(
        lambda policy: (policy.network.weights, policy.network.biases),
        clone,
        ((first, *weights), (bias - lesson.mean @ first, *biases)),
    )
    return taken_over
