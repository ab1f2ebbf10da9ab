"""Distillation of votes: fits a student to estimated shares of votes by cross-entropy.

The student reads public and released values only, so it costs no privacy (`voting`).

Source: Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network".
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.settings import Count, NotNegative, Positive, Settings
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy


@dataclass(frozen=True)
class DistillationConfig(Settings):
    """Settings of the student, which are public.

    Attributes:
        hidden: sizes of the hidden layers.
        steps: number of steps of AdamW, with a cosine decay of the learning rate to zero.
        minibatch: labelled states of each step, drawn with replacement.
        learning_rate: learning rate of the first step.
        weight_decay: decoupled weight decay, which is multiplied by the learning rate.
    """

    hidden: tuple[Count, ...] = (64, 64)
    steps: Count = 1500
    minibatch: Count = 256
    learning_rate: Positive = 3e-3
    weight_decay: NotNegative = 1e-3


@functools.partial(jax.jit, static_argnames=("config", "observation_scale"))
def distil(
    config: DistillationConfig,
    observation_scale: tuple[float, ...],
    observations: Float[Array, "n obs"],
    labels: Float[Array, "n actions"],
    filled: Int[Array, ""] | int,
    key: PRNGKeyArray,
    first: Policy | None = None,
) -> Policy:
    """Fits a student to the first `filled` labelled states. `vmap` it over keys for seeds.

    Args:
        config: settings.
        observation_scale: public factors that bring observations to order one.
        observations: states before scaling.
        labels: distributions over actions, one for each state.
        filled: number of rows in use, at least 1.
        key: randomness of the initial weights and of the minibatches.
        first: public policy from which the student starts; None draws its weights.
    """
    student_key, batch_key = jax.random.split(key)
    if first is None:
        student = Policy(
            observations.shape[-1],
            Discrete(labels.shape[-1]),
            config.hidden,
            student_key,
            observation_scale=observation_scale,
        )
    else:
        student = first
    schedule = optax.cosine_decay_schedule(config.learning_rate, config.steps)
    optimizer = optax.adamw(schedule, weight_decay=config.weight_decay)
    chosen = jax.random.randint(batch_key, (config.steps, config.minibatch), 0, filled)

    def step(
        carry: tuple[Policy, optax.OptState], rows: Int[Array, " b"]
    ) -> tuple[tuple[Policy, optax.OptState], None]:
        student, optimizer_state = carry
        gradients = jax.grad(cross_entropy)(student, observations[rows], labels[rows])
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, student)
        moved: Policy = optax.apply_updates(student, updates)
        return (moved, optimizer_state), None

    (student, _), _ = jax.lax.scan(step, (student, optimizer.init(student)), chosen)
    return student


def cross_entropy(
    student: Policy, observations: Float[Array, "b obs"], labels: Float[Array, "b actions"]
) -> Float[Array, ""]:
    """Returns the mean cross-entropy of the student's distribution to the labels, in nats."""
    logits = student(observations).logits  # type: ignore[union-attr]
    return -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1))
