"""The Dirichlet mechanism on a policy, plain and truncated (Gohari et al. 2021, Section 3).

A teacher's row pi is mixed with the uniform row until no probability is below a public floor, and
the answer is one draw from the Dirichlet distribution with parameter concentration * row. Its
mean is the row; the larger the concentration, the closer the draw.

Guarantee:
    For rows at L2 distance at most c after mixing, `Dirichlet.events(c, n)` bounds the Renyi
    divergence of n answers in both directions (docs/privacy.md, "Answers of a teacher"; proofs
    there). `TruncatedDirichlet` is a bounded-range mechanism: pure epsilon and zCDP, up to the
    probability that all proposals are refused, which is charged as a delta. Answers are rounded to
    a public grid, which is post-processing.
"""

import math
from typing import Literal, Self

import numpy as np
from jaxtyping import Float, Float64
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sotto.privacy.events import Event
from sotto.privacy.mechanisms import simplex


class _DirichletMechanism(BaseModel):
    """What the two forms share: the public parameters and the floor."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    actions: int = Field(ge=2)
    concentration: float = Field(gt=0, allow_inf_nan=False)
    floor: float = Field(gt=0, allow_inf_nan=False)

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
        """The rows mixed with the uniform row: no probability is below the floor."""
        return simplex.restrict(simplex.as_policies(policies), self.floor)

    def at(self, concentration: float) -> Self:
        """The same mechanism at another concentration (checked like a new one)."""
        return type(self)(**{**self.model_dump(), "concentration": concentration})


class Dirichlet(_DirichletMechanism):
    """One draw from Dir(concentration * restricted row) per row.

    Guarantee:
        `events(distance, count)`: certified Renyi divergences (theory notes A2; docs/privacy.md).

    Attributes:
        actions: length m of a row.
        concentration: k; the answer's variance in one probability p is p (1 - p) / (k + 1).
        floor: eta; rows are mixed with the uniform row to (1 - m eta) pi + eta.
    """

    kind: Literal["dirichlet"] = "dirichlet"

    def answer(
        self, policies: Float[np.ndarray, "rows actions"], generator: np.random.Generator
    ) -> Float64[np.ndarray, "rows actions"]:
        """One private answer per row. Takes the teacher's own rows and restricts them itself.

        Args:
            policies: the teacher's rows, unrestricted.
            generator: fresh, from `noise.GeneratorSource`.

        Returns:
            Rows on the public grid, each summing to 1 exactly; entries may be 0.
        """
        parameters = self.concentration * self.restrict(simplex.checked(policies, self.actions))
        return simplex.to_grid(np.exp(log_dirichlet(parameters, generator)))

    def events(self, distance: float, count: int) -> tuple[Event, ...]:
        """What `count` answers cost, for neighbours whose restricted rows are `distance` apart.

        Args:
            distance: L2 distance c of neighbouring *restricted* rows (`Distance.between`); capped
                at the diameter sqrt(2) (1 - m floor).
            count: answers, at least 1.
        """
        raise NotImplementedError


class TruncatedDirichlet(_DirichletMechanism):
    """One draw from Dir(concentration * restricted row) given that no entry is below `threshold`.

    Every row draws all its `proposals`, whatever they are, so that time says nothing; the first
    that is accepted is the answer. Where none is, the answer is the uniform row.

    Guarantee:
        `events(distance, count)`: bounded range, hence pure epsilon and epsilon^2/8-zCDP, and a
        delta for the rows without an accepted proposal (docs/privacy.md).

    Attributes:
        actions: length m of a row.
        concentration: k.
        floor: eta; rows are mixed with the uniform row to (1 - m eta) pi + eta.
        threshold: tau, smallest entry of an answer; below the floor.
        proposals: draws per row.
    """

    kind: Literal["truncated-dirichlet"] = "truncated-dirichlet"
    threshold: float = Field(gt=0, allow_inf_nan=False)
    proposals: int = Field(ge=1)

    def answer(
        self, policies: Float[np.ndarray, "rows actions"], generator: np.random.Generator
    ) -> Float64[np.ndarray, "rows actions"]:
        """One private answer per row; see `Dirichlet.answer`."""
        parameters = self.concentration * self.restrict(simplex.checked(policies, self.actions))
        repeated = np.broadcast_to(
            parameters[:, None, :], (len(parameters), self.proposals, self.actions)
        )
        proposed = log_dirichlet(repeated, generator)
        accepted = proposed.min(axis=-1) >= math.log(self.threshold)
        first = np.take_along_axis(proposed, accepted.argmax(axis=1)[:, None, None], axis=1)[:, 0]
        answers = np.where(accepted.any(axis=1)[:, None], np.exp(first), 1.0 / self.actions)
        return simplex.to_grid(answers)

    def events(self, distance: float, count: int) -> tuple[Event, ...]:
        """What `count` answers cost; see `Dirichlet.events`."""
        raise NotImplementedError


def log_dirichlet(
    parameters: Float64[np.ndarray, "*rows actions"], generator: np.random.Generator
) -> Float64[np.ndarray, "*rows actions"]:
    """Logarithms of Dirichlet draws, finite however small the parameters are.

    A gamma variate with shape a is one with shape a + 1, times U^(1/a): in logarithms
    log G = log gamma(a + 1) - E / a with E exponential (Marsaglia and Tsang 2000, section 6).
    """
    logs = np.log(generator.standard_gamma(parameters + 1.0))
    logs -= generator.standard_exponential(parameters.shape) / parameters
    logs -= logs.max(axis=-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=-1, keepdims=True))
    return logs
