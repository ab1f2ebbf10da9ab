"""A release of a noisy sum through the door, the code that private data must pass to leave.

```
local(public_state, unit_data, key) -> parts, diagnostics    one person's data, seen alone
server(public_state, released)      -> public_state, log     post-processing only
```

The door maps `local` over people, clips each named part, sums over people in exact integers, adds
noise, divides by a public constant, and hands the result to `server`. It charges the ledger before
it touches data. An algorithm that uses only the door is private. Its certificate is derived from
the statement that the door wrote down (`StreamStatement`).

Guarantee:
    For one person under the stated adjacency, the log and the public states of a stream are
    (epsilon, delta)-differentially private with the curve of `StreamStatement.event`. Nothing
    before a person's participation depends on them, and everything after it is a function of
    releases. The releases are a Gaussian mechanism of sensitivity 1 in units of the clip norms
    (docs/privacy.md, Theorems 1, 2 and 2'; fixed point in `mechanisms.gaussian`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from sotto.errors import CodeFailed, failures_of
from sotto.keys import KEY
from sotto.privacy.claims import same_stream
from sotto.privacy.claims.streams import POOL, SAMPLED_PLACES
from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.streams import LedgerStream
from sotto.privacy.mechanisms import correlated, noise
from sotto.privacy.release import factored
from sotto.privacy.release.declaration import (
    ReleaseDeclaration,
    State,
    batch_size,
    grids,
    noise_scales,
    people_at_once,
    sampling_of,
)
from sotto.privacy.release.devices import Devices
from sotto.privacy.release.draws import Pool, UnitData, most_drawn
from sotto.privacy.release.purity import require_pure, signature
from sotto.privacy.release.stream import Stream, Traced
from sotto.privacy.statements import (
    Once,
    Poisson,
    StreamStatement,
)
from sotto.trees import at, leaves_of, like

_MISSED = 2.0**-100
"""Probability with which a release draws more people than the noise for rounding is made for."""


@dataclass(frozen=True)
class Release(ReleaseDeclaration):
    """A declared release that can be opened as a stream."""

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
        """Levels the runs: all of them skip a release that one was charged for and lost."""
        most = max(stream.releases for stream in streams)
        sampled = isinstance(self.participation, Poisson)
        for stream in streams:
            if (lost := most - stream.releases) > 0:
                nobody: list[np.ndarray] = [np.zeros(0, np.int64)] * lost
                stream.charge(stream.releases, lost, None if sampled else nobody)

    def _trace(self, states: State, units: Any, world_states: Any) -> Traced:
        """Checks purity on one person's shapes."""
        state, world_state = jax.eval_shape(lambda s, w: at((s, w), 0), states, world_states)
        if self.world is not None:
            _, units = jax.eval_shape(self.world, state, world_state, KEY)
        if any(np.shape(leaf)[:1] != (self.slots,) for leaf in jax.tree.leaves(units)):
            raise ValueError(f"unit data needs a leading axis of {self.slots}, one entry per slot")
        return self.traced(state, jax.eval_shape(lambda u: at(u, 0), units))

    def traced(self, state: Any, unit: Any) -> Traced:
        """Traces `local` and `server`, and checks them and the parts that are declared.

        The classes of an author's trees are code too: JAX calls them to put arrays into a tree. So
        they are called while the functions are traced, and the programs have leaves only.

        Args:
            state: shapes of the public state of one run.
            unit: shapes of one person's data.

        Raises:
            ImpureFunction: `local` or `server` could carry data past the door.
            ValueError: parts or states do not match.
            CodeFailed: `local` or `server` raised an exception; the message says where.
        """
        trees: dict[str, Any] = {}

        def on_leaves(state_leaves: Any, unit_leaves: Any, key: PRNGKeyArray) -> Any:
            with failures_of(f"`local` of {self.name!r}", CodeFailed):
                made = self.local(like(state, state_leaves), like(unit, unit_leaves), key)
            if not (_is_pair(made) and isinstance(made[0], Mapping)):
                raise ValueError("local must return its parts by their names, and diagnostics")
            parts, shown = made
            trees["parts"] = {
                name: jax.tree.structure(part, is_leaf=factored.is_factored)
                for name, part in parts.items()
            }
            trees["diagnostics"] = jax.tree.structure(shown)
            return {name: factored.plain(part) for name, part in parts.items()}, leaves_of(shown)

        def serve_leaves(state_leaves: Any, released: dict[str, Any]) -> Any:
            shaped = {n: jax.tree.unflatten(trees["parts"][n], one) for n, one in released.items()}
            with failures_of(f"`server` of {self.name!r}", CodeFailed):
                made = self.server(like(state, state_leaves), shaped)
            if not _is_pair(made):
                raise ValueError("server must return the next public state, and a log")
            after, log = made
            trees["after"], trees["log"] = jax.tree.structure(after), jax.tree.structure(log)
            return leaves_of(after), leaves_of(log)

        leaves = leaves_of(state), leaves_of(unit)
        local, (parts, _) = require_pure("local", on_leaves, *leaves, KEY)
        if set(parts) != (named := set(self.parts) | set(self.unprotected or {})):
            raise ValueError(f"local returns the parts {sorted(parts)}, declared: {sorted(named)}")
        if empty := [name for name in self.parts if _size(parts[name]) == 0]:
            raise ValueError(f"the parts {empty} hold no numbers; leave them out")
        if factored.has_factored([parts[name] for name in self.unprotected or {}]):
            raise ValueError("a part that is not protected cannot be factored; return its matrix")
        released = factored.released_shapes(parts)
        server, (after, _) = require_pure("server", serve_leaves, leaves[0], released)
        same = trees["after"] == jax.tree.structure(state)
        if not same or signature(after) != signature(leaves[0]):
            raise ValueError("server must return a state of the same structure, shapes and types")
        shown = trees["log"], trees["diagnostics"]
        return Traced(
            local, server, state, unit, KEY, released, *shown, factored.has_factored(parts)
        )

    def _require_small_delta(self, ledger: Ledger) -> None:
        """Refuses at once a number of people that the ledger would refuse in the end."""
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

    def statement(
        self, dimensions: dict[str, int], entropy: Literal["operating-system", "fixed-seed"]
    ) -> StreamStatement:
        """Returns the statement, for exact sums and a noise sampler without errors.

        Args:
            dimensions: how many numbers each part has.
            entropy: origin of the noise.
        """
        return StreamStatement(
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
            assumptions=(
                *self.assumptions,
                *((SAMPLED_PLACES.assumption(),) if sampling_of(self) is not None else ()),
            ),
            gaps=self.gaps + tuple((self.unprotected or {}).values()),
        )

    def _statement(
        self,
        traced: Traced,
        entropy: Literal["operating-system", "fixed-seed"],
        pooled: bool,
    ) -> StreamStatement:
        dimensions = {name: _size(traced.parts[name]) for name in self.parts}
        unbounded = self.statement(dimensions, entropy)
        if pooled:
            assumptions = (*unbounded.assumptions, POOL.assumption())
            unbounded = unbounded.model_copy(update={"assumptions": assumptions})
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
        rounded = traced.has_factored and isinstance(self.participation, Poisson)
        missed = self.horizon * _MISSED if rounded else 0.0
        sampler_delta = min(1.0, releases * one_shift + missed)
        return unbounded.model_copy(update=grown | {"sampler_delta": sampler_delta})

    def _sum_rounding(self, traced: Traced, dimensions: dict[str, int]) -> float:
        """Returns the relative growth of the sensitivity by float32 sums; integers are exact."""
        if not traced.has_factored:
            return 0.0
        batches = [batch_size(self) or self.slots]
        if (sampling := sampling_of(self)) is not None:
            # Devices that get whole microbatches sum as many in all as one device would: what holds
            # nobody is exactly zero.
            devices = Devices.chosen().count if self.microbatch is None else 1
            together = people_at_once(self, devices)
            assert together is not None
            sizes = together.sizes(most_drawn(sampling, _MISSED))
            batches = [size // devices for size in sizes for _ in range(devices)]
        clip_norms = {name: part.clip_norm for name, part in self.parts.items()}
        spacings = {name: grid.spacing for name, grid in grids(self, True).items()}
        return factored.sum_rounding(batches, dimensions, spacings, clip_norms)

    def _noise_rounding(
        self, traced: Traced, dimensions: dict[str, int], noise_multiplier: float
    ) -> float:
        """Returns the relative growth of the sensitivity by rounding correlated noise."""
        own = grids(self, traced.has_factored)
        ratios = {
            n: correlated.REFINEMENT * s / own[n].spacing for n, s in noise_scales(self).items()
        }
        return correlated.rounding(
            self.correlation, self.horizon, dimensions, ratios, noise_multiplier
        )


def _is_pair(made: Any) -> bool:
    return isinstance(made, tuple | list) and len(made) == 2


def _size(part: PyTree[Any]) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(part))
