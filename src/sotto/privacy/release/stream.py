"""An open stream of releases: the compiled program that people's data passes through.

`sotto.privacy.release.release` checks the declaration. A stream then charges the ledgers, draws the
noise and runs the program, in this order.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Int32, Key, PRNGKeyArray, PyTree

from sotto.privacy.ledger.persons import as_slots
from sotto.privacy.ledger.streams import LedgerStream
from sotto.privacy.mechanisms import correlated, gaussian, noise
from sotto.privacy.release import factored
from sotto.privacy.release.declaration import (
    Contribution,
    ReleaseDeclaration,
    State,
    batch_size,
    grids,
    noise_scales,
    people_at_once,
    sampling_of,
)
from sotto.privacy.release.devices import Devices
from sotto.privacy.release.draws import Draws, Pool, UnitData
from sotto.privacy.settings import COMPILER_OPTIONS
from sotto.privacy.statements import StreamStatement
from sotto.trees import at, leaves_of, like, single

Leaves = tuple[Any, ...]

_WORLD = 2**31
"""Number that the key of the world is folded by; people's keys are folded by enrolment number."""


@dataclass(frozen=True)
class Traced:
    """The checked programs, which are those that run, and the shapes that they were checked for.

    Programs take and return the leaves of trees, as tuples. An author's classes of trees are called
    before the program with what their user puts in, and after it with public results.

    Attributes:
        local, server: as declared, on leaves. A part is a tuple of arrays or `Factored`.
        state, unit, key: shapes of one run's state, one person's data, one key.
        parts: shapes of the released parts, tuples of leaves.
        log, diagnostics: structures of the trees that `server` and `local` return.
        has_factored: whether `local` returns `Factored` leaves.
    """

    local: Callable[[Leaves, Leaves, PRNGKeyArray], tuple[dict[str, Leaves], Leaves]]
    server: Callable[[Leaves, dict[str, Leaves]], tuple[Leaves, Leaves]]
    state: PyTree[jax.ShapeDtypeStruct]
    unit: PyTree[jax.ShapeDtypeStruct]
    key: jax.ShapeDtypeStruct
    parts: dict[str, tuple[jax.ShapeDtypeStruct, ...]]
    log: Any
    diagnostics: Any
    has_factored: bool


