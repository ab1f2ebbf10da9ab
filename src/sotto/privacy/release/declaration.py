"""The declaration of a release, and the public numbers that follow from it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from jaxtyping import Array, PRNGKeyArray, PyTree

from sotto.frozen import Declared
from sotto.privacy.mechanisms import correlated, gaussian
from sotto.privacy.release import factored
from sotto.privacy.release.draws import Batches, batches
from sotto.privacy.statements import (
    Assumption,
    Correlation,
    Gap,
    Once,
    Part,
    Participation,
    Poisson,
)
from sotto.privacy.units import Adjacency, PopulationKind, Unit

State: TypeAlias = PyTree[Array]
Contribution: TypeAlias = dict[str, PyTree[Array]]

ONCE = Once()
INDEPENDENT = Correlation()


@dataclass(frozen=True)
class ReleaseDeclaration(Declared):
    """One kind of release: the contributions, their bounds, and the noise.

    Attributes:
        name: name of the release, for the certificate.
        local: one person's contribution, `(state, unit_data, key) -> (parts, diagnostics)`. It is
            traced and refused if it is not pure.
        server: post-processing of a release, `(state, released) -> (state, log)`, also checked.
        unit: the unit of privacy and its adjacency.
        parts: clip norm and noise multiplier of each named part.
        slots: most people in one release; under Poisson sampling, the whole population.
        divisor: public constant that divides the sum (never a count of people present).
        horizon: largest number of releases of the stream; more are refused.
        population: "simulated" or "real", whose data must be given as units. Diagnostics of real
            people are dropped inside the compiled program; those of simulated ones are returned for
            the experimenter.
        participation: once per person, returning, or Poisson sampling.
        correlation: noise over time.
        clipping: parts clipped jointly or separately (see `StreamStatement`).
        microbatch: most people mapped at once on one device; None maps them all.
        unprotected: parts averaged with neither clip nor noise, each with the gap it opens. Any of
            them turns the certificate into a paper claim with epsilon infinity, and is for
            simulated people only.
        world: carries state from one release's people to the next's,
            `(state, world_state, key) -> (world_state, unit_data)`. It is not a function of
            releases, so it needs a gap in `gaps`.
        gaps: names of further steps that are not private.
        protects, does_not_protect: sentences for the certificate.
        assumptions: further conditions of the proof, beyond those of every stream.
    """

    name: str
    local: Callable[[State, Any, PRNGKeyArray], tuple[Contribution, Any]]
    server: Callable[[State, Contribution], tuple[State, Any]]
    unit: Unit
    parts: Mapping[str, Part]
    slots: int
    divisor: float
    horizon: int
    population: PopulationKind
    participation: Participation = ONCE
    correlation: Correlation = INDEPENDENT
    clipping: Literal["separate", "joint"] = "separate"
    microbatch: int | None = None
    unprotected: Mapping[str, Gap] | None = None
    world: Callable[[State, Any, PRNGKeyArray], tuple[Any, Any]] | None = None
    gaps: tuple[Gap, ...] = ()
    protects: tuple[str, ...] = ()
    does_not_protect: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("parts", "unprotected"):  # what is declared cannot change afterwards
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name) or {})))
        if self.slots < 1 or self.horizon < 1:
            raise ValueError("a release needs at least one slot and a horizon of at least one")
        if self.unit.adjacency is Adjacency.WITHIN_RADIUS:
            raise ValueError(
                "a unit within a radius has its sensitivity stated directly: use a FunctionRelease"
            )
        if not self.unit.for_contributions:
            raise ValueError(
                f"a unit of the kind {self.unit.kind!r} has no place of its own in a sum; the unit "
                "of a Release is a trajectory, feedback, a segment, an expert or a transition"
            )
        if self.unit.about_rewards and set(self.parts) == {"values"}:
            raise ValueError("only a FunctionRelease names its part of rewards 'values'; rename it")
        if both := set(self.parts) & set(self.unprotected or {}):
            raise ValueError(f"{sorted(both)} cannot be both protected and unprotected; choose one")
        if self.population == "real" and self.unprotected:
            raise ValueError(
                f"real people's {', '.join(sorted(self.unprotected))} would leave without noise: "
                "clip it and add noise (move it to `parts`), leave it out, or simulate the people"
            )
        if self.world is not None and not self.gaps:
            raise ValueError(
                "a world that carries state between people is not private; name the gap in `gaps`"
            )
        sampled = isinstance(self.participation, Poisson)
        if sampled and self.participation.population != self.slots:  # type: ignore[union-attr]
            raise ValueError("with Poisson sampling `slots` is the size of the population")
        if self.microbatch is not None and self.microbatch < 1:
            raise ValueError(f"microbatch must be positive, got {self.microbatch}")


def people_at_once(release: ReleaseDeclaration, devices: int = 1) -> Batches | None:
    """Returns the batches of sampled people; None where people are not sampled."""
    sampling = sampling_of(release)
    return None if sampling is None else batches(sampling, release.microbatch, devices)


def batch_size(release: ReleaseDeclaration) -> int | None:
    """Returns how many people of all slots are mapped at once, in equal batches; None means all."""
    if release.microbatch is None:
        return None
    return math.ceil(release.slots / math.ceil(release.slots / release.microbatch))


def noise_scales(release: ReleaseDeclaration) -> dict[str, float]:
    """Returns the factor of `C^-1 w` in each part's noise, for exact sums."""
    sensitivity = correlated.sensitivity(
        release.correlation, release.participation, release.horizon
    )
    return {
        name: part.noise_multiplier * part.clip_norm * sensitivity
        for name, part in release.parts.items()
    }


def grids(release: ReleaseDeclaration, has_factored: bool) -> dict[str, gaussian.Grid]:
    """Returns each part's public grid, with room for noise that covers rounding.

    Sums of factored parts are rounded once in a batch, and are one word.
    """
    rounds = has_factored or release.correlation.kind == "prefix-sum"
    room = 1 + factored.LARGEST_ROUNDING if rounds else 1.0
    largest = correlated.NoiseSequence(release.correlation, release.horizon).largest
    bounds = {
        name: (room * release.parts[name].clip_norm, release.slots, room * largest * scale)
        for name, scale in noise_scales(release).items()
    }
    if has_factored:
        return {name: gaussian.Grid(gaussian.grid_size(*one)) for name, one in bounds.items()}
    return {name: gaussian.grid_of(*one) for name, one in bounds.items()}


def sampling_of(release: ReleaseDeclaration) -> Poisson | None:
    """Returns how people are drawn; None where they are not."""
    return release.participation if isinstance(release.participation, Poisson) else None
