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

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32, PRNGKeyArray, PyTree

from sotto.privacy import noise
from sotto.privacy.ledger import Ledger
from sotto.privacy.mechanisms import correlated, gaussian
from sotto.privacy.purity import require_pure
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
from sotto.privacy.units import Unit

ONCE = Once()
INDEPENDENT = Correlation()

_WORLD = 2**31
"""Where people's keys are folded by enrolment number, the world's is folded by this one."""

State = PyTree[Array]
Contribution = dict[str, PyTree[Array]]


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
        population: "simulated" or "real". Diagnostics of real people are dropped inside the
            compiled program; those of simulated ones are returned for the experimenter.
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
        if self.slots < 1 or self.horizon < 1:
            raise ValueError("a release needs at least one slot and a horizon of at least one")
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
        units: PyTree[Array] = (),
        *,
        world_states: PyTree[Array] = (),
        chunk: int | None = None,
        noise_seed: int | None = None,
    ) -> "Stream":
        """Writes the statement into each ledger and returns the open stream.

        Args:
            ledgers: one per run; runs are trained side by side, on separate people.
            states: the public state of every run, leaves of shape [runs, ...], free of data.
            units: one release's worth of unit data, leaves of shape [slots, ...] (shapes only
                are read); nothing where `local` simulates its person from the key.
            world_states: the world's state of every run, leaves of shape [runs, ...].
            chunk: most releases of one call of `Stream.run` (default: the horizon); one program is
                compiled for it.
            noise_seed: for tests only; voids the certificate.

        Raises:
            ImpureFunction: `local` or `server` could carry data past the door.
            PrivacyError: the budget does not cover the stream, or the ledger is another one's.
            ValueError: parts do not match, or a clip norm and noise too large for the grid.
        """
        runs = len(ledgers)
        if any(np.shape(leaf)[:1] != (runs,) for leaf in jax.tree.leaves((states, world_states))):
            raise ValueError(f"every state needs a leading axis of {runs}, one entry per ledger")
        dimensions = self._trace(states, units, world_states)
        keys = noise.KeySource(noise_seed)
        statement = self._statement(dimensions, keys.entropy)
        streams = [ledger.open_stream(statement) for ledger in ledgers]
        return Stream(self, statement, streams, keys, chunk or self.horizon, world_states)

    def _trace(self, states: State, units: Any, world_states: Any) -> dict[str, int]:
        """Checks purity on one person's shapes; returns the size of each part."""
        state, world_state = jax.eval_shape(
            lambda s, w: jax.tree.map(lambda x: x[0], (s, w)), states, world_states
        )
        key = jax.eval_shape(lambda: jax.random.key(0))
        if self.world is not None:
            _, units = jax.eval_shape(self.world, state, world_state, key)
        unit = jax.eval_shape(lambda u: jax.tree.map(lambda x: x[0], u), units)
        parts, _ = require_pure("local", self.local, state, unit, key)
        named = set(self.parts) | set(self.unprotected or {})
        if set(parts) != named:
            raise ValueError(f"local returns the parts {sorted(parts)}, declared: {sorted(named)}")
        after, _ = require_pure("server", self.server, state, parts)
        if jax.tree.structure(after) != jax.tree.structure(state) or any(
            (a.shape, a.dtype) != (b.shape, b.dtype)
            for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True)
        ):
            raise ValueError("server must return a state of the same structure, shapes and types")
        return {
            name: sum(leaf.size for leaf in jax.tree.leaves(parts[name])) for name in self.parts
        }

    def _statement(
        self, dimensions: dict[str, int], entropy: Literal["operating-system", "fixed-seed"]
    ) -> StreamStatement:
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
            protects=self.protects,
            does_not_protect=self.does_not_protect,
            assumptions=self.assumptions,
            gaps=self.gaps + tuple((self.unprotected or {}).values()),
        )
        # Sampled people may meet every release's draws: their shifts add up over the stream.
        releases = self.horizon if isinstance(self.participation, Poisson) else 1
        draws = self.horizon * sum(dimensions.values())
        one_shift = noise.sampler_delta(unbounded.noise_multiplier, draws)
        return unbounded.model_copy(update={"sampler_delta": min(1.0, releases * one_shift)})


