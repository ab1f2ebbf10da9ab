"""The description of a DP-SGD training, read strictly from JSON."""

import json
import math
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from sotto.files import once, read_at_most
from sotto.frozen import FrozenModel
from sotto.privacy.errors import PrivacyError
from sotto.problems import first_problem

Verdict = Literal["holds", "false", "vacuous", "undecided"]
"""The answer on a claim; `findings.Analysis` explains it."""

_LARGEST = 1 << 20
"""Most bytes of a file."""
_MOST_STEPS = 10**9


class Claimed(FrozenModel, allow_inf_nan=False):
    """The claim that somebody makes about a training.

    Attributes:
        epsilon: the claimed epsilon; None if none is stated.
        delta: the delta at which it is claimed.
        adjacency: how neighbouring data sets differ, according to the claim.
        accountant: its name, in the words of the source.
        orders: smallest and largest order of the accountant, if it is one of Renyi divergences.
    """

    epsilon: float | None = Field(ge=0)
    delta: float = Field(gt=0, lt=1)
    adjacency: Literal["add-remove", "zero-out", "replace"]
    accountant: str = Field(max_length=200)
    orders: tuple[float, float] | None = Field(default=None, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.orders is not None and not 1 < self.orders[0] < self.orders[1] <= 1e5:
            raise ValueError("orders are two numbers between 1 and 100000, the smaller one first")
        return self


class Description(FrozenModel, allow_inf_nan=False):
    """A DP-SGD training in somebody's words.

    Attributes:
        name: name of the training.
        source: where these settings are published.
        notes: values that the source does not print, and what stands here instead.
        records: number of records in the data set.
        batch_size: number of records in a batch, or its mean under Poisson sampling.
        sampling: "poisson" draws each record independently for each step; "shuffle" draws a new
            order in each epoch; "fixed" visits the same batches in each epoch.
        last_batch: fate of an incomplete last batch of an epoch.
        steps: number of noisy steps of one run; or
        epochs: number of passes of one run over the data, in place of steps. A pass has
            records / batch_size steps, rounded up unless an incomplete last batch was dropped.
        noise_multiplier: standard deviation of the noise divided by clip_norm, for the sum over a
            batch of batch_size records.
        clip_norm: largest L2 norm of the gradient of one record.
        noise_scaled_to: "sum" adds the noise to the sum; "mean" adds the noise of a full batch to
            the mean of the records that are there.
        runs: number of trainings on the same data, those for tuning included.
        records_per_person: most records of one person.
        noise_secret: whether the seed of the noise is unknown to everybody.
        noise_secure: whether the generator of the noise is a cryptographic one.
        claimed: the claim.
    """

    name: str = Field(min_length=1, max_length=200)
    source: str = Field(max_length=500)
    notes: str = Field(default="", max_length=2000)
    records: int = Field(ge=2, le=10**12)
    batch_size: int = Field(ge=1)
    sampling: Literal["poisson", "shuffle", "fixed", "unknown"]
    last_batch: Literal["dropped", "kept", "none", "unknown"]
    steps: int | None = Field(
        default=None, ge=1, le=_MOST_STEPS, exclude_if=lambda value: value is None
    )
    epochs: int | None = Field(
        default=None, ge=1, le=_MOST_STEPS, exclude_if=lambda value: value is None
    )
    noise_multiplier: float = Field(ge=1e-6, le=1e6)
    clip_norm: float = Field(gt=0)
    noise_scaled_to: Literal["sum", "mean"]
    runs: int = Field(default=1, ge=1, le=10**6)
    records_per_person: int = Field(default=1, ge=1, le=10**9)
    noise_secret: bool
    noise_secure: bool
    claimed: Claimed

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.batch_size > self.records:
            raise ValueError("batch_size is larger than records")
        whole = self.records % self.batch_size == 0 or self.sampling in ("poisson", "unknown")
        if self.last_batch == "none" and not whole:
            raise ValueError("records is no multiple of batch_size; say what became of the rest")
        if self.records_per_person > self.records:
            raise ValueError("records_per_person is larger than records")
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("say either steps or epochs")
        if self.total_steps > _MOST_STEPS:
            raise ValueError(f"more than {_MOST_STEPS} steps are not accounted")
        return self

    @property
    def batches(self) -> int:
        """The number of steps of an epoch, where each record is visited at most once."""
        kept = self.last_batch == "kept"
        return -(-self.records // self.batch_size) if kept else self.records // self.batch_size

    @property
    def partitioned(self) -> bool:
        """Whether the batches of an epoch share no record: they are shuffled or fixed."""
        return self.sampling in ("shuffle", "fixed")

    @property
    def rate(self) -> float:
        """The probability that a step draws a record, under Poisson sampling."""
        return self.batch_size / self.records

    @property
    def total_steps(self) -> int:
        """The number of noisy steps of one run."""
        if self.epochs is None:
            return self.steps or 0
        return self.epochs * (self.batches if self.last_batch == "dropped" else self._largest)

    @property
    def begun(self) -> int:
        """The number of epochs that have begun in one run, or more than that."""
        return self.epochs or math.ceil(self.total_steps / self.batches)

    @property
    def finished(self) -> int:
        """The number of epochs that one run finished, whatever became of an incomplete batch."""
        return self.epochs or self.total_steps // self._largest

    @property
    def _largest(self) -> int:
        return -(-self.records // self.batch_size)

    @property
    def rest(self) -> int:
        """The number of records in the smallest batch of an epoch."""
        rest = self.records % self.batch_size
        return rest if rest and self.last_batch in ("kept", "unknown") else self.batch_size


def read(path: Path) -> Description:
    """Returns the description in a file.

    Raises:
        PrivacyError: it cannot be read, says a name twice, has an unknown field or a value that
            is not of its type.
    """
    try:
        text = read_at_most(path, _LARGEST).decode("utf-8")
        json.loads(text, object_pairs_hook=once)
        found = Description.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise PrivacyError(f"{path} cannot be read: {first_problem(error, Description)}") from None
    except (OSError, ValueError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise PrivacyError(
            f"{path} cannot be read: {said}; give a file of JSON as in docs/other_trainings.md"
        ) from None
    return found
