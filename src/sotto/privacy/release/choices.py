"""Releases which of several public candidates is best (noisy maximum), and nothing else.

```
protects = (claims.rewards.LOGGED_FUNCTION(radius="0.05"),)
release = ChoiceRelease(
    "policy", unit, tables, weights, (0.0, 0.5), 0.05, 0.9, "simulated", protects
)
table = release.open(ledger, folder).release(rewards).values
```

A candidate's value is the sum of secret numbers times its public weights. The release clips the
secrets, bounds from the weights how far apart a unit moves two values, charges the ledger, chooses
by noisy maximum, and writes the winner to disk before it returns it.

Guarantee:
    The choice is epsilon-differentially private for the unit, with delta 0 (docs/privacy.md,
    section 13, Theorem 6b). The unit is all secret numbers, each moved by at most `radius`, under
    the adjacency within-radius. Otherwise it is one of them, moved by at most `radius`.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float

from sotto.frozen import Declared
from sotto.privacy.claims.rewards import NOISY_MAXIMUM, PRINTED, require_one_radius
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.streams import LedgerStream
from sotto.privacy.mechanisms import noise
from sotto.privacy.mechanisms.noisy_max import (
    MOST,
    NoisyMax,
    largest_error,
    moved_by_all,
    moved_by_one,
    values_of,
)
from sotto.privacy.release.functions import release_file
from sotto.privacy.release.released import ReleasedValues
from sotto.privacy.statements import Assumption, Returning, StreamStatement
from sotto.privacy.units import Adjacency, PopulationKind, Unit


@dataclass(frozen=True, eq=False)
class ChoiceRelease(Declared):
    """A planned choice of one candidate.

    Attributes:
        name: name of the candidates, for the certificate.
        unit: the unit of privacy: a reward function within the radius, or one transition's reward.
        candidates: public arrays to choose from, [k, ...].
        weights: public weights of the secret numbers in each candidate's value.
        bounds: public range of the secret numbers; others are clipped to it.
        radius: most that a unit moves a secret number; for a transition, the whole range.
        epsilon: most that the choice may cost.
        population: "simulated" or "real".
        protects, does_not_protect: sentences for the certificate. One says the radius, such as
            `claims.rewards.LOGGED_FUNCTION`, where there is one.
        assumptions: what the proof needs beyond what every choice needs.

    Raises:
        ValueError: shapes do not match, the candidates have the same weights, or float64 does not
            resolve values for so small a radius.
    """

    name: str
    unit: Unit
    candidates: Float[np.ndarray, "k ..."]
    weights: Float[np.ndarray, "rows n"]
    bounds: tuple[float, float]
    radius: float
    epsilon: float
    population: PopulationKind
    protects: tuple[str, ...] = ()
    does_not_protect: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        # Copies, so that nobody changes the weights that the sensitivity was computed from, or
        # writes secrets into the candidates.
        for name in ("weights", "candidates"):
            object.__setattr__(self, name, np.array(getattr(self, name), np.float64))
            getattr(self, name).flags.writeable = False
        if len(self.candidates) != len(self.weights) or not np.isfinite(self.weights).all():
            raise ValueError("every candidate needs one row of finite weights")
        if self.weights.shape[1] > MOST:
            raise ValueError(f"a value has at most {MOST:,} secret numbers")
        if not all(map(math.isfinite, self.bounds)) or not self.bounds[0] < self.bounds[1]:
            raise ValueError(
                f"bounds are two finite numbers, the lower one first; got {self.bounds}"
            )
        if not self.unit.for_functions:
            raise ValueError(
                "the unit of a choice is a reward function within a radius, or one transition"
            )
        low, high = self.bounds
        if self.unit.adjacency is Adjacency.WITHIN_RADIUS:
            stated = min(float(require_one_radius(self.protects)), high - low)
            if stated > self.radius * (1 + PRINTED):
                raise ValueError(
                    f"`protects` promises a radius of {stated:g}, and the choice has noise for "
                    f"{self.radius:g}"
                )
        elif self.radius < high - low:
            raise ValueError(
                f"under {self.unit.adjacency.value} adjacency a unit moves a secret number through "
                f"its whole range; the radius must be {high - low:g} or more, got {self.radius:g}"
            )
        if self._sensitivity == 0:
            raise ValueError(
                f"all candidates of {self.name!r} have the same value: there is nothing to choose"
            )
        largest = max(abs(bound) for bound in self.bounds)
        if not self.mechanism.resolves(largest_error(self.weights, largest)):
            raise ValueError(
                f"a unit moves values by {self._sensitivity:g}, which float64 does not resolve in "
                f"sums of numbers up to {largest:g}; take a larger radius"
            )

    @cached_property
    def _sensitivity(self) -> float:
        everywhere = self.unit.adjacency == Adjacency.WITHIN_RADIUS
        return (moved_by_all if everywhere else moved_by_one)(self.weights, self.radius)

    @cached_property
    def mechanism(self) -> NoisyMax:
        """The noise that makes the choice cost at most epsilon."""
        return NoisyMax.calibrated(len(self.candidates), self._sensitivity, self.epsilon)

    def open(
        self, ledger: Ledger, folder: Path | None = None, *, noise_seed: int | None = None
    ) -> "OpenChoiceRelease":
        """Writes the statement into the ledger, if the budget covers the choice.

        Args:
            ledger: of this unit.
            folder: where the winner is kept; None keeps it in memory only.
            noise_seed: for tests and audits only; voids the certificate.

        Raises:
            PrivacyError: the budget does not cover it, or the ledger is another one's.
        """
        generators = noise.GeneratorSource(noise_seed)
        statement = StreamStatement(
            name=self.name,
            unit=self.unit,
            participation=Returning(max_participations=1, min_separation=1),
            divisor=1.0,
            horizon=1,
            population=self.population,
            entropy=generators.entropy,
            sampler_delta=0.0,  # the sampler is exact
            noise_law="on-grid",
            protects=self.protects,
            does_not_protect=self.does_not_protect,
            assumptions=(*self.assumptions, NOISY_MAXIMUM.assumption()),
            choice=self.mechanism,
        )
        stream = ledger.open_stream(statement)
        path = folder and release_file(folder, ledger.run_id, stream.index, 0)
        return OpenChoiceRelease(self, stream, generators, path)


class OpenChoiceRelease:
    """An opened choice. Only `release` releases anything, and only once.

    Attributes:
        statement: as the ledger holds it.
    """

    def __init__(
        self,
        release: ChoiceRelease,
        stream: LedgerStream,
        generators: noise.GeneratorSource,
        path: Path | None,
    ) -> None:
        self.statement = stream.statement
        self._release = release
        self._stream = stream
        self._generators = generators
        self._path = path

    def release(self, secret: Float[np.ndarray, " n"]) -> ReleasedValues:
        """Charges the choice, and returns the candidate that wins.

        Args:
            secret: the secret numbers. Those that are not finite count as the middle of the bounds.

        Raises:
            HorizonExceeded, LedgerUnavailable: nothing was released.
            ValueError: there is not one number for each weight.
        """
        plan = self._release
        secret = np.asarray(secret, np.float64)
        if secret.shape != plan.weights.shape[1:]:
            raise ValueError(
                f"{secret.size} secret numbers were given for {plan.weights.shape[1]} weights"
            )
        everybody = 1 if plan.unit.adjacency == Adjacency.WITHIN_RADIUS else secret.size
        self._stream.charge(self._stream.releases, 1, [PersonBlock(0, everybody)])
        known = np.where(np.isfinite(secret), secret, sum(plan.bounds) / 2)
        values = values_of(plan.weights, np.clip(known, *plan.bounds))
        winner = plan.mechanism.choose(values, self._generators.next())
        released = ReleasedValues(np.array(plan.candidates[winner], np.float64))
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            released.save(self._path)
        return released
