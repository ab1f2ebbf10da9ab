"""Audit of one training with canaries of known contributions, which measures Gaussian noise.

Every person of the training is a canary. A canary contributes, at the clip norm, a direction that a
public seed fixes, and takes part with probability 1/2. Let L be the matrix of `Door.whitening`, y
the released sums times L divided by the noise that the door states, and x the same of the
contributions of those who took part. Then y = a x + s w in each part, where a is the size of a
contribution and s that of the noise, both 1 if the door is right. One combination of all releases
is measured, too: that with the least noise in the even columns of y is measured in the odd ones. So
noise is found that is the same in several releases, or too small in one of them.

Guarantee:
    Presumed is that w is standard normal. x is independent of w, so sqrt(n - 1) <x, y> / sqrt(|x|^2
    |y|^2 - <x, y>^2) has a noncentral t distribution with n - 1 degrees of freedom and
    noncentrality |x| a/s. It gives a lower bound on a/s. Leaving out canary i, whose part of x is
    x_i, moves the mean of the Gaussian vector y by a |x_i| and its noise is s. So no epsilon below
    that of Gaussian differential privacy with mu = a/s max |x_i| is true
    (`gaussian.epsilon_of_shift`). Parts have independent noise, so the squares of their mu add up.
    All bounds share the confidence, and one of them exceeds the truth with probability at most 1 -
    confidence. The proof is in docs/auditing.md.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree
from scipy import optimize, stats

from sotto.keys import new_key
from sotto.privacy.accounting.gaussian import epsilon_of_shift
from sotto.privacy.audits.audit import temporary_ledger
from sotto.privacy.audits.auditable import Auditable, Door
from sotto.privacy.release import factored
from sotto.privacy.release.declaration import noise_scales
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import unflatten
from sotto.privacy.statements import Poisson

_DIRECTIONS = 20_261
"""Public seed of the canaries' directions."""
NEEDS = "only for a Release without secret draws, in which absent people leave their slots empty."
_CHUNKS = 20
_AT_ONCE = 1024
_LARGEST_T = 1e4
_MOST_COMBINED = 1024
"""Most releases of a combination, the first ones."""
_QUIET = 5.0
"""Seconds that nobody needs to be told about."""


@dataclass(frozen=True)
class Sample:
    """Some of the numbers of one training with canaries.

    Attributes:
        expected, seen: whitened contributions x and releases y, as in the head of this file.
        largest: largest norm of one canary's part of `expected`.
    """

    expected: Float[np.ndarray, " n"]
    seen: Float[np.ndarray, " n"]
    largest: float

    def shift_lower(self, confidence: float) -> float:
        """Returns the lower bound on mu."""
        return ratio_lower(self.expected, self.seen, confidence) * self.largest


@dataclass(frozen=True)
class Measurement:
    """Result of one training with canaries.

    Attributes:
        took_part: whether each canary took part.
        scores: of each canary, positive where it seems to have taken part.
        parts: the numbers of each part. The same canary has the largest norm in all of them.
        combined: the same of the combination of releases with the least noise; empty for a single
            release.
    """

    took_part: Bool[np.ndarray, " canaries"]
    scores: Float[np.ndarray, " canaries"]
    parts: tuple[Sample, ...]
    combined: tuple[Sample, ...]

    @property
    def expected(self) -> Float[np.ndarray, " n"]:
        """Whitened contributions of all parts."""
        return np.concatenate([one.expected for one in self.parts])

    @property
    def seen(self) -> Float[np.ndarray, " n"]:
        """Whitened releases of all parts."""
        return np.concatenate([one.seen for one in self.parts])

    @property
    def largest(self) -> float:
        """Largest norm of one canary's part of `expected`."""
        return math.hypot(*(one.largest for one in self.parts))

    @property
    def ratio(self) -> float:
        """Estimate of a/s for all parts, which is 1 if contributions and noise are as stated."""
        expected, seen = self.expected, self.seen
        along = expected @ seen / (expected @ expected)
        rest = seen - along * expected
        return float(along / np.sqrt(rest @ rest / max(1, rest.size - 1)))


def can_measure(auditable: Auditable) -> bool:
    """Whether the code goes through the door, nobody is drawn in secret, and slots have owners."""
    door = auditable.door
    return (
        door is not None
        and not isinstance(door.release.participation, Poisson)
        and _owners(auditable) is not None
    )


def epsilon_lower(found: Measurement, delta: float, confidence: float) -> float:
    """Returns the lower bound on epsilon at delta that presumes Gaussian noise."""
    each = 1 - (1 - confidence) / (len(found.parts) + len(found.combined))
    shift = max(
        math.hypot(*(one.shift_lower(each) for one in parts))
        for parts in (found.parts, found.combined)
    )
    return epsilon_of_shift(shift, delta) if math.isfinite(shift) else math.inf


