"""One release of noisy tables of what people did in finitely many cells.

The first half of the people of a `marginalised` evaluation contributes them. `chains` computes from
them what corrects the values of the second half.

Guarantee:
    See `sotto.privacy.release.release`. A person with T steps adds T ones to the table of visits,
    T numbers from -1 to 1 to that of rewards, and a one to the starts. Who leaves before the last
    step adds another one to the starts. So the norms are at most sqrt(T), sqrt(T) and sqrt(2)
    (docs/privacy.md, section 22).
"""

import math
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from sotto.algorithms.calibration import gaussian_multiplier
from sotto.algorithms.evaluation.cells import Cells, one_hot
from sotto.algorithms.evaluation.chains import Tables
from sotto.algorithms.evaluation.persons import PersonLog
from sotto.algorithms.evaluation.release import Spending, about_a_log, stddevs
from sotto.algorithms.log_release import through_the_door
from sotto.data.imports.declaration import Declaration
from sotto.privacy.claims import logs as claims
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part

_SHARES = {"visits": 0.6, "rewards": 0.3, "starts": 0.1}
"""Share of each table in the budget, as a share of the sum of 1 / multiplier^2."""
_AT_ONCE = 2**26
"""Numbers in the tables of all people who are mapped at once."""


def require_few(cells: Cells, declaration: Declaration, people: int, spending: Spending) -> None:
    """Refuses cells so many that noise hides an even share of the visits.

    Pooled over T steps, the count of a cell and an action has noise of deviation z T sqrt(S + 1),
    and an even share of the visits is T people / (S A). Both are public, and so is the refusal.

    Raises:
        ValueError: says how many cells are possible.
    """
    actions = int(declaration.action_space.n)
    noise = multipliers(declaration, cells, spending)["visits"]
    possible = 0
    while (possible + 1) * actions * noise * math.sqrt(possible + 2) <= people:
        possible += 1
    if cells.count > possible:
        raise ValueError(
            f"{cells.count} cells of observations are too many for tables of {people:,} people "
            f"with {actions} actions at epsilon {spending.epsilon:g}, where at most {possible} are "
            "possible; give fewer --cells, import fewer columns, or take per-decision"
        )


def multipliers(declaration: Declaration, cells: Cells, spending: Spending) -> dict[str, float]:
    """Returns the noise multiplier of each table, which meet the target together."""
    visits = declaration.horizon * cells.count * int(declaration.action_space.n)
    together = gaussian_multiplier(
        spending.epsilon, spending.delta, draws=visits * (cells.count + 2) + cells.count + 1
    )
    return {name: together / math.sqrt(share) for name, share in _SHARES.items()}


def made(declaration: Declaration, cells: Cells, slots: int, noise: dict[str, float]) -> Release:
    """Returns the release of the tables.

    Args:
        declaration: public facts about the log.
        cells: cells of observations.
        slots: number of places for people.
        noise: noise multiplier of each table.
    """
    actions, steps = int(declaration.action_space.n), declaration.horizon
    norms = {"visits": math.sqrt(steps), "rewards": math.sqrt(steps), "starts": math.sqrt(2)}
    about = about_a_log(declaration, slots)
    size = steps * cells.count * actions * (cells.count + 2)
    most = max(1, _AT_ONCE // size)
    return Release(
        name=f"tables of {cells.count} cells, marginalised",
        local=partial(contribution, declaration.reward_bounds, actions),
        parts={name: Part(clip_norm=norms[name], noise_multiplier=noise[name]) for name in norms},
        protects=(claims.VALUES(),),
        **about
        | {
            "microbatch": min(most, about["microbatch"] or slots)
            if slots > most
            else about["microbatch"],
            "assumptions": (*about["assumptions"], claims.CELLS.assumption()),
        },
    )


def contribution(
    bounds: tuple[float, float], actions: int, cells: Cells, person: PersonLog, key: PRNGKeyArray
) -> tuple[dict[str, Array], tuple[()]]:
    """Returns the tables of one person; those without a step contribute zero."""
    del key
    there = person.present.astype(jnp.float32)
    here = one_hot(cells(person.observations), cells.count) * there[:, None]
    gone = jnp.concatenate([1 - there[1:], jnp.ones(1)])[:, None]
    after = jnp.concatenate([here[1:], jnp.zeros((1, cells.count))])
    after = jnp.concatenate([after, gone], axis=1)
    taken = here[:, :, None] * one_hot(person.actions, actions)[:, None, :]
    low, high = bounds
    scaled = jnp.clip((2 * person.rewards - low - high) / (high - low), -1, 1)
    return {
        "visits": taken[..., None] * after[:, None, None, :],
        "rewards": taken * scaled[:, None, None],
        "starts": jnp.append(here[0], there[0] - there[-1]),
    }, ()


def released(
    declaration: Declaration,
    cells: Cells,
    people: PersonLog,
    ledger: Ledger,
    spending: Spending,
) -> tuple[Tables, dict[str, float]]:
    """Returns the tables that one release about these people gives, and its noise.

    Args:
        declaration: public facts about the log.
        cells: cells of observations.
        people: the log, with a leading axis of places.
        ledger: charged before the release is made.
        spending: target of the release.

    Raises:
        PrivacyError: the budget does not cover the release.
    """
    noise = multipliers(declaration, cells, spending)
    release = made(declaration, cells, len(people.present), noise)
    found = through_the_door(release, ledger, cells, people, 0)
    return Tables(**found), stddevs(release)
