"""Stable prefixes: releases how long many experts would follow one of them (Sharma et al. 2024).

A rollout follows one expert, drawn at random. The *mass* of a prefix is the sum over experts of the
probability with which each would have taken its actions. Along the rollout, sparse vector asks
whether the mass is large, and the prefix ends where it is not. Three rules keep the end of a prefix
from revealing the drawn expert:

* `Floor`: every action of every expert has at least a public probability (the paper's assumption).
* `RandomStop`: at every prefix a secret coin of public rate may end it, so an end need not mean
  anything. Experts may be deterministic. A visible coin would protect nothing, so no output tells
  whether the coin or the query ended a prefix.
* `Consensus`: nobody is drawn. Experts vote on every action, the rollout takes the winner, and the
  queries ask by how many votes it leads.

Guarantee:
    The unit is one expert, who is present or absent. n prefixes of fresh rollouts in one MDP shared
    by all experts cost the `PrefixReleases` event of `StablePrefixMechanism.event(n)`, whatever the
    horizon. The proofs are Theorems 7 to 9 of docs/privacy.md, section 14.
"""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from sotto.frozen import FrozenModel
from sotto.privacy.accounting.events import PrefixReleases
from sotto.privacy.mechanisms.sparse_vector import UNIT, SparseVector

_UP = 1 + 2.0**-30
"""Surplus of the least mass; the probabilities of float64 coins and actions are off by less."""


class Floor(FrozenModel):
    """Rule in which every action has at least probability `floor`, whoever is drawn.

    Attributes:
        floor: public; at most 1 / actions.
        ratio: rho, the weight of one expert in the end of a prefix, relative to all the others.
    """

    kind: Literal["floor"] = "floor"
    floor: float = Field(gt=0, le=0.5)
    ratio: float = Field(gt=0, allow_inf_nan=False)

    @property
    def least_mass(self) -> float:
        """Mass below which a prefix may reveal an expert: (1 + 1/rho) / floor."""
        return (1 + 1 / self.ratio) / self.floor * _UP


class RandomStop(FrozenModel):
    """Rule in which a secret coin of public rate may end every prefix, even the empty one.

    Attributes:
        hazard: probability that a prefix ends by itself, at every step.
        floor: least action probability of the policies that are rolled out; 0 is allowed, and the
            guarantee does not depend on it.
        ratio: rho, as in `Floor`.
    """

    kind: Literal["random-stop"] = "random-stop"
    hazard: float = Field(gt=0, lt=1)
    floor: float = Field(default=0.0, ge=0, le=0.5)
    ratio: float = Field(gt=0, allow_inf_nan=False)

    @property
    def least_mass(self) -> float:
        """Mass below which a prefix may reveal an expert: 1 + 1 / (hazard rho)."""
        return (1 + 1 / (self.hazard * self.ratio)) * _UP


class Consensus(FrozenModel):
    """Rule in which experts vote and the winner must lead by more than one vote to go on."""

    kind: Literal["consensus"] = "consensus"
    floor: Literal[0] = 0
    ratio: Literal[0] = 0

    @property
    def least_mass(self) -> float:
        """Lead up to which one expert may have decided the vote: 1."""
        return 1.0


Rule = Annotated[Floor | RandomStop | Consensus, Field(discriminator="kind")]


class StablePrefixMechanism(FrozenModel):
    """A rule, its noise and its failure probability, which give the threshold and the cost.

    Attributes:
        experts: public lower bound on the number of experts in the larger of two neighbours. Slots
            of absent experts do not count.
        rule: protection of the drawn expert.
        noise: of sparse vector.
        failure: d', probability that one prefix continues below the least mass.
    """

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
        """Threshold theta = least mass + margin, rounded up to the grid, at any horizon."""
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
        """Returns the cost of `releases` prefixes for one expert."""
        return PrefixReleases(
            count=releases,
            experts=self.experts,
            ratio=self.rule.ratio,
            failure=self.failure,
            epsilon=self.epsilon,
        )

    def needed(self, horizon: int) -> float:
        """Returns the mass at which the queries of a rollout pass with probability 0.9.

        It tells how useful a threshold is. The threshold's noise is left out.
        """
        return self.threshold + self.noise.query_quantile(0.1 / horizon)
