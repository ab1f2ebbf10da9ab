"""The best linear policy for logs with one step, learnt from one release.

Each action has a ridge regression of the centred reward y on public features f of the observation,
with |f| <= 1. A person contributes f f^T and f y to the tables of the action that was taken:
sufficient statistics with noise, as in AdaSSP (Wang 2018, "Revisiting differentially private linear
regression", Algorithm 2), here with a ridge that is a public function of the noise. The policy
takes the action with the largest prediction.

Guarantee:
    See `sotto.privacy.release.release`. A person changes the tables of one action. The entries of
    f f^T on and above the diagonal, where those above count sqrt(2)-fold, have norm |f|^2 <= 1.
    The norm of f y is at most 1.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.calibration import gaussian_multiplier
from sotto.algorithms.evaluation.persons import PersonLog
from sotto.algorithms.evaluation.policies import Linear
from sotto.algorithms.evaluation.release import Spending, about_a_log
from sotto.algorithms.log_release import through_the_door
from sotto.data.imports.declaration import Declaration
from sotto.privacy.claims import logs as claims
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part

_RIDGE = 2.0
"""Ridge in standard deviations of the noise in a table times the root of its size. The largest
eigenvalue of the noise is about sqrt(2) of these (Wigner)."""


Local = Callable[..., tuple[dict[str, Array], tuple[()]]]
"""Type of a function of public state, one person's log and a key."""


class Scaling(NamedTuple):
    """Public middle and half-width of each number in an observation."""

    middle: Float[Array, " obs"]
    half_width: Float[Array, " obs"]

    @classmethod
    def of(cls, declaration: Declaration) -> "Scaling":
        """Returns the scaling that follows from the declared bounds."""
        box = declaration.observation_space
        low, high = np.asarray(box.low, np.float64), np.asarray(box.high, np.float64)
        return cls(
            jnp.asarray((low + high) / 2, jnp.float32), jnp.asarray((high - low) / 2, jnp.float32)
        )


def learn(
    declaration: Declaration,
    people: PersonLog,
    ledger: Ledger,
    spending: Spending,
) -> Linear:
    """Returns the policy that one release about these people gives.

    Args:
        declaration: public facts about the log, which must have one step and discrete actions.
        people: the log, with a leading axis of places.
        ledger: charged before the release is made.
        spending: target of the release.

    Raises:
        ValueError: the log has several steps for a person.
        PrivacyError: the budget does not cover the release.
    """
    if declaration.horizon > 1:
        raise ValueError(
            "a linear policy is learnt from logs with one step for each person, and this log may "
            f"have {declaration.horizon}; train one with sotto train expert-offline"
        )
    noise = multiplier(declaration, spending)
    release = Release(
        name="linear policy by ridge regression",
        local=contribution_for(declaration),
        parts={
            "tables": Part(clip_norm=1.0, noise_multiplier=noise),
            "targets": Part(clip_norm=1.0, noise_multiplier=noise),
        },
        protects=(claims.LEARNED_POLICY(),),
        **about_a_log(declaration, len(people.present)),
    )
    found = through_the_door(release, ledger, Scaling.of(declaration), people, 0)
    return solved(declaration, found["tables"], found["targets"], ridge(declaration, noise))


def multiplier(declaration: Declaration, spending: Spending) -> float:
    """Returns the noise multiplier of tables and targets, which meet the target together."""
    actions, size = _sizes(declaration)
    together = gaussian_multiplier(
        spending.epsilon, spending.delta, draws=actions * (size * (size + 1) // 2 + size)
    )
    return math.sqrt(2) * together


def ridge(declaration: Declaration, noise: float) -> float:
    """Returns the number that is added to the diagonal, a public function of the noise."""
    return _RIDGE * noise * math.sqrt(_sizes(declaration)[1])


def contribution_for(declaration: Declaration) -> Local:
    """Returns the function that computes one person's tables and targets."""
    return partial(_local, declaration.reward_bounds, _sizes(declaration)[0])


def solved(
    declaration: Declaration,
    tables: Float[np.ndarray, "actions upper"],
    targets: Float[np.ndarray, "actions features"],
    added: float,
) -> Linear:
    """Returns the policy of these sums.

    Args:
        declaration: public facts about the log.
        tables: sums of f f^T on and above the diagonal, those above times sqrt(2).
        targets: sums of f y.
        added: number that is added to the diagonal.
    """
    actions, size = _sizes(declaration)
    rows, columns = np.triu_indices(size)
    coefficients = np.zeros((actions, size))
    for action in range(actions):
        table = np.zeros((size, size))
        table[rows, columns] = tables[action] / np.where(rows == columns, 1, math.sqrt(2))
        table = table + np.triu(table, 1).T
        sizes, vectors = np.linalg.eigh(table)
        sizes = np.maximum(sizes, 0) + added  # noise can make eigenvalues negative
        coefficients[action] = vectors @ ((vectors.T @ targets[action]) / sizes)
    scaling = Scaling.of(declaration)
    each = math.sqrt(2 * (size - 1)) * np.float64(scaling.half_width)
    weights = coefficients[:, 1:] / each
    bias = coefficients[:, 0] / math.sqrt(2) - weights @ np.float64(scaling.middle)
    return Linear(jnp.asarray(weights, jnp.float32), jnp.asarray(bias, jnp.float32))


def _sizes(declaration: Declaration) -> tuple[int, int]:
    """Returns the number of actions and of features."""
    space = declaration.action_space
    if not declaration.discrete:
        raise ValueError("a linear policy needs actions that are categories")
    return int(space.n), 1 + declaration.observation_size


def _local(
    bounds: tuple[float, float],
    actions: int,
    public: Scaling,
    person: PersonLog,
    key: PRNGKeyArray,
) -> tuple[dict[str, Array], tuple[()]]:
    """Returns the tables of one person; those without a step contribute zero."""
    del key
    scaled = jnp.clip((person.observations[0] - public.middle) / public.half_width, -1, 1)
    size = 1 + len(scaled)
    features = jnp.concatenate([jnp.ones(1), scaled / math.sqrt(size - 1)]) / math.sqrt(2)
    low, high = bounds
    reward = jnp.clip((2 * person.rewards[0] - low - high) / (high - low), -1, 1)
    taken = (person.actions[0] == jnp.arange(actions)) & person.present[0]
    upper = [
        features[i : i + 1] * features[i:] * jnp.where(jnp.arange(size - i) == 0, 1, math.sqrt(2))
        for i in range(size)
    ]
    chosen = taken.astype(jnp.float32)[:, None]
    return {
        "tables": chosen * jnp.concatenate(upper),
        "targets": chosen * features * reward,
    }, ()
