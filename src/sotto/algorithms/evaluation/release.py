"""The release of an evaluation: noisy sums over people, from which values and intervals follow.

Guarantee:
    See `sotto.privacy.release.release`. The unit is everything in the log of one person, who takes
    part once. Sums and squares are parts of one release.
"""

import math
from functools import partial
from typing import Any, NamedTuple

from jaxtyping import PyTree
from scipy.stats import norm

from sotto.algorithms.calibration import gaussian_multiplier
from sotto.algorithms.evaluation.persons import (
    Bounds,
    Evaluation,
    contribution,
)
from sotto.data.imports.declaration import Declaration
from sotto.privacy.accounting.composition import Gaussian, compose
from sotto.privacy.claims import logs as claims
from sotto.privacy.release.declaration import grids
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part
from sotto.privacy.units import Adjacency, Unit

UNIT = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)

_SQUARES = 4.0
"""Noise multiplier of the squares over that of the sums: they get 1/17 of the budget."""
_AT_ONCE = 2**14
_FILLED = 0.5
"""Share of the public range that noise alone may fill before an evaluation is refused."""


class Spending(NamedTuple):
    """The target of one release."""

    epsilon: float
    delta: float


def multipliers(spending: Spending, numbers: int) -> dict[str, float]:
    """Returns the noise multiplier of each part, which meet the target together.

    Args:
        spending: target of both parts.
        numbers: how many numbers are released.
    """
    together = gaussian_multiplier(spending.epsilon, spending.delta, draws=numbers)
    sums = together * math.sqrt(1 + _SQUARES**-2)
    return {"sums": sums, "squares": _SQUARES * sums}


def made(
    asked: Evaluation,
    bounds: Bounds,
    declaration: Declaration,
    slots: int,
    noise: dict[str, float],
) -> Release:
    """Returns the release of an evaluation.

    Args:
        asked: settings.
        bounds: bounds of contributions.
        declaration: public facts about the log.
        slots: number of places for people.
        noise: noise multiplier of each part.
    """
    norms = bounds.clip_norms(asked.estimator)
    return Release(
        name=f"values of {len(asked.largest_weights)} policies, {asked.estimator}",
        local=partial(contribution, asked, bounds),
        parts={name: Part(clip_norm=norms[name], noise_multiplier=noise[name]) for name in norms},
        protects=(claims.VALUES(),),
        **about_a_log(declaration, slots),
    )


def about_a_log(declaration: Declaration, slots: int) -> dict[str, Any]:
    """Returns the fields of a release that all releases about an imported log have."""
    about = claims.about_log(declaration, claims.IDS, claims.COLUMNS, claims.CHOSEN)
    return {
        "server": _shown,
        "unit": UNIT,
        "slots": slots,
        "divisor": 1.0,
        "horizon": 1,
        "population": "real",
        "microbatch": None if slots <= _AT_ONCE else _AT_ONCE,
        "does_not_protect": about.does_not_protect,
        "assumptions": about.assumptions,
    }


def _shown(state: PyTree, released: dict[str, Any]) -> tuple[PyTree, dict[str, Any]]:
    return state, released


def stddevs(release: Release) -> dict[str, float]:
    """Returns the standard deviation of the noise in each number of a part."""
    return {name: one.clip_norm * one.noise_multiplier for name, one in release.parts.items()}


def truncations(release: Release) -> dict[str, float]:
    """Returns how much nearer to zero the grid brings the sum of each number of a part, at most.

    Each contribution is rounded towards zero, by less than the spacing of the grid.
    """
    return {name: release.slots * one.spacing for name, one in grids(release, False).items()}


def require_enough(
    asked: Evaluation,
    bounds: Bounds,
    release: Release,
    spending: Spending,
    tail: float,
) -> None:
    """Refuses an evaluation whose noise alone would fill half of the public range or more.

    It is decided from public numbers, before anything is charged: with mean weight 1, the sum of
    rho / c is at most the number of places over c.

    Raises:
        ValueError: says how many people, or how much epsilon, would suffice.
    """
    noise = stddevs(release)["sums"] * float(norm.isf(tail / 2))
    largest = max(asked.largest_weights if asked.estimator == "self-normalised" else bounds.scales)
    people = math.ceil(noise * largest / _FILLED)
    if people <= release.slots:
        return
    together = 1 / math.sqrt(sum(one.noise_multiplier**-2 for one in release.parts.values()))
    less = Gaussian(noise_multiplier=together * release.slots / people)
    epsilon = compose([less]).epsilon(spending.delta)
    raise ValueError(
        f"with {release.slots:,} people and epsilon {spending.epsilon:g} the noise would fill half "
        f"of the range of returns or more; {people:,} people or epsilon {epsilon:.2g} would "
        "suffice, or fewer policies, a smaller --largest-weight or narrower --returns"
    )
