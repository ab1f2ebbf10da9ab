"""A model of people in cells, and what corrects values by it. All is computed from one release.

Noisy tables give a model of people in the cells (`Chain`). In it a policy has returns Q_t, and a
ratio omega_t of the probabilities with which the policy and the log visit a cell at step t. Other
people then correct Q by its errors on their own steps, weighted by omega_t (double reinforcement
learning; Kallus and Uehara 2020).

The value is exact if Q or omega is right. Otherwise the product of their errors remains.
`errors_of_tables` estimates it: it draws tables anew from a model that the tables give, with new
people and new noise, and computes the error that each of them would make there. It is an estimate
and no bound. Where cells are not Markov, or one step is unlike many others, it is too small.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sotto.algorithms.evaluation.cells import Cells, Correction
from sotto.privacy.mechanisms.dirichlet.simplex import project

_REDRAWN = 100
"""Tables that are drawn anew."""
_LESS = 0.1
"""Shrinkage of the model from which tables are drawn anew, over that of the model that is used.
Less shrinkage leaves more of the noise in the model."""


class Tables(NamedTuple):
    """Released tables of T steps, S cells and A actions; the next cell S is to be gone."""

    visits: Float[np.ndarray, "T S A S+1"]
    """People who are in a cell at a step, take an action, and come to the next cell."""
    rewards: Float[np.ndarray, "T S A"]
    """Sums of rewards, which are scaled to be from -1 to 1."""
    starts: Float[np.ndarray, " S+1"]
    """People whose first step is in a cell, and those who are gone before the last step."""


class TableFacts(NamedTuple):
    """Public facts with which tables are read.

    Attributes:
        noise: standard deviation of the noise in a number of each table.
        rewards: bounds of a reward.
        discount: factor of later rewards.
    """

    noise: dict[str, float]
    rewards: tuple[float, float]
    discount: float


class Kept(NamedTuple):
    """Shares of the differences between steps that a model keeps."""

    moves: float
    rewards: float


class Chain(NamedTuple):
    """A model of people in the cells."""

    starts: Float[np.ndarray, " S"]
    behaviour: Float[np.ndarray, "T S A"]
    """Probabilities of actions in the log."""
    moves: Float[np.ndarray, "T S A S+1"]
    """Probabilities of the next cell. Those of the last step are not used."""
    rewards: Float[np.ndarray, "T S A"]
    """Mean rewards, scaled to be from -1 to 1."""
    kept: Kept


def people_in(tables: Tables) -> float:
    """Returns the noisy number of people in the tables, at least 1."""
    return max(float(np.sum(tables.starts[:-1])), 1.0)


def chain_of(
    tables: Tables, facts: TableFacts, less: float = 1.0, kept: Kept | None = None
) -> Chain:
    """Returns the model that the tables give.

    Probabilities of a cell and an action are shrunk to those of the cell, and these to those of all
    cells, by as many people as the noise is large. Tables of single steps are shrunk to the pooled
    ones by as much as the noise and sampling explain their differences (James and Stein 1961). A
    person leaves once, so the number of those who left is known better than its parts, which are
    made to add up to it.

    Args:
        tables: the released tables.
        facts: public facts.
        less: factor of the shrinkage.
        kept: share of the differences between steps that is kept. None: as the tables say.
    """
    steps, cells, actions, after = tables.visits.shape
    early = tables.visits[: max(steps - 1, 1)]  # nobody is seen after the last step
    pooled, noise = early.sum(axis=0), facts.noise["visits"]
    prior = less * noise * np.sqrt(len(early) * after)
    left = project(pooled[..., -1].ravel(), np.maximum(tables.starts[-1:], 0))
    left = left.reshape(cells, actions, 1)
    pooled = np.concatenate([_projected(pooled[..., :-1]), left], axis=-1)
    anywhere = _share(pooled.sum(axis=(0, 1)), 1e-9)
    own = _shrunk(pooled.sum(axis=1), anywhere, prior)
    moves = _shrunk(pooled, own[:, None], prior)
    behaviour = _shrunk(pooled.sum(axis=-1), np.full(actions, 1 / actions), prior)
    joint = behaviour[..., None] * moves
    leaving = np.sum(early, axis=-1, keepdims=True) * moves[..., -1:]
    early = np.concatenate([early[..., :-1], leaving], axis=-1)
    here = early.sum(axis=(2, 3))[..., None, None]
    spread = noise**2 * (1 - 2 * joint + joint**2 * actions * after)
    spread = spread + np.maximum(here, 0) * joint * (1 - joint)
    moved = _kept(early - here * joint, spread) if kept is None else kept.moves
    rewards, gained = _rewards(tables, facts, less, kept)
    known = moved * _certain(here, noise * np.sqrt(actions * after))
    flat = _projected(early.reshape(len(early), cells, -1)).reshape(early.shape)
    single = (1 - known) * joint + known * flat / np.maximum(flat.sum((2, 3), keepdims=True), 1e-9)
    single = np.concatenate([single, single[-1:]])[:steps]
    each = np.maximum(single.sum(axis=-1), 1e-12)
    return Chain(
        starts=_share(_projected(tables.starts[:-1]), 1e-9),
        behaviour=each / each.sum(axis=-1, keepdims=True),
        moves=single / single.sum(axis=-1, keepdims=True).clip(1e-12),
        rewards=rewards,
        kept=Kept(moved, gained),
    )


def _rewards(
    tables: Tables, facts: TableFacts, less: float, kept: Kept | None
) -> tuple[Float[np.ndarray, "T S A"], float]:
    steps, _, _, after = tables.visits.shape
    visits, noise = tables.visits.sum(axis=-1), facts.noise["rewards"]
    total, taken = tables.rewards.sum(axis=0), np.maximum(visits.sum(axis=0), 0)
    prior = less * noise * np.sqrt(steps)
    mean = np.clip(total.sum() / max(taken.sum(), prior, 1e-9), -1, 1)
    own = (total.sum(axis=1) + prior * mean) / (taken.sum(axis=1) + prior + 1e-9)
    pooled = np.clip((total + prior * own[:, None]) / (taken + prior + 1e-9), -1, 1)
    of_visits = facts.noise["visits"] * np.sqrt(after)
    spread = noise**2 + (pooled * of_visits) ** 2 + np.maximum(visits, 0) * (1 - pooled**2)
    gained = _kept(tables.rewards - visits * pooled, spread) if kept is None else kept.rewards
    single = np.clip(tables.rewards / np.maximum(visits, 1.0), -1, 1)
    known = gained * _certain(visits, noise + of_visits)
    return pooled + known * (single - pooled), gained


def _kept(differences: np.ndarray, spread: np.ndarray) -> float:
    """Returns the share of the differences between steps that noise and sampling do not explain."""
    steps = len(differences)
    if steps == 1:
        return 0.0
    expected = (1 - 1 / steps) * np.broadcast_to(spread, differences.shape).sum()
    return float(max(0.0, 1 - expected / max(np.sum(differences**2), 1e-9)))


def _certain(counts: np.ndarray, noise: float) -> np.ndarray:
    found: np.ndarray = np.maximum(counts, 0) / (np.maximum(counts, 0) + noise + 1e-9)
    return found


def _shrunk(counts: np.ndarray, towards: np.ndarray, prior: float) -> np.ndarray:
    """Returns shares along the last axis, as if `prior` more people had the shares `towards`."""
    return _share(counts + (prior + 1e-9) * towards, 0.0)


def _share(counts: np.ndarray, added: float) -> np.ndarray:
    found: np.ndarray = (counts + added) / np.sum(counts + added, axis=-1, keepdims=True)
    return found


def _projected(counts: np.ndarray) -> np.ndarray:
    """Returns the nearest counts that are not negative and have the same sum, at least 0."""
    return project(counts, np.maximum(counts.sum(axis=-1, keepdims=True), 0))


def returns_in(
    chain: Chain, probabilities: Float[np.ndarray, "S A"], facts: TableFacts
) -> Float[np.ndarray, "T S A"]:
    """Returns the policy's return from each step on, by dynamic programming in the model."""
    low, high = facts.rewards
    means = low + (chain.rewards + 1) / 2 * (high - low)
    found, later = np.zeros_like(means), np.zeros(len(probabilities) + 1)
    for step in reversed(range(len(means))):
        found[step] = means[step] + facts.discount * chain.moves[step] @ later
        later[:-1] = np.sum(probabilities * found[step], axis=-1)
    return found


