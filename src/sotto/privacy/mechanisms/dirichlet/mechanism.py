"""The Dirichlet mechanism on a policy, plain and truncated (Gohari et al. 2021, Section 3).

A teacher's row pi is mixed with the uniform row until no probability is below a public floor. The
answer is one draw from the Dirichlet distribution with parameters concentration * row. Its mean is
the mixed row. A larger concentration brings the draw closer to it.

Guarantee:
    The unit and the adjacency are those of the stated distance (`answers.distances`). For rows at
    L2 distance at most c after mixing, `Dirichlet.events(c, n)` bounds the Renyi divergence of n
    answers in both directions. `TruncatedDirichlet` is a bounded-range mechanism: pure epsilon and
    zCDP, up to the probability that all proposals are refused, which is charged as a delta.
    Rounding answers to a public grid is post-processing. The proofs are Theorems 3 to 5 of
    docs/privacy.md, section 12. They take the float64 draws for real numbers.
"""

import functools
import math
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from jaxtyping import Float, Float64
from pydantic import Field, model_validator

from sotto.frozen import FrozenModel
from sotto.privacy.accounting.events import ApproximateDP, Event, Renyi
from sotto.privacy.mechanisms.dirichlet import simplex
from sotto.privacy.mechanisms.dirichlet.cost import ORDERS, largest_l1, renyi_curve
from sotto.privacy.mechanisms.dirichlet.sampling import (
    ProposalKind,
    acceptance,
    log_dirichlet,
    truncated_dirichlet,
)

LARGEST_FAILURE = 1e-9
"""Largest failure probability of a truncated answer."""

_MOST_PROPOSALS = 100_000


class RestrictingMechanism(FrozenModel):
    """Base of mechanisms that mix rows with the uniform row first, here and for Gaussian noise."""

    if TYPE_CHECKING:  # a field here would come before those of a subclass in JSON
        actions: int
        floor: float

    @model_validator(mode="after")
    def _floor_fits(self) -> Self:
        if self.floor * self.actions > 1:
            raise ValueError(
                f"floor must be at most 1 / actions = {1 / self.actions:.6g}, got {self.floor}"
            )
        return self

    def restrict(
        self, policies: Float[np.ndarray, "rows actions"]
    ) -> Float64[np.ndarray, "rows actions"]:
        """Returns the rows mixed with the uniform row: no probability is below the floor."""
        return simplex.restrict(simplex.as_policies(policies), self.floor)


class _DirichletMechanism(RestrictingMechanism):
    """Base of both forms: the public parameters and the floor."""

    actions: int = Field(ge=2)
    concentration: float = Field(gt=0, allow_inf_nan=False)
    floor: float = Field(gt=0, allow_inf_nan=False)