class Stream:
    """An open stream of releases over one or more runs. Only `run` releases anything."""

    def __init__(
        self,
        release: ReleaseDeclaration,
        traced: Traced,
        statement: StreamStatement,
        streams: Sequence[LedgerStream],
        generators: noise.GeneratorSource,
        chunk: int,
        world_states: PyTree[Array],
        pool: Pool | None,
    ) -> None:
        self.statement = statement
        self.released = streams[0].releases  # by an earlier process, if it goes on with a stream
        self._release = release
        self._traced = traced
        self._ledger_streams = streams
        self._chunk = chunk
        self._world = jax.tree.structure(world_states)
        self._worlds = tuple(map(jnp.array, leaves_of(world_states)))  # copies: they are donated
        self._pool = pool
        self._devices = Devices.chosen()
        self._batches = people_at_once(release, self._devices.count)
        self._grids = grids(release, traced.has_factored)
        self._draws = Draws(
            generators,
            correlated.NoiseSequence(release.correlation, release.horizon),
            statement.dimensions,
            {
                name: scale * (1 + statement.sum_rounding + statement.noise_rounding)
                for name, scale in noise_scales(release).items()
            },
            self._grids,
            runs=len(streams),
            horizon=release.horizon - self.released,
            chunk=chunk,
            participation=sampling_of(release),
            batches=self._batches,
            pool=pool,
            unit=traced.unit,
        )
        runs = jax.vmap(self._releases, in_axes=(0, 0, 0, 0, 0, 0, 0, None))
        self._program = jax.jit(
            runs if len(streams) > 1 else self._one_run,
            donate_argnums=(1,),
            compiler_options=COMPILER_OPTIONS | self._devices.compiler_options,
        )

    def hold(self, persons: Sequence[int]) -> list[int]:
        """Returns those persons whom a ledger would refuse in the next release.

        A budget that a run shares with others is charged for everybody else at once.
        """
        found = {one for stream in self._ledger_streams for one in stream.hold(persons)}
        return sorted(found)

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
                [runs, population, ...]; nothing where `local` or `world` makes it, or a pool has
                it.

        Returns:
            The new public states; the server's log, leaves of shape [runs, releases, ...]; and the
            diagnostics of simulated people, [runs, releases, slots, ...] (None for real people and
            under Poisson sampling, whose draws are secret).

        Raises:
            PrivacyError: somebody takes part too often, the horizon is exceeded, or the ledger
                cannot be written. Nothing has been released then; ledgers that were charged before
                another one refused stay charged, and the stream cannot go on.
            ValueError: something has not the shape it was opened with. Nothing has been charged,
                except where these are a pool's rows, which are drawn after the charge.
        """
        sampled = sampling_of(self._release) is not None
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
        persons = None if persons is None else as_slots(persons)
        leading = (runs, self._release.slots) if sampled else (runs, count, self._release.slots)
        tree, states = states, leaves_of(states)
        _require_shapes("states", states, tree, self._traced.state, (runs,))
        _require_shapes("keys", (keys,), keys, self._traced.key, (runs,))
        tree, units = units, leaves_of(units)
        if self._pool is not None:
            if units:
                raise ValueError("the stream was opened for a pool; leave `units` out")
        elif self._release.world is None:
            _require_shapes("units", units, tree, self._traced.unit, leading)
        self._charge(count, persons)
        drawn = self._draws.take(count)
        present = drawn.persons if persons is None else persons
        per_release = leaves_of(drawn.units) if self._pool is not None else units
        table = sampled and self._pool is None
        padding = self._chunk - count
        per_release = jax.tree.map(lambda x: _pad(x, padding, 0), per_release)
        spread = self._devices.spread
        states, self._worlds, log, diagnostics = self._program(
            *spread((states, self._worlds, keys, _pad(present, padding, -1))),
            spread(units) if table else spread(per_release, axis=2),
            *spread(
                (
                    {name: _pad(rows, padding, 0) for name, rows in drawn.noise.items()},
                    np.full(runs, self.released, np.int32),
                    np.int32(count),
                )
            ),
        )
        # JAX calls programs without waiting, and on a CPU a program reads numpy's own memory. So a
        # caller who wrote the next people into the same array would put them into this release.
        jax.block_until_ready((states, self._worlds, log, diagnostics))
        states, log, diagnostics = self._devices.gathered((states, log, diagnostics))
        self.released += count
        if padding:  # cut off by numpy, for JAX would compile a program for every shape
            log, diagnostics = jax.tree.map(lambda x: np.asarray(x)[:, :count], (log, diagnostics))
        if diagnostics is not None:
            diagnostics = jax.tree.unflatten(self._traced.diagnostics, diagnostics)
        log = jax.tree.unflatten(self._traced.log, log)
        return like(self._traced.state, states), log, diagnostics

    def _charge(self, count: int, persons: np.ndarray | None) -> None:
        for index, stream in enumerate(self._ledger_streams):
            people = None if persons is None else [row[row >= 0] for row in persons[index]]
            stream.charge(self.released, count, people)

    def _releases(
        self,
        state: State,
        world: Any,
        key: PRNGKeyArray,
        persons: Int[Array, "releases slots"],
        units: Any,
        noises: dict[str, Int32[Array, "releases _"]],
        first: Int[Array, ""],
        count: Int[Array, ""],
    ) -> tuple[State, Any, Any, Any]:
        """Makes the first `count` releases of one run, in one program; zeros stand for the rest."""
        table = sampling_of(self._release) is not None and self._pool is None

        def one(carry: Any, index: Any) -> tuple[Any, Any]:
            own = (persons, () if table else units, noises)
            take = functools.partial(jax.lax.dynamic_index_in_dim, index=index, keepdims=False)
            people, unit_data, noise_row = jax.tree.map(take, own)
            unit_data = units if table else unit_data
            own_key = jax.random.fold_in(key, first + index)
            return self._one_release(carry, own_key, people, unit_data, noise_row)

        def step(index: Any, carry: Any) -> tuple[Any, Any]:
            before, shown = carry
            after, new = one(before, index)
            put = functools.partial(jax.lax.dynamic_update_index_in_dim, index=index, axis=0)
            return after, jax.tree.map(put, shown, new)

        rows = persons.shape[0]
        shown = jax.tree.map(
            lambda x: jnp.zeros((rows, *x.shape), x.dtype),
            jax.eval_shape(one, (state, world), jnp.int32(0))[1],
        )
        (state, world), (log, diagnostics) = jax.lax.fori_loop(
            0, count, step, ((state, world), shown)
        )
        return state, world, log, diagnostics

    def _one_run(
        self,
        state: State,
        world: Any,
        key: Key[Array, " 1"],
        persons: Any,
        units: Any,
        noises: Any,
        first: Any,
        count: Int[Array, ""],
    ) -> Any:
        """Makes a single run without `vmap`, under which branches and loops cost more."""
        stacked = (state, world, key, persons, units, noises, first)
        state, world, key, persons, units, noises, first = at(stacked, 0)
        after = self._releases(state, world, key, persons, units, noises, first, count)
        return single(after)

    def _one_release(
        self, carry: Any, key: PRNGKeyArray, persons: Any, units: Any, noise_row: Any
    ) -> tuple[Any, Any]:
        state, world = carry
        release = self._release
        if release.world is not None:
            key_of_world = jax.random.fold_in(key, _WORLD)
            before = jax.tree.unflatten(self._world, world)
            made = release.world(like(self._traced.state, state), before, key_of_world)
            world, units = map(leaves_of, made)
        if self._batches is not None:
            totals, diagnostics = self._sum_sampled(state, key, persons, units), None
        else:
            totals, diagnostics = self._sum_slots(state, key, persons, units)
        state, log = self._traced.server(state, self._publish(totals, noise_row))
        shown = diagnostics if release.population == "simulated" else None
        return (state, world), (log, shown)

    def _sum_slots(self, state: State, key: PRNGKeyArray, persons: Any, units: Any) -> Any:
        """Sums over all slots, on each device `microbatch` of them at a time."""
        batch = batch_size(self._release)
        return self._devices.sum(self._sum_batch, batch, state, key, persons, units)

    def _sum_sampled(self, state: State, key: PRNGKeyArray, persons: Any, units: Any) -> Any:
        """Sums over everybody who was drawn, in as many batches as needed."""
        assert self._batches is not None
        first, rest = self._batches.first, self._batches.rest
        drawn = jnp.sum(persons >= 0)

        def batch_sum(start: Any, size: int) -> Any:
            people = jax.lax.dynamic_slice_in_dim(persons, start, size)
            if self._pool is None:
                own = at(units, jnp.maximum(people, 0))
            else:
                own = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), units)
            return self._devices.sum(self._sum_batch, None, state, key, people, own)[0]

        def add(carry: Any) -> Any:
            start, totals = carry
            return start + rest, jax.tree.map(jnp.add, totals, batch_sum(start, rest))

        start = (jnp.int32(first), batch_sum(0, first))
        return jax.lax.while_loop(lambda carry: carry[0] < drawn, add, start)[1]

    def _sum_batch(self, state: State, key: PRNGKeyArray, persons: Any, units: Any) -> Any:
        """Clips, rounds and sums one batch of people; an absent person contributes zero."""
        person_keys = jax.vmap(functools.partial(jax.random.fold_in, key))(persons)
        parts, diagnostics = jax.vmap(self._traced.local, in_axes=(None, 0, 0))(
            state, units, person_keys
        )
        clip_norms = {name: part.clip_norm for name, part in self.statement.parts.items()}
        present, clipping = persons >= 0, self._release.clipping
        own = gaussian.materialised({name: parts[name] for name in clip_norms}, present)
        if self._traced.has_factored:
            bounded = jax.vmap(lambda p: factored.bound_contribution(p, clip_norms, clipping))(own)
            totals = {
                name: factored.sum_batch(bounded[name], clip, self._grids[name].spacing, present)
                for name, clip in clip_norms.items()
            }
        else:
            totals = gaussian.sum_people(own, clip_norms, clipping, self._grids, present)
        for name in self._release.unprotected or {}:
            totals[name] = jax.tree.map(
                lambda x: jnp.sum(x, axis=0, where=jnp.expand_dims(present, range(1, x.ndim))),
                parts[name],
            )
        return totals, diagnostics

    def _publish(self, totals: Any, noise_row: Any) -> Contribution:
        """Adds noise to the exact sums and gives them back the shape that `local` gave them."""
        divisor = self._release.divisor
        released: Contribution = {}
        for name, total in totals.items():
            shapes = self._traced.parts[name]
            if name not in noise_row:
                released[name] = jax.tree.map(lambda x: x.astype(jnp.float32) / divisor, total)
                continue
            noisy = functools.partial(gaussian.noisy, grid=self._grids[name], divisor=divisor)
            # Parts without factors come as one vector, the others leaf by leaf.
            if self._traced.has_factored:
                noises = unflatten(noise_row[name], shapes)
                released[name] = jax.tree.map(noisy, total, noises)
            else:
                released[name] = unflatten(noisy(total, noise_row[name]), shapes)
        return released


def unflatten(flat: Array, shapes: Any) -> Any:
    """Returns the tree of these shapes whose leaves, one after the other, are `flat`."""
    leaves = jax.tree.leaves(shapes)
    stops = np.cumsum([leaf.size for leaf in leaves])[:-1]
    pieces = jnp.split(flat, stops)
    shaped = [piece.reshape(leaf.shape) for piece, leaf in zip(pieces, leaves, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(shapes), shaped)


def _pad(array: Any, padding: int, value: int) -> Any:
    """Pads the release axis (axis 1) of an array."""
    if padding:
        pad = np.pad if isinstance(array, np.ndarray) else jnp.pad
        widths = [(0, 0), (0, padding)] + [(0, 0)] * (array.ndim - 2)
        array = pad(array, widths, constant_values=value)
    return array


def _require_shapes(
    role: str, leaves: Leaves, given: Any, expected: Any, leading: tuple[int, ...]
) -> None:
    """Refuses a tree with these leaves that is not `expected` with the `leading` axes in front."""
    structure: Any = jax.tree.structure(given)
    wanted, expected_structure = jax.tree.flatten(expected)
    # `jax.typeof` takes 20 microseconds an array, and a language model has hundreds of them.
    types = [x if isinstance(x, jax.Array) else jax.typeof(x) for x in leaves]
    same = all(
        x.shape == (*leading, *one.shape) and x.dtype == one.dtype
        for x, one in zip(types, wanted, strict=False)
    )
    if not (same and structure == expected_structure):
        expected = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype), expected
        )
        given = jax.tree.map(jax.typeof, given)
        raise ValueError(f"{role} are {given}, but the stream was opened for {expected}")
