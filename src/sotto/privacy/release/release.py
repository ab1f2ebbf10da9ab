"""The door: the only way from people's data to anything that lasts.

```
local(public_state, unit_data, key) -> parts, diagnostics    one person's data, seen alone
server(public_state, released)      -> public_state, log     post-processing only
```

The door maps `local` over people, clips each named part, sums over people in exact integers,
divides by a public constant, adds noise, and hands the result to `server`. Before it touches data
it has charged the ledger. An algorithm that uses only the door is private, and its certificate is
derived from what the door wrote down (`StreamStatement`).

Guarantee:
    For one person under the stated adjacency, the log and the public states of a stream are
    (epsilon, delta)-differentially private with the curve of `StreamStatement.event`: for each
    person everything before their participation does not depend on them, everything after is a
    function of releases, and the releases are a Gaussian mechanism of sensitivity 1 in units of
    the clip norms (theory notes, Theorems 2 and 2'; fixed point in `mechanisms.gaussian`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from sotto.keys import KEY
from sotto.privacy.claims import same_stream
from sotto.privacy.claims.streams import POOL
from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.ledger.ledger import Ledger, LedgerStream
from sotto.privacy.mechanisms import correlated, noise
from sotto.privacy.release import factored
from sotto.privacy.release.draws import Pool, UnitData
from sotto.privacy.release.purity import require_pure, signature
from sotto.privacy.release.stream import (
    Contribution,
    State,
    Stream,
    Traced,
    grids,
    noise_scales,
    people_at_once,
)
from sotto.privacy.statements import (
    Assumption,
    Correlation,
    Gap,
    Once,
    Part,
    Participation,
    Poisson,
    StreamStatement,
)
from sotto.privacy.units import Adjacency, Unit

ONCE = Once()
INDEPENDENT = Correlation()


@dataclass(frozen=True)
class Release:
    """One kind of release: who contributes what, how it is bounded, and what noise it gets.

    Attributes:
        name: what is released, for the certificate.
        local: one person's contribution, `(state, unit_data, key) -> (parts, diagnostics)`. It is
            traced and refused if it is not pure.
        server: what is made of a release, `(state, released) -> (state, log)`, also checked.
        unit: the unit of privacy and its adjacency.
        parts: clip norm and noise multiplier of each named part.
        slots: people who can take part in one release; Poisson sampling: the whole population.
        divisor: public constant the sum is divided by (never a count of people present).
        horizon: most releases of the stream; more are refused.
        population: "simulated" or "real", whose data must be given as units. Diagnostics of real
            people are dropped inside the compiled program; those of simulated ones are returned for
            the experimenter.
        participation: once per person, returning, or Poisson sampling.
        correlation: noise over time.
        clipping: parts clipped jointly or separately (see `StreamStatement`).
        microbatch: how many people are mapped at once; None maps them all. Must divide `slots`
            unless people are sampled. Sampled people are processed in as many batches as it takes.
        unprotected: parts averaged with neither clip nor noise, each with the gap it opens. Any of
            them turns the certificate into a paper claim with epsilon infinity.
        world: carries state from one release's people to the next's,
            `(state, world_state, key) -> (world_state, unit_data)`. It is not a function of
            releases, so it needs a gap in `gaps`.
        gaps: further steps that are not private, named.
        protects, does_not_protect: sentences for the certificate.
        assumptions: what the proof needs beyond what every stream needs.
    """

    name: str
    local: Callable[[State, Any, PRNGKeyArray], tuple[Contribution, Any]]
    server: Callable[[State, Contribution], tuple[State, Any]]
    unit: Unit
    parts: Mapping[str, Part]
    slots: int
    divisor: float
    horizon: int
    population: Literal["simulated", "real"]
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
        for name in ("parts", "unprotected"):  # what is declared cannot change afterwards
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name) or {})))
        if self.slots < 1 or self.horizon < 1:
            raise ValueError("a release needs at least one slot and a horizon of at least one")
        if self.unit.adjacency is Adjacency.WITHIN_RADIUS:
            raise ValueError(
                "a unit within a radius has its sensitivity stated directly: use a FunctionRelease"
            )
        if both := set(self.parts) & set(self.unprotected or {}):
            raise ValueError(f"{sorted(both)} cannot be both protected and unprotected; choose one")
        if self.world is not None and not self.gaps:
            raise ValueError(
                "a world that carries state between people is not private; name the gap in `gaps`"
            )
        sampled = isinstance(self.participation, Poisson)
        if sampled and self.participation.population != self.slots:  # type: ignore[union-attr]
            raise ValueError("with Poisson sampling `slots` is the size of the population")
        if self.microbatch is not None and (
            self.microbatch < 1 or (not sampled and self.slots % self.microbatch)
        ):
            raise ValueError(
                f"microbatch {self.microbatch} must be positive and divide the {self.slots} slots"
            )

    def open(
        self,
        ledgers: Sequence[Ledger],
        states: State,
        units: UnitData | Pool = (),
        *,
        world_states: PyTree[Array] = (),
        chunk: int | None = None,
        noise_seed: int | None = None,
        resume: bool = False,
    ) -> Stream:
        """Writes the statement into each ledger and returns the open stream.

        Args:
            ledgers: one per run; runs are trained side by side, on separate people.
            states: the public state of every run, leaves of shape [runs, ...], free of data.
            units: one release's worth of unit data, leaves of shape [slots, ...] (shapes only
                are read); nothing where `local` simulates its person from the key. With Poisson
                sampling it can be a `Pool`, which is then asked for the rows of those drawn.
            world_states: the world's state of every run, leaves of shape [runs, ...].
            chunk: most releases of one call of `Stream.run` (default: the horizon); one program is
                compiled for it.
            noise_seed: for tests only; voids the certificate.
            resume: make the releases that an interrupted stream of the same statement has left
                (`Ledger.resume_stream`), instead of opening a new one. Ledgers that the interrupted
                process had not come to yet get a new one.

        Raises:
            ImpureFunction: `local` or `server` could carry data past the door.
            PrivacyError: the budget does not cover the stream, or the ledger is another one's.
            ValueError: parts do not match, or shapes do not, or noise over time needs too much
                memory. Nothing has been charged.
        """
        runs = len(ledgers)
        if any(np.shape(leaf)[:1] != (runs,) for leaf in jax.tree.leaves((states, world_states))):
            raise ValueError(f"every state needs a leading axis of {runs}, one entry per ledger")
        pool = units if hasattr(units, "draw") else None
        given = pool is not None or jax.tree.leaves(units)
        if self.population == "real" and (self.world is not None or not given):
            raise ValueError(
                "people whom the program itself makes, in `local` or in a `world`, are simulated; "
                "say so in `population`, or give the data of real people as units"
            )
        if pool is not None:
            if not isinstance(self.participation, Poisson):
                raise ValueError("a pool is for Poisson sampling; give each release its unit data")
            first = pool.draw(np.zeros(1, np.int32), np.random.default_rng())  # for its shapes
            units = jax.tree.map(lambda x: np.broadcast_to(x, (self.slots, *x.shape[1:])), first)
        traced = self._trace(states, units, world_states)
        generators = noise.GeneratorSource(noise_seed)
        statement = self._statement(traced, generators.entropy, pooled=pool is not None)
        numbers = sum(statement.dimensions.values())
        correlated.require_memory(self.correlation, runs, self.horizon, numbers)
        for ledger in ledgers:
            self._require_small_delta(ledger)
        begun = [
            any(same_stream(one.statement, statement) for one in ledger.streams)
            for ledger in ledgers
        ]
        streams = [
            ledger.resume_stream(statement)
            if resume and (has_stream or not any(begun))
            else ledger.open_stream(statement)
            for ledger, has_stream in zip(ledgers, begun, strict=True)
        ]
        if resume:
            self._level(streams)
        chunk = chunk or self.horizon
        return Stream(self, traced, statement, streams, generators, chunk, world_states, pool)

    def _level(self, streams: Sequence[LedgerStream]) -> None:
        """Runs go on together: a release that some were charged for and lost, all have lost."""
        most = max(stream.releases for stream in streams)
        sampled = isinstance(self.participation, Poisson)
        for stream in streams:
            if (lost := most - stream.releases) > 0:
                nobody: list[np.ndarray] = [np.zeros(0, np.int64)] * lost
                stream.charge(stream.releases, lost, None if sampled else nobody)

    def _trace(self, states: State, units: Any, world_states: Any) -> Traced:
        """Checks purity on one person's shapes."""
        state, world_state = jax.eval_shape(
            lambda s, w: jax.tree.map(lambda x: x[0], (s, w)), states, world_states
        )
        if self.world is not None:
            _, units = jax.eval_shape(self.world, state, world_state, KEY)
        if any(np.shape(leaf)[:1] != (self.slots,) for leaf in jax.tree.leaves(units)):
            raise ValueError(f"unit data needs a leading axis of {self.slots}, one entry per slot")
        unit = jax.eval_shape(lambda u: jax.tree.map(lambda x: x[0], u), units)
        local, (parts, _) = require_pure("local", self.local, state, unit, KEY)
        if set(parts) != (named := set(self.parts) | set(self.unprotected or {})):
            raise ValueError(f"local returns the parts {sorted(parts)}, declared: {sorted(named)}")
        if empty := [name for name in self.parts if _size(parts[name]) == 0]:
            raise ValueError(f"the parts {empty} hold no numbers; leave them out")
        if factored.has_factored([parts[name] for name in self.unprotected or {}]):
            raise ValueError("a part that is not protected cannot be factored; return its matrix")
        released = factored.released_shapes(parts)
        server, (after, _) = require_pure("server", self.server, state, released)
        if signature(after) != signature(state):
            raise ValueError("server must return a state of the same structure, shapes and types")
        return Traced(local, server, state, unit, KEY, released, factored.has_factored(parts))

    def _require_small_delta(self, ledger: Ledger) -> None:
        """Refuses at once what the ledger would refuse when the last people come."""
        if not isinstance(self.participation, Once):
            return
        persons = ledger.persons + self.slots * self.horizon
        if ledger.budget.delta * persons >= 1:
            raise BudgetExceeded(
                f"delta {ledger.budget.delta:.2g} is vacuous for the "
                f"{self.unit.counted(persons)} of this stream ({self.slots} in each of "
                f"{self.horizon} releases, and those before); "
                f"use a budget with delta below 1/{persons}"
            )

    def _statement(
        self,
        traced: Traced,
        entropy: Literal["operating-system", "fixed-seed"],
        pooled: bool,
    ) -> StreamStatement:
        dimensions = {name: _size(traced.parts[name]) for name in self.parts}
        unbounded = StreamStatement(
            name=self.name,
            unit=self.unit,
            participation=self.participation,
            parts=dict(self.parts),
            dimensions=dimensions,
            clipping=self.clipping,
            divisor=self.divisor,
            correlation=self.correlation,
            horizon=self.horizon,
            population=self.population,
            entropy=entropy,
            sampler_delta=0.0,
            noise_law="on-grid",
            protects=self.protects,
            does_not_protect=self.does_not_protect,
            assumptions=(*self.assumptions, *((POOL.assumption(),) if pooled else ())),
            gaps=self.gaps + tuple((self.unprotected or {}).values()),
        )
        # Sampled people may meet every release's draws: their shifts add up over the stream.
        releases = self.horizon if isinstance(self.participation, Poisson) else 1
        draws = self.horizon * sum(dimensions.values())
        one_shift = noise.sampler_delta(unbounded.noise_multiplier, draws)
        grown = {
            "sum_rounding": self._sum_rounding(traced, dimensions),
            "noise_rounding": self._noise_rounding(traced, dimensions, unbounded.noise_multiplier),
        }
        if (surplus := sum(grown.values())) > factored.LARGEST_ROUNDING:
            raise ValueError(
                f"rounding needs {100 * surplus:.0f}% more noise, which is over 5%; use fewer "
                "releases, fewer slots, or independent noise"
            )
        sampler_delta = min(1.0, releases * one_shift)
        return unbounded.model_copy(update=grown | {"sampler_delta": sampler_delta})

    def _sum_rounding(self, traced: Traced, dimensions: dict[str, int]) -> float:
        """What float32 sums add to the sensitivity; integer sums are exact."""
        if not traced.has_factored:
            return 0.0
        sampled = people_at_once(self)
        batch = self.microbatch or self.slots if sampled is None else sampled.largest
        clip_norms = {name: part.clip_norm for name, part in self.parts.items()}
        return factored.sum_rounding(batch, dimensions, grids(self, True), clip_norms)

    def _noise_rounding(
        self, traced: Traced, dimensions: dict[str, int], noise_multiplier: float
    ) -> float:
        """What rounding correlated noise adds to the sensitivity."""
        spacing = grids(self, traced.has_factored)
        ratios = {n: correlated.REFINEMENT * s / spacing[n] for n, s in noise_scales(self).items()}
        return correlated.rounding(
            self.correlation, self.horizon, dimensions, ratios, noise_multiplier
        )


def _size(part: PyTree[Any]) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(part))
