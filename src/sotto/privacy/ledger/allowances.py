"""The budget that several products share, and the part of it that one stream costs a person.

Guarantee:
    Let E and D be the parts for streams that are not Gaussian, and S the squared shift that costs
    epsilon - E at delta - D. For each person the squared shifts of Gaussian streams add up to at
    most S, and the epsilons and deltas of all others to at most E and D. Then all products
    together are (epsilon, delta)-DP for the person. This also holds if releases of any product
    decide what any other product does next (docs/privacy.md, Theorem 13).
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from pydantic import Field, model_validator

from sotto.frozen import FrozenModel
from sotto.privacy.accounting.composition import Gaussian, NoGuarantee, RepeatAndSelect, compose
from sotto.privacy.accounting.gaussian import epsilon_of_shift
from sotto.privacy.errors import BudgetExceeded, LedgerMismatch
from sotto.privacy.ledger.costs import SAMPLER_RESERVE, filter_bound
from sotto.privacy.mechanisms.discrete_gaussian import LARGEST_EPSILON
from sotto.privacy.statements import StreamStatement
from sotto.privacy.units import Adjacency, UnitKind

WHOLE = 2**50
"""Units in each of the four parts of a budget. Costs are rounded up to whole units."""
PARTS = ("gaussian", "samplers", "epsilon", "delta")
"""Parts: squared shift, delta of Gaussian samplers, epsilon and delta of other streams."""
PEOPLE: tuple[UnitKind, ...] = ("trajectory", "feedback", "expert")
"""Units that are everything one person contributes to a product."""

Cost = tuple[int, int, int, int]
"""Units of each of the `PARTS` that one stream costs a person, to its horizon."""


class Allowance(FrozenModel):
    """The most that each person may pay in all products together.

    Attributes:
        epsilon: of everything together; positive and finite.
        delta: of everything together, below 1 / (number of people).
        other_epsilon: part of epsilon for streams that are not Gaussian, such as sampled ones.
        other_delta: part of delta for them. Both are zero, or both are positive.
    """

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(gt=0, lt=1)
    other_epsilon: float = Field(default=0.0, ge=0)
    other_delta: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _parts_fit(self) -> "Allowance":
        if (self.other_epsilon > 0) != (self.other_delta > 0):
            raise ValueError(
                "streams that are not Gaussian cost an epsilon and a delta; give both parts, or "
                "neither"
            )
        if self.other_epsilon >= self.epsilon or self.other_delta >= self.delta:
            raise ValueError(
                "the parts for streams that are not Gaussian are smaller than the whole epsilon "
                "and delta, so that something is left for Gaussian ones"
            )
        return self

    @property
    def gaussian_epsilon(self) -> float:
        """Epsilon of all Gaussian streams of a person together."""
        return self.epsilon - self.other_epsilon

    @property
    def gaussian_delta(self) -> float:
        """Delta of all Gaussian streams of a person together, samplers included."""
        return self.delta - self.other_delta

    @property
    def squared_shift(self) -> float:
        """Largest sum of 1/z^2 over the Gaussian streams of a person."""
        bound = filter_bound(self.gaussian_epsilon, self.gaussian_delta)
        return bound.noise_multiplier**-2

    def cost(self, statement: StreamStatement, delta: float) -> Cost:
        """Returns the units that a stream costs each of its people.

        Args:
            statement: statement of the stream.
            delta: delta at which a stream that is not Gaussian is counted: its product's.

        Raises:
            LedgerMismatch: the stream is not about people under zero-out adjacency.
            BudgetExceeded: its kind has no place in this budget, or it costs more than all of it.
        """
        _require_people(statement)
        event, name = statement.event, statement.name
        if isinstance(event, NoGuarantee):
            raise BudgetExceeded(
                f"nothing can be proved about {name!r} ({event.reason}), so no shared budget "
                "covers it; use settings that are proved"
            )
        if statement.shares is not None and self.epsilon > LARGEST_EPSILON:
            raise BudgetExceeded(
                f"the devices of {name!r} make its noise in shares, which is accounted up to "
                f"epsilon {LARGEST_EPSILON:g}, and this shared budget has {self.epsilon:g}; create "
                "a smaller one"
            )
        if isinstance(event, RepeatAndSelect):
            raise BudgetExceeded(
                f"{name!r} chooses among settings, which a shared budget does not count; choose "
                "settings on public or simulated data"
            )
        if isinstance(event, Gaussian):
            reserve = SAMPLER_RESERVE * self.gaussian_delta
            shift = Fraction(event.noise_multiplier) ** -2 / Fraction(self.squared_shift)
            cost = (_units(shift), _share(statement.sampler_delta, reserve), 0, 0)
        elif self.other_epsilon == 0:
            raise BudgetExceeded(
                f"{name!r} is not Gaussian, and this shared budget has no part for such streams; "
                "use a product without secret sampling, or create a budget with --other-epsilon "
                "and --other-delta"
            )
        else:
            left = delta - statement.sampler_delta
            epsilon = compose([event]).epsilon(left) if left > 0 else math.inf
            cost = (0, 0, _share(epsilon, self.other_epsilon), _share(delta, self.other_delta))
        if over := [part for part, units in zip(PARTS, cost, strict=True) if units > WHOLE]:
            raise BudgetExceeded(_too_large(self, statement, delta, over))
        return cost

    def epsilon_of(self, units: Int64[np.ndarray, "people 4"]) -> Float64[np.ndarray, " people"]:
        """Returns the epsilon that people have spent, at the budget's delta.

        It is the exact cost of all their Gaussian streams together, and the sum of the others'.
        """
        different, whose = np.unique(units, axis=0, return_inverse=True)
        found = np.array([self._epsilon(*row) for row in different.tolist()])
        spent: Float64[np.ndarray, " people"] = found[whose.reshape(-1)]
        return spent

    def _epsilon(self, gaussian: int, samplers: int, epsilon: int, delta: int) -> float:
        others = self.other_epsilon * epsilon / WHOLE
        left = self.delta - self.other_delta * delta / WHOLE
        left -= SAMPLER_RESERVE * self.gaussian_delta * samplers / WHOLE
        return epsilon_of_shift(math.sqrt(self.squared_shift * gaussian / WHOLE), left) + others


def _require_people(statement: StreamStatement) -> None:
    """Refuses streams that are not about real people, each with all that they contribute."""
    unit, name = statement.unit, statement.name
    if unit.kind not in PEOPLE:
        raise LedgerMismatch(
            f"a shared budget counts people with all that they contribute, and {name!r} protects "
            f"one {unit.kind.replace('-', ' ')}; keep it out, or protect each person as a whole"
        )
    if unit.adjacency is not Adjacency.ZERO_OUT:
        raise LedgerMismatch(
            f"a shared budget is about people who contribute or contribute zero (zero-out), and "
            f"{name!r} has {unit.adjacency.value} adjacency; use zero-out"
        )
    if statement.population != "real":
        raise LedgerMismatch(
            f"the people of {name!r} are simulated, so there is nobody to protect; leave the "
            "shared budget out, or learn from real people"
        )


def _share(cost: float, whole: float) -> int:
    return WHOLE + 1 if math.isinf(cost) else _units(Fraction(cost) / Fraction(whole))


def _units(share: Fraction) -> int:
    """Returns a share in units, rounded up; whatever is more than the whole is one unit more."""
    return min(math.ceil(share * WHOLE), WHOLE + 1)


def _too_large(
    allowance: Allowance, statement: StreamStatement, delta: float, over: list[str]
) -> str:
    name, remedy = statement.name, "add noise, plan fewer releases, or create a larger budget"
    if over == ["samplers"]:
        return (
            f"the noise sampler of {name!r} costs delta {statement.sampler_delta:.2g}, more than a "
            "shared budget sets aside; use a larger noise_multiplier, or a budget of larger delta"
        )
    event: Any = statement.event
    if isinstance(event, Gaussian):
        epsilon = compose([event]).epsilon(allowance.gaussian_delta)
        return (
            f"{name!r} alone costs each person epsilon {epsilon:.4g} at delta "
            f"{allowance.gaussian_delta:.2g}, over the {allowance.gaussian_epsilon:.4g} that the "
            f"shared budget has for Gaussian streams; {remedy}"
        )
    return (
        f"{name!r} alone costs each person epsilon {compose([event]).epsilon(delta):.4g} at delta "
        f"{delta:.2g}, over the {allowance.other_epsilon:.4g} at {allowance.other_delta:.2g} that "
        f"the shared budget has for streams that are not Gaussian; {remedy}"
    )
