"""Replay of a release without one person: the same noise, the same public states, the same keys.

The difference of the two releases is what the person moves, without noise. It is compared with
what the door declares. This needs no confidence: a larger difference refutes the claim.

Guarantee:
    Releases are float32, so each is off by up to a share of the whole sum, however little one
    person moves it. `gaussian.unrounded` bounds this, and every number counts as moved by its
    difference less both bounds. So `shift` and `epsilon_lower` are never above the truth, and no
    true claim is refuted. Of so many people that one moves less than the bounds, nothing is seen.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PyTree

from sotto.keys import new_key
from sotto.privacy.accounting.composition import compose
from sotto.privacy.accounting.events import SampledGaussian
from sotto.privacy.accounting.gaussian import epsilon_of_shift
from sotto.privacy.accounting.sampled_least import (
    MOST_EPSILON,
    NOISE,
    is_resolved,
    sampled_least,
)
from sotto.privacy.audits.audit import temporary_ledger
from sotto.privacy.audits.auditable import Auditable, Door
from sotto.privacy.mechanisms import gaussian
from sotto.privacy.release import factored
from sotto.privacy.release.declaration import grids, noise_scales
from sotto.privacy.statements import Poisson

PEOPLE = 16
"""Number of people who are left out, one after the other."""
_SAMPLED_RELEASES = 32
"""Most releases of a replay in which people are drawn."""


class _Moved(NamedTuple):
    """Differences that each run's person makes in the sums of one part, flat.

    Attributes:
        by: difference of the two worlds.
        error: bound on the rounding error of each difference; 0 for a part without noise.
    """

    by: Float[np.ndarray, "runs releases d"]
    error: Float[np.ndarray, "runs releases d"]


@dataclass(frozen=True)
class Replay:
    """Result of a replay: the largest change of the releases that one person makes.

    Attributes:
        person: index of the person who moves most.
        shift: lower bound on the L2 norm of the difference in standard deviations of the noise,
            over the stream. Under Poisson sampling it is that of the largest in one release.
        epsilon_lower: epsilon of Gaussian noise with this shift, at the claim's delta, rounded
            down. Under Poisson sampling every release is presumed to move as far if the person is
            drawn.
        without_noise: parts without noise that the person changes.
        refuted: whether the claim is smaller.
    """

    person: int
    shift: float
    epsilon_lower: float
    without_noise: tuple[str, ...]
    refuted: bool


def replay(auditable: Auditable, seed: int, people: int = PEOPLE) -> Replay:
    """Replays the releases without each of the first people in turn."""
    door = auditable.door
    assert door is not None
    tried = min(auditable.size, people)
    everybody = np.ones((tried, auditable.size), bool)
    without = everybody.copy()
    without[np.arange(tried), np.arange(tried)] = False
    moved, growth = _moved(door, auditable, everybody, without, seed)
    squares = _squares(door, {name: moved[name] for name in door.release.parts}, growth)
    sampled = isinstance(door.release.participation, Poisson)
    shifts = np.sqrt(squares.max(axis=1) if sampled else squares.sum(axis=1))
    bare = tuple(
        name for name in door.release.unprotected or {} if np.abs(moved[name].by).max() > 0
    )
    person = int(np.argmax(shifts))
    shift = float(shifts[person])
    epsilon = math.inf if bare else _epsilon(door, shift, auditable.delta)
    return Replay(person, shift, epsilon, bare, epsilon > auditable.epsilon)


def _epsilon(door: Door, shift: float, delta: float) -> float:
    """Returns the epsilon, rounded down, of the stream for somebody who shifts its noise so far.

    Where no account of all sampled releases is at hand, that of fewer of them, or of more noise, is
    a lower bound too.
    """
    drawn = door.release.participation
    if not isinstance(drawn, Poisson) or shift == 0:
        return epsilon_of_shift(shift, delta) * (1 - 1e-9)
    event = SampledGaussian(
        noise_multiplier=max(1 / shift, NOISE[0]),
        sampling_rate=drawn.sampling_rate,
        count=door.release.horizon,
    )
    while event.count > 1 and not (
        is_resolved(event, delta) and compose([event]).epsilon(delta) <= MOST_EPSILON
    ):
        event = event.model_copy(update={"count": event.count // 2})
    return sampled_least(event, delta)


def _moved(
    door: Door,
    auditable: Auditable,
    everybody: np.ndarray,
    without: np.ndarray,
    seed: int,
) -> tuple[Mapping[str, _Moved], float]:
    """Returns what each run's person moves, and by how much noise is larger for rounded sums.

    Both worlds start each release from the public state of the one in which all are present. After
    the last release whose people or data differ, nobody moves anything. The draws of Poisson
    sampling are the same in both worlds.
    """
    runs = len(everybody)
    keys = jax.random.split(new_key(seed), runs)
    worlds = [door.enrolled(auditable.people, rows) for rows in (everybody, without)]
    sampled = worlds[0][0] is None
    if sampled:
        releases = replayed = min(door.release.horizon, _SAMPLED_RELEASES)
    else:
        releases = np.shape(worlds[0][0])[1]  # type: ignore[arg-type]
        replayed = _differ_until(worlds[0], worlds[1], releases)
    parts, _ = door.contribution(auditable.people)
    own_grids = grids(door.release, factored.has_factored(parts))
    found: dict[str, list[_Moved]] = {}
    with (
        temporary_ledger(door.release.unit) as first,
        temporary_ledger(door.release.unit) as second,
    ):
        streams = []
        for ledger, (persons, units) in zip((first, second), worlds, strict=True):
            stream, states = door.stream(ledger, persons, units, seed, chunk=1)
            streams.append(stream)
        for index in range(replayed):
            logs = []
            for stream, (persons, units) in zip(streams, worlds, strict=True):
                here = slice(index, index + 1)
                one = units if sampled else jax.tree.map(lambda x, at=here: x[:, at], units)
                present = None if persons is None else persons[:, here]
                after, log, _ = stream.run(jax.tree.map(np.asarray, states), keys, present, one)
                logs.append((after, log["released"]))
            for name in logs[0][1]:
                given, gone = (_flat(one[1][name], runs) for one in logs)
                found.setdefault(name, []).append(
                    _difference(given, gone, own_grids.get(name), door.release.divisor)
                )
            states = jax.tree.map(np.asarray, logs[0][0])
    rest = releases - len(next(iter(found.values())))
    moved = {
        name: _Moved(
            *(
                np.pad(np.stack(one, axis=1), ((0, 0), (0, rest), (0, 0)))
                for one in zip(*rows, strict=True)
            )
        )
        for name, rows in found.items()
    }
    statement = streams[0].statement
    return moved, 1 + statement.sum_rounding + statement.noise_rounding


def _flat(part: PyTree, runs: int) -> Float[np.ndarray, "runs d"]:
    leaves = [np.asarray(x, np.float64).reshape(runs, -1) for x in jax.tree.leaves(part)]
    return np.concatenate(leaves, axis=1)


def _difference(
    given: Float[np.ndarray, "runs d"],
    gone: Float[np.ndarray, "runs d"],
    grid: gaussian.Grid | None,
    divisor: float,
) -> _Moved:
    """Returns the difference of two releases of a part, which has no grid if it has no noise."""
    if grid is None:
        return _Moved(given - gone, np.zeros_like(given))
    (with_person, one), (without, other) = (
        gaussian.unrounded(released, grid, divisor) for released in (given, gone)
    )
    return _Moved(with_person - without, one + other)


def _differ_until(one: PyTree, other: PyTree, releases: int) -> int:
    """Returns how many releases there are up to the last with other people or other data."""
    changed = np.zeros(releases, bool)
    changed[0] = True  # at least one release is made
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        changed |= (np.asarray(a) != np.asarray(b)).any(axis=(0, *range(2, np.ndim(a))))
    return int(np.flatnonzero(changed)[-1]) + 1


def _squares(
    door: Door, moved: Mapping[str, _Moved], growth: float
) -> Float[np.ndarray, "runs releases"]:
    """Returns lower bounds on the squares of how far each person shifts the draws behind the noise.

    Args:
        door: the release.
        moved: what each person moves in each part.
        growth: by how much noise is larger than `noise_scales`.

    Returns:
        Squares of standard deviations.
    """
    squares = np.zeros(())
    for name, scale in noise_scales(door.release).items():
        whitening = door.whitening(moved[name].by.shape[1])
        draws = np.stack([whitening @ by for by in moved[name].by])
        errors = np.stack([abs(whitening) @ error for error in moved[name].error])
        least = np.maximum(np.abs(draws) - errors, 0) / (scale * growth)
        squares = squares + np.square(least).sum(axis=2)
    return squares
