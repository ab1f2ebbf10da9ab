"""What a stream of releases promises, written down before it touches data.

A *stream* is a sequence of releases of one kind under one noise process. Its statement holds
everything the privacy analysis needs, so the ledger can store it, the certificate can be derived
from it, and anybody can recompute the epsilon later without the code that trained.
"""

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sotto.privacy.accounting.composition import (
    Event,
    Gaussian,
    NoGuarantee,
    RepeatAndSelect,
    SampledGaussian,
)
from sotto.privacy.mechanisms.stable_prefixes import StablePrefixMechanism
from sotto.privacy.units import Unit

_FROZEN = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


UNBOUNDED_DRAWS = 2**40
"""Numbers that a release may draw that answers as long as it is asked."""


class Once(BaseModel):
    """Each person takes part in at most one release, over the whole ledger."""

    model_config = _FROZEN
    kind: Literal["once"] = "once"


class Returning(BaseModel):
    """A person takes part in at most `max_participations` releases of the stream.

    Two of them are at least `min_separation` releases apart (1: they may be consecutive). If
    `exclusive`, whoever takes part does so in no other stream of the ledger, as with `Once`.
    """

    model_config = _FROZEN
    kind: Literal["returning"] = "returning"
    max_participations: int = Field(ge=1)
    min_separation: int = Field(ge=1)
    exclusive: bool = Field(default=False, exclude_if=lambda value: not value)


class Poisson(BaseModel):
    """At every release each person of the population is drawn, in secret, with a public rate."""

    model_config = _FROZEN
    kind: Literal["poisson"] = "poisson"
    sampling_rate: float = Field(gt=0, lt=1)
    population: int = Field(ge=1)


Participation = Annotated[Once | Returning | Poisson, Field(discriminator="kind")]


def is_exclusive(participation: Participation) -> bool:
    """Whether those who take part in the stream take part in no other one."""
    return isinstance(participation, Once) or (
        isinstance(participation, Returning) and participation.exclusive
    )


Sharing = Literal["assumed", "planned", "adaptive"]
"""The rule of a ledger for the streams that the same people may take part in.

`planned`: all of them are opened before the first of them is charged, and cost what they cost
together. `adaptive`: they may be opened by looking at earlier releases, and the certificate states
the budget. `assumed`: the rule of earlier versions, which left it to the user to plan.
"""


class Part(BaseModel):
    """One named part of what a person contributes.

    Attributes:
        clip_norm: L2 bound on one person's contribution.
        noise_multiplier: multiplier of this part alone, over the whole stream, for one person,
            under zero-out adjacency: noise standard deviation / clip_norm for one participation
            in independent noise.
    """

    model_config = _FROZEN
    clip_norm: float = Field(gt=0, allow_inf_nan=False)
    noise_multiplier: float = Field(gt=0, allow_inf_nan=False)


class Correlation(BaseModel):
    """Noise over time: independent, the square root of a (decayed) prefix-sum workload, a tree."""

    model_config = _FROZEN
    kind: Literal["independent", "prefix-sum", "binary-tree"] = "independent"
    workload_decay: float = Field(default=1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _tree_sums_evenly(self) -> "Correlation":
        if self.kind == "binary-tree" and self.workload_decay != 1:
            raise ValueError("a binary tree sums releases without decay; use prefix-sum noise")
        return self


class Gap(BaseModel):
    """A step that is not private, named. One gap makes the whole stream a paper claim."""

    model_config = _FROZEN
    name: str
    why: str


class Assumption(BaseModel):
    """Something the proof needs, and what enforces it."""

    model_config = _FROZEN
    statement: str
    enforced_by: Literal["code", "user"]
    how: str


class Selection(BaseModel):
    """The stream is made a secret number of times, and the releases of the best one are published.

    Attributes:
        tries: law of the number of times.
        mean: its mean.
        candidates: settings that each try draws one of, by public chance.
        accounting: of the event (`RepeatAndSelect`); 1 where the statement does not say.
    """

    model_config = _FROZEN
    tries: Literal["geometric", "poisson"] = "geometric"
    mean: float = Field(ge=1, allow_inf_nan=False)
    candidates: int = Field(ge=1)
    accounting: Literal[1, 2] = Field(default=1, exclude_if=lambda value: value == 1)


class StreamStatement(BaseModel):
    """Everything the privacy analysis of one stream needs, fixed before the first release.

    `clipping="joint"` bounds the parts together (the norm of all parts, each divided by its clip
    norm, is at most 1; all parts then carry one noise multiplier); `"separate"` bounds each alone,
    and the parts' costs add up: 1/z^2 = sum 1/z_p^2 (theory: one release is one event).

    A stream of stable prefixes has no parts: `prefixes` says what is released, and at what cost.

    Where there is a `selection` the stream is that of one try, and clip norms may differ from try
    to try; nothing else does that the cost depends on.
    """

    model_config = _FROZEN

    name: str
    unit: Unit
    participation: Participation
    parts: dict[str, Part] = {}
    dimensions: dict[str, int] = {}
    clipping: Literal["separate", "joint"] = "separate"
    divisor: float = Field(gt=0, allow_inf_nan=False)
    correlation: Correlation = Correlation()
    horizon: int = Field(ge=1)
    population: Literal["simulated", "real"]
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
    selection: Selection | None = Field(default=None, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _consistent(self) -> "StreamStatement":
        if bool(self.parts) == (self.prefixes is not None):
            raise ValueError("a stream releases parts, at least one, or stable prefixes")
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
        if self.selection is not None and self.prefixes is not None:
            raise ValueError("a selection is among streams of parts, not of stable prefixes")
        if isinstance(self.participation, Poisson) and self.unit.adjacency != "zero-out":
            raise ValueError("Poisson sampling is accounted under zero-out adjacency only")
        return self

    @property
    def noise_multiplier(self) -> float:
        """The stream's multiplier for one person, all parts together, in the unit's adjacency."""
        multipliers = [part.noise_multiplier for part in self.parts.values()]
        together = (
            multipliers[0]
            if self.clipping == "joint"
            else 1.0 / math.sqrt(sum(z**-2 for z in multipliers))
        )
        return together / self.unit.adjacency.sensitivity_factor

    @property
    def releases_values(self) -> bool:
        """Whether a function or its values are released, by a stated sensitivity, unclipped.

        Single rewards can be released through either door; only that one names its part so.
        """
        everybody = isinstance(self.participation, Returning) and set(self.parts) == {"values"}
        return self.unit.adjacency == "within-radius" or (
            everybody and self.unit.kind == "transition"
        )

    @property
    def event(self) -> Event:
        """What the stream costs one person, all of it, from the first release on.

        Without sampling the noise is scaled to the sensitivity of a person's whole participation
        in the stream (theory, Theorems 2 and 2'). With sampling, and for stable prefixes, a release
        more is a cost more, and still the stream costs what its horizon costs: when it stops may
        have been decided by looking at releases, and the cost of those that were made is then no
        guarantee of anything (docs/privacy.md, section 8).
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
        if self.selection is not None:
            chosen = self.selection
            return RepeatAndSelect(
                run=self._one_try,
                tries=chosen.tries,
                mean=chosen.mean,
                accounting=chosen.accounting,
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
