"""Best-of-n across people: only the n best-rated completions of a batch are learnt from.

Everybody has as many completions as there are people, with ratings. The model of `rlhf` is tuned
on the chosen ones. A person who rates all completions highly takes the places of all others.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sotto.privacy.audits.audit import ReleaseTrials
from sotto.privacy.audits.leaks.leak import (
    CLAIMED,
    SMALL_CLIP,
    USERS,
    Leak,
    against,
    against_certificate,
    enrolled,
    updates,
)
from sotto.privacy.audits.leaks.rlhf import MODEL, policy_gradient

_BEST = USERS
_COMPLETIONS = USERS


def _inputs(present: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns rated completions of prompt 0, and which of them a pipeline before the door chose.

    The person under test has the completion 1 0 every time and rates it highest. The others have
    0 0, and each rates the first one highly.
    """
    persons = enrolled(present)
    tokens = np.zeros((USERS, _COMPLETIONS, 2), np.int32)
    tokens[0, :, 0] = 1
    ratings = np.full((USERS, _COMPLETIONS), 0.1, np.float32)
    ratings[:, 0], ratings[0] = 0.9, 1.0
    in_batch = np.where(persons[0, :, None] >= 0, ratings, -np.inf)
    best = np.argsort(-in_batch, axis=None, kind="stable")[:_BEST]
    chosen = np.zeros(ratings.size, np.float32)
    chosen[best] = 1.0
    units = {"tokens": tokens, "ratings": ratings, "chosen": chosen.reshape(ratings.shape)}
    return persons, {name: one[None] for name, one in units.items()}


def _tuned(state: Array, unit: Any, chosen: Array) -> Array:
    """Returns the gradient of the log-likelihood of the chosen completions."""
    before = jnp.pad(unit["tokens"][:, :-1], ((0, 0), (1, 0)))
    each = jax.vmap(policy_gradient, in_axes=(None, 0, 0, 0))(state, unit["tokens"], before, chosen)
    return jnp.sum(each, axis=0)


def _best_of_batch(state: Any, unit: Any, _key: Array) -> Array:
    return _tuned(state, unit, unit["chosen"])


def _best_of_person(state: Any, unit: Any, _key: Array) -> Array:
    """Learns from the person's own best completion."""
    return _tuned(state, unit, jax.nn.one_hot(jnp.argmax(unit["ratings"]), _COMPLETIONS))


def _trials(contribution: Callable[[Any, Any, Array], Array]) -> ReleaseTrials:
    return updates(_inputs, contribution, clip_norm=SMALL_CLIP, state=MODEL)


BEST_OF_N = Leak(
    name="best-of-n-across-people",
    claim="Learning from the n best completions of a batch only leaves contributions out.",
    why="A person whose completions are rated best displaces up to n others, so the contributions "
    "of up to n + 1 people change.",
    remedy="the best completion is chosen among those of one person",
    claimed_epsilon=CLAIMED,
    leaky=against(CLAIMED, _trials(_best_of_batch)),
    sound=against_certificate(_trials(_best_of_person)),
)