class Stream:
    """An open stream of releases over one or more runs. Only `run` releases anything."""

    def __init__(
        self,
        release: Release,
        statement: StreamStatement,
        streams: Sequence[Any],
        keys: noise.KeySource,
        chunk: int,
        world_states: PyTree[Array],
    ) -> None:
        self.statement = statement
        self.released = 0
        self._release = release
        self._ledger_streams = streams
        self._keys = keys
        self._chunk = chunk
        self._worlds = world_states
        self._noise = correlated.NoiseSequence(release.correlation, release.horizon)
        sensitivity = correlated.sensitivity(
            release.correlation, release.participation, release.horizon
        )
        self._scales = {
            name: part.noise_multiplier * part.clip_norm * sensitivity
            for name, part in statement.parts.items()
        }
        self._grids = {
            name: gaussian.grid_size(
                part.clip_norm, release.slots, self._noise.largest * self._scales[name]
            )
            for name, part in statement.parts.items()
        }
        self._program = jax.jit(
            jax.vmap(self._releases, in_axes=(0, 0, 0, 0, 0, 0, 0, None)), donate_argnums=(1,)
        )

    def run(
        self,
        states: State,
        keys: PRNGKeyArray,
        persons: Int[np.ndarray, "runs releases slots"] | None = None,
        units: PyTree[Array] = (),
    ) -> tuple[State, Any, Any]:
        """Charges every ledger, then makes the releases.

        Args:
            states: public states, leaves of shape [runs, ...].
            keys: training keys, one per run, never used for noise. Each person's own key is folded
                from it, so that nobody's data moves another one's random numbers.
            persons: enrolment number in each slot, -1 where nobody is; not given with Poisson
                sampling, where everybody may take part in every release.
            units: unit data, leaves of shape [runs, releases, slots, ...]; with Poisson sampling
                [runs, population, ...]; nothing where `local` or `world` makes it.

        Returns:
            The new public states; the server's log, leaves of shape [runs, releases, ...]; and the
            diagnostics of simulated people, [runs, releases, slots, ...] (None for real people and
            under Poisson sampling, whose draws are secret).

        Raises:
            PrivacyError: somebody takes part too often, the horizon is exceeded, or the ledger
                cannot be written. Nothing has been released then.
        """
        sampled = isinstance(self._release.participation, Poisson)
        if sampled == (persons is not None):
            raise ValueError("give `persons`, except under Poisson sampling, which draws them")
        runs = len(self._ledger_streams)
        count = self._chunk if persons is None else persons.shape[1]
        if persons is None:
            count = min(count, self._release.horizon - self.released)
        elif persons.shape != (runs, count, self._release.slots) or not 1 <= count <= self._chunk:
            raise ValueError(
                f"persons has shape {persons.shape}; it must be "
                f"({runs}, 1 to {self._chunk}, {self._release.slots})"
            )
        self._charge(count, persons)
        padding = self._chunk - count
        noises = self._draw_noise(runs, count, padding)
        present = self._draw_people(runs, count) if persons is None else persons
        active = np.arange(self._chunk) < count
        states, self._worlds, log, diagnostics = self._program(
            states,
            self._worlds,
            keys,
            _pad(present, padding, -1),
            units if sampled else jax.tree.map(lambda x: _pad(x, padding, 0), units),
            noises,
            jnp.full(runs, self.released, dtype=jnp.int32),
            active,
        )
        self.released += count
        log, diagnostics = jax.tree.map(lambda x: x[:, :count], (log, diagnostics))
        return states, log, diagnostics

    def _charge(self, count: int, persons: np.ndarray | None) -> None:
        for index, stream in enumerate(self._ledger_streams):
            people = None if persons is None else [row[row >= 0] for row in persons[index]]
            stream.charge(self.released, count, people)

    def _draw_noise(self, runs: int, count: int, padding: int) -> dict[str, Array]:
        """Noise of the next releases as integers on each part's grid; its key is forgotten."""
        dimensions = self.statement.dimensions
        shape = (runs, count, sum(dimensions.values()))
        rows = self._noise.next_rows(np.asarray(noise.standard_normal(self._keys.next(), shape)))
        columns = np.split(rows, np.cumsum(list(dimensions.values()))[:-1], axis=2)
        return {
            name: _pad(
                gaussian.round_noise(column, self._scales[name], self._grids[name]), padding, 0
            )
            for name, column in zip(dimensions, columns, strict=True)
        }

    def _draw_people(self, runs: int, count: int) -> Int[np.ndarray, "runs releases population"]:
        """Secret Poisson draws: a person's own number where they are in, -1 where they are not."""
        participation = self._release.participation
        assert isinstance(participation, Poisson)
        shape = (runs, count, participation.population)
        with jax.enable_x64(True):
            coins = jax.random.uniform(self._keys.next(), shape, dtype=jnp.float64)
        numbers = np.arange(participation.population, dtype=np.int32)
        return np.where(np.asarray(coins) < participation.sampling_rate, numbers, -1)

    def _releases(
        self,
        state: State,
        world: Any,
        key: PRNGKeyArray,
        persons: Int[Array, "releases slots"],
        units: Any,
        noises: dict[str, Int32[Array, "releases d"]],
        first: Int[Array, ""],
        active: Bool[Array, " releases"],
    ) -> tuple[State, Any, Any, Any]:
        """The releases of one run, in one program."""
        sampled = isinstance(self._release.participation, Poisson)

        def one(carry: Any, inputs: Any) -> tuple[Any, Any]:
            index, people, unit_data, noise_row = inputs
            return self._one_release(
                carry,
                jax.random.fold_in(key, first + index),
                people,
                units if sampled else unit_data,
                noise_row,
            )

        def step(carry: Any, inputs: Any) -> tuple[Any, Any]:
            # A chunk shorter than the compiled one is padded; what pads it releases nothing.
            is_active, rest = inputs
            skipped = jax.tree.map(
                lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one, carry, rest)[1]
            )
            return jax.lax.cond(is_active, one, lambda c, _: (c, skipped), carry, rest)

        order = jnp.arange(active.size, dtype=jnp.int32)
        inputs = (active, (order, persons, () if sampled else units, noises))
        (state, world), (log, diagnostics) = jax.lax.scan(step, (state, world), inputs)
        return state, world, log, diagnostics

    def _one_release(
        self, carry: Any, key: PRNGKeyArray, persons: Any, units: Any, noise_row: Any
    ) -> tuple[Any, Any]:
        state, world = carry
        release = self._release
        if release.world is not None:
            world, units = release.world(state, world, jax.random.fold_in(key, _WORLD))
        if isinstance(release.participation, Poisson):
            totals, diagnostics = self._sum_sampled(state, key, persons, units), None
        else:
            totals, diagnostics = self._sum_slots(state, key, persons, units)
        released = self._publish(state, totals, units, noise_row, key)
        state, log = release.server(state, released)
        shown = diagnostics if release.population == "simulated" else None
        return (state, world), (log, shown)

    def _sum_slots(self, state: State, key: PRNGKeyArray, persons: Any, units: Any) -> Any:
        """Sums over all slots, `microbatch` of them at a time."""
        size = self._release.microbatch or self._release.slots
        if size == self._release.slots:
            return self._sum_batch(state, key, persons, units)
        batches = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), (persons, units))
        zero = jax.eval_shape(self._sum_batch, state, key, *jax.tree.map(lambda x: x[0], batches))[
            0
        ]

        def add(totals: Any, batch: Any) -> tuple[Any, Any]:
            batch_totals, diagnostics = self._sum_batch(state, key, *batch)
            return jax.tree.map(jnp.add, totals, batch_totals), diagnostics

        start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), zero)
        totals, diagnostics = jax.lax.scan(add, start, batches)
        return totals, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), diagnostics)

    def _sum_sampled(self, state: State, key: PRNGKeyArray, persons: Any, units: Any) -> Any:
        """Sums over everybody who was drawn, in as many batches as it takes: none is cut off."""
        population = self._release.slots
        participation = self._release.participation
        assert isinstance(participation, Poisson)
        expected = round(1.25 * population * participation.sampling_rate) + 1
        size = min(population, self._release.microbatch or expected)
        drawn = jnp.sum(persons >= 0)
        order = jnp.pad(jnp.argsort(persons < 0), (0, -population % size))

        def batch_sum(index: Any) -> Any:
            position = index * size + jnp.arange(size)
            chosen = order[position]
            people = jnp.where(position < drawn, persons[chosen], -1)
            return self._sum_batch(state, key, people, jax.tree.map(lambda x: x[chosen], units))[0]

        shapes = jax.eval_shape(batch_sum, jnp.int32(0))
        return jax.lax.while_loop(
            lambda carry: carry[0] * size < drawn,
            lambda carry: (
                carry[0] + 1,
                jax.tree.map(jnp.add, carry[1], batch_sum(carry[0])),
            ),
            (jnp.int32(0), jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)),
        )[1]

    def _sum_batch(self, state: State, key: PRNGKeyArray, persons: Any, units: Any) -> Any:
        """Clips, rounds and sums one batch of people; an absent one contributes zero."""
        person_keys = jax.vmap(functools.partial(jax.random.fold_in, key))(persons)
        parts, diagnostics = jax.vmap(self._release.local, in_axes=(None, 0, 0))(
            state, units, person_keys
        )
        clip_norms = {name: part.clip_norm for name, part in self.statement.parts.items()}
        bounded = jax.vmap(
            lambda p: gaussian.bound_contribution(p, clip_norms, self._release.clipping)
        )({name: parts[name] for name in clip_norms})
        present = persons >= 0
        totals = {
            name: gaussian.masked_sum(
                gaussian.to_grid(bounded[name], clip_norms[name], self._grids[name]), present
            )
            for name in clip_norms
        }
        for name in self._release.unprotected or {}:
            totals[name] = jax.tree.map(
                lambda x: jnp.einsum("k...,k->...", x, present.astype(x.dtype)), parts[name]
            )
        return totals, diagnostics

    def _publish(
        self, state: State, totals: Any, units: Any, noise_row: Any, key: PRNGKeyArray
    ) -> Contribution:
        """Adds noise to the exact sums and gives them back the shape that `local` gave them."""
        unit = jax.tree.map(lambda x: x[0], units)
        shapes = jax.eval_shape(self._release.local, state, unit, key)[0]
        released: Contribution = {}
        for name, total in totals.items():
            if name in noise_row:
                flat = gaussian.from_grid(
                    total + noise_row[name], self._grids[name], self._release.divisor
                )
                released[name] = _unflatten(flat, shapes[name])
            else:
                released[name] = jax.tree.map(lambda x: x / self._release.divisor, total)
        return released


def _unflatten(flat: Array, shapes: Any) -> Any:
    leaves, structure = jax.tree.flatten(shapes)
    stops = np.cumsum([leaf.size for leaf in leaves])[:-1]
    pieces = jnp.split(flat, stops)
    return structure.unflatten(
        [piece.reshape(leaf.shape) for piece, leaf in zip(pieces, leaves, strict=True)]
    )


def _pad(array: Any, padding: int, value: int) -> Array:
    """Pads the release axis (axis 1) of an array."""
    return jnp.pad(
        jnp.asarray(array),
        [(0, 0), (0, padding)] + [(0, 0)] * (array.ndim - 2),
        constant_values=value,
    )