def visited(chain: Chain, probabilities: Float[np.ndarray, "T S A"]) -> Float[np.ndarray, "T S+1"]:
    """Returns the probability of each cell, and of being gone, at each step of the model."""
    found = np.zeros((len(probabilities), len(chain.starts) + 1))
    found[0, :-1] = chain.starts
    for step in range(len(found) - 1):
        there = found[step, :-1, None] * probabilities[step]
        found[step + 1] = np.einsum("sa,san->n", there, chain.moves[step])
        found[step + 1, -1] += found[step, -1]
    return found


def correction_of(
    tables: Tables, facts: TableFacts, probabilities: Float[np.ndarray, "S A"], chain: Chain
) -> tuple[Float[np.ndarray, "T S A"], Float[np.ndarray, "T S+1"]]:
    """Returns the returns and the ratios of a policy, which takes these actions in the cells.

    Ratios are shrunk to 1 by the share of people that the noise in a pooled count amounts to.
    """
    steps, _, _, after = tables.visits.shape
    floor = facts.noise["visits"] * np.sqrt(after / steps) / people_in(tables)
    ours = visited(chain, np.broadcast_to(probabilities, chain.behaviour.shape))
    theirs = visited(chain, chain.behaviour)
    return returns_in(chain, probabilities, facts), (ours + floor) / (theirs + floor + 1e-12)


