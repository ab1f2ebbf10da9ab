"""Stable prefixes: how long many experts would go on as one of them did (Sharma et al. 2024).

A rollout follows one expert, drawn at random. The *mass* of a prefix is the sum over experts of the
probability with which each would have taken its actions; sparse vector asks along the rollout
whether the mass is large, and the prefix ends where it is not. Three rules differ in what keeps
the end from giving the drawn expert away:

* `Floor`: every action of every expert has at least a public probability (the paper's assumption).
* `RandomStop`: at every prefix a secret coin of public rate ends it, so that an end may mean
  nothing. Experts may be deterministic. With a visible coin this is worthless: nothing here, nor
  anything it returns, says which of coin and query ended a prefix.
* `Consensus`: nobody is drawn. Experts vote on every action, the rollout takes the winner, and the
  queries are by how many votes it leads.

Guarantee:
    n prefixes of fresh rollouts in one MDP shared by all experts cost the `PrefixReleases` event of
    `StablePrefixMechanism.event(n)`, for one expert who is there or is absent
    (docs/privacy.md, section 14, Theorems 7 to 9). There is no horizon in it.
"""

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sotto.privacy.accounting.events import PrefixReleases
from sotto.privacy.mechanisms.sparse_vector import UNIT, SparseVector

_FROZEN = ConfigDict(frozen=True, extra="forbid")
_UP = 1 + 2.0**-30
"""Surplus of the least mass: probabilities of float64 coins and actions are off by less."""


class Floor(BaseModel):
    """Every action has at least probability `floor`, whoever is drawn.

    Attributes:
        floor: public; at most 1 / actions.
        ratio: rho, the weight of one expert in the end of a prefix, relative to all the others.
    """

    model_config = _FROZEN
    kind: Literal["floor"] = "floor"
    floor: float = Field(gt=0, le=0.5)
    ratio: float = Field(gt=0, allow_inf_nan=False)

    @property
    def least_mass(self) -> float:
        """Below this mass a prefix may give an expert away: (1 + 1/rho) / floor."""
        return (1 + 1 / self.ratio) / self.floor * _UP


class RandomStop(BaseModel):
    """A secret coin of public rate may end every prefix, the empty one included.

    Attributes:
        hazard: probability that a prefix ends by itself, at every step.
        floor: least action probability of the policies that are rolled out; 0 is allowed, and the
            guarantee does not depend on it.
        ratio: rho, as in `Floor`.
    """

    model_config = _FROZEN
    kind: Literal["random-stop"] = "random-stop"
    hazard: float = Field(gt=0, lt=1)
    floor: float = Field(default=0.0, ge=0, le=0.5)
    ratio: float = Field(gt=0, allow_inf_nan=False)

    @property
    def least_mass(self) -> float:
        """Below this mass a prefix may give an expert away: 1 + 1 / (hazard rho)."""
        return (1 + 1 / (self.hazard * self.ratio)) * _UP


class Consensus(BaseModel):
    """Experts vote, and the winner leads by more than one vote wherever the rollout goes on."""

    model_config = _FROZEN
    kind: Literal["consensus"] = "consensus"
    floor: Literal[0] = 0
    ratio: Literal[0] = 0

    @property
    def least_mass(self) -> float:
        """A lead of 1 may be one expert's doing."""
        return 1.0


Rule = Annotated[Floor | RandomStop | Consensus, Field(discriminator="kind")]


class StablePrefixMechanism(BaseModel):
    """A rule, its noise and what may go wrong; threshold and cost follow.

    Attributes:
        experts: public lower bound on the number of experts: of two neighbours the larger has at
            least so many. Slots of absent experts do not count.
        rule: what protects the drawn expert.
        noise: of sparse vector.
        failure: d', probability that one prefix goes on below the least mass.
    """

    model_config = _FROZEN
    experts: int = Field(ge=2)
    rule: Rule
    noise: SparseVector
    failure: float = Field(gt=0, lt=0.5)

    @model_validator(mode="after")
    def _enough_experts(self) -> "StablePrefixMechanism":
        if self.rule.least_mass > self.experts:
            raise ValueError(
                f"{self.experts} experts are fewer than the {self.rule.least_mass:.4g} whose mass "
                "even the empty prefix needs; take more experts, more epsilon or fewer releases, "
                "or a larger floor or hazard"
            )
        return self

    @property
    def threshold(self) -> float:
        """theta = least mass + margin, rounded up to the grid. It depends on no horizon."""
        return self.threshold_steps / UNIT

    @property
    def threshold_steps(self) -> int:
        """The threshold in steps of the grid."""
        return math.ceil((self.rule.least_mass + self.noise.margin(self.failure)) * UNIT)

    @property
    def epsilon(self) -> float:
        """Pure cost of one prefix's queries; a lead may rise when an expert leaves."""
        consensus = isinstance(self.rule, Consensus)
        return self.noise.general_cost if consensus else self.noise.remove_cost

    def event(self, releases: int) -> PrefixReleases:
        """What so many prefixes cost one expert."""
        return PrefixReleases(
            count=releases,
            experts=self.experts,
            ratio=self.rule.ratio,
            failure=self.failure,
            epsilon=self.epsilon,
        )

    def needed(self, horizon: int, misses: float = 0.1) -> float:
        """The mass at which all queries of a rollout pass their noise, but for `misses`.

        It says how useful a threshold is. The threshold's own noise is left out.
        """
        return self.threshold + self.noise.query_quantile(misses / horizon)
