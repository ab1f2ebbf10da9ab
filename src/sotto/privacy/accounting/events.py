"""Accounting events: the costs of releases, as values that a ledger stores.

An event is the cost of a mechanism for *one unit* under the adjacency of its stream, already
scaled to sensitivity 1. Events are frozen, and JSON brings back an equal value:
`TypeAdapter(Event).validate_json(event.model_dump_json()) == event`.

One release is one event. Parts that are released together under one Poisson draw are combined
*inside* the `SampledGaussian` (1/z^2 = sum 1/z_p^2). Two separate sampled events would claim two
independent draws, which costs less than the truth.
"""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from sotto.frozen import FrozenModel


class _Event(FrozenModel):
    """Base of the events, which checks the numbers that most of them have."""

    @field_validator("noise_multiplier", check_fields=False)
    @classmethod
    def _noise(cls, value: float) -> float:
        if not 0 < value < math.inf:
            raise ValueError(
                f"noise_multiplier must be a positive finite number, got {value}; "
                "a release without noise has no guarantee"
            )
        return value

    @field_validator("count", check_fields=False)
    @classmethod
    def _count(cls, value: int) -> int:
        if value < 1:
            raise ValueError(f"count must be at least 1, got {value}; leave out what never ran")
        return value


class Gaussian(_Event):
    """Gaussian noise added to a value of L2 sensitivity 1, once per unit.

    Attributes:
        noise_multiplier: noise standard deviation / L2 sensitivity; positive and finite.
    """

    kind: Literal["gaussian"] = "gaussian"
    noise_multiplier: float


class SampledGaussian(_Event):
    """The Poisson-subsampled Gaussian mechanism, run `count` times, under zero-out adjacency.

    Each run draws every unit independently and in secret with probability `sampling_rate`, sums
    the drawn units' contributions of L2 norm at most 1, and adds Gaussian noise. It covers neither
    batches of fixed size nor shuffling.

    Attributes:
        noise_multiplier: noise standard deviation / L2 sensitivity; positive and finite.
        sampling_rate: strictly between 0 and 1.
        count: number of runs, at least 1.
    """

    kind: Literal["sampled-gaussian"] = "sampled-gaussian"
    noise_multiplier: float
    sampling_rate: float
    count: int = 1

    @field_validator("sampling_rate")
    @classmethod
    def _rate(cls, value: float) -> float:
        if not 0 < value < 1:
            raise ValueError(
                f"sampling_rate must be strictly between 0 and 1, got {value}; "
                "if every unit is in every release, use the Gaussian mechanism without sampling"
            )
        return value


class Renyi(_Event):
    """A mechanism with a proved Renyi curve, run `count` times.

    Attributes:
        orders: Renyi orders, strictly increasing, finite, all above 1.
        divergences: upper bounds on the Renyi divergence of one run at each order, in both
            directions of the adjacency, in nats; not negative. Nothing is proved at an order
            where it is `inf`.
        count: number of runs, at least 1.
    """

    kind: Literal["renyi"] = "renyi"
    orders: tuple[float, ...]
    divergences: tuple[float, ...]
    count: int = 1

    @model_validator(mode="after")
    def _curve(self) -> Self:
        # Converters turn NaN or negative divergences into epsilon 0, so they are refused here.
        if not self.orders or len(self.orders) != len(self.divergences):
            raise ValueError("a Renyi curve needs one divergence for each order, at least one")
        if not all(1 < order < math.inf for order in self.orders):
            raise ValueError("Renyi orders must be finite numbers above 1")
        if any(b <= a for a, b in zip(self.orders, self.orders[1:], strict=False)):
            raise ValueError("Renyi orders must be strictly increasing")
        if not all(divergence >= 0 for divergence in self.divergences):
            raise ValueError("Renyi divergences must be numbers that are not negative")
        return self


class RepeatAndSelect(_Event):
    """The best of a random number of runs of one mechanism, by a score that each run releases.

    Only the output of the best run is released. The number of runs and the outputs of the others
    stay secret. Sources: Papernot and Steinke 2022, "Hyperparameter Tuning with Renyi Differential
    Privacy"; Koskela, Redberg and Wang 2024, "Privacy Profiles for Private Selection".

    Attributes:
        run: cost of one run, its score included.
        tries: law of the number of runs. "geometric" makes at least one run; "poisson" may make
            none.
        mean: mean number of runs, at least 1.
        count: number of selections, at least 1.
        accounting: 2 for the privacy profile, 1 for the Renyi curve, which costs more. Statements
            of earlier versions do not have this field and keep the cost of 1.
    """

    kind: Literal["repeat-and-select"] = "repeat-and-select"
    run: Annotated[Gaussian | SampledGaussian, Field(discriminator="kind")]
    tries: Literal["geometric", "poisson"]
    mean: float = Field(ge=1, allow_inf_nan=False)
    count: int = 1
    accounting: Literal[1, 2] = Field(default=1, exclude_if=lambda value: value == 1)


class ApproximateDP(_Event):
    """An (epsilon, delta)-DP mechanism with no other known property, run `count` times.

    Attributes:
        epsilon: finite, not negative.
        delta: in [0, 1).
        count: number of runs, at least 1.
    """

    kind: Literal["approximate-dp"] = "approximate-dp"
    epsilon: float
    delta: float
    count: int = 1

    @field_validator("epsilon")
    @classmethod
    def _epsilon(cls, value: float) -> float:
        if not 0 <= value < math.inf:
            raise ValueError(
                f"epsilon must be a finite number that is not negative, got {value}; "
                "the event of a release without a guarantee is NoGuarantee"
            )
        return value

    @field_validator("delta")
    @classmethod
    def _delta(cls, value: float) -> float:
        if not 0 <= value < 1:
            raise ValueError(f"delta must be in [0, 1), got {value}")
        return value


class PrefixReleases(_Event):
    """Stable prefixes: rollouts of drawn experts, cut by sparse vector, `count` times.

    Attributes:
        count: number of released prefixes, at least 1.
        experts: public lower bound on the number of experts in the larger of two neighbours; >= 2.
        ratio: bound on the weight of one expert in a released prefix, relative to all the others
            (rho of docs/privacy.md, section 14). It holds outside the failures; 0 if nobody is
            drawn.
        failure: probability that the ratio is exceeded for one prefix.
        epsilon: pure cost of one prefix's queries, in both directions.
    """

    kind: Literal["stable-prefixes"] = "stable-prefixes"
    count: int = 1
    experts: int = Field(ge=2)
    ratio: float = Field(ge=0, allow_inf_nan=False)
    failure: float = Field(ge=0, lt=1)
    epsilon: float = Field(gt=0, allow_inf_nan=False)


class NoGuarantee(_Event):
    """A release without any proof: its epsilon is infinite.

    Attributes:
        reason: the reason in plain words, which the certificate shows.
    """

    kind: Literal["no-guarantee"] = "no-guarantee"
    reason: str = Field(min_length=1)


Event = Annotated[
    Gaussian
    | SampledGaussian
    | Renyi
    | RepeatAndSelect
    | ApproximateDP
    | PrefixReleases
    | NoGuarantee,
    Field(discriminator="kind"),
]
"""The cost of a release: a union that pydantic tells apart by `kind`."""