class Dirichlet(_DirichletMechanism):
    """One draw from Dir(concentration * restricted row) per row.

    Guarantee:
        `events(distance, count)` are certified Renyi divergences (`dirichlet.cost`).

    Attributes:
        actions: length m of a row.
        concentration: k; the answer's variance in one probability p is p (1 - p) / (k + 1).
        floor: eta; rows are mixed with the uniform row to (1 - m eta) pi + eta.
    """

    kind: Literal["dirichlet"] = "dirichlet"

    def at(self, concentration: float) -> Self:
        """Returns the same mechanism at another concentration."""
        return type(self)(actions=self.actions, concentration=concentration, floor=self.floor)

    def answer(
        self, policies: Float[np.ndarray, "rows actions"], generator: np.random.Generator
    ) -> Float64[np.ndarray, "rows actions"]:
        """Returns one private answer per row. It restricts the rows itself.

        Args:
            policies: the teacher's rows, unrestricted. A row that is not a probability vector
                counts as the uniform one, and no value in the rows raises an error.
            generator: fresh, from `noise.GeneratorSource`.

        Returns:
            Rows on the public grid, each summing to 1 exactly; entries may be 0.

        Raises:
            ValueError: the array is not [rows, actions].
        """
        policies = simplex.checked(policies, self.actions)
        return simplex.by_blocks(self._draw, policies, generator)

    def _draw(self, policies: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        parameters = self.concentration * self.restrict(policies)
        return simplex.to_grid(np.exp(log_dirichlet(parameters, generator)))

    def events(self, distance: float, count: int, l1: float = math.inf) -> tuple[Event, ...]:
        """Returns the cost of `count` answers, for restricted rows `distance` apart.

        Rows may be chosen after earlier answers. The parameters here are public.

        Args:
            distance: L2 distance c of neighbouring *restricted* rows (`Distance.between`); capped
                at the diameter sqrt(2) (1 - m floor). There is no cost where it is 0.
            count: number of answers, at least 1.
            l1: bound on their L1 distance (`Distance.l1_between`), if a smaller one is known.
        """
        if simplex.capped_distance(distance, self.actions, self.floor) == 0:
            return ()
        curve = renyi_curve(self.actions, self.concentration, self.floor, distance, l1)
        known = max(1, sum(math.isfinite(divergence) for divergence in curve))
        return (Renyi(orders=ORDERS[:known], divergences=curve[:known], count=count),)


class TruncatedDirichlet(_DirichletMechanism):
    """One draw from Dir(concentration * restricted row) given that no entry is below `threshold`.

    Every row draws all its `proposals`, so that their number tells nothing. The first accepted
    proposal is the answer. If none is accepted, the answer is the uniform row. On average the
    answer is closer to uniform than the row.

    Guarantee:
        `events(distance, count)`: with epsilon_0 = k |pi - pi'|_1 log((1 - (m-1) tau) / tau) an
        accepted draw is epsilon_0-DP and (epsilon_0^2 / 8)-zCDP; `failure` is a delta (Theorem 5
        of docs/privacy.md, section 12).

    Attributes:
        actions: length m of a row.
        concentration: k.
        floor: eta; rows are mixed with the uniform row to (1 - m eta) pi + eta.
        threshold: tau, smallest entry of an answer; below the floor.
        proposals: draws per row; `TruncatedDirichlet.sized` finds how many it takes.
    """

    kind: Literal["truncated-dirichlet"] = "truncated-dirichlet"
    threshold: float = Field(gt=0, allow_inf_nan=False)
    proposals: int = Field(ge=1)

    @model_validator(mode="after")
    def _accepts(self) -> Self:
        if self.threshold >= self.floor:
            raise ValueError(
                f"threshold must be below the floor {self.floor}, got {self.threshold}"
            )
        if self.failure > LARGEST_FAILURE:
            raise ValueError(
                f"{self.proposals} proposals may all be refused with probability up to "
                f"{self.failure:.2g}, above {LARGEST_FAILURE}: {self._remedy()}"
            )
        return self

    @classmethod
    def sized(
        cls, *, actions: int, concentration: float, floor: float, threshold: float
    ) -> "TruncatedDirichlet":
        """Returns the mechanism with as many proposals as it needs.

        Raises:
            ValueError: it needs more than a hundred thousand.
        """
        _, accepted = _proposal_kind(actions, concentration, floor, threshold)
        if accepted < -math.log(LARGEST_FAILURE) / _MOST_PROPOSALS:
            raise ValueError(
                f"at concentration {concentration:g} and threshold {threshold:g} hardly any draw "
                "is sure to be accepted; lower the threshold, raise the floor, or take a "
                "concentration that is much larger or much smaller"
            )
        needed = math.ceil(math.log(LARGEST_FAILURE) / math.log1p(-min(accepted, 1 - 1e-9)))
        return cls(
            actions=actions,
            concentration=concentration,
            floor=floor,
            threshold=threshold,
            proposals=needed,
        )

    def at(self, concentration: float) -> Self:
        """Returns the same mechanism at another concentration, with enough proposals for it."""
        kept = self.model_dump(include={"actions", "floor", "threshold"})
        needed = self.sized(concentration=concentration, **kept).proposals
        proposals = max(self.proposals, needed)
        return type(self)(concentration=concentration, proposals=proposals, **kept)

    @property
    def failure(self) -> float:
        """Bound on the probability that all proposals of a row are refused."""
        _, accepted = self._proposal_kind()
        return math.exp(self.proposals * math.log1p(-min(accepted, 1 - 1e-9)))

    def answer(
        self, policies: Float[np.ndarray, "rows actions"], generator: np.random.Generator
    ) -> Float64[np.ndarray, "rows actions"]:
        """Returns one private answer per row; see `Dirichlet.answer`."""
        policies = simplex.checked(policies, self.actions)
        block = max(1, 2**18 // (self.proposals * self.actions))
        return simplex.by_blocks(self._draw, policies, generator, block)

    def _draw(self, policies: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        parameters = self.concentration * self.restrict(policies)
        kind, _ = self._proposal_kind()
        return simplex.to_grid(
            truncated_dirichlet(parameters, self.threshold, self.proposals, kind, generator)
        )

    def events(self, distance: float, count: int, l1: float = math.inf) -> tuple[Event, ...]:
        """Returns the cost of `count` answers; see `Dirichlet.events`."""
        capped = simplex.capped_distance(distance, self.actions, self.floor)
        if capped == 0:
            return ()
        epsilon = self.pure_epsilon(capped, l1)
        divergences = tuple(min(order * epsilon**2 / 8, epsilon) for order in ORDERS)
        return (
            Renyi(orders=ORDERS, divergences=divergences, count=count),
            ApproximateDP(epsilon=0.0, delta=self.failure, count=count),
        )

    def pure_epsilon(self, distance: float, l1: float = math.inf) -> float:
        """Returns epsilon_0 of one accepted draw: k |pi - pi'|_1 log((1 - (m-1) tau) / tau)."""
        spread = math.log1p(-(self.actions - 1) * self.threshold) - math.log(self.threshold)
        moved = largest_l1(self.actions, self.floor, distance, l1)
        return self.concentration * moved * spread * (1 + 1e-12)

    def _proposal_kind(self) -> tuple[ProposalKind, float]:
        return _proposal_kind(self.actions, self.concentration, self.floor, self.threshold)

    def _remedy(self) -> str:
        _, accepted = self._proposal_kind()
        if accepted * _MOST_PROPOSALS > -math.log(LARGEST_FAILURE):
            needed = math.ceil(math.log(LARGEST_FAILURE) / math.log1p(-accepted))
            return f"take at least {needed} proposals, or a lower threshold"
        return "lower the threshold, raise the floor, or change the concentration"


@functools.lru_cache(maxsize=256)
def _proposal_kind(
    actions: int, concentration: float, floor: float, threshold: float
) -> tuple[ProposalKind, float]:
    """Returns the kind of proposal with the larger bound on acceptance, and that bound."""
    kinds: tuple[ProposalKind, ...] = ("dirichlet", "power-law")
    bounds = {one: acceptance(one, actions, concentration, floor, threshold) for one in kinds}
    best = max(kinds, key=lambda one: bounds[one])
    return best, bounds[best]
