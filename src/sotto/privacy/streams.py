"""An open stream of releases: the compiled program that people's data passes through.

`sotto.privacy.releases` says what is declared and checks it; here it is carried out, in this
order: charge the ledgers, draw the noise, run the program.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32, PRNGKeyArray, PyTree

from sotto.privacy import noise
from sotto.privacy.ledger import LedgerStream
from sotto.privacy.mechanisms import correlated, gaussian
from sotto.privacy.purity import signature
from sotto.privacy.statements import Poisson, StreamStatement

if TYPE_CHECKING:
    from sotto.privacy.releases import Release

State: TypeAlias = PyTree[Array]
UnitData: TypeAlias = PyTree[Array | np.ndarray]
Contribution: TypeAlias = dict[str, PyTree[Array]]

_WORLD = 2**31
"""Where people's keys are folded by enrolment number, the world's is folded by this one."""


@dataclass(frozen=True)
class Traced:
    """The checked programs, which are what runs, and the shapes that they were checked for.

    Attributes:
        local, server: as in `Release`.
        state, unit, key: shapes of one run's state, one person's data, one key.
        parts: shapes of what is released.
    """

    local: Callable[[State, Any, PRNGKeyArray], tuple[Contribution, Any]]
    server: Callable[[State, Contribution], tuple[State, Any]]
    state: PyTree[jax.ShapeDtypeStruct]
    unit: PyTree[jax.ShapeDtypeStruct]
    key: jax.ShapeDtypeStruct
    parts: dict[str, PyTree[jax.ShapeDtypeStruct]]


class Stream:
    """An open stream of releases over one or more runs. Only `run` releases anything."""

    def __init__(
        self,
        release: "Release",
        traced: Traced,
        statement: StreamStatement,
        streams: Sequence[LedgerStream],
        keys: noise.KeySource,
        chunk: int,
        world_states: PyTree[Array],
    ) -> None:
        self.statement = statement
        self.released = 0
        self._release = release
        self._traced = traced
        self._ledger_streams = streams
        self._keys = keys
        self._chunk = chunk
        self._worlds = jax.tree.map(jnp.array, world_states)  # copies, for they are donated
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
        keys: Array,
        persons: Int[np.ndarray, "runs releases slots"] | None = None,
        units: UnitData = (),
    ) -> tuple[State, Any, Any]:
        """Charges every ledger, then makes the releases.

        Args:
            states: public states, leaves of shape [runs, ...].
            keys: typed training keys of shape [runs], never used for noise. Each person's own key
                is folded from the run's, so nobody's data moves another one's random numbers.
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
                cannot be written. Nothing has been released then; ledgers that were charged before
                another one refused stay charged, and the stream cannot go on.
            ValueError: something has not the shape it was opened with. Nothing has been charged.
        """
        sampled = isinstance(self._release.participation, Poisson)
        if sampled == (persons is not None):
            raise ValueError("give `persons`, except under Poisson sampling, which draws them")
        runs = len(self._ledger_streams)
        count = self._chunk if persons is None else persons.shape[1]
        if persons is None:
            count = max(1, min(count, self._release.horizon - self.released))
        elif persons.shape != (runs, count, self._release.slots) or not 1 <= count <= self._chunk:
            raise ValueError(
                f"persons has shape {persons.shape}; it must be "
                f"({runs}, 1 to {self._chunk}, {self._release.slots})"
            )
        leading = (runs, self._release.slots) if sampled else (runs, count, self._release.slots)
        _require_shapes("states", states, self._traced.state, (runs,))
        _require_shapes("keys", keys, self._traced.key, (runs,))
        if self._release.world is None:
            _require_shapes("units", units, self._traced.unit, leading)
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
        if padding:  # cut off by numpy, for JAX would compile a program for every shape
            log, diagnostics = jax.tree.map(lambda x: np.asarray(x)[:, :count], (log, diagnostics))
        return states, log, diagnostics

    def _charge(self, count: int, persons: np.ndarray | None) -> None:
        for index, stream in enumerate(self._ledger_streams):
            people = None if persons is None else [row[row >= 0] for row in persons[index]]
            stream.charge(self.released, count, people)

    def _draw_noise(self, runs: int, count: int, padding: int) -> dict[str, Array]:
        """Noise of the next releases as integers on each part's grid; its key is forgotten."""
        dimensions = self.statement.dimensions
        # Always a whole chunk, so that one program draws it; the padding's rows are thrown away.
        shape = (runs, count + padding, sum(dimensions.values()))
        fresh = np.asarray(noise.standard_normal(self._keys.next(), shape))[:, :count]
        rows = self._noise.next_rows(fresh)
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
            own = units if sampled else unit_data
            return self._one_release(
                carry, jax.random.fold_in(key, first + index), people, own, noise_row
            )

        def step(carry: Any, inputs: Any) -> tuple[Any, Any]:
            # A chunk shorter than the compiled one is padded; what pads it releases nothing.
            is_active, rest = inputs
            skipped = jax.tree.map(
                lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one, carry, rest)[1]
            )
            after: tuple[Any, Any] = jax.lax.cond(
                is_active, one, lambda c, _: (c, skipped), carry, rest
            )
            return after

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
        state, log = self._traced.server(state, self._publish(totals, noise_row))
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
        parts, diagnostics = jax.vmap(self._traced.local, in_axes=(None, 0, 0))(
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
                lambda x: jnp.sum(x, axis=0, where=jnp.expand_dims(present, range(1, x.ndim))),
                parts[name],
            )
        return totals, diagnostics

    def _publish(self, totals: Any, noise_row: Any) -> Contribution:
        """Adds noise to the exact sums and gives them back the shape that `local` gave them."""
        released: Contribution = {}
        for name, total in totals.items():
            if name in noise_row:
                flat = gaussian.from_grid(
                    total + noise_row[name], self._grids[name], self._release.divisor
                )
                released[name] = _unflatten(flat, self._traced.parts[name])
            else:
                released[name] = jax.tree.map(
                    lambda x: x.astype(jnp.float32) / self._release.divisor, total
                )
        return released


def _unflatten(flat: Array, shapes: Any) -> Any:
    leaves = jax.tree.leaves(shapes)
    stops = np.cumsum([leaf.size for leaf in leaves])[:-1]
    pieces = jnp.split(flat, stops)
    shaped = [piece.reshape(leaf.shape) for piece, leaf in zip(pieces, leaves, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(shapes), shaped)


def _pad(array: Any, padding: int, value: int) -> Array:
    """Pads the release axis (axis 1) of an array."""
    if padding:
        pad = np.pad if isinstance(array, np.ndarray) else jnp.pad
        widths = [(0, 0), (0, padding)] + [(0, 0)] * (array.ndim - 2)
        array = pad(array, widths, constant_values=value)
    return jnp.asarray(array)


def _require_shapes(role: str, given: Any, expected: Any, leading: tuple[int, ...]) -> None:
    """Refuses arrays that are not `expected` with the `leading` axes in front."""
    expected = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype), expected)
    given = jax.tree.map(jax.typeof, given)
    if signature(given) != signature(expected):
        raise ValueError(f"{role} are {given}, but the stream was opened for {expected}")
