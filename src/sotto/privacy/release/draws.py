"""The draws of a stream for its releases: noise, and the secret sample of people.

A separate thread draws both ahead of time: it computes the noise of the next chunk of releases
during the present one. Nothing is drawn before the first charge, every row of noise serves one
release, and draws are kept in memory only.
"""

import math
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jaxtyping import Array, Bool, Int, Int32, PyTree

from sotto.privacy.mechanisms import noise
from sotto.privacy.mechanisms.correlated import NoiseSequence
from sotto.privacy.mechanisms.gaussian import Grid
from sotto.privacy.statements import Poisson

_ALIGNMENT = 64
_TOGETHER = 2**20
"""Number of independent draws made at once, where a release has fewer; they take 8 MiB."""

_COIN_SIDES = 2.0**53

UnitData = PyTree[Array | np.ndarray]


class Pool(Protocol):
    """Data of a population outside the compiled program, which gets the rows of drawn people.

    The row of a person must depend on that person's data and on the generator only, and not on the
    other people in the call. A person without data gets a row as well.
    """

    def draw(
        self, persons: Int[np.ndarray, " n"], generator: np.random.Generator
    ) -> PyTree[np.ndarray]:
        """Returns one row of unit data for each of these persons, leaves of shape [n, ...]."""


class Drawn(NamedTuple):
    """The draws of some releases; leaves have leading axes [runs, releases].

    Attributes:
        noise: integers on the grid of each part.
        persons: the people that Poisson sampling drew, padded with -1 to the capacity; None
            without sampling.
        units: rows of a pool for these persons; () without one.
    """

    noise: dict[str, Int32[Array | np.ndarray, "runs releases _"]]
    persons: Int32[np.ndarray, "runs releases capacity"] | None = None
    units: PyTree[np.ndarray] = ()


