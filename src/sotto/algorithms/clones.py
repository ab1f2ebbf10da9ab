"""Clones of experts: each is fitted to the log of its own expert, and to nothing else.

Where experts cannot be asked what they would do, their clones can: a clone is a function of one
expert's log, so that noisy votes of clones (`voting`) protect the logs as they are, collected
beforehand and used as often as one likes.

Source: theory notes, section 1, "Behaviour clones"; docs/privacy.md, section 15.
"""

import functools
import math
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.data.trajectories import ExpertLog, checked
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy, scaled


@dataclass(frozen=True)
class CloneConfig:
    """Settings of every clone. They are public: none may come from the logs.

    Attributes:
        hidden: hidden layers.
        steps: of Adam, its learning rate going linearly to zero.
        minibatch: transitions in each step, drawn with replacement.
        learning_rate: at the first step.
        chunk: experts fitted side by side; it changes speed, memory and rounding alone.
    """

    hidden: tuple[int, ...] = (32,)
    steps: int = 600
    minibatch: int = 64
    learning_rate: float = 5e-3
    chunk: int = 100

    def __post_init__(self) -> None:
        """Refuses settings that cannot learn."""
        if min(self.steps, self.minibatch, self.chunk) < 1:
            raise ValueError("steps, minibatch and chunk of clones must be at least 1")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(
                f"the learning rate must be positive and finite, got {self.learning_rate:g}"
            )


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
        every clone is standardised by its own log), nothing raises and no shape changes because of
        what an expert did. An expert without transitions gets a clone that was not trained; what
        is not finite in a log is in its own clone only, whose vote stays one vote.

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
        rows = log.select(numbers)
        fitted = _fit(
            config,
            actions,
            observation_scale,
            jnp.asarray(rows.observations),
            jnp.asarray(rows.actions),
            jnp.asarray(rows.lengths),
            jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.asarray(numbers)),
        )
        kept = min(size, log.experts - first)
        chunks.append(jax.tree.map(lambda x, n=kept: np.asarray(x)[:n], fitted))
    clones: Policy = jax.tree.map(lambda *x: jnp.asarray(np.concatenate(x)), *chunks)
    return clones


@functools.partial(jax.jit, static_argnames=("config", "actions", "observation_scale"))
def _fit(
    config: CloneConfig,
    actions: int,
    observation_scale: tuple[float, ...],
    observations: Float[Array, "chunk N T1 obs"],
    taken: Int[Array, "chunk N T"],
    lengths: Int[Array, "chunk N"],
    keys: PRNGKeyArray,
) -> Policy:
    """The clones of a chunk of experts."""
    one = functools.partial(_fit_one, config, actions, observation_scale)
    clones: Policy = jax.vmap(one)(observations, taken, lengths, keys)
    return clones


def _fit_one(
    config: CloneConfig,
    actions: int,
    observation_scale: tuple[float, ...],
    observations: Float[Array, "N T1 obs"],
    taken: Int[Array, "N T"],
    lengths: Int[Array, " N"],
    key: PRNGKeyArray,
) -> Policy:
    """The clone of one expert, from their episodes.

    It learns from observations standardised by this expert's own log, which its first layer then
    takes over: episodes that differ little look alike to public scales.
    """
    start_key, draw_key = jax.random.split(key)
    clone = Policy(
        observations.shape[-1],
        Discrete(actions),
        config.hidden,
        start_key,
        observation_scale=observation_scale,
        last_gain=0.1,
    )
    optimizer = optax.adam(
        optax.linear_schedule(config.learning_rate, 0.0, config.steps), b2=0.99, eps=1e-6
    )
    ends = jnp.cumsum(lengths)
    shape = (config.steps, config.minibatch)
    drawn = jax.random.randint(draw_key, shape, 0, jnp.maximum(ends[-1], 1))
    episodes = jnp.minimum(jnp.searchsorted(ends, drawn, side="right"), len(lengths) - 1)
    times = drawn - (ends - lengths)[episodes]
    # An expert without transitions has no targets, and hence no gradient.
    targets = jnp.where(
        (drawn < ends[-1])[..., None],
        taken[episodes, times][..., None] == jax.lax.iota(taken.dtype, actions),
        False,
    )

    inputs = scaled(observations, observation_scale)
    mean, deviation = _moments(inputs[:, :-1], lengths)

    def loss(clone: Policy, seen: Array, target: Array) -> Array:
        logits = clone.network((seen - mean) / deviation)
        return -jnp.mean(jnp.sum(jnp.where(target, jax.nn.log_softmax(logits), 0.0), axis=-1))

    def step(
        carry: tuple[Policy, optax.OptState], row: tuple[Array, Array, Array]
    ) -> tuple[tuple[Policy, optax.OptState], None]:
        clone, optimizer_state = carry
        episode, time, target = row
        gradients = jax.grad(loss)(clone, inputs[episode, time], target)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        moved: Policy = optax.apply_updates(clone, updates)
        return (moved, optimizer_state), None

    (clone, _), _ = jax.lax.scan(step, (clone, optimizer.init(clone)), (episodes, times, targets))
    (first, *weights), (bias, *biases) = clone.network.weights, clone.network.biases
    first = first / deviation[:, None]
    taken_over: Policy = eqx.tree_at(
        lambda policy: (policy.network.weights, policy.network.biases),
        clone,
        ((first, *weights), (bias - mean @ first, *biases)),
    )
    return taken_over


_LEAST_DEVIATION = 0.01
"""Of an observation, after the public scale; one that hardly moves is not blown up."""


def _moments(
    inputs: Float[Array, "N T obs"], lengths: Int[Array, " N"]
) -> tuple[Float[Array, " obs"], Float[Array, " obs"]]:
    """Mean and standard deviation over the steps of episodes."""
    lived = jax.lax.broadcasted_iota(lengths.dtype, inputs.shape[:2], 1) < lengths[:, None]
    count = jnp.maximum(jnp.sum(lived), 1)

    def average(values: Float[Array, "N T obs"]) -> Float[Array, " obs"]:
        return jnp.sum(jnp.where(lived[..., None], values, 0.0), axis=(0, 1)) / count

    mean = average(inputs)
    deviation = jnp.sqrt(average(jnp.square(inputs - mean)))
    return mean, jnp.where(jnp.any(lived), jnp.maximum(deviation, _LEAST_DEVIATION), 1.0)
