"""The statement of a stream of releases, written down before the stream touches data.

A *stream* is a planned sequence of releases of one kind under one noise process. Its statement
holds everything that the privacy analysis needs. The ledger stores it, the certificate is derived
from it, and anybody can recompute the epsilon later without the training code.
"""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from sotto.frozen import FrozenModel
from sotto.privacy.accounting.composition import (
    Event,
    Gaussian,
    NoGuarantee,
    RepeatAndSelect,
    SampledGaussian,
)
from sotto.privacy.mechanisms import discrete_gaussian
from sotto.privacy.mechanisms.noisy_max import NoisyMax
from sotto.privacy.mechanisms.stable_prefixes import StablePrefixMechanism
from sotto.privacy.units import PopulationKind, Unit

UNBOUNDED_DRAWS = 2**40
"""Number of draws charged for a release whose number of answers is not fixed."""


class Once(FrozenModel):
    """Each person takes part in at most one release of the whole ledger."""

    kind: Literal["once"] = "once"


class Returning(FrozenModel):
    """A person takes part in at most `max_participations` releases of the stream.

    Attributes:
        max_participations: most releases that one person takes part in.
        min_separation: least distance of two of them (1: they may be consecutive).
        exclusive: whether people of the stream are in no other stream, as with `Once`.
    """

    kind: Literal["returning"] = "returning"
    max_participations: int = Field(ge=1)
    min_separation: int = Field(ge=1)
    exclusive: bool = Field(default=False, exclude_if=lambda value: not value)


class Poisson(FrozenModel):
    """Every release draws each person of the population in secret, with a public rate.

    Attributes:
        sampling_rate: probability that a release draws a person.
        population: number of people who may be drawn.
    """

    kind: Literal["poisson"] = "poisson"
    sampling_rate: float = Field(gt=0, lt=1)
    population: int = Field(ge=1)


Participation = Annotated[Once | Returning | Poisson, Field(discriminator="kind")]


Sharing = Literal["assumed", "planned", "adaptive"]
"""The rule of a ledger for the streams that the same people may take part in.

`planned`: all of them are opened before the first of them is charged, and cost what they cost
together. `adaptive`: they may be opened by looking at earlier releases, and the certificate states
the budget. `assumed`: the rule of earlier versions, which left it to the user to plan.
"""


class Part(FrozenModel):
    """One named part of what a person contributes.

    Attributes:
        clip_norm: L2 bound on one person's contribution.
        noise_multiplier: multiplier of this part alone, over the whole stream, for one person,
            under zero-out adjacency: noise standard deviation / clip_norm for one participation
            in independent noise.
    """

    clip_norm: float = Field(gt=0, allow_inf_nan=False)
    noise_multiplier: float = Field(gt=0, allow_inf_nan=False)