@dataclass(frozen=True)
class Batches:
    """Sizes of the batches of sampled people: a large one, then small ones while people are left.

    Places beyond the people drawn are padding. Nobody who was drawn is left out.
    """

    first: int
    rest: int
    likely: int
    """Number of slots that hold nearly every draw, so that one program serves most chunks."""

    def capacity(self, drawn: int) -> int:
        """Returns the least number of slots, in whole batches, that hold this many people."""
        return self.first + self.rest * max(0, -(-(drawn - self.first) // self.rest))

    def sizes(self, drawn: int) -> list[int]:
        """Returns the sizes of the batches that hold this many people."""
        return [self.first] + [self.rest] * ((self.capacity(drawn) - self.first) // self.rest)


def most_drawn(participation: Poisson, miss: float) -> int:
    """Returns how many people are drawn at most, but with probability `miss`.

    Bernstein's inequality: more than t people above the mean m are drawn with probability at most
    exp(-t^2 / (2 m + 2 t / 3)).
    """
    mean, nats = participation.population * participation.sampling_rate, -math.log(miss)
    above = nats / 3 + math.sqrt(nats * nats / 9 + 2 * nats * mean)
    return min(participation.population, math.ceil(mean + above))


def batches(participation: Poisson, microbatch: int | None, devices: int) -> Batches:
    """Returns the batches for a sampling rate; the first one holds three draws in four.

    Padding of the first batch is computed in every release, and further batches only where they
    are needed. Each batch has equally many people for each device, `microbatch` of them if that is
    given.
    """
    population, rate = participation.population, participation.sampling_rate
    mean, deviation = population * rate, (population * rate * (1 - rate)) ** 0.5
    if microbatch is not None:
        first = rest = devices * min(population, microbatch)
    else:
        first, rest = (
            devices * math.ceil(min(population, size) / devices)
            for size in (mean + 0.75 * deviation, deviation)
        )
    likely = Batches(first, rest, 0).capacity(min(population, round(mean + 6 * deviation) + 6))
    return Batches(first, rest, likely)


class Draws:
    """Draws for each chunk of releases, one chunk ahead.

    Args:
        generators: where generators come from; each is used once.
        sequence: the stream's noise over time.
        dimensions, scales, grids: of each part.
        runs: how many runs there are.
        horizon: releases of the stream.
        chunk: releases drawn at once.
        participation: given where people are sampled.
        batches: how sampled people are processed.
        pool: given where the sampled people's data are outside the program.
        unit: shapes of one person's data in the pool.
    """

    def __init__(
        self,
        generators: noise.GeneratorSource,
        sequence: NoiseSequence,
        dimensions: dict[str, int],
        scales: dict[str, float],
        grids: dict[str, Grid],
        *,
        runs: int,
        horizon: int,
        chunk: int,
        participation: Poisson | None,
        batches: Batches | None,
        pool: Pool | None,
        unit: PyTree[jax.ShapeDtypeStruct],
    ) -> None:
        self._generators = generators
        self._sequence = sequence
        self._dimensions, self._scales, self._grids = dimensions, scales, grids
        self._runs, self._horizon, self._chunk = runs, horizon, chunk
        self._participation, self._batches, self._pool = participation, batches, pool
        self._unit = unit
        self._capacity = 0 if batches is None else batches.likely
        self._made = 0
        self._left: Drawn | None = None
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._next: Future[Drawn] | None = None

    def take(self, count: int) -> Drawn:
        """Returns draws of the next `count` releases, at most a chunk and within the horizon."""
        ready, self._left = self._left, None
        while ready is None or _releases(ready) < count:
            more = (self._next or self._begin()).result()
            ready = more if ready is None else _joined(ready, more)
            self._next = self._begin() if self._made < self._horizon else None
        if _releases(ready) > count:
            self._left = jax.tree.map(lambda x: x[:, count:], ready)
            ready = jax.tree.map(lambda x: x[:, :count], ready)
        return ready

    def _begin(self) -> "Future[Drawn]":
        count = min(self._chunk, self._horizon - self._made)
        self._made += count
        return self._worker.submit(self._draw, count)

    def _draw(self, count: int) -> Drawn:
        noises = _on_device(self._noise(count))
        if self._participation is None:
            return Drawn(noises)
        shape = (self._runs, count, self._participation.population)
        coins = self._generators.next().random(shape)
        # A coin is a multiple of 2^-53, and at most as likely to fall below this as is stated.
        rate = math.floor(self._participation.sampling_rate * _COIN_SIDES) / _COIN_SIDES
        persons = self._compacted(coins < rate)
        return Drawn(noises, persons, self._rows(persons))

    def _noise(self, count: int) -> dict[str, Int32[np.ndarray, "runs releases _"]]:
        generator, size = self._generators.next(), sum(self._dimensions.values())
        noises = {
            name: _aligned((self._runs, count, d), np.int32) for name, d in self._dimensions.items()
        }
        stops = np.cumsum([0, *self._dimensions.values()])
        ratios = {
            name: self._sequence.refinement * scale / self._grids[name].spacing
            for name, scale in self._scales.items()
        }
        if self._sequence.correlation.kind == "independent":
            for name, d in self._dimensions.items():
                together = max(1, _TOGETHER // (self._runs * d))
                for start in range(0, count, together):
                    some = noises[name][:, start : start + together]
                    some[:] = noise.rounded_normal(generator, some.shape, ratios[name])
            return noises
        each = np.repeat([ratios[name] for name in noises], list(self._dimensions.values()))
        fresh = noise.rounded_normal(generator, (self._runs, count, size), each)
        rows = self._sequence.next_rows(fresh)
        for name, start, stop in zip(noises, stops, stops[1:], strict=False):
            noises[name][:] = rows[..., start:stop]
        return noises

    def _compacted(
        self, present: Bool[np.ndarray, "runs releases population"]
    ) -> Int32[np.ndarray, "runs releases capacity"]:
        """Returns the numbers of those present, padded with -1. The capacity grows if it must."""
        assert self._batches is not None
        sizes = present.sum(axis=2)
        if sizes.max() > self._capacity:
            self._capacity = self._batches.capacity(int(sizes.max()))
        persons = np.full((*sizes.shape, self._capacity), -1, np.int32)
        release, person = np.divmod(np.flatnonzero(present), present.shape[2])
        begins = np.cumsum(sizes) - sizes.ravel()
        place = np.arange(person.size) - np.repeat(begins, sizes.ravel())
        persons.reshape(-1, self._capacity)[release, place] = person
        return persons

    def _rows(self, persons: Int32[np.ndarray, "runs releases capacity"]) -> Any:
        """Returns the pool's rows of the people drawn, and zeros elsewhere."""
        if self._pool is None:
            return ()
        drawn = persons >= 0

        def placed(rows: np.ndarray) -> np.ndarray:
            whole = np.zeros((*persons.shape, *rows.shape[1:]), rows.dtype)
            whole[drawn] = rows
            return whole

        generator = self._generators.next()
        if not drawn.any():
            return jax.tree.map(
                lambda one: np.zeros((*persons.shape, *one.shape), one.dtype), self._unit
            )
        rows = self._pool.draw(persons[drawn], generator)
        _require_rows(rows, int(drawn.sum()), self._unit)
        return jax.tree.map(placed, rows)


def _require_rows(rows: Any, count: int, unit: PyTree[jax.ShapeDtypeStruct]) -> None:
    """Refuses rows that are not one for each person, of the shapes that the programs have.

    NumPy would give one row to everybody, and JAX would trace programs again for other shapes.
    """
    structure: Any = jax.tree.structure(unit)
    same = jax.tree.structure(rows) == structure and all(
        np.shape(x) == (count, *one.shape)
        and jax.dtypes.canonicalize_dtype(np.asarray(x).dtype) == one.dtype
        for x, one in zip(jax.tree.leaves(rows), jax.tree.leaves(unit), strict=False)
    )
    if not same:
        raise ValueError(
            "the pool must return one row for each person that was asked for, always of the same "
            "shape and type; give a person without data a row of zeros"
        )


def _aligned(shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
    """Returns an empty array that is aligned so that JAX can use its memory without a copy."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    whole: np.ndarray = memory[start : start + size].view(dtype).reshape(shape)
    return whole


def _on_device(noises: dict[str, Any]) -> dict[str, Any]:
    """Copies noise to a GPU while it still computes earlier releases. A CPU needs no copy."""
    return noises if jax.default_backend() == "cpu" else jax.device_put(noises)


def _releases(drawn: Drawn) -> int:
    return int(next(iter(drawn.noise.values())).shape[1])


def _joined(one: Drawn, other: Drawn) -> Drawn:
    joined: Drawn = jax.tree.map(lambda a, b: np.concatenate([a, b], axis=1), one, other)
    return joined
