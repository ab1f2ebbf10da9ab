"""An evaluation of several policies on an imported log, from settings to values.

A linear policy can be learnt on the way, and the marginalised estimator needs tables. Then the
first half of the places gives these and the second half evaluates. The import gives places at
random, so the halves are random halves of the people, and each person takes part in one of the two
releases.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from sotto.algorithms.evaluation import chains, learning, tables
from sotto.algorithms.evaluation.cells import Cells, probabilities
from sotto.algorithms.evaluation.intervals import Value, values
from sotto.algorithms.evaluation.models import ReturnModel
from sotto.algorithms.evaluation.persons import (
    Bounds,
    EstimatorName,
    Evaluation,
    PersonLog,
    Public,
    return_bounds,
)
from sotto.algorithms.evaluation.policies import Linear, Target
from sotto.algorithms.evaluation.release import (
    Spending,
    made,
    multipliers,
    require_enough,
    stddevs,
    truncations,
)
from sotto.algorithms.log_release import through_the_door
from sotto.data.imports.declaration import Declaration
from sotto.data.imports.records import Records
from sotto.privacy.ledger.ledger import Ledger

LEARNT = "linear"
"""Name of the policy that is learnt on the way."""


@dataclass(frozen=True)
class Asked:
    """Choices of the user.

    Attributes:
        estimator: name of the estimator.
        largest_weights: clips of the weights: one for all policies, or one for each; empty for the
            largest possible weight, which a log with one step allows.
        discount: factor of later rewards.
        returns: narrower public bounds of returns, to which returns are clipped; None for those
            that follow from the declaration.
        level: probability of the intervals.
        learn: whether a linear policy is learnt from the first half of the people.
        cells: for marginalised: number of parts of each column of numbers in an observation, or
            one for all of them.
    """

    estimator: EstimatorName = "self-normalised"
    largest_weights: tuple[float, ...] = ()
    discount: float = 1.0
    returns: tuple[float, float] | None = None
    level: float = 0.95
    learn: bool = False
    cells: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0.5 <= self.level < 1:
            raise ValueError(f"the level must be from 0.5 to below 1, got {self.level}")
        if self.cells and not self.marginalised:
            raise ValueError("--cells is for --estimator marginalised")
        if self.learn and self.marginalised:
            raise ValueError(
                "--learn and marginalised both need the first half of the people; learn a policy "
                "first, and evaluate it on another log"
            )

    @property
    def marginalised(self) -> bool:
        """Whether values need tables."""
        return self.estimator == "marginalised"


@dataclass(frozen=True)
class Found:
    """Values of all policies, by name, and the one that was learnt."""

    values: dict[str, Value]
    evaluation: Evaluation
    learnt: Linear | None

    @property
    def best(self) -> str:
        """Name of the policy with the largest value."""
        return max(self.values, key=lambda name: self.values[name].value)

    @property
    def rivals(self) -> tuple[str, ...]:
        """Names of the policies that may be as good as the best one, given intervals and biases."""
        best = self.values[self.best]
        return tuple(
            name
            for name, one in self.values.items()
            if name != self.best and one.high + one.bias >= best.low - best.bias
        )


def settings_of(
    declaration: Declaration, asked: Asked, policies: int
) -> tuple[Evaluation, float, int]:
    """Returns the settings, the least propensity and the number of actions, 1 for real ones.

    Raises:
        ValueError: the log or the wishes do not allow an evaluation.
    """
    if declaration.chance is None:
        raise ValueError(
            "the log has no probabilities or densities of its actions, without which no other "
            "policy can be evaluated; import it with --propensity, or with --density for real "
            "actions"
        )
    if not declaration.discrete and (
        asked.learn or asked.estimator in ("doubly-robust", "marginalised")
    ):
        refused = "--learn" if asked.learn else asked.estimator
        raise ValueError(f"{refused} is for actions of categories, and this log has real actions")
    if not policies:
        raise ValueError("there is no policy to evaluate; name a run, or give --policy")
    least = declaration.chance.low
    clips = asked.largest_weights
    if not clips and (declaration.horizon > 1 or not declaration.discrete):
        raise ValueError(
            "weights of several steps, or of real actions, have no useful bound of their own; "
            "declare one with --largest-weight, such as 10"
        )
    clips = clips or (1 / least,)
    clips = clips * policies if len(clips) == 1 else clips
    if len(clips) != policies:
        raise ValueError(
            f"--largest-weight has {len(clips)} numbers, and there "
            f"{'is 1 policy' if policies == 1 else f'are {policies} policies'}; give one, or one "
            "for each"
        )
    several = asked.estimator == "doubly-robust" and declaration.horizon > 1
    each = several or asked.estimator in ("per-decision", "marginalised")
    if asked.returns is not None and each:
        raise ValueError(
            f"{asked.estimator} weights each reward, so narrower returns do not help it; leave out "
            "--returns, or declare narrower rewards"
        )
    low, high = return_bounds(declaration.reward_bounds, declaration.horizon, asked.discount)
    if asked.returns is not None and not low <= asked.returns[0] < asked.returns[1] <= high:
        raise ValueError(f"--returns must be two numbers from {low:g} to {high:g}, LOW below HIGH")
    evaluation = Evaluation(
        asked.estimator,
        clips,
        asked.discount,
        declaration.reward_bounds,
        asked.returns or (low, high),
        declaration.horizon,
    )
    return evaluation, least, int(declaration.action_space.n) if declaration.discrete else 1


def evaluate(
    records: Records,
    policies: Mapping[str, Target],
    asked: Asked,
    ledger: Ledger,
    spending: Spending,
    models: Callable[[Target], ReturnModel] | None = None,
) -> Found:
    """Evaluates the policies in one release.

    Args:
        records: the log.
        policies: target policies by name.
        asked: wishes.
        ledger: ledger of people with `release.UNIT`, charged before each release.
        spending: target for each person.
        models: function that returns a public model of a policy's returns, for the doubly-robust
            estimator.

    Raises:
        ValueError: the log or the wishes do not allow it, or the noise would be too large. Nothing
            has been charged.
        PrivacyError: the budget does not cover it.
    """
    declaration, people = records.declaration, PersonLog.of(records)
    names = (*policies, LEARNT) if asked.learn else tuple(policies)
    evaluation, least, actions = settings_of(declaration, asked, len(names))
    learners, judges, half = people, people, 0
    if ledger.budget.delta * records.people >= 1:
        raise ValueError(
            f"delta {ledger.budget.delta:.2g} is vacuous for {records.people:,} people; give one "
            f"below 1/{records.people}"
        )
    targets, cells, taken = dict(policies), None, []
    if asked.learn or asked.marginalised:
        half = records.people // 2
        learners = jax.tree.map(lambda x: x[:half], people)
        judges = jax.tree.map(lambda x: x[half:], people)
    if asked.learn:
        # Its bounds do not depend on its weights.
        targets[LEARNT] = Linear.zeros(actions, declaration.observation_size)
    if asked.marginalised:
        cells = Cells.of(declaration, asked.cells)
        taken = [probabilities(one, cells) for one in targets.values()]
        tables.require_few(cells, declaration, half, spending)
    public = Public(
        tuple(targets.values()), () if models is None else tuple(map(models, targets.values()))
    )
    bounds = Bounds.of(evaluation, public, least, actions)
    noise = multipliers(spending, 1 + 5 * len(names))
    release = made(evaluation, bounds, declaration, len(judges.present), noise)
    require_enough(evaluation, bounds, release, spending, (1 - asked.level) / len(names))
    learnt, errors = None, []
    if asked.learn:
        learnt = learning.learn(declaration, learners, ledger, spending)
        targets[LEARNT] = learnt
        public = public._replace(policies=tuple(targets.values()))
    if cells is not None:
        table, spread = tables.released(declaration, cells, learners, ledger, spending)
        facts = chains.TableFacts(spread, declaration.reward_bounds, asked.discount)
        public = public._replace(models=chains.corrections(cells, table, facts, taken))
        errors = chains.errors_of_tables(table, facts, taken)
        bounds = Bounds.of(evaluation, public, least, actions)
        release = made(evaluation, bounds, declaration, len(judges.present), noise)
    sums = through_the_door(release, ledger, public, judges, half)
    known = evaluation, bounds, sums["sums"], sums["squares"], stddevs(release), asked.level
    found = values(*known, errors, truncations(release))
    return Found(dict(zip(names, found, strict=True)), evaluation, learnt)


def default_delta(people: int) -> float:
    """Returns a tenth of 1 / people, at most 1e-5, as a round number below."""
    return min(1e-5, 10.0 ** math.floor(math.log10(0.1 / people)))


def as_json(found: Found, spending: Spending, level: float) -> dict[str, Any]:
    """Returns the values as JSON; a noise that has no bound is null."""
    return {
        "estimator": found.evaluation.estimator,
        "level": level,
        "epsilon": spending.epsilon,
        "delta": spending.delta,
        "returns": list(found.evaluation.returns),
        "best": found.best,
        "may_be_as_good": list(found.rivals),
        "policies": [
            {
                "policy": name,
                "value": one.value,
                "low": one.low,
                "high": one.high,
                "noise": one.noise if math.isfinite(one.noise) else None,
                "largest_weight": clip,
                "mean_weight": one.mean_weight,
                "bias_from_clipping_at_most": one.bias,
            }
            | (
                {"added_for_tables": one.tables}
                if found.evaluation.estimator == "marginalised"
                else {}
            )
            for (name, one), clip in zip(
                found.values.items(), found.evaluation.largest_weights, strict=True
            )
        ],
    }