def error_in(
    chain: Chain,
    facts: TableFacts,
    probabilities: Float[np.ndarray, "S A"],
    expected: Float[np.ndarray, "T S A"],
    ratios: Float[np.ndarray, "T S+1"],
) -> float:
    """Returns the error of the corrected value if the chain were true, without clipping."""
    true = returns_in(chain, probabilities, facts)
    later = np.zeros((len(true) + 1, len(probabilities) + 1))
    later[:-1, :-1] = np.sum(probabilities * (expected - true), axis=-1)
    error = float(chain.starts @ later[0, :-1])
    theirs = visited(chain, chain.behaviour)
    for step, (wrong, ratio) in enumerate(zip(expected - true, ratios, strict=True)):
        residual = facts.discount * chain.moves[step] @ later[step + 1] - wrong
        mean = np.sum(probabilities * residual, axis=-1)
        error += facts.discount**step * float(np.sum((theirs[step] * ratio)[:-1] * mean))
    return error


def errors_of_tables(
    tables: Tables, facts: TableFacts, policies: Sequence[Float[np.ndarray, "S A"]]
) -> list[float]:
    """Returns an estimate of the root mean square error of each policy's value by its tables.

    The model from which tables are drawn keeps all differences between steps, and the models of
    these tables keep the share that the one in use keeps. So the error of that shrinkage shows,
    unless noise makes the model forget what an early step did. The draws are public randomness,
    always the same.
    """
    kept = chain_of(tables, facts).kept
    chain, people = chain_of(tables, facts, _LESS, Kept(1.0, 1.0)), people_in(tables)
    theirs = visited(chain, chain.behaviour)[:, :-1, None]
    visits = people * (theirs * chain.behaviour)[..., None] * chain.moves
    rng = np.random.default_rng(0)
    errors = np.zeros((_REDRAWN, len(policies)))
    for row in errors:
        seen = rng.poisson(visits)
        taken, left = seen.sum(axis=-1), seen[:-1, ..., -1].sum()
        drawn = {
            "visits": seen,
            "rewards": 2 * rng.binomial(taken, (1 + chain.rewards) / 2) - taken,
            "starts": np.append(rng.poisson(people * chain.starts), left),
        }
        again = Tables(
            **{
                name: one + rng.normal(0, facts.noise[name], one.shape)
                for name, one in drawn.items()
            }
        )
        model = chain_of(again, facts, kept=kept)
        row[:] = [
            error_in(chain, facts, one, *correction_of(again, facts, one, model))
            for one in policies
        ]
    return [float(one) for one in np.sqrt(np.mean(errors**2, axis=0))]


def corrections(
    cells: Cells, tables: Tables, facts: TableFacts, policies: Sequence[Float[np.ndarray, "S A"]]
) -> tuple[Correction, ...]:
    """Returns the correction of each policy, which takes these actions in the cells."""
    chain = chain_of(tables, facts)
    found = [correction_of(tables, facts, one, chain) for one in policies]
    return tuple(Correction(cells, *(jnp.asarray(x, jnp.float32) for x in one)) for one in found)