class Correlation(FrozenModel):
    """Correlation of noise over releases.

    It is none, that of the square root of a (decayed) prefix-sum workload, or that of a tree.

    Attributes:
        kind: the workload whose sums the noise suits.
        workload_decay: factor by which earlier releases count less in its sums; 1 for no decay.
    """

    kind: Literal["independent", "prefix-sum", "binary-tree"] = "independent"
    workload_decay: float = Field(default=1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _tree_sums_evenly(self) -> "Correlation":
        if self.kind == "binary-tree" and self.workload_decay != 1:
            raise ValueError("a binary tree sums releases without decay; use prefix-sum noise")
        return self


class Gap(FrozenModel):
    """A named step that is not private. One gap makes the whole stream a paper claim.

    Attributes:
        name: name of the step.
        why: reason why it is not private.
    """

    name: str
    why: str


class Assumption(FrozenModel):
    """A condition of the proof, and the part of the system, or the user, that ensures it.

    Attributes:
        statement: the condition.
        enforced_by: "code" or "user".
        how: the way in which it is ensured.
    """

    statement: str
    enforced_by: Literal["code", "user"]
    how: str


class Selection(FrozenModel):
    """The stream is run a secret number of times, and the releases of the best try are published.

    Attributes:
        tries: law of the number of tries.
        mean: mean of that law.
        candidates: number of settings; each try draws one of them by public chance.
        accounting: accounting of the event (`RepeatAndSelect`); 1 where the statement is silent.
    """

    tries: Literal["geometric", "poisson"] = "geometric"
    mean: float = Field(ge=1, allow_inf_nan=False)
    candidates: int = Field(ge=1)
    accounting: Literal[1, 2] = Field(default=1, exclude_if=lambda value: value == 1)


class ShareOfNoise(FrozenModel):
    """One device's share of the noise in one part.

    Attributes:
        grid: spacing of the part's grid, in the units of its clip norm.
        variance: of the share, in squared steps of the grid.
    """

    grid: float = Field(gt=0, allow_inf_nan=False)
    variance: float = Field(ge=discrete_gaussian.LEAST_VARIANCE, allow_inf_nan=False)


class NoiseShares(FrozenModel):
    """Noise that people's devices make together; the server sees masked sums modulo 2^bits.

    Attributes:
        bits: of each number of a sum.
        slots: most devices in one sum.
        promised: least devices in a sum that is opened.
        colluding: most devices asked in a round, in the sum or not, that tell all or add no noise.
        parts: share of the noise in each part.
    """

    bits: int = Field(ge=8, le=32)
    slots: int = Field(ge=2)
    promised: int = Field(ge=2)
    colluding: int = Field(ge=0)
    parts: dict[str, ShareOfNoise]

    @property
    def secret(self) -> int:
        """Number of shares in every opened sum that whoever sees it does not know."""
        return self.promised - self.colluding

    @model_validator(mode="after")
    def _consistent(self) -> "NoiseShares":
        if not self.colluding < self.promised <= self.slots:
            raise ValueError(
                "of the devices of a release, those promised are at most all, and those that "
                "collude are fewer than those promised"
            )
        return self


class StreamStatement(FrozenModel):
    """Everything that the privacy analysis of one stream needs, fixed before the first release.

    `clipping="joint"` bounds the parts together: the norm of all parts, each divided by its clip
    norm, is at most 1, and all parts have one noise multiplier. `"separate"` bounds each part
    alone, and the costs of the parts add up: 1/z^2 = sum 1/z_p^2 (docs/privacy.md, section 5).

    A stream with a `selection` is the stream of one try. Tries may differ in their clip norms, and
    in nothing else that the cost depends on.

    Attributes:
        name: name of the stream, for people.
        unit: unit of privacy and its adjacency.
        participation: rule for who takes part in how many releases.
        parts: bound and noise of each part that is released.
        dimensions: number of values of each part.
        clipping: whether parts are bounded together or each alone.
        divisor: public number by which sums are divided.
        correlation: correlation of the noise over releases.
        horizon: number of releases that the stream is planned for.
        population: whether the people are simulated.
        entropy: source of the noise; a fixed seed guarantees nothing.
        protects: sentences about this stream, as its training wrote them.
        does_not_protect: sentences about its limits.
        assumptions: conditions of its proof.
        gaps: steps that are not private.
        prefixes: mechanism of stable prefixes; absent for other streams.
        choice: mechanism of each choice; absent for other streams.
        selection: law of the number of tries; absent if there is one try.
        shares: noise that devices make together; absent if the server makes it.
    """

    name: str
    unit: Unit
    participation: Participation
    parts: dict[str, Part] = Field(default={})
    dimensions: dict[str, Annotated[int, Field(ge=1)]] = Field(default={})
    clipping: Literal["separate", "joint"] = "separate"
    divisor: float = Field(gt=0, allow_inf_nan=False)
    correlation: Correlation = Correlation()
    horizon: int = Field(ge=1)
    population: PopulationKind
    entropy: Literal["operating-system", "fixed-seed"] = "operating-system"
    sampler_delta: float = Field(
        ge=0, description="delta the noise sampler itself costs at e^eps=1"
    )
    sum_rounding: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        exclude_if=lambda value: value == 0,
        description="relative growth of the sensitivity by rounding in float32 sums; the noise is "
        "that much larger, so that the noise multipliers stay as stated",
    )
    noise_rounding: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        exclude_if=lambda value: value == 0,
        description="the same for rounding noise that is correlated over releases",
    )
    noise_law: Literal["scaled-float64", "on-grid"] = Field(
        default="scaled-float64",
        exclude_if=lambda value: value == "scaled-float64",
        description="how Gaussian noise comes onto the grid: drawn there with the proved law, or, "
        "in earlier versions, as float64 numbers that were scaled and rounded",
    )
    protects: tuple[str, ...] = ()
    does_not_protect: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    gaps: tuple[Gap, ...] = ()
    prefixes: StablePrefixMechanism | None = Field(
        default=None, exclude_if=lambda value: value is None
    )
    choice: NoisyMax | None = Field(default=None, exclude_if=lambda value: value is None)
    selection: Selection | None = Field(default=None, exclude_if=lambda value: value is None)
    shares: NoiseShares | None = Field(default=None, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _consistent(self) -> "StreamStatement":
        if bool(self.parts) + (self.prefixes is not None) + (self.choice is not None) != 1:
            raise ValueError("a stream releases parts, at least one, or stable prefixes or choices")
        if set(self.dimensions) != set(self.parts):
            raise ValueError("dimensions must name the same parts as parts")
        if self.clipping == "joint" and len({p.noise_multiplier for p in self.parts.values()}) > 1:
            raise ValueError("parts clipped jointly share one noise multiplier; give all the same")
        if isinstance(self.participation, Poisson) and self.correlation.kind != "independent":
            raise ValueError(
                "Poisson sampling with correlated noise has no accountant here; "
                "use independent noise, or participation without sampling"
            )
        if isinstance(self.participation, Returning) and self.correlation.kind == "binary-tree":
            raise ValueError(
                "a binary tree is for people who take part once; use prefix-sum noise for others"
            )
        if self.selection is not None and not self.parts:
            raise ValueError("a selection is among streams of parts")
        if isinstance(self.participation, Poisson) and self.unit.adjacency != "zero-out":
            raise ValueError("Poisson sampling is accounted under zero-out adjacency only")
        if self.shares is not None:
            self._require_enough_shares(self.shares)
        return self

    def _require_enough_shares(self, shares: NoiseShares) -> None:
        """Refuses shares that add up to less noise than the parts state (Theorem D2)."""
        once = isinstance(self.participation, Once) and self.correlation.kind == "independent"
        if not once or not self.parts or self.selection is not None:
            raise ValueError(
                "noise in shares is independent over releases, for people who take part once"
            )
        if set(shares.parts) != set(self.parts):
            raise ValueError("shares must name the same parts as parts")
        for name, part in self.parts.items():
            own = shares.parts[name]
            made = discrete_gaussian.noise_multiplier(
                own.variance, shares.secret, part.clip_norm / own.grid
            )
            if not made >= part.noise_multiplier:
                raise ValueError(
                    f"the shares of {name!r} have noise multiplier {made:.6g} together, less than "
                    f"the {part.noise_multiplier:.6g} that is stated"
                )

    @property
    def is_shared(self) -> bool:
        """Whether people of the stream may take part in other streams, too."""
        if isinstance(self.participation, Returning):
            return not self.participation.exclusive
        return not isinstance(self.participation, Once)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of all parts together for one person, under the unit's adjacency."""
        multipliers = [part.noise_multiplier for part in self.parts.values()]
        together = (
            multipliers[0]
            if self.clipping == "joint"
            else 1.0 / math.sqrt(sum(z**-2 for z in multipliers))
        )
        return together / self.unit.adjacency.sensitivity_factor

    @property
    def releases_values(self) -> bool:
        """Whether the stream releases a function or its values, unclipped.

        Its sensitivity is stated. Rewards of transitions may pass either door; only the door for
        functions uses this name.
        """
        everybody = isinstance(self.participation, Returning) and set(self.parts) == {"values"}
        return self.unit.adjacency == "within-radius" or (
            everybody and self.unit.kind == "transition"
        )

    @property
    def takes_all(self) -> bool:
        """Whether every unit takes part in every release, with the numbers 0, 1, ..."""
        return self.releases_values or self.choice is not None

    @property
    def event(self) -> Event:
        """The cost of the whole stream for one person, counted from the first release on.

        Without sampling, the noise is scaled to the sensitivity of a person's whole participation
        in the stream (docs/privacy.md, Theorems 2 and 2'). With sampling, and for stable prefixes,
        every release adds a cost. The stream still costs as much as its whole horizon, because the
        decision to stop may depend on releases (docs/privacy.md, section 8).
        """
        if self.gaps:
            return NoGuarantee(reason="; ".join(gap.name for gap in self.gaps))
        if self.entropy == "fixed-seed":
            return NoGuarantee(reason="the noise came from a fixed seed")
        if self.releases_values and self.noise_law == "scaled-float64":
            return NoGuarantee(
                reason="an earlier version released these values on a grid finer than its noise "
                "resolves"
            )
        if self.prefixes is not None:
            return self.prefixes.event(self.horizon)
        if self.choice is not None:
            return self.choice.event(self.horizon)
        if self.selection is not None:
            law = self.selection
            return RepeatAndSelect(
                run=self._one_try, tries=law.tries, mean=law.mean, accounting=law.accounting
            )
        return self._one_try

    @property
    def _one_try(self) -> Gaussian | SampledGaussian:
        if isinstance(self.participation, Poisson):
            return SampledGaussian(
                noise_multiplier=self.noise_multiplier,
                sampling_rate=self.participation.sampling_rate,
                count=self.horizon,
            )
        return Gaussian(noise_multiplier=self.noise_multiplier)
