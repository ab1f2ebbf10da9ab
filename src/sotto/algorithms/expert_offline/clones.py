"""Clones of experts: each is fitted to the log of its own expert, and to nothing else.

Where experts cannot be asked what they would do, their clones can: a clone is a function of one
expert's log, so that noisy votes of clones (`voting`) protect the logs as they are, collected
beforehand and used as often as one likes.

Source: theory notes, section 1, "Behaviour clones"; docs/privacy.md, section 15.
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
    """Settings of every clone. They are public: none may come from the logs.

    Attributes:
        hidden: hidden layers.
        steps: of Adam, its learning rate going linearly to zero.
        minibatch: transitions in each step, drawn with replacement.
        learning_rate: at the first step.
        chunk: experts fitted side by side; it changes speed, memory and rounding alone.
    """

    hidden: tuple[Count, ...] = (32,)
    steps: Count = 600
    minibatch: Count = 64
    learning_rate: Positive = 5e-3
    chunk: Count = 100


def fit_clones(
    config: CloneConfig,
    log: ExpertLog,
    actions: int,
    observation_scale: tuple[float, ...],
    key: PRNGKeyArray,
) -> Policy:
    """One clone per expert, by behaviour cloning: cross-entropy to the logged actions.

    Guarantee:
        The i-th clone is a function of the i-th row of the log, of `key` and of public settings:
        one program is mapped over experts, whose rows do not meet, with a key folded from the
        expert's number. Nothing is shared (no common early stopping or choice of settings, and
        every clone is standardised by its own log), and nothing raises because of what an expert
        did. Neither does a shape change: what the program gets of an expert are as many
        transitions as the settings say, so that how long the others' episodes are, and hence how
        far this one's are padded, is nowhere in it. An expert without transitions gets a clone
        that was not trained; what is not finite in a log is in its own clone only, whose vote
        stays one vote.

    Args:
        config: settings.
        log: of all experts.
        actions: how many there are; a logged action that is none of them is not learnt from.
        observation_scale: public factors that bring observations to order one.
        key: public randomness of all clones.

    Returns:
        Policies with a leading axis of experts.

    Raises:
        ValueError: shapes of the log, or of the scale, do not fit.
    """
    checked(log)
    if len(observation_scale) != log.observation_size:
        raise ValueError(
            f"observation_scale has {len(observation_scale)} factors for "
            f"{log.observation_size} observations; give one each"
        )
    size = min(config.chunk, log.experts)
    chunks = []
    for first in range(0, log.experts, size):
        # The last chunk is filled up with its own last rows, whose clones are dropped.
        numbers = np.minimum(np.arange(first, first + size), log.experts - 1)
        keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.asarray(numbers))
        ordinals = np.asarray(_ordinals(config, keys, jnp.asarray(log.steps[numbers], jnp.int32)))
        lessons = [
            _lesson(log, number, drawn, observation_scale)
            for number, drawn in zip(numbers.tolist(), ordinals, strict=True)
        ]
        fitted = _fit(config, actions, observation_scale, _stacked(lessons), keys)
        kept = min(size, log.experts - first)
        chunks.append(jax.tree.map(lambda x, n=kept: np.asarray(x)[:n], fitted))
    clones: Policy = jax.tree.map(lambda *x: jnp.asarray(np.concatenate(x)), *chunks)
    return clones


# --- what a clone learns from, a function of its own expert's log --------------------------------


class _Lesson(NamedTuple):
    """One expert's transitions as they are learnt from, or several experts' with another axis."""

    seen: Float[Any, "*experts steps minibatch obs"]
    """Standardised."""
    taken: Int[Any, "*experts steps minibatch"]
    """Actions; -1, which is none, for an expert without transitions."""
    mean: Float[Any, "*experts obs"]
    deviation: Float[Any, "*experts obs"]
    """What observations, scaled, were standardised by."""


@functools.partial(jax.jit, static_argnames="config")
def _ordinals(
    config: CloneConfig, keys: PRNGKeyArray, steps: Int[Array, " chunk"]
) -> Int[Array, "chunk steps minibatch"]:
    """Which of an expert's transitions are learnt from; 0 where there are none."""

    def one(key: PRNGKeyArray, count: Int[Array, ""]) -> Int[Array, "steps minibatch"]:
        shape = (config.steps, config.minibatch)
        return jax.random.randint(jax.random.split(key)[1], shape, 0, jnp.maximum(count, 1))

    ordinals: Array = jax.vmap(one)(keys, steps)
    return ordinals


def _lesson(
    log: ExpertLog,
    expert: int,
    ordinals: Int[np.ndarray, "steps minibatch"],
    observation_scale: tuple[float, ...],
) -> _Lesson:
    """The transitions of these numbers, standardised by all of this expert's.

    The expert's steps are taken out of the padding first: a sum over padding as well would be
    rounded otherwise where another expert's episodes are longer.
    """
    lived = np.arange(log.cap) < log.lengths[expert][:, None]
    seen = log.observations[expert, :, :-1][lived]
    if len(seen) == 0:
        nothing = np.zeros(log.observation_size, np.float32)
        unseen = np.zeros((*ordinals.shape, log.observation_size), np.float32)
        return _Lesson(unseen, np.full(ordinals.shape, -1, np.int32), nothing, nothing + 1)
    with np.errstate(all="ignore"):  # what is too large, or no number, is this clone's own affair
        own = seen * np.asarray(observation_scale, np.float32)
        mean = own.mean(axis=0, dtype=np.float64).astype(np.float32)
        deviation = own.std(axis=0, dtype=np.float64).astype(np.float32)
        deviation = np.maximum(deviation, np.float32(_LEAST_DEVIATION))
        standardised = (own - mean) / deviation
    taken = log.actions[expert][lived]
    return _Lesson(standardised[ordinals], taken[ordinals].astype(np.int32), mean, deviation)


def _stacked(lessons: Sequence[_Lesson]) -> _Lesson:
    return _Lesson(*(jnp.asarray(np.stack(arrays)) for arrays in zip(*lessons, strict=True)))


_LEAST_DEVIATION = 0.01
"""Of an observation, after the public scale; one that hardly moves is not blown up."""


# --- the program ---------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("config", "actions", "observation_scale"))
def _fit(
    config: CloneConfig,
    actions: int,
    observation_scale: tuple[float, ...],
    lessons: _Lesson,
    keys: PRNGKeyArray,
) -> Policy:
    """The clones of a chunk of experts."""
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
    """The clone of one expert.

    It learns from observations standardised by this expert's own log, which its first layer then
    takes over: episodes that differ little look alike to public scales.
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