def ratio_lower(
    expected: Float[np.ndarray, " n"], seen: Float[np.ndarray, " n"], confidence: float
) -> float:
    """Returns a lower bound on a/s from seen = a expected + s w, with w standard normal."""
    length, freedom = float(np.linalg.norm(expected)), seen.size - 1
    if length == 0 or freedom < 1:
        return 0.0
    along = float(expected @ seen) / length
    rest = float(np.linalg.norm(seen - expected * (along / length)))
    if rest == 0:
        return math.inf if along > 0 else 0.0
    # The bound grows with t, and the law is not computed reliably for larger ones.
    t = min(along / rest * math.sqrt(freedom), _LARGEST_T)

    def surprise(noncentrality: float) -> float:
        return float(stats.nct.sf(t, freedom, noncentrality)) - (1 - confidence)

    if t <= 0 or surprise(0.0) >= 0:
        return 0.0
    return float(optimize.brentq(surprise, 0.0, t + 3.0)) / length


def measure(
    auditable: Auditable, seed: int, note: Callable[[str], None] = lambda _: None
) -> Measurement:
    """Trains once with canaries in the place of all people.

    Args:
        auditable: code that `can_measure` accepts.
        seed: seed of coins, noise and training.
        note: called with a sentence after each part of the training.
    """
    door, owners = auditable.door, _owners(auditable)
    assert door is not None
    assert owners is not None
    took_part = np.random.default_rng(seed).random(auditable.size) < 0.5
    persons, _ = door.enrol(auditable.people, took_part)
    parts, _ = door.contribution(auditable.people)
    planted = _Planted(door.release, factored.released_shapes(parts))
    canaries = replace(door, release=planted.release())
    released = _train(canaries, np.asarray(persons), owners, seed, note)
    whitening, scales = door.whitening(len(owners)), noise_scales(door.release)

    def whitened(sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: whitening @ sums[name] / scale for name, scale in scales.items()}

    filled = owners >= 0
    seen = whitened({name: x * door.release.divisor for name, x in released.items()})
    here, all_of_them = planted.sums(owners, np.stack([filled & took_part[owners], filled]))
    expected, everybody = whitened(here), whitened(all_of_them)
    left = {n: whitening.T @ (seen[n] - everybody[n] / 2) / scales[n] for n in scales}
    scores = np.zeros(auditable.size)
    np.add.at(scores, owners[filled], planted.projections(owners, left)[filled])
    _, most = _strongest(owners, whitening)
    parts = tuple(
        Sample(
            expected[name].ravel(),
            seen[name].ravel(),
            planted.share * most * door.release.parts[name].clip_norm / scale,
        )
        for name, scale in scales.items()
    )
    combined = _combined(planted, owners, whitening, expected, seen, scales)
    return Measurement(took_part, scores, parts, combined)


def _combined(
    planted: "_Planted",
    owners: Int[np.ndarray, "releases slots"],
    whitening: Any,
    expected: dict[str, Float[np.ndarray, "releases _"]],
    seen: dict[str, Float[np.ndarray, "releases _"]],
    scales: dict[str, float],
) -> tuple[Sample, ...]:
    """Returns the odd columns of the combination that has the least noise in the even ones."""
    releases = min(len(owners), _MOST_COMBINED)
    if releases < 2:
        return ()
    even_x, even_y = (
        np.concatenate([one[name][:releases, ::2] for name in scales], axis=1)
        for one in (expected, seen)
    )
    along = np.vdot(even_x, even_y) / max(np.vdot(even_x, even_x), np.finfo(float).tiny)
    rest = even_y - along * even_x
    least = np.linalg.eigh(rest @ rest.T)[1][:, 0]  # eigenvalues ascend
    person, most = _strongest(owners, whitening, np.pad(least, (0, len(owners) - releases)))
    own = planted.contribution(jnp.int32(person))
    return tuple(
        Sample(
            least @ expected[name][:releases, 1::2],
            least @ seen[name][:releases, 1::2],
            most * float(np.linalg.norm(np.asarray(own[name], np.float64)[1::2])) / scale,
        )
        for name, scale in scales.items()
    )


def _owners(auditable: Auditable) -> Int[np.ndarray, "releases slots"] | None:
    """Returns which person has each slot, -1 for nobody; None where that is not fixed.

    In enrolment number b only those take part whose index has bit b. So a slot shows the index of
    its owner, if absent people leave their slots empty.
    """
    door, size = auditable.door, auditable.size
    assert door is not None

    def filled(present: np.ndarray) -> np.ndarray:
        return np.asarray(door.enrol(auditable.people, present)[0]) >= 0

    everybody, index = filled(np.ones(size, bool)), np.arange(size)
    owners = np.zeros(everybody.shape, int)
    for bit in range(size.bit_length()):
        owners += filled((index >> bit) & 1 == 1) << bit
    odd = index % 3 == 1
    if (owners >= size).any() or (filled(odd) != (everybody & odd[owners])).any():
        return None
    return np.where(everybody, owners, -1)


def _train(
    door: Door,
    persons: Int[np.ndarray, "releases slots"],
    owners: Int[np.ndarray, "releases slots"],
    seed: int,
    note: Callable[[str], None],
) -> dict[str, Float[np.ndarray, "releases d"]]:
    """Makes all releases of one run in chunks, and returns them, each part flat."""
    releases = len(persons)
    chunk = -(-releases // _CHUNKS)
    found: list[dict[str, np.ndarray]] = []
    keys = jax.random.split(new_key(seed), 1)
    with temporary_ledger(door.release.unit) as ledger:
        stream, states = door.stream(ledger, persons[None, :1], owners[None], seed, chunk)
        for first in range(0, releases, chunk):
            rows = slice(first, first + chunk)
            states, log, _ = stream.run(states, keys, persons[None, rows], owners[None, rows])
            flat = {
                name: [np.asarray(x, np.float64)[0].reshape(len(x[0]), -1) for x in leaves]
                for name, part in log["released"].items()
                if (leaves := jax.tree.leaves(part))
            }
            found.append({name: np.concatenate(x, axis=1) for name, x in flat.items()})
            done, now = min(first + chunk, releases), time.monotonic()
            if first == 0:
                began, base = now, done  # the first chunk includes compiling
            elif (left := (now - began) / (done - base) * (releases - done)) > _QUIET:
                note(f"{done:,} of {releases:,} releases, about {left:.0f} s left")
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def _strongest(
    owners: Int[np.ndarray, "releases slots"],
    whitening: Any,
    combination: Float[np.ndarray, " releases"] | None = None,
) -> tuple[int, float]:
    """Returns who moves most in whitened releases, and by how many contributions.

    Args:
        owners: who has each slot.
        whitening: matrix of `Door.whitening`.
        combination: what each whitened release counts; None takes the norm over all releases.
    """
    people = int(owners.max(initial=0)) + 1
    moved = []
    for first in range(0, people, _AT_ONCE):
        counts = np.zeros((len(owners), min(_AT_ONCE, people - first)))
        at, slot = np.nonzero((owners >= first) & (owners < first + counts.shape[1]))
        np.add.at(counts, (at, owners[at, slot] - first), 1)
        each = whitening @ counts
        moved.append(
            np.linalg.norm(each, axis=0) if combination is None else np.abs(combination @ each)
        )
    everybody = np.concatenate(moved)
    person = int(np.argmax(everybody))
    return person, float(everybody[person])


class _Planted:
    """The contributions of canaries: for each person a direction of norm `share` in every part."""

    def __init__(self, release: Release, shapes: dict[str, PyTree[Any]]) -> None:
        self._release, self._shapes = release, shapes
        self._sizes = {n: sum(x.size for x in jax.tree.leaves(shapes[n])) for n in release.parts}
        joint = release.clipping == "joint"
        self.share = len(self._sizes) ** -0.5 if joint else 1.0

    def contribution(self, person: Int[Array, ""]) -> dict[str, Float[Array, " _"]]:
        """Returns what one person contributes, each part flat."""
        keys = jax.random.split(jax.random.fold_in(new_key(_DIRECTIONS), person), len(self._sizes))
        found = {}
        for key, (name, size) in zip(keys, self._sizes.items(), strict=True):
            drawn = jax.random.normal(key, (size,))
            length = self.share * self._release.parts[name].clip_norm
            found[name] = drawn * (length / jnp.linalg.norm(drawn))
        return found

    def release(self) -> Release:
        """Returns the release in which people contribute this, twice as long before clipping."""

        def local(_state: Any, person: Any, _key: Any) -> tuple[Any, Any]:
            own = self.contribution(person)
            parts = {n: unflatten(2 * own[n], self._shapes[n]) for n in self._sizes}
            nothing = {n: self._shapes[n] for n in self._release.unprotected or {}}
            return parts | jax.tree.map(lambda x: jnp.zeros(x.shape), nothing), ()

        return replace(self._release, local=local, world=None, population="simulated")

    def sums(
        self,
        owners: Int[np.ndarray, "releases slots"],
        counted: Bool[np.ndarray, "n releases slots"],
    ) -> list[dict[str, Float[np.ndarray, "releases d"]]]:
        """Returns the sums over the slots that are counted, in each of n ways to count."""

        def one(given: tuple[Array, Array]) -> dict[str, Array]:
            people, weights = given
            return {n: weights @ x for n, x in jax.vmap(self.contribution)(people).items()}

        weights = jnp.asarray(np.moveaxis(counted, 0, 1), jnp.float32)
        found = jax.jit(lambda x: jax.lax.map(one, x))((jnp.asarray(owners), weights))
        plain = {name: np.asarray(x, np.float64) for name, x in found.items()}
        return [{name: x[:, way] for name, x in plain.items()} for way in range(len(counted))]

    def projections(
        self, owners: Int[np.ndarray, "releases slots"], onto: dict[str, np.ndarray]
    ) -> Float[np.ndarray, "releases slots"]:
        """Returns the inner product of each slot's contribution with a vector for its release."""

        def one(given: tuple[Array, dict[str, Array]]) -> Array:
            people, vectors = given
            own = jax.vmap(self.contribution)(people)
            return sum((own[n] @ vectors[n] for n in vectors), jnp.float32(0))

        vectors = {name: jnp.asarray(x, jnp.float32) for name, x in onto.items()}
        found = jax.jit(lambda x: jax.lax.map(one, x))((jnp.asarray(owners), vectors))
        return np.asarray(found, np.float64)
